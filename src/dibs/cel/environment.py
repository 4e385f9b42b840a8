"""The environment that expressions are compiled in, and the programs that come out.

This is what users of the package call: ``Environment(...)`` once, ``compile`` once per expression, ``Program.evaluate``
as often as needed. Both are immutable and may be shared between threads.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dibs.cel.checker import Checker
from dibs.cel.codegen import FILENAME, Generator
from dibs.cel.cost import Estimate
from dibs.cel.declarations import Function, Library, Overload
from dibs.cel.errors import CelError, CelRuntimeError, CelSyntaxError, CelTypeError
from dibs.cel.library.standard import NAMES, standard
from dibs.cel.macros import STANDARD, Macro
from dibs.cel.nodes import Ident, Node, Select
from dibs.cel.operators import Meter
from dibs.cel.parser import parse
from dibs.cel.types import Type, is_dynamic, type_of
from dibs.cel.validators import validate
from dibs.cel.values import INT_MAX, INT_MIN, UINT_MAX, TypeValue, Uint, map_key, type_name

DEFAULT_COST_LIMIT: Final = 1_000_000
MAX_LENGTH: Final = 100_000

# Their overloads stand in alphabetical order, as in cel-go: the first that fits says what `[][0]` is.
_ARITHMETIC: Final = frozenset(("_+_", "_-_", "_*_", "_/_", "_%_", "-_"))

_NAMES: Final = (Ident, Select)

_standard: Library | None = None


def _standard_library() -> Library:
    global _standard  # noqa: PLW0603 - made once, on first use
    if _standard is None:
        _standard = standard()
    return _standard


class Environment:
    """Declared variables and functions.

    ``variables``: name (may be dotted) to type. ``libraries``: see ``dibs.cel.libraries``. ``container``: the namespace
    that short names are looked up in. ``homogeneous_literals``: refuse ``[1, "a"]``. ``strict_literals``: refuse
    what a literal cannot mean (``duration("x")``), as Kubernetes does. ``max_length``: of an expression.
    ``cost_limit``: what one evaluation may cost; ``static_cost_limit``: refuse what could cost more, when compiling.
    ``step_limit``: how many turns all loops of one evaluation may take.
    """

    def __init__(
        self,
        variables: Mapping[str, Type] | None = None,
        libraries: Sequence[Library] = (),
        *,
        container: str = "",
        homogeneous_literals: bool = False,
        strict_literals: bool = False,
        max_length: int = MAX_LENGTH,
        cost_limit: float = DEFAULT_COST_LIMIT,
        static_cost_limit: float | None = None,
        step_limit: int | None = None,
    ) -> None:
        self.container = container
        self.homogeneous_literals = homogeneous_literals
        self.strict_literals = strict_literals
        self.max_length = max_length
        self.cost_limit = cost_limit
        self.static_cost_limit = static_cost_limit
        self.step_limit = step_limit
        self.functions: dict[str, Function] = {}
        self.macros: dict[str, Macro] = dict(STANDARD)
        self.constants: dict[str, Any] = {name: TypeValue(name) for name in NAMES}
        self.variables: dict[str, Type] = dict(NAMES)
        for library in (_standard_library(), *libraries):
            self._add(library)
        self.variables.update(variables or {})
        for name in variables or {}:
            self.constants.pop(name, None)

    def _add(self, library: Library) -> None:
        for function in library.functions:
            known = self.functions.get(function.name)
            overloads = [*(known.overloads if known is not None else ()), *function.overloads]
            if function.name in _ARITHMETIC:
                overloads.sort(key=_kinds)
            self.functions[function.name] = Function(function.name, *overloads)
        self.macros.update(library.macros)
        for kind in library.types:
            self.variables[kind.name] = type_of(kind)
            self.constants[kind.name] = TypeValue(kind.name)

    def compile(self, expression: str, *, check: bool = True) -> "Program":
        """Parse, check and translate. Without ``check`` undeclared names and wrong types fail while running."""
        try:
            expression.encode()
        except UnicodeEncodeError:
            raise CelSyntaxError("the expression holds a lone surrogate") from None
        try:
            root = parse(
                expression, self.macros, optional_syntax="optional.of" in self.functions, max_length=self.max_length
            )
            checker = Checker(
                self.variables,
                self.functions,
                container=self.container,
                homogeneous=self.homogeneous_literals,
                lenient=not check,
            )
            checker.run(root, expression)
            if self.strict_literals and check:
                validate(root, checker.visited, self.constants)
            estimate = Estimate(root, self.variables)
            result = root.type
            checker.distrust()
            return Program(self, expression, root, checker.visited, estimate, result)
        except RecursionError:
            # The limits on nesting make this rare: it takes a caller that is itself deep in recursion.
            raise CelSyntaxError("the expression is nested too deeply", expression=expression) from None
        except CelError as error:
            error.locate(expression, None)
            raise


class Program:
    """A compiled expression.

    ``type``: of the result. ``cost``: the upper bound, maybe infinite. ``variables``: the names that it reads.
    """

    __slots__ = ("_environment", "_metered", "_plain", "_root", "bounded", "cost", "expression", "type", "variables")

    def __init__(
        self,
        environment: Environment,
        expression: str,
        root: Node,
        visited: list[Node],
        estimate: Estimate,
        result: Type,
    ) -> None:
        self._environment = environment
        self._root = root
        self.expression = expression
        self.type = result
        self.cost = estimate.cost
        limit = environment.static_cost_limit
        if limit is not None and self.cost > limit:
            raise CelTypeError(f"the expression may cost {self.cost:g} units; at most {limit:g} are allowed")
        names = {node.resolved: None for node in visited if isinstance(node, _NAMES) and node.resolved is not None}
        self.variables = tuple(name for name in names if name not in environment.constants)
        self.bounded = not estimate.grows and self.cost <= environment.cost_limit
        self._plain: Callable[..., Any] | None = None
        self._metered: Callable[..., Any] | None = None
        if self.bounded:
            self._plain = self._generate(metered=False)
        else:
            self._metered = self._generate(metered=True)

    def _generate(self, *, metered: bool) -> Callable[..., Any]:
        generator = Generator(list(self.variables), self._environment.constants, metered=metered)
        return generator.function(self._root)

    @property
    def function(self) -> Callable[..., Any] | None:
        """The bare function of the variables, in the order of ``variables``; None where it needs a budget.

        For callers that have checked values at hand; ``failure`` explains what it raises.
        """
        return self._plain

    def evaluate(
        self,
        activation: Mapping[str, Any] | None = None,
        *,
        cost_limit: float | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Any:
        """The value for these variables, as a CEL value. ``cancelled`` is asked every hundred turns of loops."""
        given = activation or {}
        arguments = []
        for name in self.variables:
            if name not in given:
                raise CelRuntimeError(f"no such attribute: {name}", expression=self.expression)
            arguments.append(adapt(given[name], self._environment.variables[name], name))
        return self.run(arguments, cost_limit=cost_limit, cancelled=cancelled)

    def run(
        self,
        arguments: Sequence[Any],
        *,
        cost_limit: float | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Any:
        """Like ``evaluate``, with CEL values in the order of ``variables``."""
        try:
            if self._plain is not None and cost_limit is None and cancelled is None:
                return self._plain(*arguments)
            if self._metered is None:
                self._metered = self._generate(metered=True)
            limit = self._environment.cost_limit if cost_limit is None else cost_limit
            meter = Meter(limit, self._environment.step_limit, cancelled)
            return meter.run(self._metered, arguments)
        except (CelError, KeyError, ValueError, RecursionError) as error:
            raise self.failure(error) from None

    def measure(self, arguments: Sequence[Any]) -> tuple[Any, int, int]:
        """Like ``run``, with what the evaluation cost and how many errors it absorbed."""
        try:
            if self._metered is None:
                self._metered = self._generate(metered=True)
            meter = Meter(self._environment.cost_limit, self._environment.step_limit)
            value = meter.run(self._metered, arguments)
            return value, int(meter.used), meter.absorbed
        except (CelError, KeyError, ValueError, RecursionError) as error:
            raise self.failure(error) from None

    def failure(self, error: Exception) -> CelError:
        """What the function raised, as a CelError that knows its place."""
        if isinstance(error, CelError):
            found = error
        elif isinstance(error, KeyError):
            found = CelRuntimeError(f"no such key: {error.args[0] if error.args else ''}")
        elif isinstance(error, RecursionError):
            found = CelRuntimeError("the values are nested too deeply")
        else:
            found = CelRuntimeError(str(error))
        offset = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILENAME:
                offset = trace.tb_lineno - 1
            trace = trace.tb_next
        found.locate(self.expression, offset)
        return found.with_traceback(None)


def _kinds(overload: Overload) -> list[str]:
    return [kind.name.rpartition(".")[2].lower() for kind in overload.params]


def adapt(value: Any, kind: Type, name: str) -> Any:
    """A Python value as a CEL value of a declared type: tuples become lists, bool keys are told from ints."""
    made = _adapted(value, name, 0)
    if not is_dynamic(kind) and kind.kind in _CHECKED and type_name(made) != kind.name:
        if kind.kind == "uint" and type(made) is int and 0 <= made <= UINT_MAX:
            return Uint(made)
        raise CelRuntimeError(f"variable '{name}' is declared as {kind} but is {type_name(made)}")
    if kind.kind == "opaque" and kind.python is not None and not isinstance(made, kind.python):
        raise CelRuntimeError(f"variable '{name}' is declared as {kind} but is {type_name(made)}")
    return made


_CHECKED: Final = frozenset(("bool", "int", "uint", "double", "string", "bytes", "null_type", "list", "map"))


def _adapted(value: Any, name: str, depth: int) -> Any:
    kind = type(value)
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise CelRuntimeError(f"variable '{name}': {value} does not fit into 64 bits")
        return value
    if depth > 100:
        raise CelRuntimeError(f"variable '{name}' is nested too deeply")
    if kind is list or kind is tuple:
        return [_adapted(item, name, depth + 1) for item in value]
    if kind is dict:
        return {map_key(key): _adapted(item, name, depth + 1) for key, item in value.items()}
    return value

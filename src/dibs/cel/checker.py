"""The static checker: resolves names, chooses overloads, infers types, and collects every problem it finds.

Called by ``Environment.compile`` after parsing. It writes its findings into the nodes (``type``, ``resolved``,
``overloads``) and evaluates nothing. In lenient mode (compile without checking) a problem is left for the run time.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dibs.cel.declarations import Function, Overload
from dibs.cel.errors import CelCompileError, CelTypeError
from dibs.cel.nodes import (
    Bind,
    Call,
    Comprehension,
    Conditional,
    Ident,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    MessageLiteral,
    Node,
    OptionalMap,
    Select,
    children,
    qualified_name,
)
from dibs.cel.types import (
    ANY,
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    UINT,
    Bindings,
    Type,
    assignable,
    is_dynamic,
    list_of,
    map_of,
    more_general,
    optional_of,
    parameter,
    resolve,
    substitute,
)
from dibs.cel.values import Uint

_LITERALS: Final = {
    bool: BOOL, int: INT, Uint: UINT, float: DOUBLE, str: STRING, bytes: BYTES, type(None): NULL,
}  # fmt: skip
_MAX_PROBLEMS: Final = 20
# What cel-go calls for whatever value is there, also where only one overload was found when compiling.
_BY_TRAIT: Final = frozenset(("_+_", "_-_", "_*_", "_/_", "_%_", "-_", "_<_", "_<=_", "_>_", "_>=_", "size"))


class Checker:
    """One check of one expression."""

    def __init__(
        self,
        variables: Mapping[str, Type],
        functions: Mapping[str, Function],
        *,
        container: str = "",
        homogeneous: bool = False,
        lenient: bool = False,
    ) -> None:
        self.variables = variables
        self.functions = functions
        self.container = container
        self.homogeneous = homogeneous
        self.lenient = lenient
        self.problems: list[CelCompileError] = []
        self.bindings: Bindings = {}
        self.scopes: list[dict[str, Type]] = []
        self.fresh = 0
        self.visited: list[Node] = []
        self.found: list[Type] = []
        self.formatting = 0
        # Type parameters that met only `dyn`: what they are bound to later is what is wanted, not what will be there.
        self.guessed: set[str] = set()
        # Calls that take a dyn for a list, map or optional: what is in it may be of another kind than the result says.
        self.loose: set[Node] = set()

    def run(self, root: Node, text: str) -> Type:
        """Check everything; raise all problems as one error."""
        self.check(root)
        if self.problems and not self.lenient:
            problems = self.problems[:_MAX_PROBLEMS]
            for problem in problems:
                problem.locate(text, None)
            raise CelCompileError.of(problems)
        for node in self.visited:
            if node.type.generic:
                node.type = substitute(self.bindings, node.type, free_as_dyn=True)
        return root.type

    def distrust(self) -> None:
        """Let generated code take for unknown what was only inferred from how a value behind `dyn` is used."""
        if self.guessed:
            open_bindings = {name: kind for name, kind in self.bindings.items() if name not in self.guessed}
            for node, kind in zip(self.visited, self.found, strict=True):
                node.type = substitute(open_bindings, kind, free_as_dyn=True)
        if not self.loose:
            return
        loose: set[Node] = set()
        for node in self.visited:
            local = isinstance(node, Ident) and node.resolved is None and bool(loose)
            if local or node in self.loose or any(child in loose for child in children(node)):
                loose.add(node)
                node.type = DYN
                if isinstance(node, Call) and node.function in _BY_TRAIT and node not in self.loose:
                    node.tried = self.of_shape(node, self.functions[node.function])

    # -- helpers

    def problem(self, node: Node, message: str) -> Type:
        if len(self.problems) <= _MAX_PROBLEMS:
            self.problems.append(CelTypeError(message, offset=node.offset))
        return ERROR

    def new_parameter(self) -> Type:
        self.fresh += 1
        return parameter(f"_{self.fresh}")

    def fits(self, source: Type, target: Type) -> bool:
        if source is target:
            return True
        trial = dict(self.bindings)
        if not assignable(trial, source, target):
            return False
        self.bindings = trial
        return True

    def expect(self, node: Node, kind: Type, wanted: Type) -> None:
        if not self.fits(kind, wanted):
            self.problem(node, f"expected type '{wanted}' but found '{self.shown(kind)}'")

    def shown(self, kind: Type) -> str:
        return str(substitute(self.bindings, kind, free_as_dyn=True))

    def join(self, node: Node, one: Type | None, other: Type) -> Type:
        """The type of an aggregate's elements so far."""
        if one is None:
            return other
        if self.fits(other, one) or self.fits(one, other):
            return more_general(substitute(self.bindings, one), substitute(self.bindings, other))
        if self.homogeneous and not self.formatting:
            return self.problem(node, f"expected type '{self.shown(one)}' but found '{self.shown(other)}'")
        return DYN

    def candidates(self, name: str) -> list[str]:
        """The full names that a name may stand for: innermost container first; a leading dot means the root."""
        if name.startswith("."):
            return [name[1:]]
        found: list[str] = []
        container = self.container
        while container:
            found.append(f"{container}.{name}")
            container = container.rpartition(".")[0]
        return [*found, name]

    def local(self, name: str) -> Type | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def variable(self, name: str) -> str | None:
        if name in self.variables and not self.container:
            return name
        return next((full for full in self.candidates(name) if full in self.variables), None)

    # -- nodes

    def check(self, node: Node) -> Type:
        node.type = found = _METHODS[type(node)](self, node)
        self.visited.append(node)
        self.found.append(found)
        return resolve(self.bindings, found) if found.kind == "param" else found

    def literal(self, node: Literal) -> Type:
        return _LITERALS[type(node.value)]

    def ident(self, node: Ident) -> Type:
        local = self.local(node.name)
        if local is not None:
            return local
        node.resolved = self.variable(node.name)
        if node.resolved is None:
            return self.undeclared(node, node.name)
        return self.variables[node.resolved]

    def undeclared(self, node: Node, name: str) -> Type:
        self.problem(node, f"undeclared reference to '{name.lstrip('.')}' (in container '{self.container}')")
        return DYN if self.lenient else ERROR

    def select(self, node: Select) -> Type:
        name = None if node.test or node.optional else qualified_name(node)
        if name is not None and self.local(name.partition(".")[0]) is None:
            node.resolved = self.variable(name)
            if node.resolved is not None:
                return self.variables[node.resolved]
        operand = self.check(node.operand)
        if operand.kind == "error":
            return BOOL if node.test else ERROR
        wrapped = operand.kind == "optional"
        inner = resolve(self.bindings, operand.params[0]) if wrapped else operand
        found = self.field(node, inner)
        if node.test:
            return BOOL
        return optional_of(found) if node.optional or wrapped else found

    def field(self, node: Select, operand: Type) -> Type:
        if operand.kind == "map":
            return operand.params[1]
        if operand.fields is not None:
            if node.field in operand.fields:
                return operand.fields[node.field]
            return self.problem(node, f"undefined field '{node.field}'")
        if is_dynamic(operand) or operand.kind == "param":
            return DYN
        return self.problem(node, f"type '{self.shown(operand)}' does not support field selection")

    def call(self, node: Call) -> Type:
        function = self.function(node)
        if node.target is not None:
            arguments = [node.target, *node.args]
        else:
            arguments = node.args
        # The arguments of a format may be of several kinds.
        formatting = node.function == "format" and node.target is not None
        self.formatting += formatting
        kinds = [self.check(argument) for argument in arguments]
        self.formatting -= formatting
        if function is None:
            return self.undeclared(node, node.function)
        return self.resolve_overload(node, function, kinds)

    def function(self, node: Call) -> Function | None:
        """Find the declaration; a target that is a namespace (``math`` in ``math.abs(x)``) is dropped."""
        if node.target is None:
            if node.function in self.functions and not self.container:
                return self.functions[node.function]
            for full in self.candidates(node.function):
                if full in self.functions:
                    node.function = full  # without a leading dot: costs go by the name
                    return self.functions[full]
            return None
        prefix = qualified_name(node.target)
        if prefix is not None and self.local(prefix.partition(".")[0]) is None:
            for full in self.candidates(f"{prefix}.{node.function}"):
                if full in self.functions:
                    node.target, node.function = None, full
                    return self.functions[full]
        return self.functions.get(node.function)

    def resolve_overload(self, node: Call, function: Function, kinds: list[Type]) -> Type:
        result: Type | None = None
        loose = False
        for overload in function.overloads:
            if overload.member != (node.target is not None) or len(overload.params) != len(kinds):
                continue
            names: Bindings = {}
            fits = _plainly_fits(kinds, overload.params)
            if fits is None:
                trial = dict(self.bindings)
                params = [self.instantiate(param, names) for param in overload.params]
                fits = all(assignable(trial, kind, param) for kind, param in zip(kinds, params, strict=True))
            else:
                trial = self.bindings
            if not fits:
                continue
            node.overloads.append(overload)
            # What the first fit binds is bound for those after it, as in cel-go.
            self.bindings = trial
            unbound = [fresh.name for fresh in names.values() if fresh.name not in trial]
            if unbound and any(_holds_dyn(trial, kind) for kind in kinds):
                self.guessed.update(unbound)
            loose = loose or (bool(names) and any(map(_is_loose, kinds, overload.params)))
            found = substitute(trial, self.instantiate(overload.result, names))
            result = found if result is None or result == found else DYN
        if result is None:
            if not any(overload.member == (node.target is not None) for overload in function.overloads):
                return self.undeclared(node, node.function)
            shown = [self.shown(kind) for kind in kinds]
            applied = f"{shown[0]}.({', '.join(shown[1:])})" if node.target is not None else f"({', '.join(shown)})"
            self.problem(node, f"found no matching overload for '{node.function}' applied to '{applied}'")
            return self.fallback(node, function)
        if loose and not is_dynamic(result):
            self.loose.add(node)
        return result

    def fallback(self, node: Call, function: Function) -> Type:
        """Without checking, whatever has the right shape may be tried at run time."""
        if not self.lenient:
            return ERROR
        node.overloads = self.of_shape(node, function)
        return DYN

    def of_shape(self, node: Call, function: Function) -> list[Overload]:
        member = node.target is not None
        count = len(node.args) + member
        return [one for one in function.overloads if one.member == member and len(one.params) == count]

    def instantiate(self, kind: Type, names: Bindings) -> Type:
        if not kind.generic:
            return kind
        if kind.kind == "param":
            if kind.name not in names:
                names[kind.name] = self.new_parameter()
            return names[kind.name]
        params = tuple(self.instantiate(param, names) for param in kind.params)
        return Type(kind.kind, params, name=kind.name, python=kind.python, max_size=kind.max_size)

    def logic(self, node: Logic) -> Type:
        for operand in node.operands:
            kind = self.check(operand)
            if not self.fits(kind, BOOL):
                symbol = "_&&_" if node.conjunction else "_||_"
                kinds = f"(bool, {self.shown(kind)})"
                self.problem(operand, f"found no matching overload for '{symbol}' applied to '{kinds}'")
        return BOOL

    def conditional(self, node: Conditional) -> Type:
        condition = self.check(node.condition)
        then, otherwise = self.check(node.then), self.check(node.otherwise)
        if not self.fits(condition, BOOL):
            shown = ", ".join(self.shown(kind) for kind in (condition, then, otherwise))
            self.problem(node, f"found no matching overload for '_?_:_' applied to '({shown})'")
        if is_dynamic(then) and is_dynamic(otherwise):
            return otherwise  # of two unknown types cel-go takes the later one
        if self.fits(otherwise, then) or self.fits(then, otherwise):
            return more_general(substitute(self.bindings, then), substitute(self.bindings, otherwise))
        shown = ", ".join(self.shown(kind) for kind in (condition, then, otherwise))
        self.problem(node, f"found no matching overload for '_?_:_' applied to '({shown})'")
        return DYN if self.lenient else ERROR

    def list_literal(self, node: ListLiteral) -> Type:
        element: Type | None = None
        for place, item in enumerate(node.elements):
            kind = self.check(item)
            if place in node.optional:
                kind = self.unwrap(item, kind)
            element = self.join(item, element, kind)
        return list_of(element or self.new_parameter())

    def unwrap(self, node: Node, kind: Type) -> Type:
        if kind.kind == "optional":
            return resolve(self.bindings, kind.params[0])
        if is_dynamic(kind):
            return DYN
        return self.problem(node, f"expected type 'optional_type' but found '{self.shown(kind)}'")

    def map_literal(self, node: MapLiteral) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for key, value, optional in node.entries:
            kind = self.check(key)
            if kind.kind not in ("int", "uint", "bool", "string", "dyn", "any", "error", "param"):
                self.problem(key, f"unsupported key type '{self.shown(kind)}': use int, uint, bool or string")
            keys = self.join(key, keys, kind)
            held = self.check(value)
            values = self.join(value, values, self.unwrap(value, held) if optional else held)
        return map_of(keys or self.new_parameter(), values or self.new_parameter())

    def message_literal(self, node: MessageLiteral) -> Type:
        return self.undeclared(node, node.name)

    def comprehension(self, node: Comprehension) -> Type:
        kind = self.check(node.range)
        types = self.elements(node, kind)
        self.scopes.append(dict(zip(node.variables, types, strict=True)))
        if node.condition is not None:
            self.expect(node.condition, self.check(node.condition), BOOL)
        result = self.check(node.result) if node.result is not None else BOOL
        self.scopes.pop()
        if node.kind == "list":
            return list_of(result)
        if node.kind == "map":
            return map_of(types[0], result)
        if node.kind == "mapEntry":
            if result.kind == "map":
                return result
            self.expect(node, result, map_of(DYN, DYN))
            return map_of(DYN, DYN)
        return BOOL

    def elements(self, node: Comprehension, kind: Type) -> list[Type]:
        two = len(node.variables) == 2
        if kind.kind == "list":
            return [INT, kind.params[0]] if two else [kind.params[0]]
        if kind.kind == "map":
            return list(kind.params) if two else [kind.params[0]]
        if kind.kind == "param":
            self.bindings[kind.name] = DYN
        elif kind.kind not in ("dyn", "error") or kind == ANY:
            self.problem(
                node.range,
                f"expression of type '{self.shown(kind)}' cannot be range of a comprehension "
                "(must be list, map, or dynamic)",
            )
        return [DYN, DYN] if two else [DYN]

    def bind(self, node: Bind) -> Type:
        value = self.check(node.value)
        self.scopes.append({node.name: value})
        found = self.check(node.body)
        self.scopes.pop()
        return found

    def optional_map(self, node: OptionalMap) -> Type:
        target = self.unwrap(node.target, self.check(node.target))
        self.scopes.append({node.name: target})
        body = self.check(node.body)
        self.scopes.pop()
        if not node.flat:
            return optional_of(body)
        if body.kind != "optional" and not is_dynamic(body):
            self.expect(node.body, body, optional_of(DYN))
        return body


def _plainly_fits(kinds: list[Type], params: tuple[Type, ...]) -> bool | None:
    """Whether arguments fit, where no type parameter is involved; None where one is. Most calls are such."""
    unsure = False
    for kind, param in zip(kinds, params, strict=True):
        if kind is param:
            continue
        if param.params or param.kind == "param" or kind.kind == "param":
            if kind.kind in _KNOWN_KINDS and param.kind not in ("param", kind.kind):
                return False
            unsure = True
        elif kind.kind != param.kind or kind.name != param.name:
            if kind.kind in _LITERAL_KINDS and param.kind in _LITERAL_KINDS:
                return False
            if not is_dynamic(kind) and not is_dynamic(param):
                unsure = True
    return None if unsure else True


def _is_loose(kind: Type, param: Type) -> bool:
    """Whether a dyn stands for something that holds values of a type parameter."""
    if not param.generic or param.kind == "param":
        return False
    if is_dynamic(kind):
        return True
    return any(_is_loose(*pair) for pair in zip(kind.params, param.params, strict=False))


_LITERAL_KINDS: Final = frozenset(("bool", "int", "uint", "double", "string", "bytes"))
_KNOWN_KINDS: Final = _LITERAL_KINDS | {"list", "map"}

_METHODS: Final[dict[type[Node], Callable[[Any, Any], Type]]] = {
    Literal: Checker.literal,
    Ident: Checker.ident,
    Select: Checker.select,
    Call: Checker.call,
    Logic: Checker.logic,
    Conditional: Checker.conditional,
    ListLiteral: Checker.list_literal,
    MapLiteral: Checker.map_literal,
    MessageLiteral: Checker.message_literal,
    Comprehension: Checker.comprehension,
    Bind: Checker.bind,
    OptionalMap: Checker.optional_map,
}


def _holds_dyn(bindings: Bindings, kind: Type) -> bool:
    """Whether a type is dyn, or a list, map or optional with dyn in it."""
    kind = resolve(bindings, kind)
    return is_dynamic(kind) or any(_holds_dyn(bindings, one) for one in kind.params)

"""Macros: calls that are rewritten while parsing, because an argument is a name or must not be evaluated.

Called by the parser for every call. A macro returns the node that takes the call's place, or None to leave the call as
it is (another count of arguments, another receiver), so that functions of the same name still work.
"""

from collections.abc import Callable
from typing import Final

from dibs.cel.errors import CelSyntaxError
from dibs.cel.nodes import Bind, Call, Comprehension, Ident, ListLiteral, Literal, Node, OptionalMap, Select

Macro = Callable[[Call], Node | None]


def _fail(node: Node, message: str) -> CelSyntaxError:
    return CelSyntaxError(message, offset=node.offset)


def _name(node: Node) -> str:
    if not isinstance(node, Ident) or node.name.startswith("."):
        raise _fail(node, "argument must be a simple name")
    return node.name


def loop_variable(node: Node) -> str:
    """The variable of a loop. `.x` is taken, as in Kubernetes, and nothing can refer to it."""
    return f"@{node.name}" if isinstance(node, Ident) and node.name.startswith(".") else _name(node)


def _has(call: Call) -> Node | None:
    if call.target is not None or len(call.args) != 1:
        return None
    argument = call.args[0]
    if not isinstance(argument, Select) or argument.test or argument.optional:
        raise _fail(argument, "invalid argument to has() macro: a field selection is needed, like has(a.b)")
    return Select(argument.offset, argument.operand, argument.field, test=True)


def _loop(kind: str, variables: int, conditions: int, results: int) -> Macro:
    """A comprehension whose arguments are: variable names, then conditions, then results."""

    def expand(call: Call) -> Node | None:
        if call.target is None or len(call.args) != variables + conditions + results:
            return None
        names = tuple(loop_variable(argument) for argument in call.args[:variables])
        if len(set(names)) < len(names):
            raise _fail(call.args[1], "the two variables of a macro must have different names")
        return Comprehension(
            call.offset,
            kind,
            call.target,
            names,
            call.args[variables] if conditions else None,
            call.args[-1] if results else None,
        )

    return expand


def _filter(call: Call) -> Node | None:
    if call.target is None or len(call.args) != 2:
        return None
    name = _name(call.args[0])
    return Comprehension(call.offset, "list", call.target, (name,), call.args[1], Ident(call.offset, name))


def _first(*macros: Macro) -> Macro:
    def expand(call: Call) -> Node | None:
        for macro in macros:
            found = macro(call)
            if found is not None:
                return found
        return None

    return expand


def _is_namespace(call: Call, name: str) -> bool:
    return isinstance(call.target, Ident) and call.target.name == name


def _bind(call: Call) -> Node | None:
    if not _is_namespace(call, "cel") or len(call.args) != 3:
        return None
    return Bind(call.offset, _name(call.args[0]), call.args[1], call.args[2])


def _optional_map(call: Call) -> Node | None:
    if call.target is None or len(call.args) != 2:
        return None
    return OptionalMap(call.offset, call.target, _name(call.args[0]), call.args[1], flat=call.function == "optFlatMap")


def _small(node: Node) -> int:
    if not isinstance(node, Literal) or type(node.value) is not int or not 0 <= node.value < 1000:
        raise _fail(node, "argument must be a small whole number")
    return node.value


def _block(call: Call) -> Node | None:
    if not _is_namespace(call, "cel") or len(call.args) != 2:
        return None
    steps = call.args[0]
    if not isinstance(steps, ListLiteral) or steps.optional:
        raise _fail(steps, "cel.block needs a list literal of its steps")
    body = call.args[1]
    for place in range(len(steps.elements) - 1, -1, -1):
        body = Bind(call.offset, f"@index{place}", steps.elements[place], body)
    return body


def _index(call: Call) -> Node | None:
    if not _is_namespace(call, "cel") or len(call.args) != 1:
        return None
    return Ident(call.offset, f"@index{_small(call.args[0])}")


def _iteration_variable(call: Call) -> Node | None:
    if not _is_namespace(call, "cel") or len(call.args) != 2:
        return None
    return Ident(call.offset, f"@it:{_small(call.args[0])}:{_small(call.args[1])}")


def _extreme(call: Call) -> Node | None:
    """math.greatest and math.least take any number of arguments; three or more become one list."""
    if not _is_namespace(call, "math"):
        return None
    if not call.args:
        raise _fail(call, f"math.{call.function}() requires at least one argument")
    if len(call.args) == 1 and isinstance(call.args[0], ListLiteral) and not call.args[0].elements:
        raise _fail(call, f"math.{call.function}() invalid: the list is empty")
    if len(call.args) <= 2:
        return None
    return Call(call.offset, call.function, call.target, [ListLiteral(call.offset, call.args, frozenset())])


STANDARD: Final[dict[str, Macro]] = {
    "has": _has,
    "all": _loop("all", 1, 1, 0),
    "exists": _loop("exists", 1, 1, 0),
    "exists_one": _loop("existsOne", 1, 1, 0),
    "existsOne": _loop("existsOne", 1, 1, 0),
    "map": _first(_loop("list", 1, 0, 1), _loop("list", 1, 1, 1)),
    "filter": _filter,
}

EXISTS_ONE_WITH_TWO: Final = _loop("existsOne", 2, 1, 0)
TWO_VARIABLES: Final[dict[str, Macro]] = {
    "all": _first(STANDARD["all"], _loop("all", 2, 1, 0)),
    "exists": _first(STANDARD["exists"], _loop("exists", 2, 1, 0)),
    "exists_one": _first(STANDARD["exists_one"], _loop("existsOne", 2, 1, 0)),
    "existsOne": _first(STANDARD["existsOne"], _loop("existsOne", 2, 1, 0)),
    "transformList": _first(_loop("list", 2, 0, 1), _loop("list", 2, 1, 1)),
    "transformMap": _first(_loop("map", 2, 0, 1), _loop("map", 2, 1, 1)),
    "transformMapEntry": _first(_loop("mapEntry", 2, 0, 1), _loop("mapEntry", 2, 1, 1)),
}

BINDINGS: Final[dict[str, Macro]] = {"bind": _bind}
BLOCKS: Final[dict[str, Macro]] = {"block": _block, "index": _index, "iterVar": _iteration_variable}
OPTIONALS: Final[dict[str, Macro]] = {"optMap": _optional_map, "optFlatMap": _optional_map}
MATH: Final[dict[str, Macro]] = {"greatest": _extreme, "least": _extreme}

"""What Kubernetes refuses in an expression beyond its types: literals that cannot work, and mixed lists.

Called by ``Environment.compile`` after the check, where the environment asks for it. It evaluates nothing but literals.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dibs.cel.codegen import CONVERSIONS, is_constant
from dibs.cel.errors import CelCompileError, CelError, CelRuntimeError, CelTypeError
from dibs.cel.library.localized import clauses
from dibs.cel.nodes import (
    Bind,
    Call,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    OptionalMap,
    children,
)
from dibs.cel.operators import FAILURES, Dispatcher, make_map
from dibs.cel.regex import compile_regex
from dibs.cel.types import Type
from dibs.cel.values import Optional, Uint, type_name

_PARSED: Final = frozenset(("duration", "timestamp"))
_PATTERNS: Final = frozenset(("matches", "find", "findAll"))
_LITERAL_CALLS: Final = _PARSED | _PATTERNS | {"format"}
_LOOKED_AT: Final = frozenset((Call, ListLiteral, MapLiteral, Ident, Bind, OptionalMap))
# What a verb of a format may be given; a dyn may be anything.
_NUMBERS: Final = frozenset(("int", "uint"))
_ACCEPTED: Final[dict[str, frozenset[str]]] = {
    "d": _NUMBERS,
    "o": _NUMBERS,
    "b": _NUMBERS | {"bool"},
    "f": frozenset(("double", "string")),
    "e": frozenset(("double", "string")),
    "x": _NUMBERS | {"string", "bytes"},
    "X": _NUMBERS | {"string", "bytes"},
}
_SHOWN: Final = frozenset(("list", "map", "int", "uint", "double", "bool", "string", "bytes", "type", "null_type"))
_INDEXES: Final = frozenset(("_[_]", "_[?_]"))
_KEYS: Final = frozenset((bool, int, Uint, float, str))
_TIMES: Final = frozenset(("google.protobuf.Duration", "google.protobuf.Timestamp"))


def validate(root: Node, visited: Sequence[Node], constants: Mapping[str, Any]) -> None:
    """Raise all problems as one error. ``visited``: all nodes that were checked."""
    if any(_is_wrong(node, constants) for node in visited if type(node) in _LOOKED_AT):
        _refuse(root, constants)
    if any(_converts(node) for node in visited if type(node) is Call):
        _convert(root, constants)


def _is_wrong(node: Node, constants: Mapping[str, Any]) -> bool:
    """Whether something is wrong with this node, were it not for what is around it."""
    found: Iterator[CelTypeError]
    if isinstance(node, Call):
        if node.function not in _LITERAL_CALLS:
            return False
        found = _call_problems(node)
    elif isinstance(node, ListLiteral | MapLiteral):
        found = _mixed(node)
    elif isinstance(node, Ident):
        return node.type.kind == "type" and node.resolved not in constants
    else:
        assert isinstance(node, Bind | OptionalMap)
        found = _type_problems(node, constants)
    return next(found, None) is not None


def _converts(node: Call) -> bool:
    """Whether a constant may be converted here, or be an index that is none."""
    if node.function in _INDEXES:
        key = node.args[1]
        return not isinstance(key, Literal) or type(key.value) not in _KEYS
    return node.target is None and node.function in CONVERSIONS


def _refuse(root: Node, constants: Mapping[str, Any]) -> None:
    """Raise what is wrong, if anything is: the arguments of a format may be of several types."""
    problems: list[CelCompileError] = []
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, formatting = stack.pop()
        if isinstance(node, Call):
            problems.extend(_call_problems(node))
            formatting = formatting or node.function == "format"
        elif isinstance(node, Bind | OptionalMap | Ident):
            problems.extend(_type_problems(node, constants))
        elif isinstance(node, ListLiteral | MapLiteral) and not formatting:
            problems.extend(_mixed(node))
        stack.extend((child, formatting) for child in children(node))
    if problems:
        raise CelCompileError.of(sorted(problems, key=lambda problem: problem.offset or 0))


def _call_problems(node: Call) -> Iterator[CelTypeError]:
    if node.function in _PARSED and node.args and isinstance(node.args[0], Literal):
        try:
            _constant(node, {})
        except FAILURES:
            yield CelTypeError(f"invalid {node.function} argument", offset=node.args[0].offset)
    if node.function in _PATTERNS and node.args and isinstance(node.args[0], Literal):
        pattern = node.args[0].value
        try:
            if isinstance(pattern, str):
                compile_regex(pattern)
        except CelRuntimeError:
            yield CelTypeError(f"invalid {node.function} argument", offset=node.args[0].offset)
    if node.function == "format" and isinstance(node.target, Literal) and isinstance(node.args[0], ListLiteral):
        yield from _format_problems(node, str(node.target.value), node.args[0].elements)


def _type_problems(node: Bind | OptionalMap | Ident, constants: Mapping[str, Any]) -> Iterator[CelTypeError]:
    """A variable that holds a type: Kubernetes takes its name for that of a type, and finds none."""
    if isinstance(node, Ident):
        wrong = node.type.kind == "type" and node.resolved not in constants
    elif isinstance(node, Bind):
        wrong = node.value.type.kind == "type"
    else:
        held = node.target.type
        wrong = bool(held.params) and held.params[0].kind == "type"
    if wrong:
        yield CelTypeError(f"reference to undefined type: {node.name}", offset=node.offset)


def _format_problems(node: Call, text: str, arguments: list[Node]) -> Iterator[CelTypeError]:
    used = 0
    try:
        for _, verb, _ in clauses(text):
            if not verb:
                continue
            if used >= len(arguments):
                yield CelTypeError(f"index {used} out of range", offset=node.offset)
                return
            argument = arguments[used]
            used += 1
            wrong = _unshown(argument) if verb == "s" else _unfit(argument, _ACCEPTED[verb])
            if wrong is not None:
                yield CelTypeError(
                    f"error during formatting: %{verb} cannot be used on {wrong.type}", offset=wrong.offset
                )
                return
    except CelError as error:
        yield CelTypeError(error.message, offset=node.offset)
        return
    if len(arguments) > used:
        yield CelTypeError(
            f"too many arguments supplied to string.format (expected {used}, got {len(arguments)})", offset=node.offset
        )


def _unfit(node: Node, kinds: frozenset[str]) -> Node | None:
    return None if node.type.kind in kinds or node.type.kind == "dyn" else node


def _unshown(node: Node) -> Node | None:
    """The part of an argument that cannot be shown as text."""
    if node.type.name not in _TIMES:
        wrong = _unfit(node, _SHOWN)
        if wrong is not None:
            return wrong
    inner: list[Node] = []
    if isinstance(node, ListLiteral):
        inner = node.elements
    elif isinstance(node, MapLiteral):
        inner = [value for _, value, _ in node.entries]
        for key, _, _ in node.entries:
            if _unfit(key, _NUMBERS | {"string", "bool"}) is not None:
                return key
    return next((wrong for item in inner if (wrong := _unshown(item)) is not None), None)


def _mixed(node: ListLiteral | MapLiteral) -> Iterator[CelTypeError]:
    """Elements whose types are not the same, dyn included."""
    first: Type | None = None
    if isinstance(node, ListLiteral):
        for place, item in enumerate(node.elements):
            kind = item.type.params[0] if place in node.optional and item.type.params else item.type
            if first is None:
                first = kind
            elif not _equivalent(first, kind):
                yield _mismatch(item, first, kind)
                return
        return
    keys: Type | None = None
    for key, value, optional in node.entries:
        kind = value.type.params[0] if optional and value.type.params else value.type
        if first is None or keys is None:
            first, keys = kind, key.type
            continue
        if not _equivalent(keys, key.type):
            yield _mismatch(key, keys, key.type)
        if not _equivalent(first, kind):
            yield _mismatch(value, first, kind)


def _equivalent(one: Type, other: Type) -> bool:
    if one.kind in ("dyn", "any") or other.kind in ("dyn", "any"):
        return one.kind == other.kind
    return (
        one.kind == other.kind
        and one.name == other.name
        and len(one.params) == len(other.params)
        and all(_equivalent(*pair) for pair in zip(one.params, other.params, strict=True))
    )


def _mismatch(node: Node, wanted: Type, found: Type) -> CelTypeError:
    return CelTypeError(f"expected type '{wanted}' but found '{found}'", offset=node.offset)


def _convert(root: Node, constants: Mapping[str, Any]) -> None:
    """Conversions of constants are done when compiling; one that fails is refused then."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Call) and node.function != "@in" and is_constant(node, constants):
            try:
                _constant(node, constants)
            except FAILURES as error:
                message = error.message if isinstance(error, CelError) else str(error)
                raise CelTypeError(message, offset=node.offset) from None
            continue
        if isinstance(node, Call) and node.function in _INDEXES and is_constant(node.args[1], constants):
            _check_index(node.args[1], constants)
        stack.extend(children(node))


def _check_index(node: Node, constants: Mapping[str, Any]) -> None:
    """A constant that can be no index, behind `dyn`, is refused when compiling."""
    try:
        value = _constant(node, constants)
    except FAILURES:
        return  # the conversion that fails is reported by itself
    if type(value) not in _KEYS:
        raise CelTypeError(f"invalid qualifier type: {type_name(value)} can be no index or key", offset=node.offset)


def _constant(node: Node, constants: Mapping[str, Any]) -> Any:
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, ListLiteral):
        items = [(_constant(item, constants), place in node.optional) for place, item in enumerate(node.elements)]
        return [item.value if optional else item for item, optional in items if not optional or _there(item)]
    if isinstance(node, MapLiteral):
        return make_map((_constant(key, constants), _constant(value, constants)) for key, value, _ in node.entries)
    if isinstance(node, Call) and node.function == "@in":
        return False
    if isinstance(node, Call):
        arguments = [_constant(item, constants) for item in node.args]
        return Dispatcher(node.function, node.overloads)(*arguments)
    return constants[getattr(node, "resolved")]  # noqa: B009 - a name of a type: an Ident or a Select


def _there(item: Any) -> bool:
    return isinstance(item, Optional) and item.present

"""The lists library: cel-go's list functions (version 3) and Kubernetes' own, with ``includes`` apart."""

import functools
from typing import Any, Final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError, CelSyntaxError
from dibs.cel.library.times import DURATION, TIMESTAMP, Duration
from dibs.cel.macros import Macro, loop_variable
from dibs.cel.nodes import Bind, Call, Comprehension, Conditional, Ident, ListLiteral, Node, Select
from dibs.cel.types import BOOL, BYTES, DOUBLE, DYN, INT, STRING, UINT, list_of, parameter
from dibs.cel.values import INT_MAX, INT_MIN, UINT_MAX, Uint, compare, equals, no_overload, spend

T: Final = parameter("T")
_ORDERED: Final = frozenset((int, Uint, float, str, bytes, bool))
_INPUT: Final = "@__sortBy_input__"
_MAX_RANGE: Final = 1_000_000
_COMPARABLE: Final = (INT, UINT, DOUBLE, BOOL, STRING, BYTES, DURATION, TIMESTAMP)


def _sum(items: list[Any]) -> Any:
    if not items:
        return 0
    kind = type(items[0])
    if kind not in (int, Uint, float, Duration) or any(type(item) is not kind for item in items):
        raise no_overload("sum", items)
    if kind is Duration:
        return functools.reduce(lambda a, b: Duration(a.nanos + b.nanos), items)
    total = sum(items) if kind is not float else functools.reduce(lambda a, b: a + b, items)
    if kind is int and not INT_MIN <= total <= INT_MAX:
        raise CelRuntimeError("integer overflow")
    if kind is Uint:
        if total > UINT_MAX:
            raise CelRuntimeError("unsigned integer overflow")
        return Uint(total)
    return total


def _check(items: list[Any], name: str) -> None:
    """Only what has an order may be in the list."""
    for item in items:
        if type(item) not in _ORDERED and not hasattr(type(item), "__cel_ordered__"):
            raise no_overload(name, items)


def _order(one: Any, other: Any) -> int:
    """As ``compare``, but NaN and what is of another type are neither less nor greater."""
    try:
        return compare(one, other)
    except CelRuntimeError:
        return 0


def _extreme(name: str, wanted: int) -> Any:
    def pick(items: list[Any]) -> Any:
        if not items:
            raise CelRuntimeError(f"{name} called on empty list")
        _check(items, name)
        best = items[0]
        for item in items[1:]:
            if _order(item, best) == wanted:
                best = item
        return best

    return pick


def _index_of(items: list[Any], wanted: Any) -> int:
    return next((place for place, item in enumerate(items) if equals(item, wanted)), -1)


def _last_index_of(items: list[Any], wanted: Any) -> int:
    return next((place for place in range(len(items) - 1, -1, -1) if equals(items[place], wanted)), -1)


def _is_sorted(items: list[Any]) -> bool:
    _check(items, "isSorted")
    return all(_order(items[place], items[place + 1]) != 1 for place in range(len(items) - 1))


def _slice(items: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise CelRuntimeError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise CelRuntimeError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(items):
        raise CelRuntimeError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _flatten(items: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise CelRuntimeError("level must be non-negative")
    flat: list[Any] = []
    _flatten_into(flat, items, min(depth, 100))
    return flat


def _flatten_into(flat: list[Any], items: list[Any], depth: int) -> None:
    for item in items:
        if depth > 0 and isinstance(item, list):
            _flatten_into(flat, item, depth - 1)
        else:
            flat.append(item)
            spend(0.1)
            if len(flat) > _MAX_RANGE:
                raise CelRuntimeError(f"the list has more than {_MAX_RANGE} elements")


def _sort(items: list[Any]) -> list[Any]:
    return [item for item, _ in _sorted([(item, item) for item in items])]


def _sorted(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    if len({type(key) for _, key in pairs}) > 1:
        raise CelRuntimeError("list elements must have the same type")

    for _, key in pairs[:1]:
        if type(key) not in _ORDERED and not hasattr(type(key), "__cel_ordered__"):
            raise CelRuntimeError("list elements must be comparable")

    def order(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
        return _order(one[1], other[1])

    return sorted(pairs, key=functools.cmp_to_key(order))


def _sort_by(items: list[Any], keys: list[Any]) -> list[Any]:
    return [item for item, _ in _sorted(list(zip(items, keys, strict=True)))]


def _distinct(items: list[Any]) -> list[Any]:
    seen_text: set[str] = set()
    others: list[Any] = []
    found: list[Any] = []
    for item in items:
        if type(item) is str:
            if item not in seen_text:
                seen_text.add(item)
                found.append(item)
        elif not any(equals(item, other) for other in others):
            others.append(item)
            found.append(item)
    return found


def _range(count: int) -> list[int]:
    if count < 0:
        raise CelRuntimeError(f"lists.range: size must be non-negative, got {count}")
    if count > _MAX_RANGE:
        raise CelRuntimeError(f"lists.range: size {count} exceeds maximum allowed ({_MAX_RANGE})")
    spend(0.1 * count)
    return list(range(count))


def includes(holder: Any, wanted: Any) -> bool:
    """Whether a list has the value, or a single value is it. What cannot be compared is not the value."""
    return any(_is(item, wanted) for item in (holder if isinstance(holder, list) else (holder,)))


def _is(item: Any, wanted: Any) -> bool:
    try:
        return equals(item, wanted)
    except CelRuntimeError:
        return False


def _sort_by_macro(call: Call) -> Node | None:
    """``list.sortBy(x, key)``: the list is bound to a name, and sorted by the list of keys."""
    if call.target is None or len(call.args) != 2:
        return None
    variable = loop_variable(call.args[0])
    if not isinstance(call.target, ListLiteral | Select | Ident | Comprehension | Call | Bind | Conditional):
        raise CelSyntaxError(
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression",
            offset=call.target.offset,
        )
    place = call.offset
    keys = Comprehension(place, "list", Ident(place, _INPUT), (variable,), None, call.args[1])
    return Bind(place, _INPUT, call.target, Call(place, "@sortByAssociatedKeys", Ident(place, _INPUT), [keys]))


MACROS: Final[dict[str, Macro]] = {"sortBy": _sort_by_macro}


def lists() -> Library:
    """The library."""
    items, dynamic = list_of(T), list_of(DYN)
    numbers = (INT, UINT, DOUBLE, DURATION)
    return Library(
        "lists",
        [
            Function("sum", *(method((list_of(kind),), kind, _sum) for kind in numbers)),
            Function("min", *(method((list_of(k),), k, _extreme("min", -1)) for k in _COMPARABLE)),
            Function("max", *(method((list_of(k),), k, _extreme("max", 1)) for k in _COMPARABLE)),
            Function("indexOf", method((items, T), INT, _index_of)),
            Function("lastIndexOf", method((items, T), INT, _last_index_of)),
            Function("isSorted", *(method((list_of(kind),), BOOL, _is_sorted) for kind in _COMPARABLE)),
            Function("slice", method((items, INT, INT), items, _slice)),
            Function(
                "flatten",
                method((list_of(list_of(T)),), items, _flatten, grows=True),
                method((dynamic, INT), dynamic, _flatten, grows=True),
            ),
            Function("sort", *(method((list_of(kind),), list_of(kind), _sort) for kind in _COMPARABLE)),
            Function("@sortByAssociatedKeys", *(method((items, list_of(k)), items, _sort_by) for k in _COMPARABLE)),
            Function("distinct", method((items,), items, _distinct)),
            Function("reverse", method((items,), items, lambda a: a[::-1], fails=False)),
            Function("lists.range", Overload((INT,), list_of(INT), _range, grows=True)),
        ],
        macros=MACROS,
    )


def includes_library() -> Library:
    """``value.includes(item)``, for attributes that may be one value or a list."""

    return Library("includes", [Function("includes", method((DYN, DYN), BOOL, includes, fails=False))])

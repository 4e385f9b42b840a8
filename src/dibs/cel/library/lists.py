"""The lists library: cel-go's list functions (version 3) and Kubernetes' own, with ``includes`` apart."""

import functools
from typing import Any, Final

from dibs.cel.declarations import Cost, Function, Library, Overload, ceil, linear, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.macros import Macro
from dibs.cel.nodes import Call, Comprehension, Ident, ListLiteral, Node
from dibs.cel.types import BOOL, BYTES, DOUBLE, DYN, INT, STRING, UINT, list_of, parameter
from dibs.cel.values import INT_MAX, INT_MIN, UINT_MAX, Uint, compare, equals, no_overload, spend

T: Final = parameter("T")
_MAX_RANGE: Final = 100_000
_COMPARABLE: Final = (INT, UINT, DOUBLE, BOOL, STRING, BYTES)


def _sum(items: list[Any]) -> Any:
    if not items:
        return 0
    kind = type(items[0])
    if kind not in (int, Uint, float) or any(type(item) is not kind for item in items):
        raise no_overload("sum", items)
    total = sum(items) if kind is not float else functools.reduce(lambda a, b: a + b, items)
    if kind is int and not INT_MIN <= total <= INT_MAX:
        raise CelRuntimeError("integer overflow")
    if kind is Uint:
        if total > UINT_MAX:
            raise CelRuntimeError("unsigned integer overflow")
        return Uint(total)
    return total


def _extreme(name: str, wanted: int) -> Any:
    def pick(items: list[Any]) -> Any:
        if not items:
            raise CelRuntimeError(f"{name} called on empty list")
        best = items[0]
        for item in items[1:]:
            if compare(item, best, name) == wanted:
                best = item
        return best

    return pick


def _index_of(items: list[Any], wanted: Any) -> int:
    return next((place for place, item in enumerate(items) if equals(item, wanted)), -1)


def _last_index_of(items: list[Any], wanted: Any) -> int:
    return next((place for place in range(len(items) - 1, -1, -1) if equals(items[place], wanted)), -1)


def _is_sorted(items: list[Any]) -> bool:
    return all(compare(items[place], items[place + 1], "isSorted") != 1 for place in range(len(items) - 1))


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

    def order(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
        return compare(one[1], other[1], "sort") or 0

    return sorted(pairs, key=functools.cmp_to_key(order))


def _sort_by(pairs: list[Any]) -> list[Any]:
    """From [element, key] pairs, as the macro makes them."""
    return [item for item, _ in _sorted([(pair[0], pair[1]) for pair in pairs])]


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
    if count > _MAX_RANGE:
        raise CelRuntimeError(f"lists.range({count}) is too long: at most {_MAX_RANGE} elements")
    return list(range(count))


def _range_cost(count: Any) -> float:
    return 10.0 + max(count, 0) if type(count) is int else 1.0


def includes(holder: Any, wanted: Any) -> bool:
    """Whether a list has the value, or a single value is it."""
    if isinstance(holder, list):
        return any(equals(item, wanted) for item in holder)
    return equals(holder, wanted)


def _sort_by_macro(call: Call) -> Node | None:
    """``list.sortBy(x, key)``: pairs of element and key are made, then sorted."""
    if call.target is None or len(call.args) != 2 or not isinstance(call.args[0], Ident):
        return None
    name = call.args[0].name
    pair = ListLiteral(
        call.offset, [Call(call.offset, "dyn", None, [Ident(call.offset, name)]), call.args[1]], frozenset()
    )
    pairs = Comprehension(call.offset, "list", call.target, (name,), None, pair)
    return Call(call.offset, "@sortByPairs", None, [pairs])


MACROS: Final[dict[str, Macro]] = {"sortBy": _sort_by_macro}


def lists() -> Library:
    """The library."""
    items, dynamic = list_of(T), list_of(DYN)
    walk = linear(1.0, of=0)

    def copy(sizes: tuple[float, ...]) -> Cost:
        return Cost(max(1.0, ceil(sizes[0])), sizes[0])

    def square(sizes: tuple[float, ...]) -> Cost:
        return Cost(max(1.0, sizes[0] * sizes[0]), sizes[0])

    def ranged(sizes: tuple[float, ...]) -> Cost:
        del sizes
        return Cost(10.0)

    numbers = (INT, UINT, DOUBLE)
    return Library(
        "lists",
        [
            Function("sum", *(method((list_of(kind),), kind, _sum, cost=walk) for kind in numbers)),
            Function("min", *(method((list_of(k),), k, _extreme("min", -1), cost=walk) for k in _COMPARABLE)),
            Function("max", *(method((list_of(k),), k, _extreme("max", 1), cost=walk) for k in _COMPARABLE)),
            Function("indexOf", method((items, T), INT, _index_of, cost=walk)),
            Function("lastIndexOf", method((items, T), INT, _last_index_of, cost=walk)),
            Function("isSorted", *(method((list_of(kind),), BOOL, _is_sorted, cost=walk) for kind in _COMPARABLE)),
            Function("slice", method((items, INT, INT), items, _slice, cost=copy)),
            Function(
                "flatten",
                method((list_of(list_of(T)),), items, _flatten, cost=linear(), grows=True),
                method((dynamic,), dynamic, _flatten, cost=linear(), grows=True),
                method((dynamic, INT), dynamic, _flatten, cost=linear(), grows=True),
            ),
            Function("sort", *(method((list_of(kind),), list_of(kind), _sort, cost=square) for kind in _COMPARABLE)),
            Function("@sortByPairs", Overload((list_of(dynamic),), dynamic, _sort_by, cost=square)),
            Function("distinct", method((items,), items, _distinct, cost=square)),
            Function("reverse", method((items,), items, lambda a: a[::-1], fails=False, cost=copy)),
            Function(
                "lists.range", Overload((INT,), list_of(INT), _range, cost=ranged, grows=True, runtime_cost=_range_cost)
            ),
        ],
        macros=MACROS,
    )


def includes_library() -> Library:
    """``value.includes(item)``, for attributes that may be one value or a list."""

    def cost(sizes: tuple[float, ...]) -> Cost:
        return Cost(max(1.0, sizes[0]), 1)

    return Library("includes", [Function("includes", method((DYN, DYN), BOOL, includes, fails=False, cost=cost))])

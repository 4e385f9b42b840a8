"""What one call costs while running, from its arguments and its result: cel-go's and Kubernetes' tables.

Called by codegen, for programs that keep a budget. A call that is in no table costs one unit, or what its declaration
says. Kubernetes charges a call whose overload is only known while running by its name alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from dibs.cel.declarations import Overload
from dibs.cel.values import Optional, type_name

# From the result and the arguments to the cost.
Charge = Callable[..., int]


def size(value: Any) -> int:
    """Code points, bytes, elements or entries; the size of what an optional holds; 1 for everything else."""
    if isinstance(value, str | bytes | list | dict):
        return len(value)
    if type(value) is Optional and value.present:
        return size(value.value)
    found = getattr(type(value), "__cel_size__", None)
    return int(found(value)) if found is not None else 1


def _part(amount: float, factor: float = 0.1) -> int:
    return math.ceil(amount * factor)


def _walk(result: Any, first: Any, *_: Any) -> int:
    del result
    return _traversal(first)


def _traversal(value: Any) -> int:
    if isinstance(value, str):
        return int(len(value.encode()) * 0.1)
    if isinstance(value, bytes):
        return int(len(value) * 0.1)
    if isinstance(value, list):
        return sum(map(_traversal, value))
    if isinstance(value, dict):
        return sum(_traversal(key) + _traversal(item) for key, item in value.items())
    return 1


def _first(result: Any, first: Any, *_: Any) -> int:
    del result
    return _part(size(first))


def _first_twice(result: Any, first: Any, *_: Any) -> int:
    del result
    return _part(size(first) * 2)


def _result_twice(result: Any, *_: Any) -> int:
    return _part(size(result) * 2)


def _pattern(result: Any, text: Any, pattern: Any, *_: Any) -> int:
    del result
    return _part(1.0 + size(text)) * _part(size(pattern), 0.25)


def _ip(result: Any, first: Any, *_: Any) -> int:
    del result
    return _part(size(first)) if isinstance(first, str) else 1


def _contains_ip(result: Any, cidr: Any, *_: Any) -> int:
    del result
    return _part(2 * size(cidr))


def _contains_ip_text(result: Any, cidr: Any, other: Any) -> int:
    return _contains_ip(result, cidr) + _part(size(other))


def _contains_cidr(result: Any, cidr: Any, *_: Any) -> int:
    return _contains_ip(result, cidr) + _part(size(cidr)) + 1


def _contains_cidr_text(result: Any, cidr: Any, other: Any) -> int:
    return _contains_cidr(result, cidr) + _part(size(other))


def _validate(result: Any, form: Any, text: Any) -> int:
    del result
    return _part(1.0 + size(text)) * _part(form.pattern_size, 0.25)


def _second(result: Any, first: Any, second: Any) -> int:
    del result, first
    return _part(size(second))


def _held(result: Any, item: Any, container: Any) -> int:
    del result, item
    return size(container)


def _smaller(result: Any, one: Any, other: Any) -> int:
    del result
    return _part(min(size(one), size(other)))


_UNIT_EQUALITY: Final = frozenset(
    ("kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR", "kubernetes.NamedFormat", "kubernetes.URL")
)


def _equal(result: Any, one: Any, other: Any) -> int:
    return 1 if type_name(one) in _UNIT_EQUALITY else _smaller(result, one, other)


def _together(result: Any, one: Any, other: Any) -> int:
    del result
    return _part(size(one) + size(other))


def _product(result: Any, one: Any, other: Any) -> int:
    del result
    return _part(size(one)) * _part(size(other))


def _made(factor: float, count: float) -> int:
    return int(count * (factor if factor >= 0 else 1.0)) + 11


def _made_result(result: Any, *_: Any) -> int:
    return _made(1, size(result))


def _flatten(result: Any, items: Any, depth: Any = 1) -> int:
    del result
    return _made(float(depth), size(items))


def _compared(result: Any, *lists: Any) -> int:
    del result
    keys = lists[-1]
    factor = 2.1 if keys and isinstance(keys[0], str | bytes) else 2.0
    return _made(factor, len(keys) ** 2)


def _subset(result: Any, one: Any, other: Any) -> int:
    del result
    return 1 + size(one) * size(other)


def _equivalent(result: Any, one: Any, other: Any) -> int:
    del result
    return 1 + size(one) * size(other) * 2


# By the name of the function alone.
_FUNCTIONS: Final[dict[str, Charge]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"), _walk),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR"), _first),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _first),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _first_twice),
    "join": _result_twice,
    **dict.fromkeys(("find", "findAll"), _pattern),
    "ip": _ip,
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validate,
    "_==_": _equal,
    "_!=_": _smaller,
}
# Where the other is known to be a string, which is parsed first.
_TEXTS: Final[dict[str, Charge]] = {"containsIP": _contains_ip_text, "containsCIDR": _contains_cidr_text}
# By the overload, where it is the only one that can be meant.
_OVERLOADS: Final[dict[str, Charge]] = {
    **dict.fromkeys(("startsWith", "endsWith"), _second),
    **dict.fromkeys(("strings.quote", "format"), _first),
    "matches": _pattern,
    "contains": _product,
    **dict.fromkeys(("slice", "lists.range"), _made_result),
    "flatten": _flatten,
    **dict.fromkeys(("distinct", "sort", "@sortByAssociatedKeys"), _compared),
    **dict.fromkeys(("sets.contains", "sets.intersects"), _subset),
    "sets.equivalent": _equivalent,
}
_COMPARISONS: Final = frozenset(("_<_", "_<=_", "_>_", "_>=_"))


def charge_of(function: str, overloads: Sequence[Overload]) -> Charge | None:
    """How a call is charged; None where it costs one unit."""
    if function in _TEXTS and len(overloads) == 1 and overloads[0].params[1].kind == "string":
        return _TEXTS[function]
    found = _FUNCTIONS.get(function)
    if found is not None:
        return found
    if len(overloads) != 1:
        return None
    overload = overloads[0]
    kind = overload.params[0].kind if overload.params else ""
    if function in _OVERLOADS:
        return _OVERLOADS[function]
    if function == "reverse" and kind == "list":
        return _made_result
    if function in _COMPARISONS and kind in ("string", "bytes"):
        return _smaller
    if function == "_+_" and kind in ("string", "bytes"):
        return _together
    if function == "@in" and overload.params[1].kind == "list":
        return _held
    if (function == "bytes" and kind == "string") or (function == "string" and kind == "bytes"):
        return _first
    if overload.cost is not None:
        return _declared(overload)
    return None


def _declared(overload: Overload) -> Charge:
    def charge(result: Any, *arguments: Any) -> int:
        del result
        assert overload.cost is not None
        return math.ceil(overload.cost(tuple(float(size(argument)) for argument in arguments)).cost)

    return charge

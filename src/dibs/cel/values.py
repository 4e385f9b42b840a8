"""CEL values as Python values, and what holds between any two of them: type, equality, order.

    null None · bool bool · int int · uint Uint · double float · string str · bytes bytes · list list · map dict
    optional Optional · type TypeValue · opaque values: any class with a ``__cel_type__`` name

Used by every stage that touches values. Lists and maps are never changed once made. A map keeps its bool keys as
``BoolKey``, since Python takes ``True`` and ``1`` for the same key and CEL does not.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

from dibs.cel.errors import CelCostError, CelRuntimeError

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1
# How many elements one comparison may visit. Values may share parts, so that a small one unfolds to an endless one.
MAX_VISITS: Final = 250_000


class _Current(threading.local):
    """The budget of the evaluation that runs in this thread, if it keeps one."""

    charge: Callable[[float], None] | None = None


current: Final = _Current()


def spend(cost: float) -> None:
    """Charge work whose amount shows only while it is done."""
    if current.charge is not None:
        current.charge(cost)


@final
class Uint(int):
    """An unsigned number of 64 bits. Equal to the int of the same value, but of another type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Uint({int(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)


@final
class BoolKey:
    """A bool as the key of a map: ``TRUE_KEY`` or ``FALSE_KEY``."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "true" if self.value else "false"


TRUE_KEY: Final = BoolKey(True)
FALSE_KEY: Final = BoolKey(False)


class DefaultMap(dict[Any, Any]):
    """A map that answers a missing key with ``default``. ``in``, size and iteration see the real keys only."""

    __slots__ = ("default",)

    def __init__(self, entries: Mapping[Any, Any], default: Any) -> None:
        super().__init__(entries)
        self.default = default

    def __missing__(self, key: object) -> Any:
        return self.default


@final
class Optional:
    """A value that may be absent. Make one with ``Optional(value)``; ``NONE`` is the absent one."""

    __slots__ = ("present", "value")

    __cel_type__ = "optional_type"

    def __init__(self, value: Any, *, present: bool = True) -> None:
        self.value = value
        self.present = present

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Optional):
            return NotImplemented
        if self.present and other.present and other.value is None and hasattr(type(self.value), "__cel_strict__"):
            # `==` itself answers for null; optionals ask the value, and Kubernetes' own types know only their like.
            raise no_overload("_==_", self.value, other.value)
        return self.present == other.present and (not self.present or equals(self.value, other.value))

    def __hash__(self) -> int:
        return hash(self.present)

    def __repr__(self) -> str:
        return f"optional.of({self.value!r})" if self.present else "optional.none()"


NONE: Final = Optional(None, present=False)


@final
class TypeValue:
    """A type as a value: what ``type(x)`` gives, and what ``int`` means as an expression."""

    __slots__ = ("name",)

    __cel_type__ = "type"

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, TypeValue) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


_NAMES: Final[dict[type, str]] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes",
    list: "list", dict: "map", DefaultMap: "map", type(None): "null_type",
}  # fmt: skip


def type_name(value: object) -> str:
    """The CEL name of a value's type."""
    kind = type(value)
    return _NAMES.get(kind) or str(getattr(kind, "__cel_type__", kind.__name__))


def no_overload(function: str, *values: object) -> CelRuntimeError:
    """The error of a function that is not defined for values of these types."""
    shown = ", ".join(type_name(value) for value in values)
    return CelRuntimeError(f"no such overload: {function}({shown})")


def map_key(value: Any) -> Any:
    """The value as a key of a map; an error for what cannot be one."""
    kind = type(value)
    if kind is str or kind is int or kind is Uint:
        return value
    if kind is bool:
        return TRUE_KEY if value else FALSE_KEY
    raise CelRuntimeError(f"unsupported key type: {type_name(value)}")


def lookup_key(value: Any) -> Any:
    """The value as something to look up: like ``map_key``, but a double may find the equal int."""
    return value if type(value) is float else map_key(value)


def key_value(key: Any) -> Any:
    """A key of a map as a value."""
    return key.value if type(key) is BoolKey else key


def as_double(value: int) -> float:
    """The nearest double. CEL compares an int with a double as doubles."""
    return float(int(value))


_NUMBERS: Final = frozenset((int, Uint, float))
_ATOMS: Final = frozenset((str, bytes, bool, type(None)))


def equals(left: Any, right: Any) -> bool:
    """CEL's equality: by value over all numbers, false between other types, deep in lists and maps."""
    left_kind, right_kind = type(left), type(right)
    if left_kind is right_kind:
        if left_kind in _ATOMS or left_kind in _NUMBERS:
            return bool(left == right)
        if left_kind is not list and left_kind is not dict:
            return _deep(left, right, _Visits()) if isinstance(left, dict) else bool(left == right)
        return _deep(left, right, _Visits())
    if left_kind in _NUMBERS and right_kind in _NUMBERS:
        if left_kind is float or right_kind is float:
            return bool(as_double(left) == right if right_kind is float else left == as_double(right))
        return bool(left == right)
    if isinstance(left, dict) and isinstance(right, dict):
        return _deep(left, right, _Visits())
    if right is not None and hasattr(left_kind, "__cel_strict__"):
        # Kubernetes' own types are only equal or not to their like.
        raise no_overload("_==_", left, right)
    return False


def unlike(left: Any, right: Any) -> bool:
    """Whether two values cannot be compared: one of Kubernetes' own types, in optionals or not, and something else."""
    while type(left) is Optional and type(right) is Optional and left.present and right.present:
        left, right = left.value, right.value
        if right is None and hasattr(type(left), "__cel_strict__"):
            return True
    return type(left) is not type(right) and right is not None and hasattr(type(left), "__cel_strict__")


class _Visits:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_VISITS


def _deep(left: Any, right: Any, visits: _Visits) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return False
        pairs: Iterable[tuple[Any, Any]] = zip(left, right, strict=True)
    elif isinstance(left, dict) and isinstance(right, dict):
        if len(left) != len(right):
            return False
        # `get` would not tell a null from a missing key.
        if any(key not in right for key in left):
            return False
        pairs = ((value, right[key]) for key, value in left.items())
    else:
        return equals(left, right)
    for one, other in pairs:
        spend(2.0)
        visits.left -= 1
        if visits.left < 0:
            raise CelCostError(f"comparing two values takes more than {MAX_VISITS} steps")
        if type(one) is not type(other) and other is not None and hasattr(type(one), "__cel_strict__"):
            continue  # The error of such a comparison does not count inside of a list or map.
        if type(one) is Optional and type(other) is Optional and unlike(one, other):
            continue
        if not (_deep(one, other, visits) if isinstance(one, list | dict) else equals(one, other)):
            return False
    return True


_ORDERED: Final = frozenset((int, Uint, float, str, bytes, bool))


def compare(left: Any, right: Any, function: str = "_<_") -> int:
    """-1, 0 or 1; an error for types without an order, and for NaN."""
    left_kind, right_kind = type(left), type(right)
    if left_kind is not right_kind and left_kind in _NUMBERS and right_kind in _NUMBERS:
        if right_kind is float:
            left = as_double(left)
        elif left_kind is float:
            right = as_double(right)
    elif left_kind is not right_kind or (left_kind not in _ORDERED and not hasattr(left_kind, "__cel_ordered__")):
        raise no_overload(function, left, right)
    if left == right:
        return 0
    if left < right:
        return -1
    if left > right:
        return 1
    raise CelRuntimeError("NaN values cannot be ordered")


def is_zero(value: Any) -> bool:
    """Whether a value is its type's zero: what ``optional.ofNonZeroValue`` drops."""
    kind = type(value)
    if kind in _NUMBERS or kind in _ATOMS or isinstance(value, list | dict):
        return not value
    return bool(getattr(value, "__cel_zero__", False))


def size(value: Any) -> int:
    """Code points, bytes, elements or entries; 1 for everything else. For cost accounting."""
    return len(value) if isinstance(value, str | bytes | list | dict) else 1


def to_python(value: Any, limit: int = MAX_VISITS) -> Any:
    """A result as plain Python data: bool keys become bools again, Uint becomes int, an optional its value or None."""
    counter = _Visits()
    counter.left = limit
    return _plain(value, counter)


def _plain(value: Any, visits: _Visits) -> Any:
    visits.left -= 1
    if visits.left < 0:
        raise CelCostError("the result is too large to be converted")
    if isinstance(value, list):
        return [_plain(item, visits) for item in value]
    if isinstance(value, dict):
        return {key_value(key): _plain(item, visits) for key, item in value.items()}
    if type(value) is Uint:
        return int(value)
    if type(value) is Optional:
        return _plain(value.value, visits) if value.present else None
    return value

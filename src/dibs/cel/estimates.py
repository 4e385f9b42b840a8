"""What one call can cost at most, and how large its result can be: cel-go's and Kubernetes' tables.

Called by ``cost`` for every overload that may be meant. A function that is in no table costs what its declaration says,
else one unit. Sizes are ranges (least, most) in 64 bits without a sign; what is unknown may be anything.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dibs.cel.declarations import UNBOUNDED, Overload
from dibs.cel.nodes import Literal, Node
from dibs.cel.types import Type

MAX: Final = 2**64 - 1
Size = tuple[int, int]
UNKNOWN: Final[Size] = (0, MAX)
_TEXT: Final = 0.1
_PATTERN: Final = 0.25
_LIST: Final = 10
_FORMAT_SIZE: Final = 64
_NAME_PATTERN: Final = 128


def add(*amounts: int) -> int:
    """A sum within 64 bits."""
    return min(sum(amounts), MAX)


def multiply(one: int, other: int) -> int:
    """A product within 64 bits."""
    return min(one * other, MAX)


def scaled(amount: int, factor: float) -> int:
    """An amount times a factor, rounded up, within 64 bits. In doubles, as cel-go does it."""
    value = float(amount) * factor
    if value >= 18446744073709551616.0:
        return MAX
    return math.ceil(value)


def union(one: Size, other: Size) -> Size:
    """The range that has both in it."""
    return min(one[0], other[0]), max(one[1], other[1])


def _sum(one: Size, other: Size) -> Size:
    return add(one[0], other[0]), add(one[1], other[1])


def _product(one: Size, other: Size) -> Size:
    return multiply(one[0], other[0]), multiply(one[1], other[1])


class Path:
    """The way from a declared variable to a value: field names, ``@keys``, ``@values``, ``@items``, ``@indices``.

    It shares memory with the path that it was made from in the way of Go's slices: of two paths that extend the same
    one, the later may overwrite the end of the earlier. cel-go's estimates depend on it.
    """

    __slots__ = ("count", "steps")

    def __init__(self, steps: list[str], count: int) -> None:
        self.steps = steps
        self.count = count

    @classmethod
    def to(cls, variable: str) -> "Path":
        """A variable itself."""
        return cls([variable], 1)

    @classmethod
    def extended(cls, path: "Path | None", step: str) -> "Path":
        """One step further."""
        if path is None:
            return cls([step], 1)
        if path.count < len(path.steps):
            path.steps[path.count] = step
            return cls(path.steps, path.count + 1)
        return cls([*path.steps, step, *[""] * (path.count - 1)], path.count + 1)

    def element(self) -> "Path":
        """Its elements; nothing is overwritten by this one."""
        return Path([*self.steps[: self.count], "@items"], self.count + 1)

    def size(self, variables: Mapping[str, Type]) -> Size | None:
        """What the declarations say of the value's size."""
        kind = variables.get(self.steps[0])
        for place in range(1, self.count):
            if kind is None:
                return None
            kind = _step(kind, self.steps[place])
        if kind is None or kind.max_size is None:
            return None
        return 0, kind.max_size


def _step(kind: Type, step: str) -> Type | None:
    if step in ("@items", "@values"):
        return kind.params[-1] if kind.kind in ("list", "map") else None
    if step == "@keys":
        return kind.params[0] if kind.kind == "map" else None
    if kind.fields is not None and step in kind.fields:
        return kind.fields[step]
    # Whatever the name of an attribute, its size is the same.
    if kind.kind == "map" and kind.params[1].kind in ("any", "dyn"):
        return kind.params[1]
    return None


class Argument:
    """An argument of a call, or its receiver, with what is known of it."""

    __slots__ = ("_declared", "known", "node", "path", "size", "type")

    def __init__(
        self, node: Node, path: Path | None, size: Size | None, declared: Callable[[Path | None], Size | None]
    ) -> None:
        self.node = node
        self.type = node.type
        self.path = path
        self._declared = declared
        self.known = size
        self.size: Size = size or UNKNOWN

    def element(self) -> tuple[Type, Size] | None:
        """Type and size of an element, where it is a list (or has a first type parameter, which counts as one)."""
        if not self.type.params:
            return None
        path = self.path.element() if self.path is not None else None
        return self.type.params[0], self._declared(path) or UNKNOWN

    def number(self, default: int) -> int:
        """The value of a literal int, as an unsigned number; else the default."""
        if isinstance(self.node, Literal) and type(self.node.value) is int:
            return max(self.node.value, 0)
        return default


_Estimate = tuple[int, Size | None]
_Arguments = Sequence[Argument]


def _walked(target: Argument | None, args: _Arguments, *, plain: bool) -> _Estimate | None:
    """isSorted, sum, min, max, indexOf, lastIndexOf, includes."""
    del args
    if target is None:
        return None
    element = target.element()
    if element is None:
        return (target.size[1] if plain else scaled(target.size[1], _TEXT)), None
    price = 1
    if element[0].kind in ("string", "bytes"):
        price = add(price, scaled(element[1][1], _TEXT))
    return multiply(target.size[1], price), None


def _includes(target: Argument | None, args: _Arguments) -> _Estimate | None:
    return _walked(target, args, plain=True)


def _walk(target: Argument | None, args: _Arguments) -> _Estimate | None:
    return _walked(target, args, plain=False)


def _first_copied(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    return (scaled(args[0].size[1], _TEXT), args[0].size) if len(args) == 1 else None


def _copied_text(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del args
    return (scaled(target.size[1], _TEXT), target.size) if target is not None else None


def _replace(target: Argument | None, args: _Arguments) -> _Estimate | None:
    if target is None or len(args) < 2:
        return None
    size, old, new = target.size, args[0].size, args[1].size
    if old[0] == 0:
        most, kept = add(size[1], 1), size[1]
    elif new[1] <= old[0]:
        most, kept = 0, size[1]
    else:
        most, kept = math.ceil(float(size[1]) / float(old[0])), 0
    if old[1] == 0:
        least, kept_least = add(size[0], 1), size[0]
    elif old[1] <= new[0]:
        least, kept_least = 0, size[0]
    else:
        least, kept_least = math.ceil(float(size[0]) / float(old[1])), 0
    result = _sum(_product((least, min(most, MAX)), new), (kept_least, kept))
    return scaled(size[1], 2 * _TEXT), result


def _split(target: Argument | None, args: _Arguments) -> _Estimate | None:
    if target is None:
        return None
    most = target.size[1]
    if len(args) > 1:
        limit = args[1].node
        if isinstance(limit, Literal) and type(limit.value) is int:
            most = limit.value % 2**64
    return scaled(target.size[1], 2 * _TEXT), (0, most)


def _join(target: Argument | None, args: _Arguments) -> _Estimate | None:
    if target is None:
        return None
    element = target.element()
    size: Size = _product(target.size, element[1]) if element is not None else (0, 0)
    if args:
        between = (max(target.size[0] - 1, 0), max(target.size[1] - 1, 0))
        size = _sum(size, _product(args[0].size, between))
    return scaled(size[1], _TEXT), size


def _find(target: Argument | None, args: _Arguments) -> _Estimate | None:
    if target is None or not args:
        return None
    text = scaled(add(target.size[1], 1), _TEXT)
    return multiply(text, scaled(args[0].size[1], _PATTERN)), (0, target.size[1])


def _parsed(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    return (scaled(args[0].size[1], _TEXT), None) if args else None


def _parsed_twice(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    return (scaled(args[0].size[1], 2 * _TEXT), None) if args else None


def _contains_ip(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    if not args:
        return None
    text = scaled(args[0].size[1], _TEXT) if args[0].type.kind in ("string", "dyn", "any") else 0
    return add(scaled(32, _TEXT), text), None


def _contains_cidr(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    if not args:
        return None
    text = scaled(args[0].size[1], _TEXT) if args[0].type.kind in ("string", "dyn", "any") else 0
    return add(scaled(32, _TEXT), scaled(16, _TEXT), 1, text), None


def _validate(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    return (scaled(scaled(args[0].size[1], _TEXT), _NAME_PATTERN * _PATTERN), None) if args else None


def _unit(target: Argument | None, args: _Arguments) -> _Estimate:
    del target, args
    return 1, None


def _made(factor: float, size: Size) -> _Estimate:
    """A call that makes a list of this size."""
    return add(scaled(size[1], factor), 1, _LIST), size


def _slice(target: Argument | None, args: _Arguments) -> _Estimate | None:
    if target is None or len(args) != 2:
        return None
    count = (args[1].number(target.size[1]) - args[0].number(0)) % 2**64
    return _made(1, (count, count))


def _range(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    count = args[0].number(MAX)
    return _made(1, (count, count))


def _reverse(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del args
    return _made(1, target.size) if target is not None and target.type.kind != "string" else None


def _flatten(target: Argument | None, args: _Arguments) -> _Estimate | None:
    if target is None:
        return None
    return _made(float(args[0].number(MAX)) if args else 1.0, target.size)


def _distinct(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del args
    return _made(2, _product(target.size, target.size)) if target is not None else None


def _subset(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    return add(scaled(_product(args[0].size, args[1].size)[1], 1), 1), None


def _equivalent(target: Argument | None, args: _Arguments) -> _Estimate | None:
    del target
    return add(scaled(_product(args[0].size, args[1].size)[1], 2), 1), None


_Table = Callable[[Argument | None, _Arguments], _Estimate | None]
# By the name of the function alone.
_FUNCTIONS: Final[dict[str, _Table]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _walk),
    "includes": _includes,
    "url": _first_copied,
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _copied_text),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _find),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"), _parsed),
    "ip.isCanonical": _parsed_twice,
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validate,
    "slice": _slice,
    "lists.range": _range,
    "reverse": _reverse,
    "flatten": _flatten,
    "distinct": _distinct,
    "sets.contains": _subset,
    "sets.intersects": _subset,
    "sets.equivalent": _equivalent,
}
_COMPARISONS: Final = frozenset(("_<_", "_<=_", "_>_", "_>=_"))
_SPECIAL: Final = _COMPARISONS | frozenset(
    (
        "_==_",
        "_!=_",
        "_+_",
        "@in",
        "startsWith",
        "endsWith",
        "contains",
        "matches",
        "format",
        "bytes",
        "string",
        "strings.quote",
        "ip",
        "sort",
        "@sortByAssociatedKeys",
    )
)


def looks_at_sizes(function: str, overloads: Sequence[Overload]) -> bool:
    """Whether the estimate of a call depends on its arguments; else they need not be given."""
    if function in _FUNCTIONS or function in _SPECIAL:
        return True
    return any(overload.cost is not None for overload in overloads)


def estimate(function: str, overload: Overload, target: Argument | None, args: _Arguments) -> _Estimate:
    """What a call of this overload costs at most, without its arguments, and the size of the result where known."""
    table = _FUNCTIONS.get(function)
    if table is not None:
        found = table(target, args)
    else:
        found = _special(function, overload, target, args) if function in _SPECIAL else None
    if found is not None:
        return found
    if overload.cost is not None:
        return _declared(overload, [*([target] if target is not None else ()), *args])
    return 1, None


def _declared(overload: Overload, arguments: list[Argument]) -> _Estimate:
    assert overload.cost is not None
    sizes = tuple(float(argument.size[1]) if argument.size[1] < MAX else UNBOUNDED for argument in arguments)
    cost = overload.cost(sizes)
    price = MAX if cost.cost == UNBOUNDED else math.ceil(cost.cost)
    return min(price, MAX), None if cost.size == UNBOUNDED else (0, math.ceil(cost.size))


def _special(function: str, overload: Overload, target: Argument | None, args: _Arguments) -> _Estimate | None:
    """What depends on the overload."""
    kind = overload.params[0].kind if overload.params else ""
    if function in ("_==_", "_!=_"):
        return _equality(function, args), None
    if function in _COMPARISONS:
        if kind not in ("string", "bytes"):
            return 1, None
        return scaled(min(args[0].size[1], args[1].size[1]), _TEXT), None
    if function == "_+_" and kind in ("string", "bytes", "list"):
        size = _sum(args[0].size, args[1].size)
        return (1 if kind == "list" else scaled(size[1], _TEXT)), size
    if function == "@in":
        return (scaled(args[1].size[1], 1.0) if overload.params[1].kind == "list" else 1), None
    if function in ("startsWith", "endsWith") and len(args) == 1:
        return scaled(args[0].size[1], _TEXT), None
    if function == "contains" and target is not None:
        return multiply(scaled(target.size[1], _TEXT), scaled(args[0].size[1], _TEXT)), None
    if function == "matches":
        text, pattern = (target, args[0]) if target is not None else (args[0], args[1])
        return multiply(scaled(add(text.size[1], 1), _TEXT), scaled(pattern.size[1], _PATTERN)), None
    if function == "format" and target is not None:
        return scaled(target.size[1], _TEXT), None
    if function == "bytes" and kind == "string":
        size = args[0].size
        return scaled(size[1], _TEXT), (size[0], size[1] * 4 % 2**64)
    if function == "string" and kind == "bytes":
        size = args[0].size
        return scaled(size[1], _TEXT), (size[0] // 4, size[1])
    if function == "strings.quote":
        size = args[0].size
        return scaled(size[1], _TEXT), ((size[0] + 2) % 2**64, (size[1] * 2 + 2) % 2**64)
    if function == "ip":
        return (1, None) if target is not None or not args else (scaled(args[0].size[1], _TEXT), None)
    if function in ("sort", "@sortByAssociatedKeys"):
        keys = target if function == "sort" else args[0]
        assert keys is not None
        compared = overload.params[-1].params[0].kind in ("string", "bytes")
        return _made(2.0 + _TEXT if compared else 2.0, _product(keys.size, keys.size))
    return None


_UNIT_EQUALITY: Final = frozenset(("net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver"))


def _equality(function: str, args: _Arguments) -> int:
    if function == "_==_" and args[0].type == args[1].type:
        name = args[0].type.name
        if name in _UNIT_EQUALITY:
            return 1
        if name == "kubernetes.NamedFormat":
            return scaled(_FORMAT_SIZE, _TEXT)
        if name == "kubernetes.URL":
            known = args[1].known
            return scaled(known[1] if known is not None else 1, _TEXT)
    return scaled(min(args[0].size[1], args[1].size[1]), _TEXT)

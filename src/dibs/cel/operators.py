"""What generated code calls: the forms of operators whose operand types are only known while running.

Called by generated code and by library/standard. Each fails with CelRuntimeError only, or CelCostError.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from dibs.cel.charges import Charge
from dibs.cel.declarations import Overload
from dibs.cel.errors import CelCancelledError, CelCostError, CelRuntimeError
from dibs.cel.types import accepts
from dibs.cel.values import (
    NONE,
    DefaultMap,
    Optional,
    TypeValue,
    Uint,
    compare,
    current,
    equals,
    key_value,
    lookup_key,
    map_key,
    no_overload,
    size,
    type_name,
    unlike,
)

# What evaluating an expression may raise and `&&`, `||` may absorb. KeyError comes from plain dict access.
FAILURES: Final = (CelRuntimeError, KeyError, ValueError)

# How much work one evaluation may do beyond what it costs: a hostile expression ends within seconds.
WORK_LIMIT: Final = 5_000_000

# Go's names of the value classes, as Kubernetes prints them.
_CLASS_NAMES: Final = {
    "bool": "types.Bool", "int": "types.Int", "uint": "types.Uint", "double": "types.Double",
    "string": "types.String", "bytes": "types.Bytes", "null_type": "types.Null", "optional_type": "*types.Optional",
}  # fmt: skip


def fail(message: str) -> NoReturn:
    """Raise what the compiler found out already."""
    raise CelRuntimeError(message)


def boolean(value: Any) -> bool:
    """The value as a condition."""
    if value is True or value is False:
        return bool(value)
    raise CelRuntimeError(f"no such overload: expected bool, got {type_name(value)}")


def select(operand: Any, field: str) -> Any:
    """``operand.field`` where the operand's type was not known."""
    if isinstance(operand, dict):
        return operand[field]
    if type(operand) is Optional:
        return optional_select(operand, field)
    raise CelRuntimeError(f"no such overload: type '{type_name(operand)}' does not support field selection")


def optional_select(operand: Any, field: str) -> Optional:
    """``operand.?field``."""
    if type(operand) is Optional:
        if not operand.present:
            return NONE
        operand = operand.value
        if type(operand) is Optional:
            return optional_select(operand, field)
    if isinstance(operand, list):
        raise CelRuntimeError("unsupported index type 'string' in list")
    if not isinstance(operand, dict):
        return NONE
    try:
        return Optional(operand[field])
    except KeyError:
        return NONE


def has(operand: Any, field: str) -> bool:
    """``has(operand.field)``."""
    if type(operand) is DefaultMap:
        return True
    if isinstance(operand, dict):
        return field in operand
    if type(operand) is Optional:
        return operand.present and has(operand.value, field)
    if isinstance(operand, list):
        raise CelRuntimeError("unsupported index type 'string' in list")
    return False


class _Held:
    """Stands for an optional that is an entry of a map or list: a path goes no further into it."""

    __cel_type__ = "optional_type"


_HELD: Final = _Held()


def held(value: Any) -> Any:
    """What a path reached, to be looked into. Only the optional that a path starts at is opened."""
    return _HELD if type(value) is Optional else value


def text_of(value: Any) -> Any:
    """What cel-go matches against a constant pattern: also a type, by its name, and what an optional holds."""
    while type(value) is Optional and value.present:
        value = value.value
    return value.name if type(value) is TypeValue else value


class ByText:
    """A function of a text, called with what stands for one."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, first: Any, *others: Any) -> Any:
        return self.function(text_of(first), *others)


def index(operand: Any, key: Any) -> Any:
    """``operand[key]``."""
    if isinstance(operand, list):
        return operand[_list_index(operand, key)]
    if isinstance(operand, dict):
        return operand[lookup_key(key)]
    if type(operand) is Optional:
        return optional_index(operand, key)
    raise no_overload("_[_]", operand, key)


def _list_index(operand: list[Any], key: Any) -> int:
    place = key
    if type(place) is float and place.is_integer():
        place = int(place)
    if type(place) is not int and type(place) is not Uint:
        raise no_overload("_[_]", operand, key)
    if place < 0 or place >= len(operand):
        raise CelRuntimeError(f"index out of bounds: {place}")
    return place


def list_index(operand: list[Any], place: int) -> Any:
    """``operand[place]`` where both types are known."""
    if place < 0 or place >= len(operand):
        raise CelRuntimeError(f"index out of bounds: {place}")
    return operand[place]


def goes_on(operand: Any) -> bool:
    """Whether a path can be followed any further: it ends at an optional that is none."""
    return type(operand) is not Optional or operand.present


def optional_index(operand: Any, key: Any) -> Optional:
    """``operand[?key]``."""
    if type(operand) is Optional:
        if not operand.present:
            return NONE
        operand = operand.value
    if isinstance(operand, list):
        if type(key) not in (int, Uint, float):
            raise no_overload("_[?_]", operand, key)
        return Optional(operand[int(key)]) if 0 <= key < len(operand) and key == int(key) else NONE
    if isinstance(operand, dict):
        try:
            return Optional(operand[lookup_key(key)])
        except KeyError:
            return NONE
    return NONE


def contains(container: Any, item: Any) -> bool:
    """``item in container``."""
    if isinstance(container, list):
        kind = type(item)
        if kind is str or kind is bytes:
            return item in container
        if hasattr(kind, "__cel_strict__"):
            return any(type(element) is kind and item == element for element in container)
        if kind is Optional:
            return any(not unlike(item, element) and equals(item, element) for element in container)
        return any(equals(item, element) for element in container)
    if isinstance(container, dict):
        try:
            return lookup_key(item) in container
        except CelRuntimeError:
            return False
    raise no_overload("@in", item, container)


def iterate(value: Any) -> Iterable[Any]:
    """What a macro with one variable loops over: elements, or keys."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return [key_value(key) for key in value]
    raise not_iterable(value)


def iterate_pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """What a macro with two variables loops over: index and element, or key and value."""
    if isinstance(value, list):
        return enumerate(value)
    if isinstance(value, dict):
        return [(key_value(key), item) for key, item in value.items()]
    raise not_iterable(value)


def not_iterable(value: Any) -> CelRuntimeError:
    """The error of looping over a single value, in Kubernetes' words."""
    name = type_name(value)
    shown = _CLASS_NAMES.get(name) or getattr(type(value), "__cel_class__", name)
    return CelRuntimeError(f"got '{shown}', expected iterable type")


def unwrap(value: Any) -> Optional:
    """A value that must be an optional."""
    if type(value) is Optional:
        return value
    raise CelRuntimeError(f"no such overload: expected optional_type, got {type_name(value)}")


def make_map(entries: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A map literal whose keys are not all strings or ints."""
    made: dict[Any, Any] = {}
    for key, value in entries:
        put_literal(made, key, value)
    return made


def put_literal(made: dict[Any, Any], key: Any, value: Any) -> None:
    """One more entry of a map literal. The last of several with the same key counts, as in Kubernetes."""
    key = map_key(key)
    made.pop(key, None)
    made[key] = value


def put(made: dict[Any, Any], key: Any, value: Any) -> None:
    """One more entry of a map that is being made."""
    key = map_key(key)
    if key in made:
        raise CelRuntimeError(f"duplicate key in map: {key}")
    made[key] = value


def put_all(made: dict[Any, Any], entry: Any) -> None:
    """The entries of a map that ``transformMapEntry`` gave."""
    if not isinstance(entry, dict):
        raise no_overload("transformMapEntry", entry)
    for key, value in entry.items():
        if key in made:
            raise CelRuntimeError(f"insert failed: key '{key}' already exists")
        made[key] = value


class Dispatcher:
    """Chooses an overload by the arguments' run-time types, remembering the choice."""

    __slots__ = ("function", "known", "looks_inside", "overloads")

    def __init__(self, function: str, overloads: list[Overload]) -> None:
        self.function = function
        self.overloads = overloads
        # Then the type of an argument does not say enough to remember the choice by it.
        self.looks_inside = any(param.kind == "list" for overload in overloads for param in overload.params)
        self.known: dict[tuple[type, ...], Callable[..., Any]] = {}

    def choose(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """The implementation for these arguments."""
        for overload in self.overloads:
            if all(accepts(param, value) for param, value in zip(overload.params, arguments, strict=True)):
                return overload.implementation
        raise no_overload(self.function, *arguments)

    def __call__(self, *arguments: Any) -> Any:
        kinds = tuple(map(type, arguments))
        implementation = self.known.get(kinds)
        if implementation is None:
            implementation = self.choose(arguments)
            if not self.looks_inside:
                self.known[kinds] = implementation
        return implementation(*arguments)


def comparable(left: Any, right: Any) -> bool:
    """False for two values of which the left is not a string; an error where Kubernetes does not compare them."""
    return equals(left, right)


def differ(left: Any, right: Any) -> bool:
    """``left != right``; of Kubernetes' own types it never fails."""
    if type(left) is not type(right) and hasattr(type(left), "__cel_strict__"):
        return True
    if type(left) is Optional and type(right) is Optional and left.present and right.present:
        return differ(left.value, right.value)
    return not equals(left, right)


ORDERINGS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "_<_": lambda a, b: compare(a, b) < 0,
    "_<=_": lambda a, b: compare(a, b) <= 0,
    "_>_": lambda a, b: compare(a, b) > 0,
    "_>=_": lambda a, b: compare(a, b) >= 0,
}


def use(value: Any, error: Exception | None) -> Any:
    """A bound value, or the error that came instead of it."""
    if error is not None:
        raise error
    return value


class Meter:
    """The budget of one evaluation. Checks for cancellation now and then.

    ``limit`` is in CEL's units and charged as Kubernetes charges it. Beside it the work is counted that takes longer
    here than it costs there (``spend``).
    """

    __slots__ = ("absorbed", "cancelled", "iterations", "left", "limit", "steps_left", "work")

    def __init__(self, limit: float, steps: float | None = None, cancelled: Callable[[], bool] | None = None) -> None:
        self.limit = limit
        self.left = limit
        self.steps_left = float("inf") if steps is None else steps
        self.cancelled = cancelled
        self.iterations = 0
        self.absorbed = 0
        self.work = max(limit, WORK_LIMIT)

    @property
    def used(self) -> float:
        """What was charged so far."""
        return self.limit - self.left

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call a metered function; work deep inside of libraries is counted too."""
        outer, current.charge = current.charge, self.spend
        try:
            return function(self, *arguments)
        finally:
            current.charge = outer

    def charge(self, cost: float) -> None:
        """Take from the budget."""
        self.left -= cost
        if self.left < 0:
            raise CelCostError(f"operation cancelled: actual cost limit exceeded ({self.limit:g} units)")

    def absorb(self) -> None:
        """Count an error that may yet come to nothing."""
        self.absorbed += 1

    def spend(self, work: float) -> None:
        """Count work."""
        self.work -= work
        if self.work < 0:
            raise CelCostError("operation cancelled: the expression takes too many steps")

    def step(self) -> None:
        """One more turn of a loop."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise CelCostError("operation cancelled: step limit exceeded")
        self.spend(1)
        self.iterations += 1
        if self.cancelled is not None and self.iterations % 100 == 1 and self.cancelled():
            raise CelCancelledError("operation interrupted")

    def priced(self, charge: Charge, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function whose cost depends on its arguments or its result."""
        result = function(*arguments)
        self.charge(charge(result, *arguments))
        return result

    def joined(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may make a larger value than it costs."""
        result = function(*arguments)
        self.spend(0.1 * size(result))
        return result

    def present(self, found: Optional) -> Optional:
        """A step into an optional costs where there is something."""
        if found.present:
            self.charge(1)
        return found

    def tested(self, operand: Any, field: str, cost: int) -> bool:
        """``has(operand.field)``. In an optional, a step costs where there is something.

        Kubernetes' count has no sign: what falls below nothing is over every limit.
        """
        found = has(operand, field)
        self.charge(cost if found or type(operand) is not Optional else cost - 1)
        if self.left > self.limit:
            raise CelCostError(f"operation cancelled: actual cost limit exceeded ({self.limit:g} units)")
        return found

    def postponed(self, before: float, extra: float = 0) -> list[float]:
        """Take back what was charged since then; it is due when the value is first used."""
        due = before - self.left + extra
        self.left = before
        return [due]

    def use(self, value: Any, error: Exception | None, due: list[float]) -> Any:
        """A bound value; its cost is due the first time."""
        if due[0]:
            cost, due[0] = due[0], 0
            self.charge(cost)
        return use(value, error)

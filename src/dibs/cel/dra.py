"""The CEL environment of Kubernetes DRA device selectors.

The allocator calls this: ``compile_selector`` once per expression, ``DeviceView`` once per device (and generation),
``Selector.matches`` once per pair. A selector never changes a view, and nothing here knows slices, pools or claims.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dibs.cel import libraries
from dibs.cel.environment import Environment, Program
from dibs.cel.errors import CelCostError, CelError, CelRuntimeError, CelSyntaxError, CelTypeError
from dibs.cel.kubernetes import QUANTITY, Quantity, Semver, quantities, versions
from dibs.cel.macros import EXISTS_ONE_WITH_TWO
from dibs.cel.types import ANY, BOOL, DYN, STRING, map_of, object_type
from dibs.cel.values import INT_MAX, INT_MIN, DefaultMap, Optional, type_name

MAX_EXPRESSION_LENGTH: Final = 10 * 1024
COST_LIMIT: Final = 1_000_000

# Kubernetes' limits, which bound the cost of an expression: entries per device, and lengths.
_MAX_ENTRIES: Final = 32
_MAX_DOMAIN: Final = 63
_MAX_ID: Final = 32
_MAX_VALUE: Final = 64
_ANY_SIZE: Final = 2**63 - 1

# What a device attribute may be: one value or a list of one kind.
Attribute = bool | int | str | Semver | Sequence[bool] | Sequence[int] | Sequence[str] | Sequence[Semver]

_HINT: Final = (
    "; not every device has this attribute or capacity: write has(device.attributes[domain].id) before it, "
    "or device.attributes[domain].?id.orValue(default)"
)


class DeviceView:
    """What a selector sees of one device, prepared once.

    ``attributes`` and ``capacity`` are keyed as in a ResourceSlice: ``id`` or ``domain/id``; an id without a domain
    goes under the driver's name. A value is the Python value or its wire form (``{"int": 4}``, ``{"value": "40Gi"}``).
    """

    __slots__ = ("allow_multiple_allocations", "attributes", "capacity", "driver")

    driver: str
    attributes: Mapping[str, Mapping[str, Any]]
    capacity: Mapping[str, Mapping[str, Quantity]]
    allow_multiple_allocations: bool

    def __init__(
        self,
        driver: str,
        attributes: Mapping[str, Attribute | Mapping[str, Any]] | None = None,
        capacity: Mapping[str, Quantity | str | Mapping[str, Any]] | None = None,
        allow_multiple_allocations: bool | None = False,
    ) -> None:
        self.driver = driver
        self.attributes = _by_domain(driver, "attribute", attributes or {}, _attribute)
        self.capacity = _by_domain(driver, "capacity", capacity or {}, _capacity)
        self.allow_multiple_allocations = bool(allow_multiple_allocations)

    def __repr__(self) -> str:
        return f"DeviceView({self.driver!r}, {dict(self.attributes)!r}, {dict(self.capacity)!r})"


def _by_domain(
    driver: str, what: str, values: Mapping[str, Any], convert: Callable[[Any], Any]
) -> Mapping[str, Mapping[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        try:
            domains.setdefault(domain, {})[identifier] = convert(value)
        except ValueError as error:
            raise CelRuntimeError(f"{what} {name}: {error}") from None
    # A domain that the device does not have is an empty map, never an error.
    return DefaultMap(domains, {})


def _attribute(value: Any) -> Any:
    if isinstance(value, Mapping):
        value = _wire_attribute(value)
    if isinstance(value, list | tuple):
        return [_single(item) for item in value]
    return _single(value)


def _single(value: Any) -> Any:
    if type(value) in (bool, str) or isinstance(value, Semver):
        return value
    if type(value) is int:
        if not INT_MIN <= value <= INT_MAX:
            raise ValueError(f"{value} does not fit into 64 bits")
        return value
    raise ValueError(f"unsupported attribute value {value!r}: use an int, bool, string or version, or a list of them")


def _wire_attribute(value: Mapping[str, Any]) -> Any:
    given = {key: item for key, item in value.items() if item is not None}
    if len(given) != 1:
        raise ValueError(f"exactly one value is needed, got {sorted(given) or 'none'}")
    key, found = next(iter(given.items()))
    if key == "version":
        return _version(found)
    if key == "versions":
        return [_version(item) for item in _list(key, found)]
    kind = {"int": int, "bool": bool, "string": str}.get(key.removesuffix("s"))
    if kind is None:
        raise ValueError(f'unsupported attribute value: "{key}" is none of int, bool, string, version and their lists')
    items = _list(key, found) if key.endswith("s") else [found]
    for item in items:
        if type(item) is not kind:
            raise ValueError(f'"{key}": {item!r} is not of this kind')
    return found


def _list(key: str, value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise ValueError(f'"{key}": {value!r} is not a list')


def _version(value: Any) -> Semver:
    try:
        return value if isinstance(value, Semver) else Semver.parse(str(value))
    except ValueError as error:
        raise ValueError(f"parse semantic version: {error}") from None


def _capacity(value: Any) -> Quantity:
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, Quantity):
        return value
    if isinstance(value, str):
        return Quantity.parse(value)
    if type(value) is int:
        return Quantity.of(value)
    raise ValueError(f"{value!r} is not a quantity")


class Selector:
    """A compiled device selector."""

    __slots__ = ("_function", "_program", "cost", "expression")

    def __init__(self, program: Program) -> None:
        self._program = program
        self._function = _function_of(program)
        self.expression = program.expression
        """The text."""
        self.cost = program.cost
        """The upper bound of what the expression can cost, in CEL's units. Validation refuses above COST_LIMIT."""

    def matches(self, device: DeviceView) -> bool:
        """Whether the device fits. Raises CelRuntimeError (no such key, no bool, ...) or CelCostError."""
        try:
            result = self._function(device)
        except (CelError, KeyError, ValueError, RecursionError) as error:
            raise self._failure(error) from None
        if result is True:
            return True
        if result is False:
            return False
        while type(result) is Optional and result.present:
            result = result.value
        if isinstance(result, bool):
            return result
        raise CelRuntimeError(
            f"CEL result of type {type_name(result)} could not be converted to bool: "
            f"type conversion error from '{type_name(result)}' to 'bool'",
            expression=self.expression,
        )

    def _failure(self, error: Exception) -> CelError:
        found = self._program.failure(error)
        if isinstance(error, KeyError):
            found.message += _HINT
        return found

    def __repr__(self) -> str:
        return f"<Selector {self.expression!r}>"


def _function_of(program: Program) -> Callable[[Any], Any]:
    """A function of the device alone: the generated one itself where that is possible."""
    function = program.function
    if function is not None and program.variables:
        return function
    if program.variables:
        return lambda device: program.run((device,))
    return lambda _: program.run(())


_environments: dict[tuple[bool, bool, int], Environment] = {}


def environment(
    *,
    consumable_capacity: bool = True,
    list_attributes: bool = False,
    stored: bool = False,
    cost_limit: int = COST_LIMIT,
) -> Environment:
    """The environment of device selectors; made once per set of features.

    ``stored``: for an expression that was accepted before. It knows everything, whichever features are on now.
    """
    if stored:
        consumable_capacity = list_attributes = True
    key = (consumable_capacity, list_attributes, cost_limit)
    found = _environments.get(key)
    if found is None:
        found = _environments[key] = _environment(
            consumable_capacity=consumable_capacity, list_attributes=list_attributes, cost_limit=cost_limit
        )
    return found


def _environment(*, consumable_capacity: bool, list_attributes: bool, cost_limit: int) -> Environment:
    identifier, domain = STRING.sized(_MAX_ID), STRING.sized(_MAX_DOMAIN)
    attribute = (DYN if list_attributes else ANY).sized(_MAX_VALUE)

    def domains(value: Any) -> Any:
        return map_of(domain, map_of(identifier, value, max_size=_MAX_ENTRIES), max_size=_MAX_ENTRIES)

    amount = QUANTITY.sized(_ANY_SIZE)
    fields = {"driver": STRING.sized(_MAX_DOMAIN), "attributes": domains(attribute), "capacity": domains(amount)}
    names = {name: name for name in fields}
    if consumable_capacity:
        fields["allowMultipleAllocations"] = BOOL.sized(1)
        names["allowMultipleAllocations"] = "allow_multiple_allocations"
    parts = [
        libraries.strings(version=2),
        libraries.lists(),
        libraries.sets(),
        libraries.regex(),
        libraries.optionals(),
        libraries.bindings(),
        libraries.two_variables(),
        libraries.times(),
        libraries.network(),
        libraries.urls(),
        libraries.formats(),
        quantities(),
        versions(),
    ]
    if list_attributes:
        parts.append(libraries.includes())
    made = Environment(
        {"device": object_type("kubernetes.DRADevice", fields, names).sized(_ANY_SIZE)},
        parts,
        homogeneous_literals=True,
        strict_literals=True,
        max_length=MAX_EXPRESSION_LENGTH,
        cost_limit=cost_limit,
    )
    # Kubernetes has neither this name nor this macro with one variable.
    del made.variables["dyn"], made.constants["dyn"]
    made.macros["existsOne"] = EXISTS_ONE_WITH_TWO
    return made


def compile_selector(
    expression: str,
    *,
    consumable_capacity: bool = True,
    list_attributes: bool = False,
    stored: bool = False,
    cost_limit: int = COST_LIMIT,
) -> Selector:
    """Compile a device selector; CelCompileError (CelSyntaxError, CelTypeError) where it is not one.

    ``consumable_capacity``: whether ``device.allowMultipleAllocations`` exists (on in Kubernetes since 1.36).
    ``list_attributes``: whether an attribute may be used as a list in macros, and ``includes()`` exists (off in 1.37).
    A static cost above the limit is not an error here, as in Kubernetes: see ``Selector.cost``.
    """
    if len(expression.encode(errors="replace")) > MAX_EXPRESSION_LENGTH:
        raise CelSyntaxError(f"the expression is longer than {MAX_EXPRESSION_LENGTH} bytes")
    made = environment(
        consumable_capacity=consumable_capacity, list_attributes=list_attributes, stored=stored, cost_limit=cost_limit
    )
    program = made.compile(expression)
    # What an attribute may be has a type of its own: any, or dyn where it may be a list.
    if program.type.kind not in ("bool", "dyn" if list_attributes or stored else "any"):
        raise CelTypeError(
            f"must evaluate to bool or the unknown type, not {program.type}", expression=expression, offset=0
        )
    return Selector(program)


__all__ = [
    "COST_LIMIT",
    "MAX_EXPRESSION_LENGTH",
    "Attribute",
    "CelCostError",
    "DeviceView",
    "Selector",
    "compile_selector",
    "environment",
]

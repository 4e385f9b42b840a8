"""The CEL environment of Kubernetes DRA device selectors.

The allocator calls this: ``compile_selector`` once per expression, ``DeviceView`` once per device (and generation),
``Selector.matches`` once per pair. A selector never changes a view, and nothing here knows slices, pools or claims.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dibs.cel.errors import CelRuntimeError
from dibs.cel.kubernetes import Quantity, Semver

MAX_EXPRESSION_LENGTH: Final = 10 * 1024
COST_LIMIT: Final = 1_000_000

# What a device attribute may be: one value or a list of one kind.
Attribute = bool | int | str | Semver | Sequence[bool] | Sequence[int] | Sequence[str] | Sequence[Semver]


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
        raise NotImplementedError


class Selector:
    """A compiled device selector."""

    __slots__ = ("cost", "expression")

    expression: str
    cost: int
    """The upper bound of what the expression can cost, in CEL's units. Validation refuses above COST_LIMIT."""

    def matches(self, device: DeviceView) -> bool:
        """Whether the device fits. Raises CelRuntimeError (no such key, no bool, ...) or CelCostError."""
        raise CelRuntimeError(f"not implemented: {device.driver}")


def compile_selector(
    expression: str, *, consumable_capacity: bool = True, list_attributes: bool = False, cost_limit: int = COST_LIMIT
) -> Selector:
    """Compile a device selector; CelCompileError (CelSyntaxError, CelTypeError) where it is not one.

    ``consumable_capacity``: whether ``device.allowMultipleAllocations`` exists (on in Kubernetes since 1.36).
    ``list_attributes``: whether an attribute may be used as a list in macros, and ``includes()`` exists (off in 1.37).
    A static cost above the limit is not an error here, as in Kubernetes: see ``Selector.cost``.
    """
    raise NotImplementedError

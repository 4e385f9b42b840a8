"""Amounts of a device's capacity: what a request takes of it, rounded as the device's policy says.

`pools` prepares a device's capacities once; `allocator` asks what a request would consume and whether it still fits.
All sums are exact, in billionths. It must not know who consumed what: the caller brings the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from dibs.cel.quantity import Quantity
from dibs.claims.meta import Amount
from dibs.claims.slices import CapacityRequestPolicy, DeviceCapacity

NANO = 10**9
MILLI = 10**6  # one thousandth, in billionths
INT64_MAX = (1 << 63) - 1

Consumption = dict[str, Quantity]


class CapacityError(Exception):
    """A request that no device could answer: it aborts the allocation instead of passing the device over."""


@lru_cache(maxsize=4096)
def quantity(amount: Amount) -> Quantity:
    """Read an amount as it stands in JSON. Raises ValueError with the reason."""
    return Quantity.parse(amount if isinstance(amount, str) else str(amount))


class Capacity:
    """One capacity of one device, read once."""

    __slots__ = ("default", "highest", "lowest", "policy", "step", "valid", "value")

    def __init__(self, capacity: DeviceCapacity) -> None:
        policy: CapacityRequestPolicy | None = capacity.request_policy
        self.value = quantity(capacity.value)
        self.policy = policy is not None
        self.default: Quantity | None = None
        self.valid: tuple[Quantity, ...] = ()
        self.lowest: Quantity | None = None
        self.highest: Quantity | None = None
        self.step: Quantity | None = None
        if policy is None:
            return
        self.default = _optional(policy.default)
        self.valid = tuple(quantity(amount) for amount in policy.valid_values)
        if policy.valid_range is not None:
            self.lowest = _optional(policy.valid_range.min)
            self.highest = _optional(policy.valid_range.max)
            self.step = _optional(policy.valid_range.step)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for capacities that behave the same."""
        return (self.value, self.policy, self.default, self.valid, self.lowest, self.highest, self.step)

    def consumed_by(self, requested: Quantity | None, *, fractional: bool) -> Quantity:
        """What a request takes: the default or everything where nothing is asked, else rounded up by the policy."""
        if requested is None:
            taken = self.default if self.default is not None else self.value
        elif not self.policy:
            taken = requested
        elif self.lowest is not None:
            taken = self._rounded_to_step(requested, self.lowest, fractional=fractional)
        else:
            taken = next((valid for valid in self.valid if requested <= valid), requested)
        if taken.sign < 0:
            raise CapacityError("capacity value is negative")
        return taken

    def refuses(self, taken: Quantity, *, fractional: bool) -> bool:
        """Whether the policy forbids this amount."""
        if not self.policy or taken == self.default:
            return False
        if self.lowest is not None or self.highest is not None or self.step is not None:
            if self.highest is not None and taken > self.highest:
                return True
            if self.step is None:
                return False
            unit = self._unit(fractional=fractional)
            if unit == MILLI and taken.nanos % MILLI:
                return True
            lowest = 0 if self.lowest is None else _up(self.lowest.nanos, unit)
            step = _up(self.step.nanos, unit)
            return step > 0 and (_up(taken.nanos, unit) - lowest) % step != 0
        return bool(self.valid) and taken not in self.valid

    def _rounded_to_step(self, requested: Quantity, lowest: Quantity, *, fractional: bool) -> Quantity:
        if requested < lowest:
            return lowest
        if self.step is None:
            return requested
        unit = self._unit(fractional=fractional)
        reach = "the milli-value range" if unit == MILLI else "MaxInt64"
        if unit == MILLI and (requested.nanos % MILLI or requested.nanos // MILLI > INT64_MAX):
            raise CapacityError(_beyond(f"request {requested} is not a representable milli value"))
        if unit == NANO and requested.nanos > INT64_MAX * NANO:
            raise CapacityError(_beyond(f"request {requested} exceeds MaxInt64"))
        start, step = _up(lowest.nanos, unit), _up(self.step.nanos, unit)
        if step <= 0:
            raise CapacityError(_beyond(f"the step {self.step} is not positive"))
        steps = -(-(_up(requested.nanos, unit) - start) // step)
        rounded = start + step * steps
        if rounded > INT64_MAX:
            raise CapacityError(_beyond(f"rounding request {requested} up to the next step passes {reach}"))
        return Quantity(rounded * unit, binary=self.step.binary, exponent=self.step.exponent)

    def _unit(self, *, fractional: bool) -> int:
        """Whole numbers, or thousandths where the gate is on and the whole range can be written in them."""
        if not fractional:
            return NANO
        for bound in (self.lowest, self.highest, self.step):
            if bound is not None and (bound.nanos % MILLI or abs(bound.nanos // MILLI) > INT64_MAX):
                return NANO
        return NANO if self.step is not None and self.step.nanos < MILLI else MILLI


def consumption(
    capacities: Mapping[str, Capacity], requested: Mapping[str, Quantity], *, fractional: bool
) -> Consumption | None:
    """What a request takes of each capacity of a device; None where the device cannot be asked for that.

    Raises CapacityError for a request that cannot be computed at all, whatever the other capacities say.
    """
    for name in requested:
        if name not in capacities:
            return None
    taken: Consumption = {}
    for name, capacity in capacities.items():
        try:
            taken[name] = capacity.consumed_by(requested.get(name), fractional=fractional)
        except CapacityError as error:
            raise CapacityError(f'capacity "{name}": {error}') from None
    for name, capacity in capacities.items():
        if capacity.refuses(taken[name], fractional=fractional):
            return None
    return taken


def exceeded(
    capacities: Mapping[str, Capacity],
    taken: Consumption,
    used: Mapping[str, int],
    attempted: Mapping[str, int],
) -> str | None:
    """The name of the first capacity that would be overdrawn; sums are in billionths."""
    for name, capacity in capacities.items():
        if taken[name].nanos + used.get(name, 0) + attempted.get(name, 0) > capacity.value.nanos:
            return name
    return None


def _optional(amount: Amount | None) -> Quantity | None:
    return None if amount is None else quantity(amount)


def _up(nanos: int, unit: int) -> int:
    return -(-nanos // unit)


def _beyond(detail: str) -> str:
    return f"capacity request cannot be represented in the device's range arithmetic: {detail}"

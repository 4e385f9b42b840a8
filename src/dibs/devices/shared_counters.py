"""Which counters say that devices share hardware.

`slices` asks. Devices exclude each other where they share a unit; Kubernetes says the same with counters, but under
limits: counters belong to one pool, a set has at most 32 of them, and a device consumes from at most two sets. What
does not fit is told (`unsaid`), because a device that silently lost a counter could be given twice. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from dibs.claims.slice_validation import MAX_CONSUMPTIONS, MAX_COUNTERS
from dibs.devices.model import Device

OTHER_POOL = "shared-with-another-driver"
TOO_MANY = "too-many-units"

PoolKey = tuple[str, str]  # driver, pool


class Consumption(msgspec.Struct, frozen=True):
    """Counters of one counter set: all that it has, or those that a device consumes, each once."""

    name: str
    counters: tuple[str, ...]


class Counting:
    """The counter sets of each pool, and what each device (by its number in the inventory) consumes of them."""

    __slots__ = ("_of", "sets", "unsaid")

    def __init__(self, devices: Sequence[Device]) -> None:
        self.sets: dict[PoolKey, list[Consumption]] = {}
        self.unsaid: dict[int, str] = {}
        self._of: dict[int, tuple[Consumption, ...]] = {}
        shared = _shared_units(devices)
        if not shared:
            return
        for members in _related(devices, shared):
            self._count(devices, members, shared)

    def of(self, number: int) -> tuple[Consumption, ...]:
        return self._of.get(number, ())

    def _count(self, devices: Sequence[Device], members: list[int], shared: dict[str, list[int]]) -> None:
        """Devices that share units, directly or through others: one counter set, or more where it is too small."""
        pool = _pool(devices[members[0]])
        mine = [number for number in members if _pool(devices[number]) == pool]
        self.unsaid.update({number: OTHER_POOL for number in members if _pool(devices[number]) != pool})
        units = list(
            dict.fromkeys(
                unit for number in mine for unit in devices[number].booked_units if len(shared.get(unit, ())) > 1
            )
        )
        card = max(mine, key=lambda number: (len(devices[number].booked_units), -number))
        place: dict[str, tuple[int, str]] = {}
        for position, unit in enumerate(units):
            place[unit] = (position // MAX_COUNTERS, f"unit-{position}")
        names = [
            f"{devices[card].name}-units" + (f"-{part + 1}" if part else "")
            for part in range(-(-len(units) // MAX_COUNTERS))
        ]
        for part, name in enumerate(names):
            counters = tuple(counter for where, counter in place.values() if where == part)
            self.sets.setdefault(pool, []).append(Consumption(name, counters))
        for number in mine:
            consumed: dict[int, list[str]] = {}
            for unit in devices[number].booked_units:
                if unit in place:
                    part, counter = place[unit]
                    consumed.setdefault(part, []).append(counter)
            if len(consumed) > MAX_CONSUMPTIONS:
                self.unsaid[number] = TOO_MANY
            else:
                self._of[number] = tuple(Consumption(names[part], tuple(found)) for part, found in consumed.items())


def _pool(device: Device) -> PoolKey:
    return (device.driver, device.pool)


def _shared_units(devices: Sequence[Device]) -> dict[str, list[int]]:
    """The units that more than one device has, with those devices."""
    if not any(device.units for device in devices):
        return {}  # nothing is cut, nothing overlaps: the usual case
    users: dict[str, list[int]] = {}
    for number, device in enumerate(devices):
        for unit in dict.fromkeys(device.booked_units):
            users.setdefault(unit, []).append(number)
    return {unit: numbers for unit, numbers in users.items() if len(numbers) > 1}


def _related(devices: Sequence[Device], shared: dict[str, list[int]]) -> Iterator[list[int]]:
    """The devices that share units, in groups that have none in common; in the order of the inventory."""
    seen: set[int] = set()
    for first, device in enumerate(devices):
        if first in seen or not any(unit in shared for unit in device.booked_units):
            continue
        members = {first}
        waiting = [first]
        while waiting:
            for unit in devices[waiting.pop()].booked_units:
                for other in shared.get(unit, ()):
                    if other not in members:
                        members.add(other)
                        waiting.append(other)
        seen |= members
        yield sorted(members)

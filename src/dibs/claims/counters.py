"""Shared counters and compatibility groups: what partitions of one piece of hardware draw from together.

`pools` prepares what each device draws; `allocator` keeps one `Budget` per pool while it tries, and gives back exactly
what a rejected or abandoned device drew. Amounts are exact, in billionths.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dibs.claims.capacity import quantity
from dibs.claims.slices import Device

CounterKey = tuple[str, str]  # counter set, counter


class Draw(NamedTuple):
    """What one device draws: amounts by counter, and its compatibility groups by counter set."""

    amounts: tuple[tuple[CounterKey, int], ...]
    groups: tuple[tuple[str, frozenset[str]], ...]


NOTHING = Draw((), ())
_NOBODY = frozenset({""})  # a group that no device can name: members that contradict each other admit no other


def draw_of(device: Device) -> Draw:
    amounts: dict[CounterKey, int] = {}
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            key = (consumption.counter_set, name)
            amounts[key] = amounts.get(key, 0) + quantity(counter.value).nanos
    groups = tuple((c.counter_set, frozenset(c.compatibility_groups)) for c in device.consumes_counters)
    return Draw(tuple(amounts.items()), groups)


class Budget:
    """What is left of a pool's counters, and which groups each counter set is bound to.

    A counter set is bound by its members: `None` until the first, then the groups that all of them share. Devices
    without groups only go together with each other: that state is the empty set.
    """

    __slots__ = ("bound", "left", "overdrawn")

    def __init__(self, counters: dict[CounterKey, int], allocated: Iterable[Draw]) -> None:
        self.left = dict(counters)
        self.bound: dict[str, frozenset[str]] = {}
        for draw in allocated:
            for key, amount in draw.amounts:
                if key in self.left:
                    self.left[key] -= amount
            for counter_set, groups in draw.groups:
                before = self.bound.get(counter_set)
                self.bound[counter_set] = groups if before is None else _joined(before, groups)
        # As in Kubernetes, one counter below zero closes the pool for every device that draws from it.
        self.overdrawn = next((key for key, left in self.left.items() if left < 0), None)

    def copy(self) -> Budget:
        twin = Budget.__new__(Budget)
        twin.left = dict(self.left)
        twin.bound = dict(self.bound)
        twin.overdrawn = self.overdrawn
        return twin

    def shortage(self, draw: Draw) -> CounterKey | None:
        """The first counter that has not enough left."""
        if self.overdrawn is not None:
            return self.overdrawn
        left = self.left
        for key, amount in draw.amounts:
            if left[key] < amount:
                return key
        return None

    def conflict(self, draw: Draw) -> str | None:
        """The first counter set whose members the device does not go together with."""
        pending: dict[str, frozenset[str]] = {}
        for counter_set, groups in draw.groups:
            before = pending.get(counter_set, self.bound.get(counter_set))
            if before is not None and not (before & groups if groups and before else groups == before):
                return counter_set
            pending[counter_set] = groups if before is None else _joined(before, groups)
        return None

    def take(self, draw: Draw, *, bind: bool) -> tuple[tuple[str, frozenset[str] | None], ...]:
        """Draw; the return value is what `give_back` needs."""
        for key, amount in draw.amounts:
            self.left[key] -= amount
        if not bind:
            return ()
        before = tuple((counter_set, self.bound.get(counter_set)) for counter_set, _ in draw.groups)
        for counter_set, groups in draw.groups:
            bound = self.bound.get(counter_set)
            self.bound[counter_set] = groups if bound is None else _joined(bound, groups)
        return before

    def give_back(self, draw: Draw, before: tuple[tuple[str, frozenset[str] | None], ...]) -> None:
        for key, amount in draw.amounts:
            self.left[key] += amount
        for counter_set, groups in reversed(before):
            if groups is None:
                self.bound.pop(counter_set, None)
            else:
                self.bound[counter_set] = groups


def _joined(bound: frozenset[str], groups: frozenset[str]) -> frozenset[str]:
    if not bound or not groups:
        return bound
    return bound & groups or _NOBODY

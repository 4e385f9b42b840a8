"""Whole devices for plain requests: the allocator's search, without slices, classes and CEL.

`plan.devices` asks when the first free devices do not do for all parts of a request at once. Its selectors are
typed and were asked already: a request comes as the positions that it could take. The answer is the one that the
allocator gives to the same request as a claim, except that the limits of stored objects (32 devices in a claim, 32
counters in a set) do not apply. Nothing here knows who holds a device: what is held is not among the positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.claims.attempt import Attempt, Budgets
from dibs.claims.claim import DeviceClass
from dibs.claims.counters import NOTHING, CounterKey, Draw
from dibs.claims.features import Features
from dibs.claims.identity import Allocated, DeviceId
from dibs.claims.inventory import Selection, World
from dibs.claims.nodes import Node
from dibs.claims.pools import Candidate, Pool, PoolId, PublishedSlice
from dibs.claims.search import STEP_BUDGET, Search
from dibs.claims.slices import Device, ResourceSlice
from dibs.claims.wanted import Wanted

_POOL: PoolId = ("", "")
_FEATURES = Features(partitionable_devices=True)
_NODE = Node("")
_CLASS = DeviceClass()
_DEVICE = Device()
_NO_GROUPS: frozenset[str] = frozenset()


def choose(
    units: Sequence[Sequence[str]], wants: Sequence[tuple[int, Sequence[int]]], *, budget: int = STEP_BUDGET
) -> list[list[int]] | None:
    """Give each of `wants` its number of the positions that it could take, and no unit twice; None if that cannot be.

    `units`: what each device takes, by its position. Positions ascend. Raises GaveUp after `budget` steps.
    """
    world = _world(units)
    groups = []
    for number, (count, positions) in enumerate(wants):
        wanted = Wanted("", 0, str(number), None, _CLASS, _Known(world, positions))
        wanted.need = count
        groups.append([wanted])
    attempt = Attempt(world, _NODE, _FEATURES, Allocated(), Budgets(Allocated()), 1)
    if not Search(attempt, groups, set(), budget, None, most=None).run():
        return None
    found: list[list[int]] = [[] for _ in wants]
    for given in attempt.given[0]:
        found[int(given.wanted.request)].append(given.position)
    return found


class _Known(Selection):
    """Positions that were selected already."""

    __slots__ = ()

    def __init__(self, world: World, positions: Sequence[int]) -> None:
        super().__init__(world, (), ())
        self.found = list(positions)
        self.scanned = len(world.candidates)


class _Whole(Candidate):
    """A device that is had whole or not at all, of which only its units matter."""

    __slots__ = ()

    def __init__(self, published: PublishedSlice, position: int, draw: Draw) -> None:
        self.id = DeviceId("", "", str(position))
        self.pool_id = _POOL
        self.device = _DEVICE
        self.slice = published
        self.shareable = self.measured = False
        self.taints = ()
        self.draw = draw
        self._capacities = None
        self._view = None


def _world(units: Sequence[Sequence[str]]) -> World:
    """One pool with all devices. A unit that several devices share is a counter of one."""
    users: dict[str, list[int]] = {}
    for position, mine in enumerate(units):
        for unit in mine:
            users.setdefault(unit, []).append(position)
    shared = {unit: positions for unit, positions in users.items() if len(positions) > 1}
    card = list(range(len(units)))  # by position, the first device of those that are connected by units

    def first(position: int) -> int:
        while card[position] != position:
            position = card[position]
        return position

    for positions in shared.values():
        for position in positions[1:]:
            one, other = sorted((first(positions[0]), first(position)))
            card[other] = one
    pool = Pool(_POOL)
    published = PublishedSlice(ResourceSlice())
    for position, mine in enumerate(units):
        name = str(first(position))
        keys: list[CounterKey] = [(name, unit) for unit in mine if unit in shared]
        pool.counters.update(dict.fromkeys(keys, 1))
        draw = Draw(tuple((key, 1) for key in keys), ((name, _NO_GROUPS),)) if keys else NOTHING
        published.candidates.append(_Whole(published, position, draw))
    pool.slices.append(published)
    return World([pool], _NODE, _FEATURES)

"""Whether several demands fit into what there is: a small maximum flow.

`lookahead` asks. Devices that serve the same demands are one cell; a cell gives as many devices as it has, a device
given in shares as many shares as could at most be left, and the devices that draw on one counter set as many as its
counters could at most pay for. All of these are upper bounds, so "does not fit" is certain.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from dibs.claims.attempt import Attempt
from dibs.claims.counters import CounterKey
from dibs.claims.pools import PoolId
from dibs.claims.totals import Totals

if TYPE_CHECKING:
    from dibs.claims.lookahead import _Prospect

_PLENTY = 1 << 30


class Demand:
    """So many devices out of these positions."""

    __slots__ = ("admin", "mask", "need", "prospects")

    def __init__(self, prospects: list[_Prospect], need: int, mask: int) -> None:
        self.prospects = prospects
        self.admin = prospects[0].wanted.admin  # takes devices that others have too
        self.need = need
        self.mask = mask


class _CounterSet:
    """The positions that draw on one counter set, and what each of them draws, smallest first."""

    __slots__ = ("draws", "mask", "pool_id")

    def __init__(self, pool_id: PoolId) -> None:
        self.pool_id = pool_id
        self.mask = 0
        self.draws: dict[CounterKey, list[tuple[int, int]]] = {}


class Supply:
    """What the devices of a world can give at most, at this moment of the attempt."""

    __slots__ = ("_attempt", "_sets", "from_scratch", "shared", "totals")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.totals = Totals(attempt)
        self.shared = 0
        self.from_scratch = False  # whether to count as if nothing were taken yet
        sets: dict[tuple[PoolId, str], _CounterSet] = {}
        for position, candidate in enumerate(attempt.candidates):
            if attempt.is_shared(candidate):
                self.shared |= 1 << position
            elif candidate.draw.groups and attempt.features.partitionable_devices:
                # Of a device that draws on two sets only the first is looked at: a bound stays a bound.
                name = candidate.draw.groups[0][0]
                key = (candidate.pool_id, name)
                counter_set = sets.setdefault(key, _CounterSet(candidate.pool_id))
                counter_set.mask |= 1 << position
                for counter, amount in candidate.draw.amounts:
                    if counter[0] == name:
                        counter_set.draws.setdefault(counter, []).append((amount, position))
        for counter_set in sets.values():
            for draws in counter_set.draws.values():
                draws.sort()
        self._sets = list(sets.values())

    def limits(self, wanted: int) -> list[tuple[int, int]]:
        """Groups of positions with the number of devices that can at most be given out of each."""
        found = []
        for counter_set in self._sets:
            mask = counter_set.mask & wanted
            if not mask:
                continue
            most = mask.bit_count()
            budget = self._attempt.budget(counter_set.pool_id, untouched=self.from_scratch)
            for counter, draws in counter_set.draws.items():
                most = min(most, _payable(draws, mask, budget.left[counter]))
            found.append((mask, most))
        return found

    def shares(self, mask: int, demands: list[Demand]) -> int:
        """How many shares the devices of a cell can at most still give, if each is the smallest one asked for."""
        attempt = self._attempt
        total = 0
        while mask:
            low = mask & -mask
            position = low.bit_length() - 1
            mask ^= low
            candidate = attempt.candidates[position]
            most = _PLENTY
            used = attempt.allocated.consumed.get(candidate.id, {})
            sums = {} if self.from_scratch else attempt.sums.get(position, {})
            for name, capacity in candidate.capacities.items():
                smallest = _smallest(position, name, demands)
                if smallest > 0:
                    left = capacity.value.nanos - used.get(name, 0) - sums.get(name, 0)
                    most = min(most, max(left, 0) // smallest)
            total += most
        return min(total, _PLENTY)


def _smallest(position: int, name: str, demands: list[Demand]) -> int:
    """The least that any of the demands would take of one capacity of a device, in billionths."""
    amounts = [
        taken[name].nanos
        for demand in demands
        for prospect in demand.prospects
        if (taken := prospect.wanted.taken.get(position)) is not None
    ]
    return min(amounts, default=0)


def _payable(draws: list[tuple[int, int]], mask: int, left: int) -> int:
    """How many of the devices can be paid for, the cheapest first; those that draw nothing here are free."""
    drawing = paid = 0
    for amount, position in draws:
        if not (mask >> position) & 1:
            continue
        drawing += 1
        if amount <= left:
            left -= amount
            paid += 1
    return mask.bit_count() - drawing + paid


def fits(demands: list[Demand], supply: Supply) -> bool:
    """Whether all demands could be served at the same time, as far as these bounds can tell."""
    if not demands:
        return True
    if supply.totals.overdrawn(demands, from_scratch=supply.from_scratch):
        return False
    union = 0
    for demand in demands:
        union |= demand.mask
    limits = supply.limits(union)
    limited = 0
    for mask, _ in limits:
        limited |= mask
    total = sum(demand.need for demand in demands)
    plain = union & ~supply.shared & ~limited
    if all((demand.mask & plain).bit_count() >= total for demand in demands):
        return True
    if union.bit_count() < total and not union & supply.shared:
        return False
    cells = _cells(demands, union, supply.shared, limits)
    rooms = [
        supply.shares(mask, [demands[index] for index in serving]) if in_shares else mask.bit_count()
        for mask, serving, _, in_shares in cells
    ]
    return _serves(demands, cells, rooms, [most for _, most in limits], total)


def _cells(
    demands: list[Demand], union: int, shared: int, limits: list[tuple[int, int]]
) -> list[tuple[int, list[int], int, bool]]:
    """Positions that serve the same demands: mask, demands, limit (-1: none), given in shares."""
    parts: list[tuple[int, int, bool]] = []
    rest = union
    for index, (mask, _) in enumerate(limits):
        parts.append((mask & rest, index, False))
        rest &= ~mask
    parts.append((rest & shared, -1, True))
    parts.append((rest & ~shared, -1, False))
    cells: list[tuple[int, list[int], int, bool]] = [(m, [], limit, s) for m, limit, s in parts if m]
    for index, demand in enumerate(demands):
        split: list[tuple[int, list[int], int, bool]] = []
        for mask, serving, limit, in_shares in cells:
            inside, outside = mask & demand.mask, mask & ~demand.mask
            if inside:
                split.append((inside, [*serving, index], limit, in_shares))
            if outside:
                split.append((outside, serving, limit, in_shares))
        cells = split
    return cells


def _serves(
    demands: list[Demand],
    cells: list[tuple[int, list[int], int, bool]],
    rooms: list[int],
    limits: list[int],
    total: int,
) -> bool:
    """Edmonds and Karp over source, demands, cells, limits and sink; one unit is one device."""
    source, sink = 0, 1
    first_cell = 2 + len(demands)
    first_limit = first_cell + len(cells)
    room: list[dict[int, int]] = [{} for _ in range(first_limit + len(limits))]

    def connect(start: int, end: int, capacity: int) -> None:
        room[start][end] = capacity
        room[end][start] = 0

    for index, demand in enumerate(demands):
        connect(source, 2 + index, demand.need)
    for index, (mask, serving, limit, _) in enumerate(cells):
        size = mask.bit_count()
        connect(first_cell + index, sink if limit < 0 else first_limit + limit, rooms[index])
        for demand_index in serving:  # a request takes a device once, even where others may share it
            connect(2 + demand_index, first_cell + index, size)
    for index, most in enumerate(limits):
        connect(first_limit + index, sink, most)

    served = 0
    while served < total:
        added = _augment(room, source, sink)
        if not added:
            return False
        served += added
    return True


def _augment(room: list[dict[int, int]], source: int, sink: int) -> int:
    """Send as much as possible along one shortest path that has room; 0 where there is none."""
    came_from = {source: source}
    queue = [source]
    for node in queue:
        for following, capacity in room[node].items():
            if capacity > 0 and following not in came_from:
                came_from[following] = node
                queue.append(following)
        if sink in came_from:
            break
    if sink not in came_from:
        return 0
    path = [sink]
    while path[-1] != source:
        path.append(came_from[path[-1]])
    path.reverse()
    hops = list(pairwise(path))
    amount = min(room[start][end] for start, end in hops)
    for start, end in hops:
        room[start][end] -= amount
        room[end][start] += amount
    return amount

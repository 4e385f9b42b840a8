"""Whether demands overdraw the counters of all counter sets taken together.

`flow` asks, besides looking at each set alone. Eight small partitions and three whole cards may fit card by card and
still need more than four cards have. Compared are the sums per counter name, and one sum over all counters in which
each set's counter weighs the same. Both are upper bounds of what there is and lower bounds of what is needed, so
"overdrawn" is certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.claims.attempt import Attempt
from dibs.claims.counters import CounterKey
from dibs.claims.pools import PoolId

if TYPE_CHECKING:
    from dibs.claims.flow import Demand
    from dibs.claims.lookahead import _Prospect

_SCALE = 1 << 40
_EVERYTHING = ""  # stands for the weighted sum; no counter has an empty name

Sums = dict[str, int]


class Totals:
    """The counters of a world, added up."""

    __slots__ = ("_attempt", "_draws", "_least", "_pools", "_sizes")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._pools = [pool.id for pool in attempt.pools if pool.counters]
        self._sizes: dict[tuple[PoolId, CounterKey], int] = {
            (pool.id, key): value for pool in attempt.pools for key, value in pool.counters.items()
        }
        self._draws: dict[int, Sums] = {}  # by position; a device that draws nothing, or only once for many, is not in
        self._least: dict[int, Sums] = {}
        if not self._pools or not attempt.features.partitionable_devices:
            return
        for position, candidate in enumerate(attempt.candidates):
            if candidate.draw.amounts and not attempt.is_shared(candidate):
                sums: Sums = {_EVERYTHING: 0}
                for key, amount in candidate.draw.amounts:
                    sums[key[1]] = sums.get(key[1], 0) + amount
                    size = self._sizes[candidate.pool_id, key]
                    sums[_EVERYTHING] += amount * _SCALE // size if size > 0 else 0
                self._draws[position] = sums

    def overdrawn(self, demands: list[Demand], *, from_scratch: bool) -> bool:
        if not self._draws:
            return False
        needed: Sums = {}
        for demand in demands:
            for name, amount in self._least_of(demand).items():
                needed[name] = needed.get(name, 0) + demand.need * amount
        if not needed:
            return False
        left = self._left(from_scratch=from_scratch)
        return any(amount > left.get(name, 0) for name, amount in needed.items())

    def _left(self, *, from_scratch: bool) -> Sums:
        sums: Sums = {_EVERYTHING: 0}
        for pool_id in self._pools:
            for key, amount in self._attempt.budget(pool_id, untouched=from_scratch).left.items():
                if amount <= 0:
                    continue
                sums[key[1]] = sums.get(key[1], 0) + amount
                sums[_EVERYTHING] -= -amount * _SCALE // self._sizes[pool_id, key]
        return sums

    def _least_of(self, demand: Demand) -> Sums:
        """The least that one device of a demand draws, whichever alternative is taken."""
        found = self._least_of_one(demand.prospects[0])
        for prospect in demand.prospects[1:]:
            other = self._least_of_one(prospect)
            found = {name: min(amount, other[name]) for name, amount in found.items() if name in other}
        return found

    def _least_of_one(self, prospect: _Prospect) -> Sums:
        known = self._least.get(id(prospect))
        if known is not None:
            return known
        found: Sums | None = None
        mask = prospect.mask
        while mask:
            low = mask & -mask
            mask ^= low
            sums = self._draws.get(low.bit_length() - 1)
            if sums is None:
                found = {}
                break
            if found is None:
                found = dict(sums)
            else:
                found = {name: min(amount, sums[name]) for name, amount in found.items() if name in sums}
        self._least[id(prospect)] = found = found or {}
        return found

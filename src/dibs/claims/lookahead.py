"""Looking ahead: whether what is still wanted can possibly be placed.

`search` asks after its first dead end. The answers are bounds: "no" is certain, "yes" is not. They come from relaxed
problems that are easy: enough usable devices for each request, enough for all of them together (a flow), enough with
one common value, enough different values, enough left of shared counters. A "no" therefore never hides a solution.

Nothing is concluded beyond a request whose evaluation could raise an error: the plain search would meet that error,
and it must not be hidden. Errors met only here are never raised.
"""

from __future__ import annotations

from itertools import product

from dibs.claims.attempt import Attempt
from dibs.claims.constraints import Constraint, DistinctAttribute, MatchAttribute, Member
from dibs.claims.failures import BadClaim
from dibs.claims.flow import Demand, Supply, fits
from dibs.claims.pools import Candidate
from dibs.claims.taints import untolerated
from dibs.claims.wanted import Wanted

_MANY_VALUES = 128  # above this many combinations of values, only count per value; a flow for each would be slow


class _Prospect:
    """What is known in advance about one request or alternative."""

    __slots__ = ("by_value", "mask", "risky", "vague", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.mask = 0  # the positions that could be used
        self.risky = wanted.everything and bool(wanted.constraints)  # a violation would be an error, not a no
        self.by_value: dict[Constraint, dict[Member, int]] = {c: {} for c in wanted.constraints}
        self.vague: set[Constraint] = set()  # constraints with values of an unknown kind


class Lookahead:
    """Bounds for one search."""

    __slots__ = ("_attempt", "_groups", "_horizon", "_in_order", "_likenesses", "_open", "_prospects", "_supply")

    def __init__(self, attempt: Attempt, groups: list[list[Wanted]]) -> None:
        self._attempt = attempt
        self._groups = groups
        self._prospects = {id(wanted): self._prospect(wanted) for group in groups for wanted in group}
        self._horizon = len(groups)
        for index, group in enumerate(groups):
            if any(self._prospects[id(wanted)].risky for wanted in group):
                self._horizon = index
                break
        # An alternative that cannot be had at all is left out, but only where that is certain.
        self._open: list[list[_Prospect]] = []
        for group in groups[: self._horizon]:
            prospects = [self._prospects[id(wanted)] for wanted in group]
            self._open.append(
                [
                    p
                    for p in prospects
                    if p.mask.bit_count() >= p.wanted.need and (p.wanted.need or not p.wanted.everything)
                ]
            )
        self._supply = Supply(attempt)
        # "All" takes its devices in order: whether it meets a violated constraint (an error) or a device that is
        # taken (a plain no) first depends on which of two like devices was taken.
        self._in_order = {p for group in groups for w in group if w.everything and w.constraints for p in w.positions}
        self._likenesses: dict[int, object] = {}

    def hopeless(self) -> str:
        """Why nothing can be placed at all, or nothing where that is not certain."""
        for index, prospects in enumerate(self._open):
            if not prospects:
                wanted = self._groups[index][0]
                usable = max(self._prospects[id(w)].mask.bit_count() for w in self._groups[index])
                if len(self._groups[index]) > 1:
                    return f"no alternative of request {wanted.request} has enough usable devices"
                return f"request {wanted.request} wants {wanted.need} devices and {usable} can be used"
        return self._verdict([self._demand(prospects) for prospects in self._open], from_scratch=True)

    def possible(self, group: int, wanted: Wanted, count: int, position: int) -> bool:
        """Whether the rest can be placed after `count` devices of a request, the last one at this position."""
        if group >= self._horizon:
            return True
        prospect = self._prospects[id(wanted)]
        mask = prospect.mask
        if not wanted.everything:
            mask = mask >> (position + 1) << (position + 1)
        demands = []
        if wanted.need > count:
            demands.append(Demand([prospect], wanted.need - count, mask))
        demands.extend(self._demand(prospects) for prospects in self._open[group + 1 :])
        return not self._verdict(demands)

    def likeness(self, position: int) -> object:
        """Equal for devices that can stand for each other in every respect: if one fails, so does the other."""
        found = self._likenesses.get(position)
        if found is None:
            found = self._likenesses[position] = self._likeness(position)
        return found

    def _likeness(self, position: int) -> object:
        attempt = self._attempt
        candidate = attempt.candidates[position]
        if position in self._in_order or attempt.is_shared(candidate):
            return position  # how much is left of a shared device differs from moment to moment
        parts: list[object] = [candidate.draw, candidate.pool_id if candidate.draw.groups else None]
        for prospect in self._prospects.values():
            wanted = prospect.wanted
            if position in wanted.selection.errors:
                return position
            parts.append((prospect.mask >> position) & 1)
            parts.append(wanted.everything and position in wanted.positions)
            for constraint in wanted.constraints:
                try:
                    parts.append(attempt.value(wanted, position, candidate, constraint))
                except BadClaim:
                    return position
        return tuple(parts)

    def _demand(self, prospects: list[_Prospect]) -> Demand:
        """What a request needs at least, from whatever any of its alternatives could use."""
        mask = 0
        for prospect in prospects:
            mask |= prospect.mask
        return Demand(prospects, min(p.wanted.need for p in prospects), mask)

    def _verdict(self, demands: list[Demand], *, from_scratch: bool = False) -> str:
        """Why the demands cannot be met together, or nothing. `from_scratch`: as if nothing were taken yet."""
        demands = [demand for demand in demands if demand.need > 0]
        taken = 0 if from_scratch else self._attempt.taken_mask
        self._supply.from_scratch = from_scratch
        for demand in demands:
            wanted = demand.prospects[0].wanted
            if not demand.admin:
                demand.mask &= ~taken
            if demand.mask.bit_count() < demand.need:
                return (
                    f"request {wanted.request} wants {demand.need} more devices "
                    f"and {demand.mask.bit_count()} can be used"
                )
        exclusive = [demand for demand in demands if not demand.admin]
        if not fits(exclusive, self._supply):
            names = ", ".join(dict.fromkeys(d.prospects[0].wanted.request for d in exclusive))
            total = sum(d.need for d in exclusive)
            return f"requests {names} together want {total} devices, and not that many can be used at once"
        matching: list[tuple[MatchAttribute, list[Demand]]] = []
        for constraint, covered in _covered(demands).items():
            if any(constraint in p.vague for d in covered for p in d.prospects):
                continue
            if isinstance(constraint, MatchAttribute):
                matching.append((constraint, covered))
            elif isinstance(constraint, DistinctAttribute):
                reason = _too_few_values(constraint, covered, from_scratch=from_scratch)
                if reason:
                    return reason
        if matching and not self._matches(matching, demands, from_scratch=from_scratch):
            names = " and ".join(constraint.attribute for constraint, _ in matching)
            return f"no value of {names} is shared by enough devices"
        return ""

    def _matches(
        self,
        matching: list[tuple[MatchAttribute, list[Demand]]],
        demands: list[Demand],
        *,
        from_scratch: bool,
    ) -> bool:
        """Whether there is one value per constraint such that all demands can be served with it."""
        options: list[list[dict[int, int]]] = []
        for constraint, covered in matching:
            tables = [_by_value(constraint, demand) for demand in covered]
            bound = bool(constraint.common) and not from_scratch
            members = constraint.common[-1] if bound else set[Member]().union(*tables)
            found = []
            for member in members:
                masks = {id(d): d.mask & t.get(member, 0) for d, t in zip(covered, tables, strict=True)}
                if all(masks[id(demand)].bit_count() >= demand.need for demand in covered):
                    found.append(masks)
            if not found:
                return False
            options.append(found)
        combinations = 1
        for found in options:
            combinations *= len(found)
        if combinations > _MANY_VALUES:
            return True
        return any(self._served(combination, demands) for combination in product(*options))

    def _served(self, narrowing: tuple[dict[int, int], ...], demands: list[Demand]) -> bool:
        narrowed = []
        for demand in demands:
            mask = demand.mask
            for masks in narrowing:
                mask &= masks.get(id(demand), mask)
            if mask.bit_count() < demand.need:
                return False
            if not demand.admin:
                narrowed.append(Demand(demand.prospects, demand.need, mask))
        return fits(narrowed, self._supply)

    def _prospect(self, wanted: Wanted) -> _Prospect:
        prospect = _Prospect(wanted)
        positions = wanted.positions if wanted.everything else wanted.selection.complete()
        for position in positions:
            candidate = self._attempt.candidates[position]
            try:
                usable = self._usable(wanted, position, candidate)
                if usable:
                    usable = self._file_values(prospect, position, candidate)
            except BadClaim:
                prospect.risky = True
                continue
            if usable:
                prospect.mask |= 1 << position
        return prospect

    def _usable(self, wanted: Wanted, position: int, candidate: Candidate) -> bool:
        """Whether the device could be given to the request if nothing else were given. Raises BadClaim."""
        attempt, features = self._attempt, self._attempt.features
        if not wanted.admin and candidate.id in attempt.allocated.devices:
            return False
        if position in wanted.selection.errors:
            wanted.raise_error(position, candidate)
        if features.consumable_capacity and (candidate.device.capacity or wanted.requested):
            taken = wanted.consumption(position, candidate, fractional=features.fractional_capacity_range)
            if taken is None:
                return False
            used = attempt.allocated.consumed.get(candidate.id, {})
            for name, amount in taken.items():
                if amount.nanos + used.get(name, 0) > candidate.capacities[name].value.nanos:
                    return False
        if candidate.draw.groups and not features.partitionable_devices:
            return False
        return not (
            candidate.taints
            and features.device_taints
            and untolerated(candidate.taints, wanted.tolerations) is not None
        )

    def _file_values(self, prospect: _Prospect, position: int, candidate: Candidate) -> bool:
        bit = 1 << position
        values = []
        for constraint in prospect.wanted.constraints:
            value = self._attempt.value(prospect.wanted, position, candidate, constraint)
            if value is None or (constraint.lists and not value):
                return False
            values.append((constraint, value))
        for constraint, value in values:
            if not value:
                prospect.vague.add(constraint)
            table = prospect.by_value[constraint]
            for member in value:
                table[member] = table.get(member, 0) | bit
        return True


def _covered(demands: list[Demand]) -> dict[Constraint, list[Demand]]:
    """By constraint, the demands that it covers whichever alternative is taken."""
    found: dict[Constraint, list[Demand]] = {}
    for demand in demands:
        for constraint in demand.prospects[0].wanted.constraints:
            if all(constraint in prospect.wanted.constraints for prospect in demand.prospects):
                found.setdefault(constraint, []).append(demand)
    return found


def _too_few_values(constraint: DistinctAttribute, covered: list[Demand], *, from_scratch: bool) -> str:
    taken = set() if from_scratch else {member for value in constraint.taken for member in value}
    total = sum(demand.need for demand in covered)
    left = {
        member for demand in covered for member, mask in _by_value(constraint, demand).items() if mask & demand.mask
    } - taken
    if len(left) < total:
        return f"{constraint.attribute} has {len(left)} values left and {total} different ones are needed"
    return ""


def _by_value(constraint: Constraint, demand: Demand) -> dict[Member, int]:
    if len(demand.prospects) == 1:
        return demand.prospects[0].by_value[constraint]
    joined: dict[Member, int] = {}
    for prospect in demand.prospects:
        for member, mask in prospect.by_value[constraint].items():
            joined[member] = joined.get(member, 0) | mask
    return joined

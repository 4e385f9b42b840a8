"""One attempt to give devices: what is taken so far, and whether one more device can be taken.

`search` drives it: `take` a device or be told no, `put_back` the last one. A refused or abandoned device leaves no
trace: every change is undone exactly. Each refusal is noted with its reason, the first per device and request, for the
explanation. It must not decide which device to try next.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.cel.errors import CelError
from dibs.claims.capacity import Consumption, exceeded
from dibs.claims.constraints import UNKNOWN, Constraint, Value, attribute_of, value_of, value_of_derived
from dibs.claims.counters import Budget, Draw
from dibs.claims.failures import BadClaim
from dibs.claims.features import Features
from dibs.claims.identity import Allocated
from dibs.claims.inventory import World
from dibs.claims.nodes import Node
from dibs.claims.pools import Candidate, Pool, PoolId
from dibs.claims.taints import described, untolerated
from dibs.claims.wanted import Wanted

_NODE_OPERATIONS_GATE = "DRAOptionalNodeOperations"
_Bound = tuple[tuple[str, frozenset[str] | None], ...]


class Given(NamedTuple):
    """A device that was taken for a request, and what is needed to put it back."""

    wanted: Wanted
    position: int
    candidate: Candidate
    consumed: Consumption | None  # for a share of a device
    drawn: _Bound | None  # None where no counters were drawn


class Budgets:
    """What is left of each pool's counters before an attempt; worked out once per allocator and pool."""

    __slots__ = ("_allocated", "_known")

    def __init__(self, allocated: Allocated) -> None:
        self._allocated = allocated
        self._known: dict[PoolId, Budget] = {}

    def of(self, pool: Pool) -> Budget:
        known = self._known.get(pool.id)
        if known is None:
            known = self._known[pool.id] = Budget(pool.counters, self._draws(pool))
        return known

    def _draws(self, pool: Pool) -> list[Draw]:
        holds = self._allocated.holds
        return [
            candidate.draw
            for published in (*pool.slices, *pool.elsewhere)
            for candidate in published.candidates
            if candidate.draw.groups and holds(candidate.id)
        ]


class Attempt:
    """The state of a search."""

    __slots__ = (
        "_budgets",
        "_used_up",
        "allocated",
        "candidates",
        "features",
        "given",
        "marks",
        "node",
        "open_budgets",
        "pools",
        "shares",
        "sums",
        "taken_mask",
        "values",
    )

    def __init__(
        self, world: World, node: Node, features: Features, allocated: Allocated, budgets: Budgets, claims: int
    ) -> None:
        self.candidates = world.candidates
        self.pools = world.pools
        self.node = node
        self.features = features
        self.allocated = allocated
        self.given: list[list[Given]] = [[] for _ in range(claims)]
        self.marks: dict[int, list[int]] = {}  # position -> the claims that took the whole device
        self.taken_mask = 0  # the same positions as bits, for the look-ahead
        self.shares: dict[int, int] = {}  # position -> how many shares were taken
        self.sums: dict[int, dict[str, int]] = {}  # position -> what they consume, in billionths
        self.values: dict[tuple[int, str, int], Value | None] = {}
        self.open_budgets: dict[PoolId, Budget] = {}
        self._budgets = budgets
        self._used_up: dict[str, int] = {}

    def budget(self, pool_id: PoolId, *, untouched: bool = False) -> Budget:
        """What is left of a pool's counters: now, or before this attempt took anything."""
        found = None if untouched else self.open_budgets.get(pool_id)
        if found is None:
            found = self._budgets.of(next(pool for pool in self.pools if pool.id == pool_id))
            if not untouched:
                found = self.open_budgets[pool_id] = found.copy()
        return found

    def is_shared(self, candidate: Candidate) -> bool:
        """Whether the device is given in shares."""
        return candidate.shareable and self.features.consumable_capacity

    def take(self, wanted: Wanted, position: int) -> Given | None:
        """Take a device for a request, or note why not. Raises BadClaim where the claim cannot be decided."""
        candidate = self.candidates[position]
        if wanted.admin:
            if wanted.claim_index in self.marks.get(position, ()):
                return _no(wanted, position, "taken", "by the same claim")
        elif candidate.id in self.allocated.devices:
            return _no(wanted, position, "in-use", self.allocated.devices[candidate.id])
        elif position in self.marks:
            return _no(wanted, position, "taken", "by another request")
        if position in wanted.selection.errors:
            wanted.raise_error(position, candidate)

        consumed: Consumption | None = None
        measured = self.features.consumable_capacity and (
            candidate.measured or bool(wanted.requested) or candidate.id in self.allocated.consumed
        )
        if measured and not wanted.everything:
            consumed = self._affordable(wanted, position, candidate)
            if consumed is None:
                return None
        if candidate.slice.spec.skip_node_operations and not self._skips_operations(wanted, position):
            return None

        budget: Budget | None = None
        drawn: _Bound | None = None
        shared = candidate.shareable and self.features.consumable_capacity
        if candidate.draw.groups:
            if not self.features.partitionable_devices:
                return _no(wanted, position, "counters-off", "DRAPartitionableDevices is disabled")
            # A further share of a device in use draws nothing: its first share drew for all of them.
            if not (shared and (position in self.shares or self.allocated.shares(candidate.id))):
                budget = self.budget(candidate.pool_id)
                if self.features.compatibility_groups:
                    conflict = budget.conflict(candidate.draw)
                    if conflict is not None:
                        return _no(wanted, position, "compatibility-groups", f"counter set {conflict}")
                short = budget.shortage(candidate.draw)
                if short is not None:
                    return _no(wanted, position, "counters", f"{short[1]} of counter set {short[0]}")
                drawn = budget.take(candidate.draw, bind=self.features.compatibility_groups)

        if candidate.taints and self.features.device_taints:
            taint = untolerated(candidate.taints, wanted.tolerations)
            if taint is not None:
                if budget is not None and drawn is not None:
                    budget.give_back(candidate.draw, drawn)
                return _no(wanted, position, "taint", described(taint))

        if wanted.constraints and not self._constrain(wanted, position, candidate):
            if budget is not None and drawn is not None:
                budget.give_back(candidate.draw, drawn)
            if wanted.everything:
                raise BadClaim(
                    f"claim {wanted.claim}, request {wanted.own_name}: cannot add device {candidate.id} "
                    "because a claim constraint would not be satisfied"
                )
            return None

        if measured and wanted.everything:
            consumed = self._affordable(wanted, position, candidate)
            if consumed is None:
                for constraint in wanted.constraints:
                    constraint.remove()
                if budget is not None and drawn is not None:
                    budget.give_back(candidate.draw, drawn)
                return None
        if shared:
            self.shares[position] = self.shares.get(position, 0) + 1
            consumed = consumed or {}
            sums = self.sums.setdefault(position, {})
            for name, amount in consumed.items():
                sums[name] = sums.get(name, 0) + amount.nanos
        else:
            consumed = None
            self.marks.setdefault(position, []).append(wanted.claim_index)
            self.taken_mask |= 1 << position
        given = Given(wanted, position, candidate, consumed, drawn)
        self.given[wanted.claim_index].append(given)
        return given

    def put_back(self, given: Given) -> None:
        """Undo the last `take`."""
        wanted, position, candidate, consumed, drawn = given
        self.given[wanted.claim_index].pop()
        if consumed is None:
            claims = self.marks[position]
            claims.remove(wanted.claim_index)
            if not claims:
                del self.marks[position]
                self.taken_mask &= ~(1 << position)
        else:
            sums = self.sums[position]
            for name, amount in consumed.items():
                sums[name] -= amount.nanos
            self.shares[position] -= 1
            if not self.shares[position]:
                del self.shares[position]
                del self.sums[position]
        for constraint in wanted.constraints:
            constraint.remove()
        if drawn is not None:
            self.budget(candidate.pool_id).give_back(candidate.draw, drawn)

    def value(self, wanted: Wanted, position: int, candidate: Candidate, constraint: Constraint) -> Value | None:
        """The value that a constraint compares, None where the device has none. Raises BadClaim."""
        derived = wanted.derived.get(constraint.attribute)
        if derived is None:
            key = (position, constraint.attribute, constraint.lists)
            if key not in self.values:
                attribute = attribute_of(candidate.device, candidate.id.driver, constraint.attribute)
                self.values[key] = None if attribute is None else value_of(attribute, lists=constraint.lists)
            return self.values[key]
        found = candidate.view.derived(derived)
        if isinstance(found, CelError):
            if derived.error is not None:
                raise BadClaim(f"compile derived attribute {constraint.attribute} failed: {found}")
            raise BadClaim(
                f"evaluate derived attribute {constraint.attribute} on device {candidate.id} failed: {found}"
            )
        if isinstance(found, list | tuple) and not constraint.lists:
            return UNKNOWN
        return value_of_derived(found)

    def _affordable(self, wanted: Wanted, position: int, candidate: Candidate) -> Consumption | None:
        taken = wanted.consumption(position, candidate, fractional=self.features.fractional_capacity_range)
        if taken is None:
            _no(wanted, position, "capacity", "it does not offer the capacity, or not in that amount")
            return None
        used = self.allocated.consumed.get(candidate.id, self._used_up)
        short = exceeded(candidate.capacities, taken, used, self.sums.get(position, self._used_up))
        if short is not None:
            _no(wanted, position, "capacity", f"not enough {short} left")
            return None
        return taken

    def _skips_operations(self, wanted: Wanted, position: int) -> bool:
        if not self.features.optional_node_operations:
            _no(wanted, position, "node-operations", f"{_NODE_OPERATIONS_GATE} is disabled")
            return False
        if _NODE_OPERATIONS_GATE not in self.node.declared_features:
            _no(wanted, position, "node-operations", f"the node does not declare {_NODE_OPERATIONS_GATE}")
            return False
        return True

    def _constrain(self, wanted: Wanted, position: int, candidate: Candidate) -> bool:
        added = 0
        reason = ""
        try:
            for constraint in wanted.constraints:
                value = self.value(wanted, position, candidate, constraint)
                if value is None:
                    reason = f"{constraint.kind} {constraint.attribute}: the device has no such attribute"
                    break
                if not constraint.add(value):
                    reason = f"{constraint.kind} {constraint.attribute}"
                    break
                added += 1
        finally:
            if added < len(wanted.constraints):
                for constraint in wanted.constraints[:added]:
                    constraint.remove()
        if reason:
            _no(wanted, position, "constraint", reason)
            return False
        return True


def _no(wanted: Wanted, position: int, code: str, detail: str) -> Given | None:
    if position not in wanted.fell:
        wanted.fell[position] = (code, detail)
    return None

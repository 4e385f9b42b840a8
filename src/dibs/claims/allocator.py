"""The allocator: claims in, allocation results out, or nothing, or an error, and always an explanation.

`plan` asks it on machines without Kubernetes. The answers are those of Kubernetes' structured allocator: the first
solution in published order, no scoring. It computes and nothing else: what it returns is not booked until the caller
books it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dibs.claims.attempt import Attempt, Budgets
from dibs.claims.claim import AllocationResult, DeviceClass, ResourceClaim
from dibs.claims.explanation import ALLOCATED, UNDECIDED, UNSATISFIABLE, Explanation, explain
from dibs.claims.failures import BadClaim, BadPool, Cancelled, GaveUp
from dibs.claims.features import Features
from dibs.claims.identity import Allocated
from dibs.claims.inventory import Inventory, World
from dibs.claims.nodes import Node
from dibs.claims.results import allocation_result
from dibs.claims.search import STEP_BUDGET, Search
from dibs.claims.slices import ResourceSlice
from dibs.claims.wanted import Classes, Wanted, wanted_by


class Outcome:
    """The answer: one result per claim, or none because the claims cannot all be satisfied now."""

    __slots__ = ("_attempt", "_explanation", "_groups", "_note", "_world", "results", "steps")

    def __init__(
        self,
        results: tuple[AllocationResult, ...] | None,
        steps: int,
        world: World,
        attempt: Attempt,
        groups: Sequence[Sequence[Wanted]],
        note: str,
    ) -> None:
        self.results = results
        self.steps = steps
        self._world = world
        self._attempt = attempt
        self._groups = groups
        self._note = note
        self._explanation: Explanation | None = None

    @property
    def explanation(self) -> Explanation:
        """What was noted while deciding, put into form when it is first asked for."""
        if self._explanation is None:
            outcome = UNSATISFIABLE if self.results is None else ALLOCATED
            self._explanation = explain(outcome, self.steps, self._world, self._attempt, self._groups, self._note)
        return self._explanation


class Allocator:
    """The devices, the classes and what is taken, at one moment. May be asked many times."""

    __slots__ = ("_budgets", "_classes", "allocated", "features", "inventory")

    def __init__(
        self,
        inventory: Inventory,
        classes: Sequence[DeviceClass],
        allocated: Allocated | None = None,
        features: Features | None = None,
    ) -> None:
        self.inventory = inventory
        self.allocated = Allocated() if allocated is None else allocated
        self.features = Features.default() if features is None else features
        self._classes = Classes(classes, self.features)
        self._budgets: dict[str, Budgets] = {}

    def allocate(
        self,
        node: Node,
        claims: Sequence[ResourceClaim],
        *,
        budget: int = STEP_BUDGET,
        cancelled: Callable[[], bool] | None = None,
        new_share_id: Callable[[], str] | None = None,
    ) -> Outcome:
        """Find devices for all claims together on one node.

        Raises BadClaim, BadPool, GaveUp (after `budget` steps) or Cancelled (`cancelled` is asked at every step).
        """
        features = self.features
        world = self.inventory.world(node, features)
        budgets = self._budgets.get(node.name)
        if budgets is None:
            budgets = self._budgets[node.name] = Budgets(self.allocated)
        attempt = Attempt(world, node, features, self.allocated, budgets, len(claims))
        groups: list[list[Wanted]] = []
        starts: list[int] = []
        choosing: set[int] = set()
        search: Search | None = None
        try:
            for index, claim in enumerate(claims):
                starts.append(len(groups))
                groups.extend(wanted_by(index, claim, world, self._classes, features))
            for index, group in enumerate(groups):
                if group[0].subrequest is not None:
                    choosing.add(index)
            search = Search(attempt, groups, choosing, budget, cancelled)
            if not search.run():
                if any(pool.invalid for pool in world.pools):
                    raise BadPool("invalid resource pools were encountered")
                return Outcome(None, search.steps, world, attempt, groups, search.hopeless or search.progress())
            starts.append(len(groups))
            results = tuple(
                allocation_result(
                    claim,
                    attempt.given[index],
                    [search.chosen[group] for group in range(starts[index], starts[index + 1])],
                    node,
                    features,
                    new_share_id or _random_share_id,
                )
                for index, claim in enumerate(claims)
            )
        except (BadClaim, BadPool, GaveUp, Cancelled) as failure:
            steps = 0 if search is None else search.steps
            failure.explanation = explain(UNDECIDED, steps, world, attempt, groups, str(failure))
            raise
        return Outcome(results, search.steps, world, attempt, groups, "")


def allocate(
    slices: Sequence[ResourceSlice],
    classes: Sequence[DeviceClass],
    claims: Sequence[ResourceClaim],
    node: Node,
    *,
    allocated: Allocated | None = None,
    features: Features | None = None,
    budget: int = STEP_BUDGET,
    cancelled: Callable[[], bool] | None = None,
) -> Outcome:
    """For a single question. Callers that ask often keep an `Inventory`."""
    allocator = Allocator(Inventory(slices), classes, allocated, features)
    return allocator.allocate(node, claims, budget=budget, cancelled=cancelled)


def _random_share_id() -> str:
    from uuid import uuid4

    return str(uuid4())

"""One attempt: a device that was refused or put back leaves no trace, so the next one is judged as if it were first."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.claims.worlds import DRIVER, HOST, JSON, allocator, claim, claims, device, exactly, resource_slice

from dibs.claims.allocator import Allocator, Outcome
from dibs.claims.attempt import Attempt, Budgets, Given
from dibs.claims.constraints import DistinctAttribute, MatchAttribute
from dibs.claims.failures import BadClaim
from dibs.claims.features import Features
from dibs.claims.identity import Allocated, DeviceId
from dibs.claims.nodes import Node
from dibs.claims.wanted import Wanted, wanted_by

POOL = {"name": "host", "generation": 1, "resourceSliceCount": 2}


def draws(amount: int, *groups: str, of: str = "card") -> list[JSON]:
    found: JSON = {"counterSet": of, "counters": {"slices": {"value": str(amount)}}}
    return [{**found, "compatibilityGroups": list(groups)} if groups else found]


def share(name: str, **fields: Any) -> JSON:
    """A device that is given in shares of its memory."""
    policy = {"default": "2", "validRange": {"min": "2", "step": "2"}}
    capacity = {"memory": {"value": "8", "requestPolicy": policy}}
    return device(name, allowMultipleAllocations=True, capacity=capacity, **fields)


DEVICES = [
    device("plain", attributes={"root": "r0", "slot": 0}),
    device("other", attributes={"root": "r1", "slot": 1}),
    device("bare"),
    device("part-0", attributes={"root": "r0"}, consumesCounters=draws(2, "small")),
    device("part-1", attributes={"root": "r1"}, consumesCounters=draws(2, "small", "large")),
    device("part-2", attributes={"root": "r0", "slot": 1}, consumesCounters=draws(3, "large")),
    device("alone", attributes={"root": "r1"}, consumesCounters=draws(1)),
    device("tainted", consumesCounters=draws(1, "small"), taints=[{"key": "hot", "effect": "NoSchedule"}]),
    share("shared", attributes={"root": "r0"}, consumesCounters=draws(2, "small")),
    share("roomy", attributes={"root": "r1"}),
]
SLICES = [
    resource_slice(DEVICES, "devices", pool=POOL),
    resource_slice(
        [], "counters", pool=POOL, sharedCounters=[{"name": "card", "counters": {"slices": {"value": "6"}}}]
    ),
]


def constrained(*kinds: str) -> JSON:
    """Of one root, or all of different ones; the second kind is about another attribute, which fewer devices have."""
    found = [{kind: f"{DRIVER}/{name}"} for kind, name in zip(kinds, ("root", "slot"), strict=False) if kind]
    return {"constraints": found} if found else {}


def begun(
    *asked: JSON, slices: list[JSON] = SLICES, allocated: Allocated | None = None
) -> tuple[Attempt, list[Wanted]]:
    made: Allocator = allocator(slices, allocated=allocated, features=Features.everything())
    world = made.inventory.world(HOST, made.features)
    attempt = Attempt(world, HOST, made.features, made.allocated, Budgets(made.allocated), len(asked))
    wanted = [
        group[0]
        for index, one in enumerate(claims(*asked))
        for group in wanted_by(index, one, world, made._classes, made.features)
    ]
    return attempt, wanted


def state(attempt: Attempt, wanted: list[Wanted]) -> dict[str, Any]:
    """Everything that a later decision depends on."""
    budgets = [attempt.budget(pool.id) for pool in attempt.pools]
    return {
        "given": [list(given) for given in attempt.given],
        "marks": {position: list(found) for position, found in attempt.marks.items()},
        "mask": attempt.taken_mask,
        "shares": dict(attempt.shares),
        "sums": {position: dict(found) for position, found in attempt.sums.items()},
        "left": [dict(budget.left) for budget in budgets],
        "bound": [dict(budget.bound) for budget in budgets],
        "constraints": [
            list(one.common if isinstance(one, MatchAttribute) else one.taken)
            for request in wanted
            for one in request.constraints
            if isinstance(one, MatchAttribute | DistinctAttribute)
        ],
    }


kinds = st.sampled_from(["", "matchAttribute", "distinctAttribute"])
moves = st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, len(DEVICES) - 1))), max_size=30)


@settings(max_examples=300)
@given(kinds, kinds, kinds, moves)
def test_what_is_refused_or_put_back_leaves_no_trace(
    first: str, also: str, second: str, moved: list[tuple[int, int] | None]
) -> None:
    attempt, wanted = begun(
        claim(exactly("one"), exactly("all", None), name="a", **constrained(first, also)),
        claim(
            exactly("two"), exactly("three", capacity={"requests": {"memory": "4"}}), name="b", **constrained(second)
        ),
    )
    before: list[tuple[Given, dict[str, Any]]] = []
    for move in moved:
        if move is None:
            if before:
                given, then = before.pop()
                attempt.put_back(given)
                assert state(attempt, wanted) == then
            continue
        now = state(attempt, wanted)
        try:
            taken = attempt.take(wanted[move[0]], move[1])
        except BadClaim:
            taken = None
        if taken is None:
            assert state(attempt, wanted) == now
        else:
            assert state(attempt, wanted) != now
            before.append((taken, now))
    for given, then in reversed(before):
        attempt.put_back(given)
        assert state(attempt, wanted) == then


def names(attempt: Attempt) -> dict[str, int]:
    return {candidate.id.device: position for position, candidate in enumerate(attempt.candidates)}


def test_counters_are_given_back_when_a_constraint_is_not_met() -> None:
    attempt, wanted = begun(claim(exactly("two", 2), **constrained("matchAttribute")), claim(exactly("one"), name="b"))
    at = names(attempt)
    assert attempt.take(wanted[0], at["plain"]) is not None
    assert attempt.take(wanted[0], at["part-1"]) is None  # another root
    assert wanted[0].fell[at["part-1"]][0] == "constraint"
    for name in ("part-0", "part-1"):  # 4 of 6: as much as there is if nothing was lost on the way
        assert attempt.take(wanted[1], at[name]) is not None
    assert attempt.budget(attempt.pools[0].id).left == {("card", "slices"): 2 * 10**9}


def test_a_constraint_that_was_met_is_taken_back_when_the_next_one_is_not() -> None:
    attempt, wanted = begun(claim(exactly("two", 2), **constrained("distinctAttribute", "matchAttribute")))
    at = names(attempt)
    assert attempt.take(wanted[0], at["plain"]) is not None
    before = state(attempt, wanted)
    assert attempt.take(wanted[0], at["other"]) is None  # another root, as it must be, but also another slot
    assert state(attempt, wanted) == before


def test_a_device_without_node_operations_needs_the_gate_here_and_on_the_node() -> None:
    slices = [resource_slice([device("a")], skipNodeOperations=["Prepare"])]
    gate = "DRAOptionalNodeOperations"
    ready = Node(HOST.name, HOST.labels, declared_features=frozenset({gate}))

    def outcome(node: Node, features: Features) -> Outcome:
        return allocator(slices, features=features).allocate(node, claims(claim(exactly())))

    on, off = Features.everything(), Features.default()
    assert gate not in off.gates
    assert outcome(ready, on).results is not None
    for node, features, words in ((HOST, on, "does not declare"), (ready, off, "is disabled")):
        refused = outcome(node, features)
        assert refused.results is None
        assert words in str(refused.explanation)


def test_a_further_share_draws_no_counters_and_the_last_one_gives_them_back() -> None:
    attempt, wanted = begun(claim(exactly("one")), claim(exactly("two"), name="b"))
    at, left = names(attempt)["shared"], attempt.budget(attempt.pools[0].id).left
    first = attempt.take(wanted[0], at)
    second = attempt.take(wanted[1], at)
    assert first is not None
    assert second is not None
    assert attempt.shares == {at: 2}
    assert left == {("card", "slices"): 4 * 10**9}
    attempt.put_back(second)
    assert left == {("card", "slices"): 4 * 10**9}
    attempt.put_back(first)
    assert left == {("card", "slices"): 6 * 10**9}


def test_shares_are_given_until_the_capacity_is_used_up() -> None:
    asked = [claim(exactly("one", capacity={"requests": {"memory": "3"}}), name=f"c{n}") for n in range(3)]
    attempt, wanted = begun(*asked)
    at = names(attempt)["roomy"]
    assert [attempt.take(one, at) is not None for one in wanted] == [True, True, False]  # 4 + 4 of 8, rounded up
    assert wanted[2].fell[at] == ("capacity", "not enough memory left")


def test_counters_are_given_back_when_all_devices_are_wanted_and_one_has_too_little_capacity() -> None:
    """The device was given in shares once, and is published as whole since: one of its shares is still held."""
    part = device("part", attributes={"root": "r0"}, consumesCounters=draws(2), capacity={"memory": {"value": "8"}})
    shared = Allocated(consumed={DeviceId(DRIVER, "host", "part"): {"memory": "4"}})
    published = [resource_slice([part], "devices", pool=POOL), SLICES[1]]
    asked = claim(exactly("all", None), **constrained("matchAttribute"))
    attempt, wanted = begun(asked, slices=published, allocated=shared)
    before = state(attempt, wanted)
    assert attempt.take(wanted[0], 0) is None
    assert wanted[0].fell[0] == ("capacity", "not enough memory left")
    assert state(attempt, wanted) == before

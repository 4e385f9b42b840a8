"""The small parts: node selectors, tolerations, capacity arithmetic, constraints, counters, features."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.cel.kubernetes import Quantity
from dibs.claims.capacity import Capacity, CapacityError, consumption, exceeded
from dibs.claims.constraints import DistinctAttribute, MatchAttribute, Value
from dibs.claims.counters import Budget, Draw
from dibs.claims.features import GATES, Features
from dibs.claims.meta import NodeSelector
from dibs.claims.nodes import Node, selector_matches
from dibs.claims.slices import DeviceCapacity, DeviceTaint
from dibs.claims.taints import tolerated

NODE = Node("host", {"region": "here", "gpus": "8"})


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ({"key": "region", "operator": "In", "values": ["there", "here"]}, True),
        ({"key": "region", "operator": "NotIn", "values": ["there"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["there"]}, True),
        ({"key": "zone", "operator": "In", "values": ["there"]}, False),
        ({"key": "region", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, True),
        ({"key": "gpus", "operator": "Gt", "values": ["7"]}, True),
        ({"key": "gpus", "operator": "Lt", "values": ["8"]}, False),
        ({"key": "region", "operator": "Gt", "values": ["7"]}, False),
    ],
)
def test_a_label_requirement_is_read_as_in_kubernetes(requirement: Any, expected: bool) -> None:
    selector = msgspec.convert({"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}, NodeSelector)
    assert selector_matches(NODE, selector) is expected


@pytest.mark.parametrize(
    "term",
    [
        {"matchExpressions": [{"key": "k", "operator": "In"}]},
        {"matchExpressions": [{"key": "k", "operator": "Exists", "values": ["v"]}]},
        {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["many"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]},
    ],
)
def test_a_broken_requirement_is_an_error_even_behind_a_term_that_matches(term: Any) -> None:
    good = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["host"]}]}
    selector = msgspec.convert({"nodeSelectorTerms": [good, term]}, NodeSelector)
    with pytest.raises(ValueError, match="operator"):
        selector_matches(NODE, selector)


def test_one_term_must_hold_with_all_of_its_requirements_and_an_empty_one_never_does() -> None:
    host = {"key": "metadata.name", "operator": "In", "values": ["host"]}
    far = {"key": "region", "operator": "In", "values": ["there"]}

    def matches(*terms: Any) -> bool:
        return selector_matches(NODE, msgspec.convert({"nodeSelectorTerms": list(terms)}, NodeSelector))

    assert matches({"matchFields": [host]})
    assert not matches({"matchFields": [host], "matchExpressions": [far]})
    assert matches({"matchExpressions": [far]}, {"matchFields": [host]})
    assert not matches({})
    assert not matches({"matchFields": [{**host, "operator": "NotIn"}]})


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "ecc", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "ecc", "value": "hot"}, True),
        ({"key": "ecc", "operator": "Equal", "value": "cold"}, False),
        ({"key": "ecc", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "fan", "operator": "Exists"}, False),
        ({"key": "ecc", "operator": "Like", "value": "hot"}, False),
    ],
)
def test_a_toleration_accepts_the_taints_that_kubernetes_says(toleration: Any, expected: bool) -> None:
    from dibs.claims.claim import DeviceToleration

    taint = DeviceTaint(key="ecc", value="hot", effect="NoExecute")
    assert tolerated(taint, [msgspec.convert(toleration, DeviceToleration)]) is expected


def capacity(value: str | int, **policy: Any) -> Capacity:
    return Capacity(msgspec.convert({"value": value, "requestPolicy": policy or None}, DeviceCapacity))


@given(st.integers(0, 50), st.integers(0, 10), st.integers(1, 7))
def test_a_range_rounds_up_to_the_next_step_and_never_down(asked: int, lowest: int, step: int) -> None:
    limits = {"min": str(lowest), "step": str(step)}
    taken = capacity("100", default=str(lowest), validRange=limits).consumed_by(Quantity.of(asked), fractional=False)
    amount = taken.as_integer()
    assert amount >= max(asked, lowest)
    assert (amount - lowest) % step == 0
    assert amount - step < max(asked, lowest)


def test_fractions_of_a_step_need_their_gate() -> None:
    one = capacity("1", default="200m", validRange={"min": "200m", "step": "100m"})
    assert str(one.consumed_by(Quantity.parse("250m"), fractional=True)) == "300m"
    assert str(one.consumed_by(Quantity.parse("1250m"), fractional=False)) == "2"


@pytest.mark.parametrize("asked", ["9223372036854775808", "9223372036854775807"])
def test_a_request_beyond_64_bits_aborts_instead_of_passing_over(asked: str) -> None:
    one = capacity("4", default="2", validRange={"min": "2", "step": "2"})
    with pytest.raises(CapacityError, match=r'capacity "memory": .*cannot be represented'):
        consumption({"memory": one}, {"memory": Quantity.parse(asked)}, fractional=False)
    with pytest.raises(CapacityError, match="negative"):
        consumption({"memory": capacity("4")}, {"memory": Quantity.parse("-1")}, fractional=False)


def test_the_largest_amount_of_64_bits_can_be_asked_for() -> None:
    most = str(2**63 - 1)
    one = capacity(most, default="1", validRange={"min": "1", "step": "1"})
    assert str(one.consumed_by(Quantity.parse(most), fractional=False)) == most


def value(*members: Any) -> Value:
    return frozenset((type(member).__name__, member) for member in members)


def test_matching_lists_narrows_what_is_common_and_widens_it_again() -> None:
    match = MatchAttribute(0, "a/b", (), lists=True)
    assert match.add(value("p", "q", "r"))
    assert match.add(value("q", "r"))
    assert not match.add(value("p"))
    assert match.add(value("r"))
    match.remove()
    match.remove()
    assert match.add(value("p"))


def test_a_number_is_not_a_truth_value() -> None:
    match = MatchAttribute(0, "a/b", (), lists=False)
    assert match.add(value(1))
    assert not match.add(value(True))
    distinct = DistinctAttribute(0, "a/b", (), lists=False)
    assert distinct.add(value(1))
    assert distinct.add(value(True))
    assert not distinct.add(value(1))
    distinct.remove()
    distinct.remove()
    assert distinct.add(value(1))


def test_a_constraint_covers_requests_and_their_alternatives_by_name() -> None:
    match = MatchAttribute(0, "a/b", ("one", "two/part"), lists=False)
    assert match.covers("one", None)
    assert match.covers("one", "any")
    assert match.covers("two", "part")
    assert not match.covers("two", "other")
    assert MatchAttribute(0, "a/b", (), lists=False).covers("three", None)


def test_a_budget_gives_back_exactly_what_was_taken() -> None:
    key = ("set", "slices")
    budget = Budget({key: 4}, [Draw(((key, 1),), (("set", frozenset({"a", "b"})),))])
    draw = Draw(((key, 3),), (("set", frozenset({"b", "c"})),))
    assert budget.shortage(draw) is None
    assert budget.conflict(draw) is None
    before = budget.take(draw, bind=True)
    assert budget.shortage(draw) == key
    assert budget.conflict(Draw((), (("set", frozenset({"c"})),))) == "set"
    assert budget.conflict(Draw((), (("set", frozenset()),))) == "set"
    budget.give_back(draw, before)
    assert budget.left == {key: 3}
    assert budget.bound == {"set": frozenset({"a", "b"})}


def test_a_counter_below_zero_closes_the_pool() -> None:
    key, other = ("set", "slices"), ("other", "slices")
    budget = Budget({key: 1, other: 9}, [Draw(((key, 2),), ())])
    assert budget.shortage(Draw(((other, 1),), ())) == key


def test_features_are_known_by_kubernetes_names() -> None:
    found = Features.of(["DRADeviceBindingConditions+DRAResourceClaimDeviceStatus", "DRAAdminAccess"])
    assert found.gates == ("DRAAdminAccess", "DRADeviceBindingConditions")
    assert Features.everything().gates == tuple(GATES)
    assert "DRAListTypeAttributes" not in Features.default().gates
    with pytest.raises(ValueError, match="unknown feature gates DRAMagic"):
        Features.of(["DRAMagic"])


def test_an_amount_that_the_device_names_as_its_default_needs_no_step() -> None:
    one = {"memory": capacity("10", default="3", validRange={"min": "2", "step": "2"})}
    assert consumption(one, {}, fractional=False) == {"memory": Quantity.of(3)}
    assert consumption(one, {"memory": Quantity.of(3)}, fractional=False) == {"memory": Quantity.of(4)}


@pytest.mark.parametrize(
    ("policy", "asked", "allowed"),
    [
        ({"validRange": {"max": "10", "step": "4"}}, 8, True),
        ({"validRange": {"max": "10", "step": "4"}}, 6, False),
        ({"validRange": {"max": "10", "step": "4"}}, 12, False),
        ({"validRange": {"max": "10"}}, 7, True),
        ({"validRange": {"max": "10"}}, 11, False),
        ({"validRange": {"step": "0"}}, 6, True),
        ({"validValues": ["2", "4"]}, 3, True),  # rounded up to 4
        ({"validValues": ["2", "4"]}, 5, False),
        ({"default": "1"}, 5, True),
    ],
)
def test_an_amount_outside_of_the_policy_is_refused(policy: Any, asked: int, allowed: bool) -> None:
    one = {"memory": capacity("100", **policy)}
    assert (consumption(one, {"memory": Quantity.of(asked)}, fractional=False) is not None) is allowed


def test_bounds_that_thousandths_cannot_express_are_counted_in_whole_numbers() -> None:
    one = capacity("10", default="1", validRange={"min": "1", "max": "1500u", "step": "1"})
    assert str(one.consumed_by(Quantity.parse("1500m"), fractional=True)) == "2"


def test_devices_without_groups_go_together_only_with_each_other() -> None:
    budget = Budget({}, [])
    none, some = Draw((), (("set", frozenset()),)), Draw((), (("set", frozenset({"a"})),))
    budget.take(none, bind=True)
    assert budget.conflict(none) is None
    before = budget.take(none, bind=True)
    assert budget.conflict(some) == "set"
    budget.give_back(none, before)
    assert budget.conflict(some) == "set"


def test_groups_that_were_only_tried_are_forgotten() -> None:
    budget = Budget({}, [])
    some, other = Draw((), (("set", frozenset({"a"})),)), Draw((), (("set", frozenset({"b"})),))
    before = budget.take(some, bind=True)
    assert budget.conflict(other) == "set"
    budget.give_back(some, before)
    assert budget.conflict(other) is None
    assert budget.take(some, bind=False) == ()
    assert budget.conflict(other) is None


STEPPED = {"default": "1", "validRange": {"min": "1", "step": "3"}}
THOUSANDTHS = {"validRange": {"max": "10", "step": "1m"}}


@pytest.mark.parametrize(
    ("policy", "asked", "fractional", "taken"),
    [
        ({}, "5", False, "5"),
        ({}, "0", False, "0"),
        ({}, None, False, "100"),
        ({"default": "7"}, None, False, "7"),
        ({"validValues": ["2", "4"]}, "2", False, "2"),
        ({"validValues": ["2", "4"]}, "3", False, "4"),
        ({"validRange": {"min": "3"}}, "2", False, "3"),
        ({"validRange": {"min": "3"}}, "5", False, "5"),
        ({"validRange": {"min": "1Ki"}}, "1024", False, "1024"),  # written as it was asked
        (STEPPED, "4", False, "4"),  # steps count from the minimum, not from zero
        (STEPPED, "5", False, "7"),
        ({"validRange": {"min": "2", "max": "10", "step": "4"}}, "10", False, "10"),
        ({"validRange": {"min": "2", "max": "10", "step": "4"}}, "11", False, None),
        ({"validRange": {"max": "10", "step": "1"}}, "1500u", False, "1500u"),
        (THOUSANDTHS, "200m", True, "200m"),
        (THOUSANDTHS, "1500u", True, None),
        ({"validRange": {"step": "0"}}, "1500u", True, "1500u"),
        ({"validRange": {"min": "1m", "max": "9223372036854775807m", "step": "1m"}}, "1500m", True, "1500m"),
        ({"validRange": {"min": "1m", "max": "9223372036854775808m", "step": "1m"}}, "1500m", True, "2"),
    ],
)
def test_a_request_takes_what_the_policy_makes_of_it(
    policy: Any, asked: str | None, fractional: bool, taken: str | None
) -> None:
    requested = {} if asked is None else {"memory": Quantity.parse(asked)}
    found = consumption({"memory": capacity("100", **policy)}, requested, fractional=fractional)
    assert (None if found is None else str(found["memory"])) == taken


@pytest.mark.parametrize(
    ("step", "asked", "fractional", "reason"),
    [
        ("2", str(2**63), False, "exceeds MaxInt64"),
        ("2", str(2**63 - 1), False, "passes MaxInt64"),
        ("2m", f"{2**63}m", True, "is not a representable milli value"),
        ("2m", "2500u", True, "is not a representable milli value"),
        ("2m", f"{2**63 - 1}m", True, "passes the milli-value range"),
        ("0", "3", False, "the step 0 is not positive"),
    ],
)
def test_an_amount_that_cannot_be_rounded_says_why(step: str, asked: str, fractional: bool, reason: str) -> None:
    least = "2m" if fractional else "2"
    one = capacity("4", default=least, validRange={"min": least, "step": step})
    with pytest.raises(CapacityError, match=f"cannot be represented.*{reason}"):
        one.consumed_by(Quantity.parse(asked), fractional=fractional)


def test_the_largest_number_of_thousandths_can_be_asked_for() -> None:
    one = capacity("1", default="1m", validRange={"min": "1m", "step": "1m"})
    most = f"{2**63 - 1}m"
    assert str(one.consumed_by(Quantity.parse(most), fractional=True)) == most


def test_an_amount_may_be_published_as_a_number() -> None:
    assert str(capacity(5).consumed_by(None, fractional=False)) == "5"


def test_a_capacity_that_the_device_does_not_have_cannot_be_asked_for() -> None:
    one = {"memory": capacity("4")}
    assert consumption(one, {"cores": Quantity.of(1)}, fractional=False) is None
    assert consumption(one, {"memory": Quantity.of(1)}, fractional=False) == {"memory": Quantity.of(1)}


@pytest.mark.parametrize(
    ("used", "attempted", "short"), [(0, 0, None), (1, 1, None), (2, 1, "memory"), (1, 2, "memory"), (3, 0, "memory")]
)
def test_earlier_claims_and_this_attempt_count_together(used: int, attempted: int, short: str | None) -> None:
    held = {"memory": used * 10**9} if used else {}
    tried = {"memory": attempted * 10**9} if attempted else {}
    assert exceeded({"memory": capacity("4")}, {"memory": Quantity.of(2)}, held, tried) == short


def test_a_counter_that_is_used_up_does_not_close_the_others() -> None:
    key, other = ("set", "slices"), ("other", "slices")
    budget = Budget({key: 2, other: 9}, [Draw(((key, 2),), ())])
    assert budget.shortage(Draw(((other, 9),), ())) is None
    assert budget.shortage(Draw(((key, 1),), ())) == key


def grouped(*sets: str) -> Draw:
    """What a device draws from one counter set, once for each word; the letters are its groups."""
    return Draw((), tuple(("set", frozenset(groups)) for groups in sets))


@pytest.mark.parametrize(
    ("allocated", "asked", "conflict"),
    [
        ([], "ab", False),
        (["ab", "bc"], "b", False),
        (["ab", "bc"], "a", True),
        (["ab", "bc"], "c", True),
        (["ab"], "", True),
        ([""], "", False),
        ([""], "a", True),
        # Devices that should never have been given together: what was bound first stays, or nothing goes with them.
        (["a", "b"], "a", True),
        (["a", "b"], "b", True),
        (["a", "b"], "", True),
        (["", "a"], "", False),
        (["", "a"], "a", True),
        (["a", ""], "a", False),
    ],
)
def test_devices_go_together_that_share_a_group_with_all_before_them(
    allocated: list[str], asked: str, conflict: bool
) -> None:
    budget = Budget({}, map(grouped, allocated))
    assert budget.conflict(grouped(asked)) == ("set" if conflict else None)


def test_what_one_device_names_twice_of_one_counter_set_must_go_together_too() -> None:
    budget = Budget({}, [])
    assert budget.conflict(grouped("a", "b")) == "set"
    assert budget.conflict(grouped("ab", "bc", "c")) == "set"
    assert budget.conflict(grouped("ab", "bc", "b")) is None


def test_a_draw_twice_of_one_counter_is_given_back_group_by_group() -> None:
    budget = Budget({}, [grouped("abc")])
    before = budget.take(grouped("ab", "bc"), bind=True)
    assert budget.bound == {"set": frozenset("b")}
    budget.give_back(grouped("ab", "bc"), before)
    assert budget.bound == {"set": frozenset("abc")}

"""The search: the first solution in published order, no exponential dead ends, and an end to every search."""

from __future__ import annotations

import pytest
from tests.claims.worlds import (
    DRIVER,
    HOST,
    JSON,
    allocate,
    allocator,
    claim,
    claims,
    device,
    device_class,
    exactly,
    first_available,
    given,
    gpus,
    held,
    resource_slice,
    selectors,
)

from dibs.claims.failures import BadClaim, Cancelled, GaveUp
from dibs.claims.features import Features

ROOT = f"{DRIVER}/root"
MODEL = f'device.attributes["{DRIVER}"].model'


def rooted(count: int, roots: int) -> list[JSON]:
    """Devices on so many roots, one after the other."""
    return [device(f"gpu-{n}", attributes={"root": f"root-{n % roots}"}) for n in range(count)]


def test_the_first_free_devices_in_published_order_are_given() -> None:
    outcome = allocate([resource_slice(gpus(4))], claim(exactly(count=2)), allocated=held("gpu-0", "gpu-2"))
    assert given(outcome) == [["gpus:gpu-1", "gpus:gpu-3"]]


def test_pools_come_by_name_and_slices_by_name() -> None:
    pool = {"name": "z", "generation": 1, "resourceSliceCount": 2}
    slices = [
        resource_slice([device("second")], "b", pool=pool),
        resource_slice([device("first")], "a", pool=pool),
        resource_slice([device("zeroth")], "c", pool={"name": "a", "generation": 1, "resourceSliceCount": 1}),
    ]
    outcome = allocate(slices, claim(exactly(count=3)))
    assert given(outcome) == [["gpus:zeroth", "gpus:first", "gpus:second"]]


def test_a_later_request_makes_an_earlier_one_give_way() -> None:
    devices = [device("big", attributes={"model": "big"}), device("small", attributes={"model": "small"})]
    outcome = allocate(
        [resource_slice(devices)], claim(exactly("any"), exactly("big", selectors=selectors(f'{MODEL} == "big"')))
    )
    assert given(outcome) == [["any:small", "big:big"]]


def test_a_later_claim_makes_an_earlier_one_take_another_alternative() -> None:
    devices = [device("big", attributes={"model": "big"}), device("small", attributes={"model": "small"})]
    big = exactly("big", selectors=selectors(f'{MODEL} == "big"'))
    small = exactly("small", selectors=selectors(f'{MODEL} == "small"'))
    outcome = allocate([resource_slice(devices)], claim(first_available("one", big, small)), claim(big))
    assert given(outcome) == [["one/small:small"], ["big:big"]]


@pytest.mark.parametrize("count", [8, 16, 20, 31])
def test_one_device_too_many_is_noticed_at_once(count: int) -> None:
    outcome = allocate([resource_slice(gpus(count))], claim(exactly(count=count + 1)))
    assert outcome.results is None
    assert outcome.steps <= count + 1
    assert outcome.explanation.note == f"request gpus wants {count + 1} devices and {count} can be used"


def test_more_matching_devices_than_any_root_has_are_noticed_at_once() -> None:
    outcome = allocate(
        [resource_slice(rooted(32, 2))], claim(exactly(count=17), constraints=[{"matchAttribute": ROOT}])
    )
    assert outcome.results is None
    assert outcome.steps < 100


def test_two_requests_that_only_together_want_too_much_are_noticed_at_once() -> None:
    outcome = allocate([resource_slice(gpus(25))], claim(exactly("a", 12), exactly("b", 13)), allocated=held("gpu-0"))
    assert outcome.results is None
    assert outcome.steps < 100
    assert "requests a, b together want 25 devices" in outcome.explanation.note


def test_two_values_that_exist_but_never_together_are_noticed_at_once() -> None:
    devices = [device(f"gpu-{n}", attributes={"root": f"r{n % 4}", "lane": f"l{(n // 4) % 4}"}) for n in range(32)]
    both = [{"matchAttribute": ROOT}, {"matchAttribute": f"{DRIVER}/lane"}]
    outcome = allocate([resource_slice(devices)], claim(exactly(count=3), constraints=both))
    assert outcome.results is None
    assert outcome.steps < 100


def test_more_distinct_values_than_there_are_is_noticed_at_once() -> None:
    outcome = allocate(
        [resource_slice(rooted(24, 5))], claim(exactly(count=6), constraints=[{"distinctAttribute": ROOT}])
    )
    assert outcome.results is None
    assert outcome.steps < 100


def test_more_partitions_than_the_counters_pay_for_are_noticed_at_once() -> None:
    pool = {"name": "host", "generation": 1, "resourceSliceCount": 2}
    devices = [
        device(
            f"part-{n}",
            consumesCounters=[{"counterSet": f"gpu-{n // 8}", "counters": {"slices": {"value": "2"}}}],
        )
        for n in range(32)
    ]
    sets = [{"name": f"gpu-{n}", "counters": {"slices": {"value": "7"}}} for n in range(4)]
    slices = [resource_slice(devices, "devices", pool=pool), resource_slice([], pool=pool, sharedCounters=sets)]
    assert allocate(slices, claim(exactly(count=12))).results is not None
    outcome = allocate(slices, claim(exactly(count=13)))
    assert outcome.results is None
    assert outcome.steps < 100


def test_like_devices_are_not_tried_one_after_the_other() -> None:
    # No bound sees this coming: each constraint alone can be met, and so can each request.
    left = [device(f"l-{n}", attributes={"side": "l", "root": "r0"}) for n in range(10)]
    right = [device(f"r-{n}", attributes={"side": "r", "root": "r1"}) for n in range(10)]
    side = f'device.attributes["{DRIVER}"].side'
    wanted = claim(
        exactly("some", 6),
        exactly("left", 6, selectors=selectors(f'{side} == "l"')),
        exactly("right", 6, selectors=selectors(f'{side} == "r"')),
        constraints=[{"requests": ["some"], "matchAttribute": ROOT}],
    )
    outcome = allocate([resource_slice([*left, *right])], wanted)
    assert outcome.results is None
    assert outcome.steps < 500


def test_an_error_that_only_looking_ahead_meets_is_not_raised() -> None:
    kinds = {"a": "x", "b": "y", "d": "z"}
    devices = [device(name, attributes={"model": model, "first": name == "a"}) for name, model in kinds.items()]
    devices.append(device("c", attributes={"first": False}))
    first = f'device.attributes["{DRIVER}"].first'
    # "any" takes a, which "first" needs: a dead end, after which the model of every device is looked up in advance.
    # The plain search finds d for "model" and never comes to c, which has no model.
    wanted = claim(
        exactly("any"),
        exactly("first", selectors=selectors(first)),
        exactly("model", selectors=selectors(f'{MODEL} == "z"')),
    )
    assert given(allocate([resource_slice(devices)], wanted)) == [["any:b", "first:a", "model:d"]]


def test_a_device_in_use_is_not_evaluated() -> None:
    devices = [device("a"), device("b", attributes={"model": "x"})]
    wanted = claim(exactly(selectors=selectors(f'{MODEL} == "x"')))
    with pytest.raises(BadClaim, match=r"claim claim: selector #0 on device .*/a: CEL runtime error: .*no such key"):
        allocate([resource_slice(devices)], wanted)
    assert given(allocate([resource_slice(devices)], wanted, allocated=held("a"))) == [["gpus:b"]]


def test_looking_ahead_does_not_hide_an_error_that_the_plain_search_meets() -> None:
    devices = [*[device(f"gpu-{n}", attributes={"model": "x"}) for n in range(4)], device("odd")]
    with pytest.raises(BadClaim, match="CEL runtime error"):
        allocate([resource_slice(devices)], claim(exactly(count=9, selectors=selectors(f'{MODEL} == "x"'))))


def test_an_unfinished_search_says_how_far_it_came() -> None:
    patient = allocator([resource_slice(gpus(8))])
    with pytest.raises(GaveUp, match="gave up after 3 steps") as caught:
        patient.allocate(HOST, claims(claim(exactly(count=8))), budget=3)
    assert caught.value.code == "ALLOCATION_GAVE_UP"
    assert caught.value.retryable
    assert caught.value.explanation is not None
    assert caught.value.explanation.outcome == "undecided"
    assert len(caught.value.explanation.requests[0].given) == 3
    assert patient.allocate(HOST, claims(claim(exactly(count=8))), budget=8).results is not None


def test_a_search_stops_when_it_is_told_to() -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    with pytest.raises(Cancelled, match="stopped after 3 steps"):
        allocator([resource_slice(gpus(8))]).allocate(HOST, claims(claim(exactly(count=8))), cancelled=cancelled)


def test_the_search_is_deeper_than_pythons_stack() -> None:
    slices = [
        resource_slice(
            [device(f"gpu-{n}") for n in range(100)],
            f"slice-{s}",
            pool={"name": f"pool-{s:02}", "generation": 1, "resourceSliceCount": 1},
        )
        for s in range(13)
    ]
    wanted = [claim(exactly(count=32), name=f"claim-{n}") for n in range(40)]
    outcome = allocate(slices, *wanted)
    assert outcome.results is not None
    assert sum(len(result.devices.results) for result in outcome.results) == 1280


def test_more_than_32_devices_are_an_error_for_a_request_and_a_reason_for_the_next_alternative() -> None:
    with pytest.raises(BadClaim, match="number of requested devices 33 exceeds the claim limit of 32"):
        allocate([resource_slice(gpus(40))], claim(exactly(count=33)))
    wanted = claim(exactly("base", 30), first_available("more", exactly("many", 3), exactly("few", 2)))
    outcome = allocate([resource_slice(gpus(40))], wanted)
    assert outcome.results is not None
    assert given(outcome) is not None
    assert [r.request for r in outcome.results[0].devices.results[-2:]] == ["more/few", "more/few"]


def test_an_unknown_class_is_an_error_even_without_devices() -> None:
    with pytest.raises(BadClaim, match="could not retrieve device class tpu"):
        allocate([], claim(exactly(class_name="tpu")), classes=[device_class("gpu")])


def test_looking_ahead_stops_at_a_request_whose_evaluation_would_fail() -> None:
    devices = [device("a", attributes={"model": "x", "first": True})]
    devices += [device(name, attributes={"first": False}) for name in ("b", "c")]
    wanted = claim(
        exactly("any"),
        exactly("first", selectors=selectors(f'device.attributes["{DRIVER}"].first')),
        exactly("many", 5, selectors=selectors(f'{MODEL} == "x"')),
    )
    # "many" can never be served, but the plain search comes to c first and stops there.
    with pytest.raises(BadClaim, match="CEL runtime error"):
        allocate([resource_slice(devices)], wanted)


def test_like_devices_are_distinguished_where_all_devices_are_taken_in_order() -> None:
    devices = [device(name, attributes={"root": "r"}) for name in ("p", "q")]
    wanted = claim(exactly("one"), exactly("rest", None), constraints=[{"distinctAttribute": ROOT}])
    # With p taken, "rest" finds its first device in use; with q taken, p violates the constraint, which is an error.
    with pytest.raises(BadClaim, match=r"cannot add device .*/p because a claim constraint would not be satisfied"):
        allocate([resource_slice(devices)], wanted)


def test_a_choice_that_fails_makes_the_request_before_it_try_another_device() -> None:
    devices = [device("a", attributes={"model": "x"}), device("b", attributes={"model": "y"})]
    x = selectors(f'{MODEL} == "x"')
    wanted = claim(exactly("any"), first_available("one", exactly("s", selectors=x), exactly("t", selectors=x)))
    assert given(allocate([resource_slice(devices)], wanted)) == [["any:b", "one/s:a"]]


def test_matching_devices_behind_one_that_stands_alone_are_found() -> None:
    devices = [device(n, attributes={"root": r}) for n, r in (("a", "p"), ("b", "q"), ("c", "q"))]
    outcome = allocate([resource_slice(devices)], claim(exactly(count=2), constraints=[{"matchAttribute": ROOT}]))
    assert given(outcome) == [["gpus:b", "gpus:c"]]


def test_small_partitions_and_whole_cards_that_fit_one_by_one_but_not_together_are_noticed_at_once() -> None:
    devices = []
    for card in range(4):
        for name, share in [*[(f"part-{n}", 1) for n in range(7)], ("whole", 7)]:
            draw = [{"counterSet": f"card-{card}", "counters": {"slices": {"value": str(share)}}}]
            size = "whole" if share == 7 else "part"
            devices.append(device(f"{name}-of-{card}", attributes={"model": size}, consumesCounters=draw))
    pool = {"name": "host", "generation": 1, "resourceSliceCount": 2}
    sets = [{"name": f"card-{n}", "counters": {"slices": {"value": "7"}}} for n in range(4)]
    slices = [resource_slice(devices, "devices", pool=pool), resource_slice([], pool=pool, sharedCounters=sets)]

    def wanted(parts: int) -> JSON:
        return claim(
            exactly("parts", parts, selectors=selectors(f'{MODEL} == "part"')),
            exactly("wholes", 3, selectors=selectors(f'{MODEL} == "whole"')),
        )

    assert allocate(slices, wanted(7)).results is not None
    outcome = allocate(slices, wanted(8))
    assert outcome.results is None
    assert outcome.steps < 100


def test_all_ends_at_the_first_device_that_cannot_be_had() -> None:
    """Those behind it are not looked at any more: their violated constraint would be an error, not a refusal."""
    devices = [device(name, attributes={"root": "r"}) for name in ("a", "b", "c")]
    wanted = claim(exactly("all", None), constraints=[{"distinctAttribute": ROOT}])
    with pytest.raises(BadClaim, match="cannot add device"):
        allocate([resource_slice(devices)], wanted)
    outcome = allocate([resource_slice(devices)], wanted, allocated=held("a"))
    assert outcome.results is None
    assert outcome.steps == 1


@pytest.mark.parametrize("features", [Features.default(), Features.everything()], ids=["default", "everything"])
def test_devices_without_the_attribute_are_passed_over_also_when_looking_ahead(features: Features) -> None:
    devices = [device("bare")] + [device(n, attributes={"root": r}) for n, r in (("a", "p"), ("b", "q"), ("c", "q"))]
    wanted = claim(exactly(count=2), constraints=[{"matchAttribute": ROOT}])
    assert given(allocate([resource_slice(devices)], wanted, features=features)) == [["gpus:b", "gpus:c"]]


def test_a_search_that_placed_nothing_says_so() -> None:
    with pytest.raises(GaveUp, match="at most 0 devices were placed before request gpus"):
        allocator([resource_slice(gpus(8))]).allocate(HOST, claims(claim(exactly(count=8))), budget=0)


def test_administrators_may_look_at_the_same_devices_also_when_looking_ahead() -> None:
    devices = [device(n, attributes={"root": r}) for n, r in (("a", "p"), ("b", "q"), ("c", "q"))]
    both = [
        claim(exactly(count=2, adminAccess=True), name=name, constraints=[{"matchAttribute": ROOT}])
        for name in ("one", "two")
    ]
    assert given(allocate([resource_slice(devices)], *both)) == [["gpus:b", "gpus:c"]] * 2


def test_administrators_may_look_at_devices_in_use_also_when_looking_ahead() -> None:
    devices = [device(n, attributes={"root": r}) for n, r in (("a", "p"), ("b", "q"), ("c", "q"))]
    wanted = claim(exactly(count=2, adminAccess=True), constraints=[{"matchAttribute": ROOT}])
    assert given(allocate([resource_slice(devices)], wanted, allocated=held("b", "c"))) == [["gpus:b", "gpus:c"]]


def test_too_many_devices_lead_to_the_next_alternative_at_once() -> None:
    """No other device can help, so none is tried: 30 and 3 are too many for a claim, 20 and 3 are not."""
    wanted = claim(
        first_available("base", exactly("most", 30), exactly("less", 20)),
        first_available("more", exactly("three", 3), exactly("also-three", 3)),
    )
    outcome = allocate([resource_slice(gpus(40))], wanted)
    assert outcome.results is not None
    assert [r.request for r in outcome.results[0].devices.results] == ["base/less"] * 20 + ["more/three"] * 3
    assert outcome.steps == 30 + 20 + (20 + 3)  # the last request passes over the 20 that are taken


def test_all_devices_are_all_or_none_when_a_later_request_fails() -> None:
    """Leaving one out would be no answer to "all", so nothing but the next alternative is tried."""
    devices = [device(f"gpu-{n}", attributes={"model": "x", "slot": n}) for n in range(6)]
    wanted = claim(
        first_available("some", exactly("all", None), exactly("two", 2)),
        exactly("rest", 1, selectors=selectors(f'device.attributes["{DRIVER}"].slot == 5')),
    )
    outcome = allocate([resource_slice(devices)], wanted)
    assert given(outcome) == [["some/two:gpu-0", "some/two:gpu-1", "rest:gpu-5"]]


def test_capacity_is_left_alone_where_its_gate_is_off_also_when_looking_ahead() -> None:
    """The default is more than there is: with the gate on, such a device cannot be had."""
    capacity = {"memory": {"value": "1", "requestPolicy": {"default": "2"}}}
    devices = [device(n, attributes={"root": r}, capacity=capacity) for n, r in (("a", "p"), ("b", "q"), ("c", "q"))]
    wanted = claim(exactly(count=2), constraints=[{"matchAttribute": ROOT}])
    off = Features.of(gate for gate in Features.everything().gates if "Capacity" not in gate)
    assert given(allocate([resource_slice(devices)], wanted, features=off)) == [["gpus:b", "gpus:c"]]
    assert allocate([resource_slice(devices)], wanted).results is None

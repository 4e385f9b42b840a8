"""On small worlds, a plain search over everything must agree: the same claims can be served, and validly."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.claims import brute
from tests.claims.worlds import DRIVER, JSON, allocate, device_class, held, resource_slice

from dibs.claims.failures import BadClaim

ROOT = f"{DRIVER}/root"
LANE = f"{DRIVER}/lane"


@st.composite
def devices(draw: st.DrawFn) -> tuple[list[JSON], JSON]:
    """Up to five devices of two models, some shared, some tainted, some partitions; and the counters they draw on."""
    counters = {"set-0": str(draw(st.integers(1, 4))), "set-1": "2"}
    found = []
    for index in range(draw(st.integers(1, 5))):
        one: JSON = {
            "name": f"gpu-{index}",
            "attributes": {"model": {"string": draw(st.sampled_from(["a", "a", "b"]))}},
            "capacity": {"memory": {"value": draw(st.sampled_from(["2", "4"]))}},
        }
        if draw(st.integers(0, 9)):
            one["attributes"]["root"] = {"string": draw(st.sampled_from(["p", "q"]))}
        one["attributes"]["lane"] = {"string": draw(st.sampled_from(["1", "2", "3"]))}
        if draw(st.integers(0, 3)) == 0:
            one["allowMultipleAllocations"] = True
        if draw(st.integers(0, 5)) == 0:
            one["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
        if draw(st.integers(0, 2)) == 0:
            amount = str(draw(st.integers(1, 2)))
            name = draw(st.sampled_from(["set-0", "set-0", "set-1"]))
            one["consumesCounters"] = [{"counterSet": name, "counters": {"slices": {"value": amount}}}]
        found.append(one)
    return found, counters


def _asked(draw: st.DrawFn) -> JSON:
    asked: JSON = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": draw(st.integers(1, 3))}
    if draw(st.integers(0, 7)) == 0:
        asked = {"deviceClassName": "gpu", "allocationMode": "All"}
    if draw(st.booleans()):
        expression = draw(st.sampled_from(["true", f'device.attributes["{DRIVER}"].model == "a"']))
        asked["selectors"] = [{"cel": {"expression": expression}}]
    if draw(st.integers(0, 2)) == 0:
        asked["tolerations"] = [{"key": "sick", "operator": "Exists"}]
    if draw(st.integers(0, 2)) == 0:
        # No policy forbids any amount, and no device has less than 2: brute force and All then agree on candidates.
        asked["capacity"] = {"requests": {"memory": draw(st.sampled_from(["1", "2"]))}}
    return asked


@st.composite
def claims(draw: st.DrawFn) -> list[JSON]:
    found = []
    for index in range(draw(st.integers(1, 2))):
        requests: list[JSON] = []
        names = []
        for number in range(draw(st.integers(1, 2))):
            name = f"r{number}"
            names.append(name)
            if draw(st.integers(0, 3)) == 0:
                parts = [{"name": f"s{n}", **_asked(draw)} for n in range(draw(st.integers(1, 2)))]
                requests.append({"name": name, "firstAvailable": parts})
            else:
                requests.append({"name": name, "exactly": _asked(draw)})
        constraints: list[JSON] = []
        for _ in range(draw(st.integers(0, 2))):
            kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
            constraint: JSON = {kind: draw(st.sampled_from([ROOT, LANE]))}
            if draw(st.booleans()):
                constraint["requests"] = [draw(st.sampled_from(names))]
            constraints.append(constraint)
        body: JSON = {"requests": requests}
        if constraints:
            body["constraints"] = constraints
        found.append({"metadata": {"name": f"claim-{index}"}, "spec": {"devices": body}})
    return found


def _slices(found: list[JSON], counters: JSON) -> list[JSON]:
    pool = {"name": "host", "generation": 1, "resourceSliceCount": 2}
    sets = [{"name": name, "counters": {"slices": {"value": value}}} for name, value in counters.items()]
    counting = resource_slice([], "counters", pool=pool, sharedCounters=sets)
    del counting["spec"]["devices"]
    return [resource_slice(found, "devices", pool=pool), counting]


@settings(max_examples=500)
@given(devices(), claims(), st.data())
def test_the_same_claims_can_be_served_and_what_is_given_is_valid(
    world: tuple[list[JSON], JSON], wanted: list[JSON], data: st.DataObject
) -> None:
    found, counters = world
    whole = [one["name"] for one in found if "allowMultipleAllocations" not in one]
    taken = set(data.draw(st.lists(st.sampled_from(whole), max_size=1))) if whole else set()
    for one in found:  # a device in use draws on its counters too; brute force is told what is left
        if one["name"] in taken:
            for consumption in one.get("consumesCounters", ()):
                left = int(counters[consumption["counterSet"]]) - int(consumption["counters"]["slices"]["value"])
                if left < 0:
                    taken = set()
    left_over = dict(counters)
    for one in found:
        if one["name"] in taken:
            for consumption in one.get("consumesCounters", ()):
                name = consumption["counterSet"]
                left_over[name] = str(int(left_over[name]) - int(consumption["counters"]["slices"]["value"]))

    try:
        outcome = allocate(
            _slices(found, counters), *wanted, classes=[device_class("gpu", "true")], allocated=held(*taken)
        )
    except BadClaim as refusal:
        # "All" against a constraint is an error in Kubernetes, not a plain no. It says nothing on feasibility.
        if "because a claim constraint would not be satisfied" not in str(refusal):
            raise
        return
    expected = brute.feasible(found, left_over, wanted, taken)
    assert (outcome.results is not None) == expected
    if outcome.results is None:
        return
    by_name = {one["name"]: one for one in found}
    placement = [
        (index, result.request, _request_of(wanted[index], result.request), by_name[result.device])
        for index, allocation in enumerate(outcome.results)
        for result in allocation.devices.results
    ]
    assert brute.valid(placement, left_over, wanted, taken)


def _request_of(claim: JSON, name: str) -> Any:
    parent, _, part = name.partition("/")
    for request in claim["spec"]["devices"]["requests"]:
        if request["name"] == parent:
            if not part:
                return request["exactly"]
            return next(one for one in request["firstAvailable"] if one["name"] == part)
    raise AssertionError(f"no request {name}")

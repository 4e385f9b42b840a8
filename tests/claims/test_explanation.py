"""Why it went as it did: noted while deciding, per request and device."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.claims.worlds import (
    DRIVER,
    JSON,
    allocate,
    claim,
    device,
    device_class,
    exactly,
    gpus,
    held,
    resource_slice,
    selectors,
)

from dibs.claims.explanation import RequestExplanation, Verdict

MODEL = f'device.attributes["{DRIVER}"].model'


def explained(slices: list[JSON], *wanted: JSON, **options: Any) -> RequestExplanation:
    outcome = allocate(slices, *wanted, **options)
    assert outcome.results is None
    assert outcome.explanation.outcome == "unsatisfiable"
    return outcome.explanation.requests[0]


def verdict(name: str, reason: str, detail: str = "") -> Verdict:
    return Verdict(f"{DRIVER}/host/{name}", reason, detail)


def test_each_device_falls_for_one_reason() -> None:
    devices = [
        device("wrong-model", attributes={"model": "A100"}),
        device("sick", attributes={"model": "H100"}, taints=[{"key": "ecc", "effect": "NoExecute"}]),
        device("busy", attributes={"model": "H100"}),
        device("small", attributes={"model": "H100"}, capacity={"memory": {"value": "4Gi"}}),
    ]
    stranger = resource_slice([device("nic")], "nics", "nic.example.com")
    expression = f'{MODEL} == "H100"'
    wanted = exactly(selectors=selectors(expression), capacity={"requests": {"memory": "8Gi"}})
    for one in devices[:3]:
        one["capacity"] = {"memory": {"value": "80Gi"}}
    found = explained([resource_slice(devices), stranger], claim(wanted), allocated=held("busy", by="anna"))
    assert found.fell == (
        verdict("wrong-model", "selector", expression),
        verdict("sick", "taint", "ecc:NoExecute"),
        verdict("busy", "in-use", "anna"),
        verdict("small", "capacity", "not enough memory left"),
        Verdict("nic.example.com/host/nic", "class-selector", f'device.driver == "{DRIVER}"'),
    )
    assert (found.seen, found.of_class, found.selected, found.free) == (5, 4, 3, 2)
    assert found.tally == {"selector": 1, "taint": 1, "in-use": 1, "capacity": 1, "class-selector": 1}
    assert found.nearest == verdict("busy", "in-use", "anna")


def test_the_nearest_miss_is_the_device_that_passed_most_selectors() -> None:
    devices = [
        device("far", attributes={"model": "A100", "nodes": 1}),
        device("near", attributes={"model": "H100", "nodes": 1}),
    ]
    second = f'device.attributes["{DRIVER}"].nodes == 2'
    found = explained([resource_slice(devices)], claim(exactly(selectors=selectors(f'{MODEL} == "H100"', second))))
    assert found.nearest == verdict("near", "selector", second)
    assert found.selected == 0


def test_constraints_and_counters_are_named() -> None:
    devices = [device(f"gpu-{n}", attributes={"root": f"r{n}"}) for n in range(2)]
    match = {"matchAttribute": f"{DRIVER}/root"}
    found = explained([resource_slice(devices)], claim(exactly(count=2), constraints=[match]))
    assert found.fell[0] == verdict("gpu-1", "constraint", f"matchAttribute {DRIVER}/root")

    draw = [{"counterSet": "c", "counters": {"slices": {"value": "2"}}}]
    pool = {"name": "host", "generation": 1, "resourceSliceCount": 2}
    slices = [
        resource_slice([device(f"part-{n}", consumesCounters=draw) for n in range(2)], "d", pool=pool),
        resource_slice([], "c", pool=pool, sharedCounters=[{"name": "c", "counters": {"slices": {"value": "3"}}}]),
    ]
    found = explained(slices, claim(exactly(count=2)))
    assert found.fell == (verdict("part-1", "counters", "slices of counter set c"),)


def test_a_device_that_another_request_got_is_distinguished_from_a_held_one() -> None:
    outcome = allocate([resource_slice(gpus(1))], claim(exactly("a"), exactly("b")))
    assert outcome.results is None
    assert outcome.explanation.requests[1].fell == (verdict("gpu-0", "taken", "by another request"),)


def test_an_allocation_is_explained_too() -> None:
    outcome = allocate([resource_slice(gpus(3))], claim(exactly(count=2)), allocated=held("gpu-0", by="bob"))
    found = outcome.explanation
    assert found.outcome == "allocated"
    assert found.steps == outcome.steps == 3
    assert found.requests[0].given == (f"{DRIVER}/host/gpu-1", f"{DRIVER}/host/gpu-2")
    assert found.requests[0].fell == (verdict("gpu-0", "in-use", "bob"),)
    assert found.requests[0].nearest is None


def test_pools_that_could_not_be_used_are_named_with_the_reason() -> None:
    torn = resource_slice(gpus(1), pool={"name": "torn", "generation": 1, "resourceSliceCount": 2})
    found = allocate([torn], claim(exactly())).explanation
    assert found.pools[0].pool == f"{DRIVER}/torn"
    assert "incomplete" in found.pools[0].reason


def test_an_explanation_is_data() -> None:
    found = allocate([resource_slice(gpus(1))], claim(exactly(count=2))).explanation
    assert msgspec.convert(msgspec.to_builtins(found), type(found)) == found


def test_devices_that_need_a_gate_or_another_node_say_so() -> None:
    devices = [device("binding", bindingConditions=["B"], nodeName="host"), device("elsewhere", nodeName="other")]
    from dibs.claims.features import Features

    found = explained(
        [resource_slice(devices, perDeviceNodeSelection=True)],
        claim(exactly()),
        features=Features(partitionable_devices=True),
        classes=[device_class()],
    )
    assert [v.reason for v in found.fell] == ["binding-conditions", "other-node"]


def test_of_two_equally_near_devices_the_first_is_named() -> None:
    found = explained([resource_slice(gpus(2))], claim(exactly()), allocated=held("gpu-0", "gpu-1", by="anna"))
    assert found.nearest == verdict("gpu-0", "in-use", "anna")

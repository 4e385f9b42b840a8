"""What is given: sharing, partitions, taints, admin access, binding, nodes, configuration."""

from __future__ import annotations

from typing import Any

import pytest
from tests.claims.worlds import (
    DRIVER,
    HOST,
    JSON,
    allocate,
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
)

from dibs.claims import objects
from dibs.claims.allocator import Allocator
from dibs.claims.failures import BadClaim, BadPool
from dibs.claims.features import Features
from dibs.claims.identity import Allocated, DeviceId
from dibs.claims.inventory import Inventory
from dibs.claims.nodes import Node

GPU_0 = DeviceId(DRIVER, "host", "gpu-0")


def shared(name: str = "gpu-0", value: str = "8Gi", **policy: Any) -> JSON:
    capacity: JSON = {"value": value}
    if policy:
        capacity["requestPolicy"] = policy
    return device(name, allowMultipleAllocations=True, capacity={"memory": capacity})


def memory(amount: str) -> JSON:
    return {"capacity": {"requests": {"memory": amount}}}


def consumed(outcome: Any) -> list[str]:
    return [r.consumed_capacity["memory"] for result in outcome.results for r in result.devices.results]


def test_shares_add_up_to_what_the_device_has_and_no_further() -> None:
    slices = [resource_slice([shared()])]
    outcome = allocate(slices, claim(exactly("a", **memory("5Gi"))), claim(exactly("b", **memory("3Gi"))))
    assert consumed(outcome) == ["5Gi", "3Gi"]
    assert outcome.results is not None
    shares = [result.devices.results[0].share_id for result in outcome.results]
    assert None not in shares
    assert len(set(shares)) == 2
    assert allocate(slices, claim(exactly("a", **memory("5Gi")), exactly("b", **memory("4Gi")))).results is None


def test_shares_of_earlier_claims_count() -> None:
    before = Allocated((), [GPU_0], {GPU_0: {"memory": "6Gi"}})
    assert allocate([resource_slice([shared()])], claim(exactly(**memory("2Gi"))), allocated=before).results
    assert allocate([resource_slice([shared()])], claim(exactly(**memory("3Gi"))), allocated=before).results is None


@pytest.mark.parametrize(
    ("policy", "asked", "given_"),
    [
        ({}, "3Gi", "3Gi"),
        ({}, None, "8Gi"),
        ({"default": "2Gi"}, None, "2Gi"),
        ({"default": "2Gi", "validRange": {"min": "2Gi"}}, "1Gi", "2Gi"),
        ({"default": "2Gi", "validRange": {"min": "2Gi", "step": "2Gi"}}, "3Gi", "4Gi"),
        ({"default": "1Gi", "validValues": ["1Gi", "4Gi"]}, "2Gi", "4Gi"),
    ],
)
def test_a_request_is_rounded_up_as_the_device_says(policy: JSON, asked: str | None, given_: str) -> None:
    extra = {} if asked is None else memory(asked)
    outcome = allocate([resource_slice([shared(**policy)])], claim(exactly(**extra)))
    assert consumed(outcome) == [given_]


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        ({"default": "1Gi", "validValues": ["1Gi", "4Gi"]}, "5Gi"),
        ({"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi"}}, "5Gi"),
    ],
)
def test_a_request_that_the_policy_forbids_passes_the_device_over(policy: JSON, asked: str) -> None:
    slices = [resource_slice([shared("gpu-0", **policy), shared("gpu-1")])]
    assert given(allocate(slices, claim(exactly(**memory(asked))))) == [["gpus:gpu-1"]]


def test_a_whole_device_is_filtered_by_its_capacity() -> None:
    small, large = (device(n, capacity={"memory": {"value": v}}) for n, v in (("s", "4Gi"), ("l", "8Gi")))
    outcome = allocate([resource_slice([small, large])], claim(exactly(**memory("6Gi"))))
    assert given(outcome) == [["gpus:l"]]
    assert outcome.results is not None
    assert outcome.results[0].devices.results[0].share_id is None


def test_a_capacity_that_a_device_does_not_have_passes_it_over() -> None:
    assert allocate([resource_slice(gpus(1))], claim(exactly(**memory("1Gi")))).results is None


def partitions() -> list[JSON]:
    pool = {"name": "host", "generation": 1, "resourceSliceCount": 2}

    def part(name: str, slices: int) -> JSON:
        counters = {"slices": {"value": str(slices)}}
        return device(name, consumesCounters=[{"counterSet": "gpu-0", "counters": counters}])

    devices = [part("whole", 4), part("half-0", 2), part("half-1", 2)]
    sets = [{"name": "gpu-0", "counters": {"slices": {"value": "4"}}}]
    return [
        resource_slice(devices, "devices", pool=pool),
        resource_slice([], "counters", pool=pool, sharedCounters=sets),
    ]


def test_partitions_and_the_whole_exclude_each_other() -> None:
    assert given(allocate(partitions(), claim(exactly()))) == [["gpus:whole"]]
    assert given(allocate(partitions(), claim(exactly(count=2)))) == [["gpus:half-0", "gpus:half-1"]]
    assert given(allocate(partitions(), claim(exactly()), allocated=held("half-1"))) == [["gpus:half-0"]]
    assert allocate(partitions(), claim(exactly()), allocated=held("whole")).results is None


def test_counters_that_a_tainted_partition_would_draw_are_given_back() -> None:
    slices = partitions()
    slices[0]["spec"]["devices"][0]["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    assert given(allocate(slices, claim(exactly(count=2)))) == [["gpus:half-0", "gpus:half-1"]]


def test_counters_of_two_drivers_with_the_same_pool_name_are_apart() -> None:
    other = partitions()
    for one in other:
        one["spec"]["driver"] = "other.example.com"
        one["metadata"]["name"] += "-other"
    outcome = allocate([*partitions(), *other], claim(exactly(count=2)), classes=[device_class("gpu", "true")])
    assert given(outcome) == [["gpus:whole", "gpus:whole"]]


def test_a_pool_that_draws_on_an_unknown_counter_is_not_used_and_is_an_error_if_nothing_else_fits() -> None:
    broken = partitions()
    broken[1]["spec"]["sharedCounters"][0]["name"] = "gpu-9"
    with pytest.raises(BadPool, match="invalid resource pools were encountered") as caught:
        allocate(broken, claim(exactly()))
    assert caught.value.explanation is not None
    assert caught.value.explanation.pools[0].reason == "counter set gpu-0 not found"
    spare = resource_slice([device("spare")], pool={"name": "z", "generation": 1, "resourceSliceCount": 1})
    assert given(allocate([*broken, spare], claim(exactly()))) == [["gpus:spare"]]


def grouped(*names: list[str]) -> list[JSON]:
    slices = partitions()
    devices = slices[0]["spec"]["devices"]
    del devices[0]
    for one, groups in zip(devices, names, strict=True):
        one["consumesCounters"][0]["compatibilityGroups"] = groups
    return slices


def test_partitions_go_together_only_where_they_share_a_group() -> None:
    two = claim(exactly(count=2))
    assert allocate(grouped(["a", "b"], ["b"]), two).results is not None
    assert allocate(grouped(["a"], ["b"]), two).results is None
    assert allocate(grouped([], ["b"]), two).results is None
    assert allocate(grouped([], []), two).results is not None
    assert allocate(grouped(["a"], ["b"]), claim(exactly()), allocated=held("half-0")).results is None


def test_a_tainted_device_needs_a_toleration_which_is_written_down() -> None:
    sick = device("gpu-0", taints=[{"key": "sick", "value": "ecc", "effect": "NoExecute"}])
    note = device("gpu-1", taints=[{"key": "slow", "effect": "None"}])
    slices = [resource_slice([sick, note])]
    assert given(allocate(slices, claim(exactly()))) == [["gpus:gpu-1"]]
    tolerant = exactly(tolerations=[{"key": "sick", "operator": "Exists"}])
    outcome = allocate(slices, claim(tolerant))
    assert given(outcome) == [["gpus:gpu-0"]]
    assert outcome.results is not None
    assert outcome.results[0].devices.results[0].tolerations[0].key == "sick"
    wrong = exactly(tolerations=[{"key": "sick", "value": "heat"}])
    assert given(allocate(slices, claim(wrong))) == [["gpus:gpu-1"]]


def test_a_taint_rule_of_the_admin_taints_the_devices_that_it_names() -> None:
    slices = [objects.from_builtins(resource_slice(gpus(2)), objects.ResourceSlice)]
    classes = [objects.from_builtins(device_class(), objects.DeviceClass)]
    rule: JSON = {
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"device": "gpu-0"}, "taint": {"key": "out", "effect": "NoSchedule"}},
    }
    rules = [objects.from_builtins(rule, objects.DeviceTaintRule)]
    outcome = Allocator(Inventory(slices, rules), classes).allocate(HOST, claims(claim(exactly())))
    assert given(outcome) == [["gpus:gpu-1"]]
    del rule["spec"]["deviceSelector"]
    rules = [objects.from_builtins(rule, objects.DeviceTaintRule)]
    outcome = Allocator(Inventory(slices, rules), classes).allocate(HOST, claims(claim(exactly())))
    assert given(outcome) == [["gpus:gpu-0"]]


def test_admin_access_sees_devices_in_use_but_each_only_once_per_claim() -> None:
    admin = claim(exactly("watch", 1, adminAccess=True))
    outcome = allocate([resource_slice(gpus(1))], admin, allocated=held("gpu-0"))
    assert outcome.results is not None
    assert outcome.results[0].devices.results[0].admin_access is True
    twice = claim(exactly("a", adminAccess=True), exactly("b", adminAccess=True))
    assert allocate([resource_slice(gpus(1))], twice, allocated=held("gpu-0")).results is None
    with pytest.raises(BadClaim, match="admin access is requested, but the feature is disabled"):
        allocate([resource_slice(gpus(1))], admin, features=Features())


def test_all_means_every_matching_device_or_none() -> None:
    slices = [resource_slice(gpus(3))]
    assert given(allocate(slices, claim(exactly(count=None)))) == [["gpus:gpu-0", "gpus:gpu-1", "gpus:gpu-2"]]
    assert allocate(slices, claim(exactly(count=None)), allocated=held("gpu-1")).results is None
    assert allocate([], claim(exactly(count=None))).results is None
    torn = resource_slice(gpus(1), pool={"name": "host", "generation": 1, "resourceSliceCount": 2})
    with pytest.raises(BadPool, match=r"asks for all devices, but resource pool .* is currently being updated"):
        allocate([torn], claim(exactly(count=None)))
    assert allocate([torn], claim(exactly())).results is None


def test_the_nodes_of_an_allocation_follow_from_its_devices() -> None:
    term = {"matchExpressions": [{"key": "region", "operator": "In", "values": ["here"]}]}
    near = resource_slice([device("near")], nodeSelector={"nodeSelectorTerms": [term]})
    everywhere = resource_slice([device("far")], allNodes=True)
    local = resource_slice([device("local")])

    def nodes(*slices: JSON, count: int = 1) -> Any:
        for index, one in enumerate(slices):
            one["spec"]["pool"] = {"name": f"p{index}", "generation": 1, "resourceSliceCount": 1}
        outcome = allocate(list(slices), claim(exactly(count=count)))
        assert outcome.results is not None
        found = outcome.results[0].node_selector
        return None if found is None else objects.to_builtins(found)["nodeSelectorTerms"]

    only = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["host"]}]}]
    assert nodes(everywhere) is None
    assert nodes(near, everywhere, count=2) == [term]
    assert nodes(near, local, count=2) == only
    bound = resource_slice([device("bound", bindsToNode=True)], allNodes=True)
    assert nodes(bound) == only


def test_devices_for_other_nodes_are_not_given() -> None:
    per_device = [device("a", nodeName="other"), device("b", nodeName="host"), device("c", allNodes=True)]
    slices = [resource_slice(per_device, perDeviceNodeSelection=True)]
    assert given(allocate(slices, claim(exactly(count=2)))) == [["gpus:b", "gpus:c"]]
    assert given(allocate(slices, claim(exactly()), node=Node("third"))) == [["gpus:c"]]


def test_devices_with_binding_conditions_come_last_and_carry_them() -> None:
    binding = resource_slice(
        [device("z", bindingConditions=["Attached"], bindingFailureConditions=["Lost"])],
        "a",
        pool={"name": "a", "generation": 1, "resourceSliceCount": 1},
    )
    slices = [binding, resource_slice(gpus(1), "b")]
    outcome = allocate(slices, claim(exactly(count=2)))
    assert given(outcome) == [["gpus:gpu-0", "gpus:z"]]
    assert outcome.results is not None
    result = outcome.results[0].devices.results[1]
    assert (result.binding_conditions, result.binding_failure_conditions) == (("Attached",), ("Lost",))
    assert allocate(slices, claim(exactly(count=2)), features=Features()).results is None


def opaque(value: str) -> JSON:
    return {"opaque": {"driver": DRIVER, "parameters": {"from": value}}}


def test_configuration_comes_from_the_class_first_and_only_for_what_was_chosen() -> None:
    classes = [device_class("gpu", config=[opaque("gpu")]), device_class("tpu", "false", config=[opaque("tpu")])]
    wanted = claim(
        exactly("a"),
        first_available("b", exactly("t", class_name="tpu"), exactly("g")),
        config=[
            {"requests": ["b/t"], **opaque("never")},
            {"requests": ["b/g"], **opaque("second")},
            {"requests": ["a", "b"], **opaque("both")},
            opaque("all"),
        ],
    )
    outcome = allocate([resource_slice(gpus(2))], wanted, classes=classes)
    assert given(outcome) == [["a:gpu-0", "b/g:gpu-1"]]
    assert outcome.results is not None
    found = [
        (c.source, c.requests, c.opaque.parameters["from"])
        for c in outcome.results[0].devices.config
        if c.opaque is not None
    ]
    assert found == [
        ("FromClass", (), "gpu"),
        ("FromClaim", ("b/g",), "second"),
        ("FromClaim", (), "both"),
        ("FromClaim", (), "all"),
    ]


def test_derived_attributes_are_compared_instead_of_published_ones() -> None:
    devices = [device("a", attributes={"numa": 1}), device("b", attributes={"numa": 2})]
    derive = {"name": "x.example.com/same", "expression": f'device.attributes["{DRIVER}"].numa > 0'}
    wanted = exactly(count=2, derivedAttributes=[derive])
    constraints = [{"matchAttribute": "x.example.com/same"}]
    assert allocate([resource_slice(devices)], claim(wanted, constraints=constraints)).results is not None
    derive["expression"] = f'device.attributes["{DRIVER}"].numa'
    assert allocate([resource_slice(devices)], claim(wanted, constraints=constraints)).results is None
    derive["expression"] = f'device.attributes["{DRIVER}"].numb'
    with pytest.raises(BadClaim, match=r"evaluate derived attribute x\.example\.com/same on device .* failed"):
        allocate([resource_slice(devices)], claim(wanted, constraints=constraints))
    derive["expression"] = "1 +"
    with pytest.raises(BadClaim, match=r"compile derived attribute x\.example\.com/same failed"):
        allocate([resource_slice(devices)], claim(wanted, constraints=constraints))


@pytest.mark.parametrize(("expression", "lists", "fits"), [("numa > 0", False, True), ("numa", False, False)])
def test_derived_attributes_do_not_need_the_gate_of_lists(expression: str, lists: bool, fits: bool) -> None:
    devices = [device("a", attributes={"numa": 1}), device("b", attributes={"numa": 2})]
    derive = {"name": "x.example.com/same", "expression": f'device.attributes["{DRIVER}"].{expression}'}
    wanted = claim(exactly(count=2, derivedAttributes=[derive]), constraints=[{"matchAttribute": derive["name"]}])
    gates = [gate for gate in Features.everything().gates if lists or gate != "DRAListTypeAttributes"]
    outcome = allocate([resource_slice(devices)], wanted, features=Features.of(gates))
    assert (outcome.results is not None) is fits


def test_what_claims_hold_is_read_from_their_allocations() -> None:
    slices = [resource_slice([*gpus(1), shared("gpu-1")])]
    wanted = [claim(exactly("whole"), name="first"), claim(exactly("part", **memory("3Gi")), name="second")]
    outcome = allocate(slices, *wanted)
    assert outcome.results is not None
    holding = []
    for one, result in zip(claims(*wanted), outcome.results, strict=True):
        value = objects.to_builtins(one)
        value["status"] = {"allocation": objects.to_builtins(result)}
        holding.append(objects.from_builtins(value, objects.ResourceClaim))
    allocated = Allocated.of_claims([*holding, *claims(claim(exactly()))])
    assert allocated.devices == {GPU_0: "first"}
    assert allocated.shared == {DeviceId(DRIVER, "host", "gpu-1"): "second"}
    assert allocated.holder(GPU_0) == "first"
    outcome = allocate(slices, claim(exactly(**memory("5Gi"))), allocated=allocated)
    assert given(outcome) == [["gpus:gpu-1"]]
    assert allocate(slices, claim(exactly(**memory("6Gi"))), allocated=allocated).results is None


def test_a_share_that_is_given_up_leaves_its_part_to_the_next() -> None:
    big, small = exactly("big", **memory("5Gi")), exactly("small", **memory("1Gi"))
    wanted = claim(exactly("a", **memory("3Gi")), first_available("b", big, small), exactly("c", **memory("2Gi")))
    outcome = allocate([resource_slice([shared()])], wanted)
    assert given(outcome) == [["a:gpu-0", "b/small:gpu-0", "c:gpu-0"]]


def test_the_counters_of_a_shared_partition_are_drawn_once() -> None:
    slices = partitions()
    for one in slices[0]["spec"]["devices"]:
        one["allowMultipleAllocations"] = True
        one["capacity"] = {"memory": {"value": "8Gi"}}
    wanted = [exactly(name, **memory("2Gi")) for name in ("a", "b")]
    assert given(allocate(slices, claim(*wanted))) == [["a:whole", "b:whole"]]
    before = Allocated((), [DeviceId(DRIVER, "host", "whole")])
    assert given(allocate(slices, claim(*wanted), allocated=before)) == [["a:whole", "b:whole"]]

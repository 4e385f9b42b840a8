"""Kubernetes' rules, each mistake with its path and in Kubernetes' form."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.claims.worlds import JSON, claim, device, device_class, exactly, first_available, gpus, resource_slice

from dibs.claims import objects
from dibs.claims.fielderrors import refuse
from dibs.claims.validation import validate
from dibs.errors import InvalidRequest

REQUEST = "spec.devices.requests[0].exactly"


def lines(value: JSON, kind: type[objects.Part]) -> list[str]:
    return [str(error) for error in validate(objects.from_builtins(value, kind))]


def claim_lines(*requests: JSON, **devices: Any) -> list[str]:
    return lines(claim(*requests, **devices), objects.ResourceClaim)


def slice_lines(value: JSON) -> list[str]:
    return lines(value, objects.ResourceSlice)


def test_a_right_claim_class_slice_and_rule_have_no_mistakes() -> None:
    assert claim_lines(exactly(count=2), constraints=[{"matchAttribute": "a.example.com/root"}]) == []
    assert lines(device_class(), objects.DeviceClass) == []
    assert slice_lines(resource_slice(gpus(3))) == []
    rule = {"metadata": {"name": "r"}, "spec": {"taint": {"key": "sick", "effect": "NoExecute"}}}
    assert lines(rule, objects.DeviceTaintRule) == []
    template = {"metadata": {"name": "t"}, "spec": {"spec": claim(exactly())["spec"]}}
    assert lines(template, objects.ResourceClaimTemplate) == []


def test_all_mistakes_of_a_claim_are_reported_at_once() -> None:
    found = claim_lines(exactly("Upper", 0, "", selectors=[{}]), exactly("twice"), exactly("twice"), constraints=[{}])
    assert [line.partition(": ")[0] for line in found] == [
        "spec.devices.requests[0].name",
        f"{REQUEST}.deviceClassName",
        f"{REQUEST}.selectors[0].cel",
        f"{REQUEST}.count",
        "spec.devices.requests[2]",
        "spec.devices.constraints[0]",
    ]
    assert found[3] == f"{REQUEST}.count: Invalid value: 0: must be greater than zero"
    assert found[4] == 'spec.devices.requests[2]: Duplicate value: "twice"'


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"name": "r"}, "spec.devices.requests[0]: Required value: exactly one of"),
        (exactly(count=None) | {"name": ""}, "spec.devices.requests[0].name: Required value"),
        (exactly(allocationMode="Some"), f'{REQUEST}.allocationMode: Unsupported value: "Some": supported values: '),
        (exactly(count=3, allocationMode="All"), f"{REQUEST}.count: Invalid value: 3: must not be specified"),
        (exactly(selectors=[{"cel": {"expression": "1 +"}}]), f"{REQUEST}.selectors[0].cel.expression: Invalid value"),
        (exactly(selectors=[{"cel": {"expression": "1 + 1"}}]), "must evaluate to bool"),
        (
            exactly(selectors=[{"cel": {"expression": "true"}}] * 33),
            f"{REQUEST}.selectors: Too many: 33: must have at most 32 items",
        ),
        (
            exactly(selectors=[{"cel": {"expression": '"' + "x" * 10240 + '" == ""'}}]),
            f"{REQUEST}.selectors[0].cel.expression: Too long: may not be more than 10240 bytes",
        ),
        (exactly(tolerations=[{"operator": "Equal"}]), f"{REQUEST}.tolerations[0].key: Required value"),
        (exactly(tolerations=[{"operator": "Like", "key": "k"}]), f"{REQUEST}.tolerations[0].operator: Unsupported"),
        (
            exactly(tolerations=[{"operator": "Exists", "value": "v"}]),
            f'{REQUEST}.tolerations[0].value: Invalid value: "v": must be empty',
        ),
        (
            exactly(capacity={"requests": {"memory": "-1Gi"}}),
            f'{REQUEST}.capacity.requests[memory]: Invalid value: "-1Gi": must not be negative',
        ),
        (exactly(capacity={"requests": {"memory": "much"}}), f"{REQUEST}.capacity.requests[memory]: Invalid value"),
        (
            exactly(derivedAttributes=[{"name": "bare", "expression": "1"}]),
            f'{REQUEST}.derivedAttributes[0].name: Invalid value: "bare": must include a domain',
        ),
        (
            first_available("r", *[exactly(f"s{n}") for n in range(9)]),
            "spec.devices.requests[0].firstAvailable: Too many: 9: must have at most 8 items",
        ),
        (
            first_available("r", exactly("s"), exactly("s")),
            'spec.devices.requests[0].firstAvailable[1]: Duplicate value: "s"',
        ),
    ],
)
def test_a_request_with_one_mistake_is_told_it(request_: JSON, expected: str) -> None:
    found = claim_lines(request_)
    assert len(found) == 1
    assert expected in found[0]


def test_an_expensive_selector_is_too_complex() -> None:
    nested = "[1,2,3,4,5,6,7,8,9].all(a, " * 8 + "true" + ")" * 8
    found = claim_lines(exactly(selectors=[{"cel": {"expression": nested}}]))
    assert len(found) == 1
    assert "Forbidden: too complex" in found[0]


def test_constraints_and_config_name_known_requests_and_full_attributes() -> None:
    found = claim_lines(
        exactly("a"),
        first_available("b", exactly("s")),
        constraints=[
            {"requests": ["a", "b/s", "b"], "matchAttribute": "bare"},
            {"requests": ["c", "a", "a"], "distinctAttribute": "d.example.com/x"},
        ],
        config=[{"requests": ["b/t"], "opaque": {"driver": "", "parameters": [1]}}, {}],
    )
    unknown = "must be the name of a request, or request/subrequest"
    assert found == [
        'spec.devices.constraints[0].matchAttribute: Invalid value: "bare": must include a domain',
        f'spec.devices.constraints[1].requests[0]: Invalid value: "c": {unknown}',
        'spec.devices.constraints[1].requests[2]: Duplicate value: "a"',
        f'spec.devices.config[0].requests[0]: Invalid value: "b/t": {unknown}',
        "spec.devices.config[0].opaque.driver: Required value",
        "spec.devices.config[0].opaque.parameters: Invalid value: [1]: must be a JSON object",
        "spec.devices.config[1]: Required value: exactly one of `opaque` is required",
    ]


def test_the_status_of_a_claim_is_checked_against_its_requests() -> None:
    value = claim(exactly("a"))
    result = {"request": "b", "driver": "d.example.com", "pool": "p", "device": "x", "shareID": "ABC"}
    value["status"] = {"allocation": {"devices": {"results": [result]}}}
    found = lines(value, objects.ResourceClaim)
    assert [line.partition(": ")[0] for line in found] == [
        "status.allocation.devices.results[0].request",
        "status.allocation.devices.results[0].shareID",
    ]
    value["status"] = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]}
    assert lines(value, objects.ResourceClaim) == [
        "status.reservedFor: Forbidden: only an allocated claim can be reserved"
    ]


def test_a_slice_holds_at_most_128_devices_and_half_of_it_with_details() -> None:
    assert slice_lines(resource_slice(gpus(128))) == []
    assert slice_lines(resource_slice(gpus(129))) == ["spec.devices: Too many: 129: must have at most 128 items"]
    tainted = gpus(65)
    tainted[3]["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    assert slice_lines(resource_slice(tainted)) == ["spec.devices: Too many: 65: must have at most 64 items"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"driver": ""}, "spec.driver: Required value"),
        ({"driver": "a" * 64}, "spec.driver: Too long: may not be more than 63 bytes"),
        ({"pool": {"name": "a//b", "generation": 1, "resourceSliceCount": 1}}, 'spec.pool.name: Invalid value: ""'),
        (
            {"pool": {"name": "p", "generation": 1, "resourceSliceCount": 0}},
            "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
        ),
        ({"nodeName": "n", "allNodes": True}, "exactly one of `nodeName`, `nodeSelector`, `allNodes`"),
        ({"allNodes": False}, "spec.allNodes: Invalid value: false: must be either unset or set to true"),
        ({"nodeSelector": {"nodeSelectorTerms": []}}, "spec.nodeSelector.nodeSelectorTerms: Invalid value: 0"),
        ({"sharedCounters": [{"name": "c", "counters": {"m": {"value": "1"}}}]}, "only one of `sharedCounters`"),
    ],
)
def test_a_slice_with_one_mistake_is_told_it(fields: JSON, expected: str) -> None:
    found = slice_lines(resource_slice(gpus(1), **fields))
    assert len(found) == 1
    assert expected in found[0]


POLICY: JSON = {"default": "2", "validRange": {"min": "2", "max": "8", "step": "2"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"attributes": {"9lives": {"int": 9}}}, 'attributes: Invalid value: "9lives": must be letters'),
        ({"attributes": {"model": {}}}, "attributes[model]: Required value: exactly one value must be specified"),
        ({"attributes": {"model": {"int": 1, "string": "x"}}}, "attributes[model]: Invalid value"),
        ({"attributes": {"model": {"string": "x" * 65}}}, "attributes[model].string: Too long"),
        ({"attributes": {"v": {"version": "1.02.3"}}}, 'attributes[v].version: Invalid value: "1.02.3"'),
        ({"attributes": {"l": {"ints": list(range(49))}}}, "attributes: Invalid value: 49: the total number of values"),
        ({"attributes": {f"a{n}": {"int": n} for n in range(33)}}, "Invalid value: 33: the total number of attributes"),
        ({"capacity": {"memory": {"value": "lots"}}}, 'capacity[memory].value: Invalid value: "lots"'),
        ({"capacity": {"memory": {"value": "8", "requestPolicy": POLICY}}}, "requestPolicy: Forbidden: only allowed"),
        ({"consumesCounters": [{"counterSet": "c"}]}, "consumesCounters[0].counters: Required value"),
        ({"taints": [{"key": "k", "effect": "Sometimes"}]}, "taints[0].effect: Unsupported value"),
        ({"nodeName": "n"}, "`perDeviceNodeSelection` must be set to true"),
        ({"bindingConditions": ["a", "b", "c", "d", "e"]}, "bindingConditions: Too many: 5: must have at most 4 items"),
    ],
)
def test_a_device_with_one_mistake_is_told_it(fields: JSON, expected: str) -> None:
    found = slice_lines(resource_slice([{"name": "gpu-0", **fields}]))
    assert len(found) == 1
    assert expected in found[0]
    assert found[0].startswith("spec.devices[0]")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"validRange": {"min": "2"}}, "requestPolicy.default: Required value"),
        ({"default": "1", "validRange": {"min": "2"}}, "requestPolicy.default: Invalid value"),
        ({"default": "2", "validRange": {}}, "validRange.min: Required value"),
        ({"default": "2", "validRange": {"min": "2", "max": "7", "step": "2"}}, "validRange.max: Invalid value"),
        ({"default": "3", "validRange": {"min": "2", "max": "8", "step": "2"}}, "default: Invalid value"),
        ({"default": "2", "validRange": {"min": "2", "max": "9"}}, "must not be larger than the capacity 8"),
        ({"default": "2", "validRange": {"min": "2", "step": "7"}}, "one step above the minimum passes"),
        ({"default": "2", "validRange": {"min": "2", "step": "0"}}, "validRange.step: Invalid value"),
        ({"default": "1", "validValues": ["1", "3", "2"]}, "ascending order"),
        ({"default": "4", "validValues": ["1", "3"]}, "must be one of the valid values"),
    ],
)
def test_a_request_policy_with_one_mistake_is_told_it(policy: JSON, expected: str) -> None:
    one = device("gpu-0", allowMultipleAllocations=True)
    one["capacity"] = {"memory": {"value": "8", "requestPolicy": policy}}
    found = slice_lines(resource_slice([one]))
    assert len(found) == 1
    assert expected in found[0]
    one["capacity"]["memory"]["requestPolicy"] = POLICY
    assert slice_lines(resource_slice([one])) == []


def test_duplicate_devices_are_named() -> None:
    assert slice_lines(resource_slice([*gpus(1), *gpus(1)])) == ['spec.devices[1].name: Duplicate value: "gpu-0"']


def test_a_class_needs_compiling_selectors_and_an_extended_resource_of_its_own_domain() -> None:
    found = lines(device_class("gpu", "device.model == 1", extendedResourceName="gpu"), objects.DeviceClass)
    assert found[0].startswith("spec.selectors[0].cel.expression: Invalid value")
    assert found[1].startswith('spec.extendedResourceName: Invalid value: "gpu"')


def test_validation_changes_nothing_and_refusing_raises_everything_once() -> None:
    value = objects.from_builtins(claim(exactly("A", 0)), objects.ResourceClaim)
    before = copy.deepcopy(value)
    errors = validate(value)
    assert value == before
    with pytest.raises(InvalidRequest) as caught:
        refuse(errors)
    assert [p.field for p in caught.value.problems] == [
        "spec.devices.requests[0].name",
        f"{REQUEST}.count",
    ]
    refuse([])

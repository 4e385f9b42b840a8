"""Objects read and written exactly as Kubernetes does."""

from __future__ import annotations

import json

import pytest

from dibs.claims import objects
from dibs.errors import InvalidRequest

SLICE = {
    "kind": "ResourceSlice",
    "apiVersion": "resource.k8s.io/v1",
    "metadata": {"name": "host-gpus"},
    "spec": {
        "driver": "gpu.example.com",
        "pool": {"name": "host", "generation": 0, "resourceSliceCount": 1},
        "nodeName": "host",
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {
                    "model": {"string": "H100"},
                    "index": {"int": 0},
                    "healthy": {"bool": False},
                    "driverVersion": {"version": "1.2.3"},
                    "links": {"strings": ["a", "b"]},
                },
                "capacity": {
                    "memory": {
                        "value": "80Gi",
                        "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}},
                    }
                },
                "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}],
                "taints": [{"key": "sick", "effect": "NoExecute"}],
                "allowMultipleAllocations": True,
            }
        ],
    },
}


def claim(**exactly: object) -> dict[str, object]:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", **exactly}}
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}


def test_a_slice_comes_back_as_it_was_written() -> None:
    text = json.dumps(SLICE)
    found = objects.decode(text, objects.ResourceSlice)
    assert json.loads(objects.encode(found)) == SLICE
    assert objects.to_builtins(found) == SLICE


def test_the_kind_and_version_are_written_even_where_they_were_left_out() -> None:
    written = json.loads(objects.encode(objects.from_builtins(claim(count=2), objects.ResourceClaim)))
    assert written["kind"] == "ResourceClaim"
    assert written["apiVersion"] == "resource.k8s.io/v1"
    assert written["spec"] == claim(count=2)["spec"]


def test_what_is_unset_is_not_written() -> None:
    written = objects.to_builtins(objects.from_builtins(claim(), objects.ResourceClaim))
    assert written["spec"]["devices"]["requests"][0]["exactly"] == {"deviceClassName": "gpu"}
    assert "status" not in written


def test_unknown_fields_and_wrong_types_are_all_reported_with_their_paths() -> None:
    text = json.dumps({**claim(count="two", selector="x"), "extra": 1})
    with pytest.raises(InvalidRequest) as caught:
        objects.decode(text, objects.ResourceClaim)
    assert [(p.code, p.field) for p in caught.value.problems] == [
        ("CLAIM_UNREADABLE", "spec.devices.requests[0].exactly.count"),
        ("UNKNOWN_FIELD", "spec.devices.requests[0].exactly.selector"),
        ("UNKNOWN_FIELD", "extra"),
    ]
    assert "selectors" in caught.value.problems[1].remedy


def test_the_path_of_a_problem_inside_a_map_names_the_key() -> None:
    broken = json.loads(json.dumps(SLICE))
    broken["spec"]["devices"][0]["attributes"]["model"] = {"text": "H100"}
    with pytest.raises(InvalidRequest) as caught:
        objects.decode(json.dumps(broken), objects.ResourceSlice)
    assert caught.value.problems[0].field == "spec.devices[0].attributes[model].text"


def test_an_explicit_null_counts_as_unset_except_in_free_form_parameters() -> None:
    value = claim(selectors=None)
    value["metadata"] = {"name": "c", "creationTimestamp": None, "labels": None}
    devices = value["spec"]["devices"]  # type: ignore[index]
    devices["config"] = [{"opaque": {"driver": "d", "parameters": {"a": None}}}]
    found = objects.from_builtins(value, objects.ResourceClaim)
    assert found.metadata.labels == {}
    opaque = found.spec.devices.config[0].opaque
    assert opaque is not None
    assert opaque.parameters == {"a": None}


def test_another_version_or_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="apiVersion"):
        objects.from_builtins({**claim(), "apiVersion": "resource.k8s.io/v1beta1"}, objects.ResourceClaim)
    with pytest.raises(InvalidRequest, match="must be ResourceClaim"):
        objects.from_builtins({**claim(), "kind": "DeviceClass"}, objects.ResourceClaim)
    with pytest.raises(InvalidRequest, match="the kinds are DeviceClass"):
        objects.decode_any('{"kind": "Pod"}')
    with pytest.raises(InvalidRequest, match="not JSON"):
        objects.decode_any("{")


def test_any_kind_is_found_by_its_name() -> None:
    assert isinstance(objects.decode_any(json.dumps(SLICE)), objects.ResourceSlice)


def test_a_quantity_may_be_a_bare_number() -> None:
    broken = json.loads(json.dumps(SLICE))
    broken["spec"]["devices"][0]["capacity"] = {"memory": {"value": 8}}
    found = objects.from_builtins(broken, objects.ResourceSlice)
    assert found.spec.devices[0].capacity["memory"].value == 8

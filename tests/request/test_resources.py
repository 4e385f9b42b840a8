"""cpu, memory, pids, vendor keys, exact devices, and that all problems come at once."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import InvalidRequest
from dibs.request import parse_request, parse_spec
from dibs.request.claim import claim_of


@pytest.mark.parametrize(
    ("mapping", "short"),
    [
        ({"cpu": "500m"}, {"cpu": "500m"}),
        ({"cpu": 2}, {"cpu": "2"}),
        ({"cpu": "0.5"}, {"cpu": "500m"}),
        ({"memory": "1.5Gi"}, {"memory": "1536Mi"}),
        ({"memory": "1e9"}, {"memory": "1G"}),
        ({"memory": 1073741824}, {"memory": "1Gi"}),
        ({"pids": "64"}, {"pids": 64}),
        ({"nvidia.com/gpu": "2"}, {"gpu": "nvidia:2"}),
        ({"amd.com/gpu": 1}, {"gpu": "amd:1"}),
        ({"device": "nvidia.com/gpu=0"}, {"device": ["nvidia.com/gpu=0"]}),
        ({"devices": ["nvidia.com/gpu=0", "GPU-1234"], "gpu": 2}, {"device": ["nvidia.com/gpu=0", "GPU-1234"]}),
    ],
)
def test_resources_become_canonical(mapping: dict[str, Any], short: dict[str, Any]) -> None:
    request = parse_request(mapping)
    assert request.short() == short
    assert parse_request(request.short()) == request


@pytest.mark.parametrize(
    ("mapping", "code", "words"),
    [
        ({"memory": "512m"}, "QUANTITY_INVALID", "did you mean 512Mi?"),
        ({"memory": "4GB"}, "QUANTITY_INVALID", "did you mean 4Gi?"),
        ({"memory": "4"}, "QUANTITY_INVALID", "did you mean 4Gi?"),
        ({"memory": "lots"}, "QUANTITY_INVALID", "4Gi"),
        ({"memory": "0"}, "QUANTITY_INVALID", "leave it out"),
        ({"memory": "-1Gi"}, "QUANTITY_INVALID", "more than zero"),
        ({"memory": "99999999Ti"}, "QUANTITY_INVALID", "4Gi"),
        ({"memory": None}, "QUANTITY_INVALID", "4Gi"),
        ({"cpu": "0.0001"}, "QUANTITY_INVALID", "thousandth"),
        ({"cpu": "two"}, "QUANTITY_INVALID", "500m"),
        ({"cpu": True}, "QUANTITY_INVALID", "500m"),
        ({"cpu": "1e30"}, "QUANTITY_INVALID", "500m"),
        ({"pids": 0}, "PIDS_INVALID", "512"),
        ({"pids": "many"}, "PIDS_INVALID", "512"),
        ({"disk": "10Gi"}, "UNKNOWN_FIELD", "gpu, device, where, claim, cpu"),
        ({"habana.ai/gaudi": 1}, "UNKNOWN_RESOURCE", "nvidia.com/gpu"),
        ({"gpu": 1, "nvidia.com/gpu": 4}, "CONFLICT", "nvidia:4"),
        ({"gpu": 3, "device": ["a.com/gpu=0"]}, "CONFLICT", "number of devices"),
        ({"device": "/dev/nvidia0"}, "DEVICE_INVALID", "dibs gpus -o wide"),
        ({"device": "nvidia.com/gpu=all"}, "DEVICE_INVALID", "--gpu all"),
        ({"device": ["GPU-1", "GPU-1"]}, "DEVICE_INVALID", "twice"),
        ({"device": 7}, "DEVICE_INVALID", "nvidia.com/gpu=0"),
        ({"allow_busy": "yes"}, "FLAG_INVALID", "true"),
        ({"nvidia.com/gpu": "H100:2"}, "GPU_COUNT_INVALID", "gpu: nvidia:H100:2"),
    ],
)
def test_a_wrong_resource_is_refused_with_its_remedy(mapping: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(mapping)
    assert code in [problem.code for problem in caught.value.problems]
    assert words in str(caught.value)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_spec({
            "gpu": "1.5", "memory": "512m", "cpu": "x", "disk": 1, "name": "a/b", "network": "vpn", "ttl": "soon",
            "env": {"1X": "y", "CUDA_VISIBLE_DEVICES": "3"}, "workdir": "here", "command": ["a\0b"], "mounts": ["x"],
        })  # fmt: skip
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {
        "gpu", "memory", "cpu", "disk", "name", "network", "ttl", "env", "env.CUDA_VISIBLE_DEVICES", "workdir",
        "command", "mounts",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["a/b", "a\nb", "A", "-a", "a-", "", "a" * 64, "..", "ä"])
def test_a_name_that_could_do_harm_is_refused(name: str) -> None:
    if name == "":
        assert parse_spec({"name": name}).name == ""
        return
    with pytest.raises(InvalidRequest) as caught:
        parse_spec({"name": name})
    assert caught.value.problems[0].code == "NAME_INVALID"


def test_the_claim_says_what_was_asked_in_dra_form() -> None:
    claim = claim_of(parse_request({"gpu": "nvidia:H100,A100:80Gi..:2"}), "train")
    assert claim == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "train"},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {
                            "deviceClassName": "gpu.nvidia.com",
                            "selectors": [
                                {
                                    "cel": {
                                        "expression": "has(device.attributes[device.driver].productName) && "
                                        'device.attributes[device.driver].productName.lowerAscii().matches("((^|[^a-z0-9])h[^a-z0-9]*100([^a-z0-9]|$))'
                                        '|((^|[^a-z0-9])a[^a-z0-9]*100([^a-z0-9]|$))")'
                                    }
                                },
                                {
                                    "cel": {
                                        "expression": "has(device.capacity[device.driver].memory) && "
                                        'device.capacity[device.driver].memory.compareTo(quantity("80Gi")) >= 0'
                                    }
                                },
                            ],
                            "allocationMode": "ExactCount",
                            "count": 2,
                        },
                    }
                ]
            }
        },
    }
    assert claim_of(parse_request({"cpu": 1}), "none") is None


def test_a_refusal_shows_what_was_written() -> None:
    claim = {"devices": {"requests": [{"name": name, "exactly": {"deviceClassName": "x"}} for name in ("a", "b")]}}
    asked: list[tuple[dict[str, Any], tuple[str, str]]] = [
        ({"gpu": "A100:2"}, ("gpu", "A100:2")),
        ({"gpu": ["A100:2", "80GB..:1"], "cpu": 2}, ("gpu", "A100:2, 80GB..:1")),
        ({"gpu": 2, "where": "true"}, ("gpu", "2")),
        ({"claim": claim}, ("claim", "a, b")),
    ]
    for mapping, written in asked:
        assert parse_request(mapping).written() == written

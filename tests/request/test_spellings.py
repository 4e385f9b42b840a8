"""Spellings of other tools: what a user types, and what is understood, or refused with which offer."""

from __future__ import annotations

import pytest

from dibs.errors import InvalidRequest
from dibs.request import parse_request

UNDERSTOOD = [
    # typed, understood as
    ("all", {"gpu": "all"}),  # Docker
    ("device=0,1", {"device": ["0", "1"]}),
    ('"device=0,1"', {"device": ["0", "1"]}),
    ("'\"device=0,1\"'", {"device": ["0", "1"]}),
    ('device="0,1"', {"device": ["0", "1"]}),
    ("device=GPU-d0209e5b", {"device": ["GPU-d0209e5b"]}),
    ("count=2", {"gpu": "2"}),
    ("count=-1", {"gpu": "all"}),
    ("gpu", {"gpu": "1"}),  # Slurm
    ("gpu:2", {"gpu": "2"}),
    ("gpu:h100:2", {"gpu": "h100:2"}),
    ("H100:8", {"gpu": "H100:8"}),  # SkyPilot
    ("H100x2", {"gpu": "H100:2"}),
    ("H100 x 2", {"gpu": "H100:2"}),
    ("H100×2", {"gpu": "H100:2"}),
    ("2xH100", {"gpu": "H100:2"}),
    ("2x H100", {"gpu": "H100:2"}),
    ("L40Sx4", {"gpu": "L40S:4"}),
    ("2x4090", {"gpu": "4090:2"}),
    ("MI300X", {"gpu": "MI300X:1"}),
    ("RTX4090", {"gpu": "RTX4090:1"}),
    ("GTX1080", {"gpu": "GTX1080:1"}),
    ("80G", {"gpu": "80GB:1"}),  # dstack and others
    ("80 GB", {"gpu": "80GB:1"}),
    ("80GiB", {"gpu": "80Gi:1"}),
    ("80GB+", {"gpu": "80GB..:1"}),
    ("80G+:2", {"gpu": "80GB..:2"}),
    (">=80GB", {"gpu": "80GB..:1"}),
    ("H100:>=80GB:2", {"gpu": "H100:80GB..:2"}),
    ("<=24GB", {"gpu": "..24GB:1"}),
    ("24G..80G", {"gpu": "24GB..80GB:1"}),
    ("nvidia:A100,H100:24GB..80GB:2", {"gpu": "nvidia:A100,H100:24GB..80GB:2"}),
    ("0,1", {"device": ["0", "1"]}),  # CUDA_VISIBLE_DEVICES
    ("cuda:0", {"device": ["0"]}),
    ("cuda:0,1", {"device": ["0", "1"]}),
    ("GPU-d0209e5b-6095-d04e-4b28-b237978433f7", {"device": ["GPU-d0209e5b-6095-d04e-4b28-b237978433f7"]}),
    ("GPU-d0209e5b,GPU-bc051af7", {"device": ["GPU-d0209e5b", "GPU-bc051af7"]}),
    ("MIG-d0209e5b", {"device": ["MIG-d0209e5b"]}),
    ("nvidia.com/gpu", {"gpu": "nvidia:1"}),  # Kubernetes
    ("nvidia.com/gpu: 2", {"gpu": "nvidia:2"}),
    ("amd.com/gpu:4", {"gpu": "amd:4"}),
    ("nvidia.com/gpu=all", {"gpu": "nvidia:all"}),
    ("nvidia.com/gpu=GPU-d0209e5b", {"device": ["nvidia.com/gpu=GPU-d0209e5b"]}),
    ("nvidia.com/gpu=0:1", {"device": ["nvidia.com/gpu=0:1"]}),
    ("nvidia.com/mig-1g.10gb:2", {"gpu": "nvidia:1g.10gb:2"}),
    ("1g.10gb", {"gpu": "1g.10gb:1"}),
    ("A100:1G.5GB:3", {"gpu": "A100:1g.5gb:3"}),
    ("4090", {"gpu": "4090:1"}),
    ("4090:2", {"gpu": "4090:2"}),
    ("2:4090", {"gpu": "4090:2"}),
    ("mig-1g.10gb", {"gpu": "nvidia:1g.10gb:1"}),
    ("MIG-1g.5gb:2", {"gpu": "nvidia:1g.5gb:2"}),
    ("2gpu", {"gpu": "2"}),
    ("2 GPUs", {"gpu": "2"}),
    ("GPU0", {"device": ["0"]}),  # nvidia-smi topo
    ("gpu0,gpu1", {"device": ["0", "1"]}),
    ("H100!", {"gpu": "H100:1"}),  # Modal: no better one
    ("H100!:2", {"gpu": "H100:2"}),
    ("nvidia/H100:2", {"gpu": "nvidia:H100:2"}),
]

REFUSED = [
    # typed, code, offered instead
    ("nvidia.com/gpu=2", "GPU_AMBIGUOUS", "--gpu nvidia:2"),
    ("nvidia.com/gpu=2", "GPU_AMBIGUOUS", "--device nvidia.com/gpu=2"),
    ("nvidia.com/gpu=0", "GPU_AMBIGUOUS", "--device nvidia.com/gpu=0"),
    ("mi300x2", "GPU_AMBIGUOUS", "--gpu MI300X:2"),
    (">80GB", "GPU_MEMORY_INVALID", "--gpu 80GB.."),
    ("<80GB", "GPU_MEMORY_INVALID", "--gpu ..80GB"),
    ("capabilities=utility", "GPU_SYNTAX", "--gpu device=0,1"),
    ("device=0,capabilities=utility", "GPU_SYNTAX", "--gpu device=0,1"),
    ("H100:0.5", "GPU_COUNT_INVALID", "..12GB"),
    ("0.5", "GPU_COUNT_INVALID", "..12GB"),
    ("1..8", "GPU_SYNTAX", "say one number, or all"),
    ("1000000", "GPU_COUNT_INVALID", "--gpu 2"),
    ("[A10G:8,L4:8]", "GPU_SYNTAX", "--gpu H100,A100:2"),  # SkyPilot
    ("{H100:2, A100:2}", "GPU_SYNTAX", "--gpu H100,A100:2"),
    ("max", "GPU_COUNT_INVALID", "--gpu 2"),
    ("any", "GPU_COUNT_INVALID", "--gpu 2"),
    ("count=two", "GPU_COUNT_INVALID", "--gpu 2"),
]


@pytest.mark.parametrize(("typed", "understood"), UNDERSTOOD)
def test_a_spelling_with_one_meaning_is_understood(typed: str, understood: dict[str, object]) -> None:
    request = parse_request({"gpu": typed})
    assert request.short() == understood
    assert parse_request(request.short()) == request


@pytest.mark.parametrize(("typed", "code", "offer"), REFUSED)
def test_a_spelling_with_two_meanings_or_none_is_refused_with_an_offer(typed: str, code: str, offer: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request({"gpu": typed})
    (problem,) = caught.value.problems
    assert problem.code == code
    assert problem.field == "gpu"
    assert offer in problem.remedy


def test_named_and_described_gpus_do_not_mix() -> None:
    with pytest.raises(InvalidRequest, match="name all of them, or none"):
        parse_request({"gpu": ["0,1", "H100:2"]})


def test_devices_are_named_in_one_place() -> None:
    with pytest.raises(InvalidRequest, match="in one place"):
        parse_request({"gpu": "0,1", "device": "nvidia.com/gpu=3"})

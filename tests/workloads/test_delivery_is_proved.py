"""If what is seen is not what was planned, the command does not run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Expectation, Handle, NodeFact, Observation
from dibs.errors import DeliveryMismatch
from dibs.request import parse_spec
from dibs.workloads.receipt import differences
from dibs.workloads.service import Workloads

NODE = NodeFact("/dev/simgpu0", "c", 1, 3)
EXPECTED = Expectation(
    nodes=(NODE,),
    env={"CUDA_VISIBLE_DEVICES": "GPU-0"},
    mounts=("/data ro",),
    limits={"memory": 1 << 30},
    isolation={"network": "own"},
)
SEEN = Observation(
    nodes=(NODE,),
    env={"CUDA_VISIBLE_DEVICES": "GPU-0", "OTHER": "x"},
    mounts=("/data ro", "/other rw"),
    limits={"memory": 1 << 30},
    isolation={"network": "own"},
)


def test_what_was_planned_and_seen_has_no_differences() -> None:
    assert differences(EXPECTED, SEEN) == []


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"nodes": ()}, "devices", "it is not there"),
        ({"nodes": (NODE, NodeFact("/dev/simgpu1", "c", 1, 3))}, "devices", "nobody asked for it"),
        ({"nodes": (NodeFact("/dev/simgpu0", "c", 1, 5),)}, "devices", "1:5 is there instead"),
        ({"nodes": (NodeFact("/dev/simgpu0", "b", 1, 3),)}, "devices", "b 1:3 is there instead"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "GPU-1"}}, "env.CUDA_VISIBLE_DEVICES", "'GPU-1'"),
        ({"env": {}}, "env.CUDA_VISIBLE_DEVICES", "unset"),
        ({"mounts": ("/data rw",)}, "mounts", "not mounted"),
        ({"limits": {"memory": 2 << 30}}, "memory", "2147483648"),
        ({"limits": {}}, "memory", "not set"),
        ({"isolation": {"network": "host"}}, "network", "host"),
        ({"isolation": {}}, "network", "not known"),
    ],
)
def test_every_difference_is_named(change: dict[str, object], field: str, words: str) -> None:
    problems = differences(EXPECTED, msgspec.structs.replace(SEEN, **change))
    assert [problem.field for problem in problems] == [field]
    assert words in problems[0].reason
    assert problems[0].code == "DELIVERY_MISMATCH"


class Astray(LocalBackend):
    """The real backend, in whose sandbox one device more is seen than was leased."""

    def observe(self, handle: Handle) -> Observation:
        seen = super().observe(handle)
        return msgspec.structs.replace(seen, nodes=(*seen.nodes, NodeFact("/dev/simgpu7", "c", 1, 3)))


def test_a_mismatch_ends_the_sandbox_before_its_command_starts(service: Workloads, tmp_path: Path) -> None:
    service.registry._made["local", None] = Astray(service.home)
    with pytest.raises(DeliveryMismatch) as caught:
        service.create(parse_spec({"gpu": 1, "name": "astray", "command": ["touch", "ran"]}))
    assert "/dev/simgpu7 c 1:3" in str(caught.value)
    assert not (tmp_path / "work" / "ran").exists()
    assert service.leases() == []
    assert service.sandbox("astray").state == "failed"
    receipt = service.receipt("astray")
    assert receipt.verdict == "mismatch"
    assert [line.outcome for line in receipt.lines if line.field == "devices"] == ["mismatch"]

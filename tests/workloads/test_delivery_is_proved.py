"""If what is seen is not what was planned, the command does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dibs.backends.fake import FakeBackend
from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Expectation, Handle, MountFact, NodeFact, Observation, Realisation, Workload
from dibs.errors import BackendUnavailable, DeliveryMismatch
from dibs.process import absent
from dibs.request import parse_spec
from dibs.workloads.receipt import differences
from dibs.workloads.reconcile import reconcile
from dibs.workloads.service import Workloads

NODE = NodeFact("/dev/simgpu0", "c", 1, 3)
DATA = MountFact("/data", "ro", "inode 4711 on 254:0")
PROCESS = {"command": "python train.py", "workdir": "/work", "user": "0:0", "capabilities": "none", "seccomp": "filter"}
EXPECTED = Expectation(
    nodes=(NODE,),
    env={"CUDA_VISIBLE_DEVICES": "GPU-0", "TOKEN": "secret"},
    mounts=(DATA,),
    limits={"memory_bytes": 1 << 30},
    isolation={"network": "own", "pid": "own"},
    process=PROCESS,
    may_env=("HOSTNAME",),
    may_mount=(MountFact("/proc/irq", "ro", "proc"),),
)
SEEN = Observation(
    nodes=(NODE,),
    env={"CUDA_VISIBLE_DEVICES": "GPU-0", "TOKEN": "secret", "HOSTNAME": "box"},
    mounts=(DATA, MountFact("/proc/irq", "ro", "proc")),
    limits={"memory_bytes": 1 << 30},
    isolation={"network": "own", "pid": "own"},
    process=PROCESS,
)


def test_what_was_planned_and_seen_has_no_differences() -> None:
    assert differences(EXPECTED, SEEN) == []


def test_what_the_runtime_adds_by_itself_may_also_be_missing() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "GPU-0", "TOKEN": "secret"}
    assert differences(EXPECTED, msgspec.structs.replace(SEEN, env=env, mounts=(DATA,))) == []


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"nodes": ()}, "devices", "it is not there"),
        ({"nodes": (NODE, NodeFact("/dev/simgpu1", "c", 1, 3))}, "devices", "was not asked for"),
        ({"nodes": (NODE, NodeFact("/opt/simgpu0", "c", 1, 3))}, "devices", "was not asked for"),
        ({"nodes": (NodeFact("/dev/simgpu0", "c", 1, 5),)}, "devices", "1:5 is there instead"),
        ({"nodes": (NodeFact("/dev/simgpu0", "c", 2, 3),)}, "devices", "2:3 is there instead"),
        ({"nodes": (NodeFact("/dev/simgpu0", "b", 1, 3),)}, "devices", "b 1:3 is there instead"),
        ({"env": SEEN.env | {"CUDA_VISIBLE_DEVICES": "GPU-1"}}, "env.CUDA_VISIBLE_DEVICES", "'GPU-1'"),
        ({"env": without(SEEN.env, "CUDA_VISIBLE_DEVICES")}, "env.CUDA_VISIBLE_DEVICES", "unset"),
        ({"env": SEEN.env | {"TOKEN": "other"}}, "env.TOKEN", "another value"),
        ({"env": SEEN.env | {"LD_PRELOAD": "/x.so"}}, "env.LD_PRELOAD", "was not asked for"),
        ({"mounts": ()}, "mounts", "it is not mounted"),
        (
            {"mounts": (MountFact("/data", "rw", DATA.source),)},
            "mounts",
            "/data rw (inode 4711 on 254:0) is",
        ),
        ({"mounts": (MountFact("/data", "ro", "inode 1 on 254:0"),)}, "mounts", "inode 1 on 254:0"),
        ({"mounts": (MountFact("/data", "ro", "inode 4711 on 254:1"),)}, "mounts", "on 254:1"),
        ({"mounts": (DATA, MountFact("/host", "ro", "inode 2 on 254:0"))}, "mounts", "was not asked for"),
        ({"mounts": (DATA, MountFact("/proc/irq", "rw", "proc"))}, "mounts", "was not asked for"),
        ({"limits": {"memory_bytes": 2 << 30}}, "memory", "2147483648"),
        ({"limits": {}}, "memory", "not set"),
        ({"limits": SEEN.limits | {"pids": 10}}, "pids", "limited to 10"),
        ({"isolation": SEEN.isolation | {"network": "host"}}, "network", "host"),
        ({"isolation": without(dict(SEEN.isolation), "network")}, "network", "not known"),
        ({"isolation": SEEN.isolation | {"pid": "host"}}, "isolation.pid", "host"),
        *(({"process": PROCESS | {name: "other"}}, name, "'other'") for name in PROCESS),
        *(({"process": without(PROCESS, name)}, name, "not known") for name in PROCESS),
        ({"process": PROCESS | {"privileges": "all"}}, "privileges", "nothing was planned"),
    ],
)
def test_every_difference_is_named(change: dict[str, object], field: str, words: str) -> None:
    problems = differences(EXPECTED, msgspec.structs.replace(SEEN, **change))
    assert [problem.field for problem in problems] == [field]
    assert words in problems[0].reason
    assert problems[0].code == "DELIVERY_MISMATCH"


def test_values_that_may_be_secret_are_compared_and_not_told() -> None:
    (problem,) = differences(EXPECTED, msgspec.structs.replace(SEEN, env=SEEN.env | {"TOKEN": "stolen"}))
    assert "secret" not in str(problem)
    assert "stolen" not in str(problem)


@pytest.mark.parametrize("part", ["nodes", "env", "mounts", "limits", "isolation"])
def test_a_part_that_was_not_seen_is_left_out_and_no_other(part: str) -> None:
    nothing = Observation(unseen=(part, *PROCESS))
    fields = {problem.field.partition(".")[0] for problem in differences(EXPECTED, nothing)}
    names = {"nodes": {"devices"}, "limits": {"memory"}, "isolation": {"network", "isolation"}}
    everything = {"devices", "env", "mounts", "memory", "network", "isolation"}
    assert fields == everything - names.get(part, {part})


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


class Watched(Astray):
    """Notes whether the ledger has told the end when the files are removed."""

    service: Workloads
    told: bool | None = None

    def delete(self, handle: Handle) -> None:
        self.told = not self.service.sandbox(handle.sandbox_id).live
        super().delete(handle)


def test_nothing_is_left_of_a_failed_creation_when_its_end_is_reported(service: Workloads) -> None:
    """Each waiter for the end removes the leftovers; two that remove the same folder must not fail."""
    backend = service.registry._made["local", None] = Watched(service.home)
    backend.service = service
    with pytest.raises(DeliveryMismatch):
        service.create(parse_spec({"gpu": 1, "name": "astray", "command": ["true"]}))
    assert backend.told is False
    assert not service.sandbox("astray").live
    assert service.leases() == []


class Hasty(FakeBackend):
    """Like an engine: the look comes after the start. Its command has ended by then, and something else was seen."""

    def observe(self, handle: Handle) -> Observation:
        seen = self.observation(handle.sandbox_id)
        return msgspec.structs.replace(seen, env={**seen.env, "LD_PRELOAD": "/x.so"})


def test_what_was_seen_counts_even_if_the_command_has_ended_since(service: Workloads) -> None:
    backend = Hasty(name="fake", holds=False)
    service.registry._made["fake", None] = backend
    with pytest.raises(DeliveryMismatch) as caught:
        service.create(parse_spec({"backend": "fake", "name": "hasty", "command": ["true"]}))
    assert [problem.field for problem in caught.value.problems] == ["env.LD_PRELOAD"]
    assert "had been started" in caught.value.problems[0].remedy
    assert service.receipt("hasty").verdict == "mismatch"


class Mute(LocalBackend):
    """The real backend, whose sandbox is made, and whose answer is lost."""

    made: Handle | None = None

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        self.made = super().create(workload, realisation, folder)
        raise BackendUnavailable("the sandbox's shim does not answer")


def test_what_was_made_without_an_answer_is_gone_before_its_card_is_free(service: Workloads) -> None:
    backend = service.registry._made["local", None] = Mute(service.home)
    with pytest.raises(BackendUnavailable, match="does not answer"):
        service.create(parse_spec({"gpu": 1, "name": "mute", "command": ["true"]}))
    assert backend.made is not None
    assert backend.made.init is not None
    assert absent(backend.made.init)
    assert not Path(backend.made.folder).exists()
    assert service.leases() == []
    assert not service.remove("mute", 0.0).live


@pytest.mark.parametrize("holds", [True, False])
def test_what_an_engine_may_have_made_when_it_was_killed_is_looked_for_later(service: Workloads, holds: bool) -> None:
    backend = service.registry._made["fake", None] = FakeBackend(name="fake", holds=holds)
    backend.fail_next("create", BackendUnavailable("the engine was killed while it was asked"))
    with pytest.raises(BackendUnavailable, match="was killed"):
        service.create(parse_spec({"backend": "fake", "gpu": 1, "name": "cut-off", "command": ["true"]}))
    assert service.leases() == []
    ended = service.sandbox("cut-off").id
    backend.calls.clear()
    reconcile(service.ledger, service.registry)
    looked = [one for one in backend.calls if one == ("discard", ended)]
    assert bool(looked) == (not holds), "a runtime that its engine had started goes on without it"

"""What the lines of a receipt say, field by field: asked, planned, rendered, observed, and what came of it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dibs.backends.port import Expectation, Limits, Mount, MountFact, NodeFact, Observation, Realisation, Workload
from dibs.devices.simulated import devices_of, parse_world
from dibs.ledger.rows import Share
from dibs.receipt import Receipt, ReceiptLine
from dibs.request import parse_spec
from dibs.workloads.receipt import differences, write_receipt

DATA = MountFact("/data", "ro", "inode 1 on 254:0")
EXPECTED = Expectation(
    nodes=(NodeFact("/dev/simgpu0", "c", 1, 3),),
    env={"CUDA_VISIBLE_DEVICES": "0", "SECRET": "x"},
    mounts=(DATA,),
    limits={"memory_bytes": 1 << 30, "cpu_millis": 1500},
    isolation={"network": "own", "pid": "own", "mount": "own", "user": "host"},
    process={"command": "train", "workdir": "/work", "user": "0:0", "seccomp": "filtered"},
)
SEEN = Observation(
    nodes=EXPECTED.nodes, env=EXPECTED.env, mounts=EXPECTED.mounts, limits=EXPECTED.limits,
    isolation=EXPECTED.isolation, process=EXPECTED.process, origin={"": "before start", "env": "engine"},
)  # fmt: skip
DEVICES = devices_of(parse_world("1", model="H100"))


def receipt(asked: dict[str, Any] | None = None, shares: dict[str, Share] | None = None, **changed: Any) -> Receipt:
    """Of a workload in which something else was seen than planned."""
    asked = {"gpu": "H100:1"} if asked is None else asked
    spec = parse_spec({"memory": "1Gi", "cpu": "1.5", "network": "none", "command": ["train"], **asked})
    workload = Workload(
        id="sb-1", name="job", command=("train",), env=EXPECTED.env, workdir="/work", network="none",
        limits=Limits(cpu_millis=1500, memory_bytes=1 << 30), mounts=(Mount("/host/data", "/data", writable=False),),
    )  # fmt: skip
    observed = replace(SEEN, **changed)
    return write_receipt(
        spec, workload, DEVICES, Realisation("local", {}, EXPECTED), observed, differences(EXPECTED, observed),
        at=1.0, simulated=True, notes=(), told_env=frozenset({"CUDA_VISIBLE_DEVICES"}), shares=shares or {},
    )  # fmt: skip


def line(found: Receipt, field: str) -> ReceiptLine:
    return next(one for one in found.lines if one.field == field)


def test_what_is_as_planned_is_delivered_in_every_line() -> None:
    found = receipt()
    assert found.verdict == "delivered"
    assert {one.outcome for one in found.lines} == {"delivered"}
    assert {one.field for one in found.lines} >= {
        "devices", "cpu", "memory", "env", "command", "workdir", "user", "seccomp", "mount", "mounts", "root",
        "network", "isolation",
    }  # fmt: skip
    shown = line(found, "devices")
    assert (shown.asked, shown.planned, shown.observed) == ("H100:1", "gpu-0 H100", "/dev/simgpu0 c 1:3")
    assert (line(found, "cpu").asked, line(found, "memory").observed) == ("1500m", "1Gi")
    assert (line(found, "network").planned, line(found, "network").observed) == ("none", "none")
    assert line(found, "isolation").observed == "mount, network, pid"
    assert line(found, "mount").observed == str(DATA)


def test_exact_devices_and_no_devices_are_told_as_they_were_asked_for() -> None:
    assert line(receipt({"device": "sim.dibs/gpu=0"}), "devices").asked == "sim.dibs/gpu=0"
    assert line(receipt({}, nodes=()), "devices").asked == "none"
    where = receipt({"gpu": 1, "where": "true"})
    assert "1" in line(where, "devices").asked


def test_a_difference_is_a_mismatch_in_its_own_line_and_in_no_other() -> None:
    cases: tuple[tuple[str, Any, str], ...] = (
        ("nodes", (), "devices"),
        ("limits", {"memory_bytes": 2 << 30, "cpu_millis": 1500}, "memory"),
        ("env", {**EXPECTED.env, "CUDA_VISIBLE_DEVICES": "1"}, "env.CUDA_VISIBLE_DEVICES"),
        ("process", {**EXPECTED.process, "user": "1:1"}, "user"),
        ("process", {**EXPECTED.process, "further": "x"}, "further"),
        ("isolation", {**EXPECTED.isolation, "network": "host"}, "network"),
    )
    for part, changed, field in cases:
        found = receipt(**{part: changed})
        assert found.verdict == "mismatch", part
        assert line(found, field).outcome == "mismatch", part
        wrong = {one.field for one in found.lines if one.outcome == "mismatch"}
        assert wrong <= {field, "env", "isolation"}, part
    assert line(receipt(isolation={**EXPECTED.isolation, "network": "host"}), "network").observed == "host"
    assert line(receipt(isolation={**EXPECTED.isolation, "cgroup": "own"}), "isolation").observed == (
        "mount, network, pid"
    )


def test_a_mount_of_another_source_is_a_mismatch() -> None:
    other = MountFact("/data", "ro", "inode 2 on 254:0")
    found = receipt(mounts=(other,))
    assert (line(found, "mount").planned, line(found, "mount").observed) == (str(DATA), str(other))
    assert (line(found, "mount").outcome, line(found, "mounts").observed) == ("mismatch", "1 differ")
    assert line(receipt(mounts=()), "mount").observed == "not mounted"


def test_what_could_not_be_looked_at_is_not_said_to_be_delivered() -> None:
    found = receipt(nodes=(), unseen=("nodes",))
    assert found.verdict == "not observed"
    assert (line(found, "devices").outcome, line(found, "devices").observed) == ("not observed", "it had ended")
    assert (line(found, "devices").origin, line(found, "user").origin) == ("", "before start")
    assert line(found, "env").origin == "engine"
    assert line(found, "user").outcome == "delivered"


def test_values_that_may_be_secret_are_not_kept() -> None:
    found = receipt()
    assert found.observed.env == {"CUDA_VISIBLE_DEVICES": "0", "SECRET": "(not kept)"}
    assert found.expected.env == found.observed.env


def test_a_share_of_a_device_is_reported_in_amounts() -> None:
    found = receipt(shares={DEVICES[0].id: Share("s", {"memory": (4 << 30) * 10**9})})
    assert found.devices[0].share == {"memory": "4Gi"}
    assert found.devices[0].nodes == ("/dev/simgpu0",)

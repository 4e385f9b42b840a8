"""Limits that are asked for are enforced, or refused."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.bench import Bench

from dibs.backends.local import cgroups
from dibs.backends.port import Capability, Limits
from dibs.errors import InvalidRequest, Unsupported

MIB = 1 << 20


def test_all_limits_are_read_back_from_the_kernel(bench: Bench, limits: type[Limits]) -> None:
    asked = limits(cpu_millis=1500, memory_bytes=64 * MIB + 123, pids=33)
    handle = bench.create("true", limits=asked)
    seen = bench.backend.observe(handle).limits
    assert seen == {"cpu_millis": 1500, "memory_bytes": 64 * MIB, "pids": 33}


def test_more_memory_than_the_limit_ends_the_workload_and_is_reported(bench: Bench, limits: type[Limits]) -> None:
    script = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo survived"
    status, out, _ = bench.run("sh", "-c", f'exec sh -c "{script}"', limits=limits(memory_bytes=32 * MIB))
    assert out == ""
    assert status.exit is not None
    assert (status.exit.reason, status.exit.code) == ("out-of-memory", 137)


def test_the_private_layer_counts_as_memory(bench: Bench, limits: type[Limits]) -> None:
    status, _, _ = bench.run("head", "-c", "100M", "/dev/zero", limits=limits(memory_bytes=32 * MIB))
    assert status.exit is not None
    assert status.exit.code == 0
    status, _, _ = bench.run(
        "dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=100", limits=limits(memory_bytes=32 * MIB)
    )
    assert status.exit is not None
    assert status.exit.code != 0


PYTHON = os.path.realpath(sys.executable)  # that of a virtual environment may lie in /tmp, which is private
FORKING = """
import errno, os, signal
children = []
try:
    while len(children) < 40:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
except OSError as error:
    print(len(children), errno.errorcode[error.errno])
for child in children:
    os.kill(child, signal.SIGKILL)
"""


def test_more_processes_than_the_limit_cannot_be_started(bench: Bench, limits: type[Limits]) -> None:
    status, out, err = bench.run(PYTHON, "-I", "-S", "-c", FORKING, limits=limits(pids=10))
    assert status.exit is not None
    assert status.exit.code == 0, err
    count, reason = out.split(maxsplit=1)
    assert 1 <= int(count) < 10
    assert reason.strip() == "EAGAIN"


def test_processor_time_is_held_back(bench: Bench, limits: type[Limits]) -> None:
    handle = bench.start("sh", "-c", "while :; do :; done", limits=limits(cpu_millis=50))
    folder = next(g for g in handle.data["groups"].split("\n") if (Path(g) / "cpu.stat").exists())

    def throttled() -> int:
        words = (Path(folder) / "cpu.stat").read_text().split()
        return int(words[words.index("nr_throttled") + 1])

    for _ in range(1_000_000):
        if throttled() > 2:
            return
    pytest.fail("the loop was never throttled")


def test_a_limit_that_cannot_be_enforced_is_refused_with_a_remedy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "tree", lambda _: cgroups.Tree(1, "", "no group can be made", "become root"))
    assert bench.backend.can_limit("memory") == Capability(
        ok=False, reason="no group can be made", remedy="become root"
    )
    with pytest.raises(Unsupported) as caught:
        bench.create("true", limits=Limits(memory_bytes=MIB, pids=5))
    assert [(p.code, p.field, p.remedy) for p in caught.value.problems] == [
        ("LIMIT_NOT_ENFORCEABLE", "memory", "become root"),
        ("LIMIT_NOT_ENFORCEABLE", "pids", "become root"),
    ]


def test_an_ordinary_user_without_delegation_is_told_what_to_do(bench: Bench) -> None:
    if os.getuid() == 0:
        pytest.skip("root may make groups")
    capability = bench.backend.can_limit("memory")
    if capability.ok:
        pytest.skip("this user has delegated groups")
    assert capability.reason
    assert "root" in capability.remedy


def test_what_to_do_about_limits_is_said_exactly(tmp_path: Path) -> None:
    """As an ordinary user sees it: a group that cannot be made, here because a file is in its place.

    tests/guest runs what it says for version 2.
    """
    (tmp_path / "dibs").write_text("")
    second = cgroups._try(2, f"{tmp_path}/dibs", "memory")
    assert not second.folder
    assert f"have root run: cd {tmp_path} && " in second.remedy
    assert f"echo {os.getppid()} > dibs-{os.getuid()}/shell/cgroup.procs" in second.remedy
    first = cgroups._try(1, f"{tmp_path}/dibs", "")
    assert not first.folder
    assert f"mkdir -p {tmp_path}/dibs && chown {os.getuid()} {tmp_path}/dibs" in first.remedy


def test_a_limit_of_nothing_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="more than nothing"):
        bench.create("true", limits=Limits(pids=0))


def test_processes_of_exec_are_limited_too(bench: Bench, limits: type[Limits]) -> None:
    handle = bench.start("sleep", "1000", limits=limits(pids=12))
    folder = handle.data["groups"].split("\n")[0]
    session = bench.exec(handle, "cat")
    members = (Path(folder) / "cgroup.procs").read_text().split()
    session.end_of_input()
    assert len(members) >= 3  # bubblewrap, its init, sleep, and what was entered
    names = []
    for pid in members:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            names.append(Path(f"/proc/{pid}/comm").read_text().strip())
    assert "sleep" in names


# --- version 2, on the files it would write: hosts differ, the files do not


def test_version_2_limits_are_written_and_read_back(tmp_path: Path) -> None:
    for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max"):
        (tmp_path / name).write_text("max")
    place = (2, str(tmp_path))
    asked = Limits(cpu_millis=5, memory_bytes=10 * MIB, pids=7)
    cgroups._write_limits(asked, {"memory": place, "cpu": place, "pids": place})
    assert (tmp_path / "cpu.max").read_text() == "5000 1000000"
    assert (tmp_path / "memory.swap.max").read_text().startswith("0")
    (tmp_path / "memory.max").write_text(str(10 * MIB))
    (tmp_path / "pids.max").write_text("7")
    assert cgroups.read_back([str(tmp_path)]) == cgroups.expected(asked)


def test_both_versions_are_found_on_a_hybrid_host(tmp_path: Path) -> None:
    unified = tmp_path / "unified"
    unified.mkdir()
    (unified / "cgroup.controllers").write_text("pids\n")
    text = (
        f"35 31 0:32 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / {unified} rw - cgroup2 cgroup2 rw\n"
    )
    found = cgroups.hierarchies(text)
    assert found["memory"] == (1, f"{tmp_path}/memory")
    assert found["pids"] == (2, str(unified))

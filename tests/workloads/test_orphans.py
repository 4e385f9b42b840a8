"""Sandboxes whose shim was killed while the kernel could not end them: they end, and their cards are free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.backends.local import cgroups
from dibs.home import Home
from dibs.process import absent, start_time
from dibs.request import parse_spec
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads


@pytest.fixture(params=["v1", "v2", "signals"])
def freezer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every way in which a sandbox can be made to stand still, as far as this host has it."""
    real = cgroups.hierarchies

    def only(mountinfo: str) -> dict[str, tuple[int, str]]:
        found = real(mountinfo)
        if request.param == "v1":
            return found if found.get("freezer", (0, ""))[0] == 1 else {}
        found.pop("freezer", None)
        return found if request.param == "v2" else {}

    monkeypatch.setattr(cgroups, "hierarchies", only)
    cgroups.tree.cache_clear()
    if request.param != "signals" and not cgroups.tree("freezer").folder:
        pytest.skip(f"this host has no freezer of {request.param} that we may use")
    yield request.param
    cgroups.tree.cache_clear()


@pytest.mark.parametrize("verb", ["reconcile", "stop"])
def test_a_paused_sandbox_whose_shim_is_killed_ends_and_frees_its_cards(
    service: Workloads, freezer: str, verb: str
) -> None:
    row = service.create(parse_spec({"gpu": 8, "command": ["sleep", "1000"]}))
    handle = handle_of(row)
    assert handle.keeper is not None
    assert handle.init is not None
    assert bool(handle.data["freezer"]) == (freezer != "signals")
    service.pause(row.id)
    os.kill(handle.keeper.pid, signal.SIGKILL)
    while not absent(handle.keeper):
        pass
    if verb == "stop":
        service.stop(row.id, 0.0)
    with Workloads(service.home) as other:
        assert other.leases() == []
        assert other.sandbox(row.id).state == "failed"
    assert absent(handle.init)
    if handle.data["freezer"]:
        assert not os.path.exists(handle.data["freezer"])


KILLED_TOGETHER = """
import os, signal
from dibs.ledger.store import Ledger
from dibs.backends.local.backend import LocalBackend
from dibs.request import parse_spec
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

def deadly(self, handle):
    shim = handle.keeper.pid
    with open(f"/proc/{shim}/stat") as file:
        guard = int(file.read().rpartition(")")[2].split()[1])
    print(handle.init.pid, flush=True)
    for pid in (guard, shim, os.getpid()):
        os.kill(pid, signal.SIGKILL)

LocalBackend.start = deadly
Workloads().create(parse_spec({"gpu": 8, "command": ["sh", "-c", "echo x >> ran; sleep 1000"]}))
"""


def test_creator_shim_and_guard_killed_together_before_the_start_leave_nothing(
    eight_gpus: Home, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", KILLED_TOGETHER], cwd=tmp_path, env={**os.environ, "DIBS_HOME": str(eight_gpus.state)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == -9, result.stderr
    init = int(result.stdout)
    assert start_time(init) is not None, "the case is not the one that is tested"
    with Workloads(eight_gpus) as service:
        assert service.leases() == []
        assert [(row.state, "never started" in (row.reason or "")) for row in service.sandboxes(all=True)] == [
            ("failed", True)
        ]
    assert start_time(init) is None
    assert not (tmp_path / "ran").exists()

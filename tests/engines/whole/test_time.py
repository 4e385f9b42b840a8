"""Time to live without its keeper, and how ends are recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.engines import images
from tests.engines.running import processes_with
from tests.engines.whole.house import House, conversation, keeper_of, until

from dibs.backends.engines import ttl
from dibs.process import ProcessName, absent, boottime, name_of
from dibs.sandbox import Sandbox
from dibs.workloads.reconcile import handle_of


def kill_keeper(row: Sandbox) -> None:
    keeper = msgspec.json.decode(keeper_of(row).read_bytes(), type=ProcessName)
    os.kill(keeper.pid, signal.SIGKILL)
    until(lambda: absent(keeper))


def folder(row: Sandbox) -> Path:
    return Path(handle_of(row).folder)


@pytest.mark.parametrize("paused", [False, True])
def test_a_sandbox_whose_time_is_over_is_ended_although_its_keeper_was_killed(house: House, paused: bool) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    pid = house.pid(row)
    if paused:
        house.service.pause(row.id)
    kill_keeper(row)
    ttl.set_deadline(folder(row), time.time() - 1.0)
    ended = house.again().sandbox(row.id)
    assert (ended.state, ended.reason) == ("exited", "its time to live was over")
    assert name_of(pid) is None
    assert house.states()["gpu-0"][0] == "free"


def test_a_keeper_that_was_killed_is_replaced(house: House) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    kill_keeper(row)
    assert house.again().sandbox(row.id).state == "running"
    assert ttl.keeper_of(folder(row)) is not None
    pid = house.pid(row)
    house.service.renew(row.id, time.time() + 0.5)
    until(lambda: name_of(pid) is None, why="the new keeper ends it, although no dibs looks")


def test_a_sandbox_whose_time_is_over_is_ended_although_its_engine_has_forgotten_it(house: House) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    pid = house.pid(row)
    kill_keeper(row)
    house.engine.restart_with_empty_run()
    ttl.set_deadline(folder(row), time.time() - 1.0)
    assert not house.again().sandbox(row.id).live
    assert name_of(pid) is None


def test_a_foreground_run_that_ends_is_recorded_as_such(house: House) -> None:
    """Its client goes away then, and its keeper, which ends what has lost its client, may hear of that first."""
    for code in (0, 3, 0, 3):
        row, session = house.service.launch(house.spec(command=["sh", "-c", f"sleep 0.3; exit {code}"]))
        try:
            conversation(session)
        finally:
            session.close()
        until(lambda: ttl.keeper_of(folder(row)) is None, why="its keeper goes with it")  # noqa: B023
        assert ttl.ending(folder(row)) is None, "no TTL was set"
        end = house.service.settle(row.id).exit
        assert end is not None
        assert (end.reason, end.code) == ("exited", code)


def test_a_foreground_run_whose_client_goes_away_is_ended(house: House) -> None:
    row, session = house.service.launch(house.spec(command=["sleep", "1000"]))
    pid = house.pid(row)
    session.close()
    until(lambda: name_of(pid) is None)
    end = house.service.settle(row.id).exit
    assert end is not None
    assert end.reason == "client-gone"


# --- clocks that are set, and starters that are killed


def is_kept(row: Sandbox) -> bool:
    return ttl.keeper_of(folder(row)) is not None


def test_a_clock_that_is_set_forward_does_not_end_a_container_early(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    pid = house.pid(row)
    counts = ttl.deadline(folder(row))
    assert counts is not None
    assert abs(counts - boottime() - 3600) < 600
    # To a keeper that reads it, this is a clock that was set three days forward since.
    (folder(row) / "expiry").write_text(f"{time.time() - 3 * 86400!r} {counts!r}")
    keeper = ttl.keeper_of(folder(row))
    assert keeper is not None
    assert ttl.nudge(keeper)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3 * 86400)
    assert house.again().sandbox(row.id).state == "running"
    assert name_of(pid) is not None
    assert is_kept(row)


def test_a_clock_that_is_set_back_does_not_keep_a_container_longer(house: House) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    pid = house.pid(row)
    (folder(row) / "expiry").write_text(f"{time.time() + 3 * 86400!r} {boottime() - 1.0!r}")
    keeper = ttl.keeper_of(folder(row))
    assert keeper is not None
    assert ttl.nudge(keeper)
    until(lambda: name_of(pid) is None)
    assert not house.again().sandbox(row.id).live


# `dibs run`, killed when its container runs and before it has noted the first process.
KILLED_AT_THE_START = """
import os, sys
from dibs.backends.engines import ttl
ttl.remember_init = lambda *words: os.kill(os.getpid(), 9)
from dibs.cli.main import run
run(sys.argv[1:])
"""


def test_a_keeper_whose_container_was_never_recorded_ends_it_in_time_and_goes(house: House) -> None:
    words = ["run", "--backend", house.kind, "--image", images.REFERENCE, "--detach", "--ttl", "2s", "--gpu", "1"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_THE_START, *words, "--grace", "0s", "--", "sleep", "1000"],
        env=house.env, cwd=house.work, capture_output=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    keepers = processes_with("import ttl_daemon", str(house.home.state))
    assert keepers, "it was there before the command ran"
    until(lambda: not any(one["State"] == "running" for one in house.engine.containers()), why="its time is over")
    until(lambda: all(name_of(pid) is None for pid in keepers), why="the keeper has nothing to keep")
    assert house.again().leases() == []


def test_a_keeper_ends_what_its_engine_has_forgotten_when_its_time_is_over(house: House) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    pid = house.pid(row)
    house.service.pause(row.id)
    house.engine.restart_with_empty_run()
    time.sleep(1.5)  # long enough for the keeper to be told by the engine that it has ended
    keeper = ttl.keeper_of(folder(row))
    assert keeper is not None, "its container runs"
    ttl.set_deadline(folder(row), time.time() - 1.0)
    assert ttl.nudge(keeper)
    until(lambda: name_of(pid) is None, why="no dibs looks")
    until(lambda: absent(keeper))

"""Time to live without its keeper, and how ends are recorded."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
from tests.engines.whole.house import House, conversation, keeper_of, until

from dibs.backends.engines import keeping
from dibs.ledger.rows import SandboxRow
from dibs.process import ProcessName, absent, name_of
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import exit_of


def kill_keeper(row: SandboxRow) -> None:
    keeper = msgspec.json.decode(keeper_of(row).read_bytes(), type=ProcessName)
    os.kill(keeper.pid, signal.SIGKILL)
    until(lambda: absent(keeper))


def folder(row: SandboxRow) -> Path:
    return Path(handle_of(row).folder)


@pytest.mark.parametrize("paused", [False, True])
def test_a_sandbox_whose_time_is_over_is_ended_although_its_keeper_was_killed(house: House, paused: bool) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    pid = house.pid(row)
    if paused:
        house.service.pause(row.id)
    kill_keeper(row)
    keeping.set_deadline(folder(row), time.time() - 1.0)
    ended = house.again().sandbox(row.id)
    assert (ended.state, ended.reason) == ("exited", "its time to live was over")
    assert name_of(pid) is None
    assert house.states()["gpu-0"][0] == "free"


def test_a_keeper_that_was_killed_is_replaced(house: House) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    kill_keeper(row)
    assert house.again().sandbox(row.id).state == "running"
    assert keeping.keeper_of(folder(row)) is not None
    pid = house.pid(row)
    house.service.renew(row.id, time.time() + 0.5)
    until(lambda: name_of(pid) is None, why="the new keeper ends it, although no dibs looks")


def test_a_sandbox_whose_time_is_over_is_ended_although_its_engine_has_forgotten_it(house: House) -> None:
    row = house.create(gpu=1, ttl="1h", command=["sleep", "1000"])
    pid = house.pid(row)
    kill_keeper(row)
    house.engine.restart_with_empty_run()
    keeping.set_deadline(folder(row), time.time() - 1.0)
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
        until(lambda: keeping.keeper_of(folder(row)) is None, why="its keeper goes with it")  # noqa: B023
        assert keeping.ending(folder(row)) is None, "nobody asked for its end"
        end = exit_of(house.service.settle(row.id))
        assert end is not None
        assert (end.reason, end.code) == ("exited", code)


def test_a_foreground_run_whose_client_goes_away_is_ended(house: House) -> None:
    row, session = house.service.launch(house.spec(command=["sleep", "1000"]))
    pid = house.pid(row)
    session.close()
    until(lambda: name_of(pid) is None)
    end = exit_of(house.service.settle(row.id))
    assert end is not None
    assert end.reason == "client-gone"

"""An engine whose disk is full cannot note that a container has ended; its processes are gone all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest
from tests.engines.installing import CannotInstall
from tests.engines.running import Engine
from tests.engines.whole.conftest import both
from tests.engines.whole.house import House, until

from dibs.process import name_of


@pytest.fixture(params=both)
def cramped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A home on an engine that keeps its data on a small file system of its own."""
    try:
        engine = Engine(request.param)
    except CannotInstall as error:
        pytest.skip(f"{request.param} is not here: {error}")
    data = engine.folder / "data"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(data)], check=True)
    try:
        engine.start()
        engine.load()
        house = House(engine, engine.home)
        monkeypatch.setenv("DIBS_HOME", str(house.home.state))
        house.world()
        yield house
        (data / "filler").unlink(missing_ok=True)
        house.close()
    finally:
        (data / "filler").unlink(missing_ok=True)
        engine.stop()
        subprocess.run(["umount", "-l", str(data)], check=False)
        shutil.rmtree(engine.folder, ignore_errors=True)


def fill(house: House) -> None:
    with (house.engine.folder / "data" / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * (1 << 16))
        except OSError:
            pass
        try:
            while True:
                file.write(b"\0")
        except OSError:
            return


def test_a_card_is_freed_although_its_engine_cannot_write(cramped: House) -> None:
    rows = [cramped.create(gpu=1, command=["sleep", "1000"]) for _ in range(3)]
    pids = [cramped.pid(row) for row in rows]
    fill(cramped)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: name_of(pids[0]) is None)
    until(lambda: not cramped.again().sandbox(rows[0].id).live, why="its processes are gone")
    stopped = cramped.dibs("sandbox", "stop", "--grace", "0s", rows[1].id)
    assert stopped.returncode == 0, stopped.stderr
    assert name_of(pids[1]) is None
    cramped.dibs("sandbox", "rm", "--grace", "0s", rows[2].id)  # the container itself may have to wait for space
    assert name_of(pids[2]) is None
    assert cramped.again().leases() == []
    assert [state for state, _ in cramped.states().values()] == ["free"] * 4

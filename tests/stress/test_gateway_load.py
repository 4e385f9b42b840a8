"""One gateway, a hundred clients, two hundred sandboxes at once, and kill -9 of the gateway again and again.

Nothing that was accepted is lost, no device is given twice, nothing is left over, and the gateway does not grow. The
full size takes five minutes: `DIBS_SOAK=1`. What runs otherwise is the same, smaller.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from pathlib import Path

import pytest
from tests.gateway.conftest import RunningGateway
from tests.stress.load import FULL, Load, Size, Vital, Watcher, kill_and_restart, shared_devices, summary, vital
from tests.stress.test_many_at_once import processes_of, settled

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home

pytestmark = pytest.mark.stress

SIZE = FULL if os.environ.get("DIBS_SOAK") else Size(sandboxes=160, clients=24, alive=48, kills=4)
FULL_SIZE = SIZE is FULL
GROWTH = (8 if FULL_SIZE else 24) << 20  # bytes that a gateway may have more at the end than after its warm-up
MORE_DESCRIPTORS = 16


def look_into(home: Home) -> list[str]:
    connection = sqlite3.connect(f"file:{home.ledger}?mode=ro", uri=True, timeout=30)
    try:
        twice = connection.execute(
            "SELECT unit_id FROM lease_units WHERE live = 1 GROUP BY unit_id HAVING count(*) > 1"
        )
        found = [f"unit {row[0]} is live twice" for row in twice]
        return found + shared_devices(
            connection.execute("SELECT id, devices FROM leases WHERE state <> 'free'").fetchall()
        )
    finally:
        connection.close()


async def run(gateway: RunningGateway, load: Load, size: Size) -> list[Vital]:
    """All kills in the first half; then the gateway that is left shows whether it grows. Its sizes are returned."""
    running = asyncio.create_task(load.run())
    killing = asyncio.create_task(kill_often(gateway, load, size))
    sizes: list[Vital] = []
    while not running.done():
        await asyncio.wait((running,), timeout=0.5)
        if killing.done():
            killing.result()  # a gateway that did not start again is the reason of all that its clients say
        if killing.done() and load.done >= size.sandboxes * 0.6:
            sizes.append(vital(gateway.process.pid))
    running.result()
    if not load.faults:
        killing.result()  # raises if there was no time for all of them
    return sizes


async def kill_often(gateway: RunningGateway, load: Load, size: Size) -> None:
    for number in range(size.kills):
        goal = (number + 1) * size.sandboxes * 0.5 / size.kills
        while load.begun < goal:
            load.progress.clear()
            await load.progress.wait()
        await kill_and_restart(gateway, load.down)


def test_a_hundred_clients_and_ten_kills_of_the_gateway(home: Home, tmp_path: Path) -> None:
    simulate(home, parse_world("256", model="H100"))
    folder = tmp_path / "gateway"
    folder.mkdir()
    gateway = RunningGateway(home, folder).start()
    seed = random.SystemRandom().randrange(1 << 32)
    watcher = Watcher(lambda: look_into(home))
    load = Load([gateway.port], gateway.token, SIZE, seed=seed)
    began = time.monotonic()
    try:
        watcher.start()
        sizes = asyncio.run(run(gateway, load, SIZE))
    finally:
        watcher.finish()
        print(f"seed {seed}\n{summary(load, time.monotonic() - began)}")
        print("\n".join(load.faults[:20]))
        code = gateway.stop()
    assert load.faults == [], gateway.log[-6000:]
    assert watcher.twice == []
    assert watcher.looks > 50
    assert load.done >= SIZE.sandboxes
    assert load.codes["409 NO_MATCHING_DEVICE"] >= SIZE.sandboxes // 25
    print(f"after warm-up {sizes[0]}, at the end {sizes[-1]}, at most {max(one.rss for one in sizes) >> 20} MiB")
    print("meanwhile", *(one.rss >> 20 for one in sizes[:: max(1, len(sizes) // 20)]), "MiB")
    warm = sizes[len(sizes) // 2 if FULL_SIZE else 0]
    assert sizes[-1].rss <= warm.rss + GROWTH
    assert sizes[-1].descriptors <= sizes[0].descriptors + MORE_DESCRIPTORS
    assert code == 0
    assert "Traceback" not in gateway.log, gateway.log[-6000:]
    settled(home)
    assert list(home.sandboxes.iterdir()) == []
    assert processes_of(home) == {}

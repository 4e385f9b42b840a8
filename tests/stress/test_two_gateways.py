"""Two gateways on one PostgreSQL, under load: either may die at any time, and the database may go away for a while.

No device is given twice, nothing that one of them has accepted is lost, and nothing is left over.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.gateway.conftest import RunningGateway
from tests.postgres import server
from tests.stress.load import Load, Size, Watcher, create_body, kill_and_restart, shared_devices, summary
from tests.stress.test_many_at_once import processes_of

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.settings import Settings
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

pytestmark = pytest.mark.stress

AWAY = ("LEDGER_UNREACHABLE",)
Start = Callable[[str], RunningGateway]
Beside = Callable[[], Coroutine[object, object, None]]


@pytest.fixture
def start(home: Home, tmp_path: Path) -> Iterator[Start]:
    """Start gateways on one home and one database; afterwards they stop in order, and nothing is left."""
    simulate(home, parse_world("64", model="H100"))
    running: list[RunningGateway] = []
    urls: list[str] = []

    def one(url: str) -> RunningGateway:
        folder = tmp_path / f"gateway-{len(running)}"
        folder.mkdir()
        gateway = RunningGateway(home, folder, "--ledger", url)
        running.append(gateway)
        urls.append(url)
        return gateway.start()

    yield one
    codes = [gateway.stop() for gateway in running if gateway.process.poll() is None]
    assert set(codes) <= {0}
    for gateway in running:
        assert "Traceback" not in gateway.log, gateway.log[-6000:]
    with Workloads(home, registry=Registry(home, Settings(ledger=urls[0]))) as service:
        left = service.leases(), service.sandboxes(), service.queue()
    assert left == ([], [], [])
    assert list(home.sandboxes.iterdir()) == []
    assert [line for line in processes_of(home).values() if "/postgres" not in line] == []


def look_into(url: str) -> list[str]:
    """What the books say. While the database is away nothing can be booked either."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            twice = connection.execute(
                "SELECT unit_id FROM lease_units WHERE live = 1 GROUP BY domain, unit_id HAVING count(*) > 1"
            ).fetchall()
            leases = connection.execute("SELECT id, devices FROM leases WHERE state <> 'free'").fetchall()
    except psycopg.OperationalError:
        return []
    return [f"unit {row[0]} is live twice" for row in twice] + shared_devices(leases)


async def loaded(load: Load, meanwhile: Beside) -> None:
    """Run the load, and something beside it. Its errors are errors."""
    running = asyncio.create_task(load.run())
    load.beside = beside = asyncio.create_task(meanwhile())
    beside.add_done_callback(lambda task: load.stop(task))
    await running
    if not load.faults:
        beside.result()  # raises if it did not come to its end
    beside.cancel()


def run(load: Load, url: str, meanwhile: Beside) -> None:
    watcher = Watcher(lambda: look_into(url))
    began = time.monotonic()
    watcher.start()
    try:
        asyncio.run(loaded(load, meanwhile))
    finally:
        watcher.finish()
        print(summary(load, time.monotonic() - began))
        print("\n".join(load.faults[:20]))
    assert load.faults == []
    assert watcher.twice == []
    assert watcher.looks > 20


async def reached(load: Load, part: float) -> None:
    while load.begun < load.size.sandboxes * part:
        load.progress.clear()
        await load.progress.wait()


def test_either_of_two_gateways_may_die_under_load(start: Start) -> None:
    url = server.shared().new_database()
    first, second = start(url), start(url)
    size = Size(sandboxes=100, clients=16, alive=32, kills=4)
    load = Load([first.port, second.port], first.token, size, seed=random.SystemRandom().randrange(1 << 32))

    async def kill_in_turns() -> None:
        for number in range(size.kills):
            await reached(load, (number + 1) / (size.kills + 1))
            await kill_and_restart((first, second)[number % 2], load.down)

    run(load, url, kill_in_turns)
    assert load.done >= size.sandboxes


def test_what_a_dead_gateway_had_accepted_is_made_by_the_other(start: Start) -> None:
    url = server.shared().new_database()
    first, second = start(url), start(url)
    accepted = [first.ask("POST", "/v1/sandboxes", create_body(f"k{number}", 1)) for number in range(8)]
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    first.stop()
    assert [answer.status for answer in accepted] == [202] * 8
    for answer in accepted:
        name = answer.data["id"]
        second.until(partial(is_there, second, name), 60)
        assert second.ask("DELETE", f"/v1/sandboxes/{name}").status == 204
    first.socket.unlink()


def is_there(gateway: RunningGateway, name: str) -> bool:
    return gateway.ask("GET", f"/v1/sandboxes/{name}/endpoints/44772").status == 200


@pytest.fixture
def own_database() -> Iterator[server.Server]:
    """A server that a test may stop."""
    database = server.start()
    yield database
    database.remove()


def test_a_database_that_restarts_is_reported_and_then_all_goes_on(own_database: server.Server, start: Start) -> None:
    url = own_database.new_database()
    first, second = start(url), start(url)
    size = Size(sandboxes=60, clients=12, alive=24, kills=0)
    seed = random.SystemRandom().randrange(1 << 32)
    load = Load([first.port, second.port], first.token, size, seed=seed, patient=AWAY)

    def told() -> int:
        return sum(load.codes[f"{status} {code}"] for status in (500, 503) for code in AWAY)

    async def restart() -> None:
        for part, how in ((0.3, signal.SIGINT), (0.6, signal.SIGQUIT)):
            await reached(load, part)
            before = told()
            await asyncio.to_thread(own_database.stop, how)
            while told() == before:
                await asyncio.sleep(0.02)
            own_database.start()  # in this thread: the server ends with the thread that has started it

    run(load, url, restart)
    assert load.done >= size.sandboxes

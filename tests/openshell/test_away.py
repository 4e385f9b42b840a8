"""An engine or a ledger that is away: the right status, a clear message, when to try again; and nothing is leaked."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openshell._proto import openshell_pb2 as pb
from tests.engines import shared
from tests.engines.running import Engine, processes_with
from tests.gateway.conftest import RunningGateway
from tests.openshell.conftest import Place
from tests.openshell.test_calls import DEFAULT, ready, refused, stub
from tests.postgres import server
from tests.stress.test_many_at_once import processes_of

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.settings import Settings
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads


@contextlib.contextmanager
def told_to_try_again(*codes: str) -> Iterator[Any]:
    """The error of a call that fails because something is away."""
    with refused("UNAVAILABLE") as caught:
        yield caught
    error = caught.error
    assert error.error_info.reason in codes, error
    assert error.error_info.metadata["remedy"]
    assert error.retry_delay > 0


@contextlib.contextmanager
def away(place: Place) -> Iterator[None]:
    """The engine has crashed, for as long as the block lasts."""
    found = shared.engine(place.backend)
    assert isinstance(found, Engine)
    found.kill()
    try:
        yield
    finally:
        found.start()


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Iterator[Place]:
    found: Place = request.getfixturevalue(request.param)
    yield found
    found.clear()
    assert found.held() == 0


def test_an_engine_that_is_away_is_named_and_nothing_is_booked_or_lost(engine: Place) -> None:
    client = engine.client()
    spec = engine.spec(1)
    mark = f"4340{os.getpid()}"
    spec.command.extend(["sleep", mark])
    name = ready(client, spec, "before")
    held = engine.held()
    with away(engine):
        with told_to_try_again("ENGINE_NOT_RUNNING") as caught:
            client.create(workspace="default", spec=engine.spec(1), name="meanwhile")
        assert engine.backend in caught.error.details()
        assert engine.held() == held
        with told_to_try_again("ENGINE_NOT_RUNNING"):
            client.exec(name, ["true"], workspace="default")
        assert [one.name for one in client.list_all(workspace="default")] == [name]
        with told_to_try_again("ENGINE_NOT_RUNNING"):
            client.delete(name, workspace="default")
        # Its processes are ended without the engine; only then is the card free, whatever else is left of it.
        assert engine.held() == (held if processes_with("sleep", mark) else 0)
    client.delete(name, workspace="default")
    ready(client, engine.spec(2), "afterwards")


@pytest.fixture
def database() -> Iterator[server.Server]:
    """A server that a test may stop."""
    found = server.start()
    yield found
    found.remove()


@pytest.fixture
def on_postgres(database: server.Server, home: Home, tmp_path: Path) -> Iterator[tuple[Place, str]]:
    """A gateway whose ledger is in that server; at the end nothing is left."""
    simulate(home, parse_world("2", model="H100"))
    url = database.new_database()
    gateway = RunningGateway(home, tmp_path, "--openshell", "127.0.0.1:0", "--ledger", url).start()
    place = Place(gateway=gateway, backend="local", image="host", token=gateway.token, other=gateway.token)
    yield place, url
    place.clear()
    code = gateway.stop()
    assert code == 0, gateway.log[-4000:]
    assert "Traceback" not in gateway.log, gateway.log[-8000:]
    with Workloads(home, registry=Registry(home, Settings(ledger=url))) as service:
        assert (service.leases(), service.sandboxes(), service.queue()) == ([], [], [])
    assert list(home.sandboxes.iterdir()) == []
    assert [line for line in processes_of(home).values() if "/postgres" not in line] == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_a_ledger_that_is_away_is_reported_and_all_goes_on_when_it_is_back(
    on_postgres: tuple[Place, str], database: server.Server, how: signal.Signals
) -> None:
    place, _ = on_postgres
    client = place.client()
    name = ready(client, place.spec(1), "before")
    asked = pb.ExecSandboxRequest(
        workspace_scope=DEFAULT, sandbox=name, command=["sh", "-c", "echo on; cat; exit 6"], no_login_shell=True
    )
    running = stub(place).ExecSandboxInteractive(iter([pb.ExecSandboxInput(start=asked)]), timeout=240)
    watching = stub(place).WatchSandbox(
        pb.WatchSandboxRequest(workspace_scope=DEFAULT, sandbox=name, follow_status=True), timeout=240
    )
    assert next(running).stdout.data == b"on\n"
    assert next(watching).sandbox.metadata.name == name
    database.stop(how)
    calls: list[Any] = [
        lambda: client.create(workspace="default", spec=place.spec(1), name="meanwhile"),
        lambda: client.get(name, workspace="default"),
        lambda: client.list_all(workspace="default"),
        lambda: client.exec(name, ["true"], workspace="default"),
        lambda: client.stop(name, workspace="default"),
        lambda: client.delete(name, workspace="default"),
    ]
    for call in calls:
        with told_to_try_again("LEDGER_UNREACHABLE"):
            call()
    assert client.health().status == pb.SERVICE_STATUS_HEALTHY
    assert list(running)[-1].exit.exit_code == 6  # it does not need the ledger
    database.start()
    again = ready(client, place.spec(1), "afterwards")
    assert client.exec(name, ["echo", "still here"], workspace="default").stdout == "still here\n"
    assert {one.name for one in client.list_all(workspace="default")} == {name, again}
    watching.cancel()

"""Containers that dibs did not start, engines beside each other, and what `auto` makes of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import images, shared
from tests.engines.whole.house import House, own_cards, until

from dibs.backends.engines import client, external
from dibs.backends.engines import engine as line
from dibs.devices import simulated
from dibs.errors import BackendUnavailable, Busy, DibsError, Unsupported
from dibs.ledger.sqlite import SqliteDatabase
from dibs.request import parse_spec
from dibs.workloads.admission import Asking, admit_all
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.service import Workloads


def taken(house: House) -> dict[str, str]:
    return {name: note for name, (state, note) in house.states().items() if state == "external"}


def requests(kind: str) -> dict[str, dict[str, Any]]:
    """The ways in which a container gets a card past dibs, in each engine's words."""
    if kind == "docker":
        node = {"PathOnHost": "/dev/null", "PathInContainer": "/dev/simgpu1", "CgroupPermissions": "rwm"}
        return {
            "by name": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["sim.dibs/gpu=1"]}]},
            "as a node": {"Devices": [node]},
        }
    return {
        "by name": {"devices": [{"path": "sim.dibs/gpu=1"}]},
        "as a node": {"devices": [{"path": "/dev/null:/dev/simgpu1:rwm"}]},
    }


@pytest.mark.parametrize("way", ["by name", "as a node"])
def test_a_card_in_a_foreign_container_is_shown_and_not_allocated(house: House, way: str) -> None:
    name = house.foreign("somebody", **requests(house.kind)[way])
    assert list(taken(house)) == ["gpu-1"]
    assert "somebody" in taken(house)["gpu-1"]
    row = house.create(gpu=2)
    assert house.nodes(row) == ["simgpu0 c 1:3", "simgpu2 c 1:3"]
    with pytest.raises(Busy, match="somebody"):
        house.create(device="gpu-1")
    told = json.loads(house.dibs("gpus", "-o", "json").stdout)
    assert [one["state"] for one in told["devices"]] == ["held", "external", "held", "free"]
    house.remove(name)
    assert taken(house) == {}
    assert house.nodes(house.create(device="gpu-1")) == ["simgpu1 c 1:3"]


def test_a_waiter_gets_a_card_when_the_foreign_container_has_gone(house: House) -> None:
    import threading

    name = house.foreign("somebody", **requests(house.kind)["by name"])
    gone = threading.Timer(1.0, house.remove, (name,))
    gone.start()
    row = house.create(gpu=4, wait="60s")
    gone.join()
    assert len(house.nodes(row)) == 4


def test_a_card_in_use_outside_can_be_shared_on_request(house: House) -> None:
    house.foreign("somebody", **requests(house.kind)["by name"])
    row = house.create(device="gpu-1", allow_busy=True)
    assert any("somebody" in note for note in house.service.receipt(row.id).notes)


def test_an_ended_container_holds_nothing(house: House) -> None:
    name = house.foreign("somebody", **requests(house.kind)["by name"])
    status, answer = house.engine.api("POST", f"{house.engine.prefix}/containers/{name}/kill?signal=KILL")
    assert status < 300, answer
    house.engine.api("POST", f"{house.engine.prefix}/containers/{name}/wait")
    assert taken(house) == {}


def test_an_engine_that_does_not_answer_is_reported_with_the_cards(house: House) -> None:
    house.engine.kill()
    inventory, states = house.again().devices()
    assert [one.source for one in inventory.errors] == [house.kind]
    assert len(states) == 4
    house.engine.start()
    assert house.again().devices()[0].errors == ()


def freeze(pid: int) -> None:
    """Stop a process: every thread of it, each of which may answer until it has been."""
    os.kill(pid, signal.SIGSTOP)

    def stopped() -> bool:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    until(stopped)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits ten seconds and more for an engine waits a moment."""
    monkeypatch.setattr(external, "PATIENCE", 0.3)
    monkeypatch.setattr(line, "PROBE", 0.3)


@pytest.fixture(params=["killed", "frozen"])
def lost(request: pytest.FixtureRequest, house: House, hasty: None) -> Iterator[House]:
    """Its engine does not answer; a container that is not ours runs on, with a card."""
    house.foreign("somebody", **requests(house.kind)["by name"])
    assert list(taken(house)) == ["gpu-1"]
    if request.param == "killed":
        house.engine.kill()
        yield house
        house.engine.start()
    else:
        freeze(house.engine.process)
        yield house
        os.kill(house.engine.process, signal.SIGCONT)


def test_a_card_in_a_container_is_not_given_away_while_its_engine_is_lost(lost: House) -> None:
    row = lost.service.create(parse_spec({"backend": "local", "gpu": 3, "command": ["sleep", "1000"]}))
    assert [one.id.rpartition("/")[2] for one in lost.service.leases()[0].devices] == ["gpu-0", "gpu-2", "gpu-3"]
    with pytest.raises(Busy, match="no engine tells of it"):
        lost.service.create(parse_spec({"backend": "local", "gpu": 1}))
    inventory, _ = lost.service.devices()
    assert [(one.source, "known by what runs only" in one.reason) for one in inventory.errors] == [(lost.kind, True)]
    lost.service.remove(row.id, 0.0)


def test_our_own_containers_do_not_count_as_foreign_while_their_engine_is_lost(house: House) -> None:
    house.create(gpu=2)
    house.engine.kill()
    house.again()
    assert [state for state, _ in house.states().values()] == ["held", "held", "free", "free"]
    assert [one.used_by for one in house.service.inventory().devices] == [(), (), (), ()]
    house.engine.start()


def test_no_engine_is_called_under_the_lock_of_the_ledger(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    database = house.service.ledger._db
    assert isinstance(database, SqliteDatabase)
    real = client.Client.answer
    asked: list[str] = []
    meanwhile: list[str] = []

    def answer(self: client.Client, method: str, path: str, **more: Any) -> Any:
        (meanwhile if database._connection.in_transaction else asked).append(path)
        return real(self, method, path, **more)

    with monkeypatch.context() as listening:
        listening.setattr(client.Client, "answer", answer)
        row = house.create(gpu=4)
        [queued] = admit_all([Asking(workloads=house.service, spec=house.spec(gpu=2, wait="1h"))])
        assert not isinstance(queued, Exception)
        house.service.remove(row.id, 0.0)
        hands = Dispatcher(lambda: Workloads(house.home))
        hands._serve_queue(house.service)
        work = hands._work.get_nowait()
        assert work is not None
        assert hands._deliver(house.service, *work)
    assert house.service.sandbox(queued.row.id).state == "running"
    assert any("/images/" in path for path in asked)
    assert meanwhile == []


def test_after_waiting_for_a_silent_engine_the_next_call_does_not_wait_again(
    house: House, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert taken(house) == {}
    asked: list[str] = []
    real = client.Client.answer

    def answer(self: client.Client, method: str, path: str, **more: Any) -> Any:
        asked.append(path)
        return real(self, method, path, **more)

    monkeypatch.setattr(client.Client, "answer", answer)
    monkeypatch.setattr(line, "RETRY_AFTER", 1e9)
    freeze(house.engine.process)
    try:
        for _ in range(3):
            assert [one.source for one in house.service.devices()[0].errors] == [house.kind]
        assert len(asked) == 1
        with pytest.raises(BackendUnavailable, match="does not answer"):
            house.create(gpu=1)
        assert len(asked) == 1
        monkeypatch.setattr(line, "RETRY_AFTER", 0.0)
        assert [one.source for one in house.service.devices()[0].errors] == [house.kind], (
            "asked again, and still silent"
        )
    finally:
        os.kill(house.engine.process, signal.SIGCONT)
    assert house.service.devices()[0].errors == ()
    assert len(house.nodes(house.create(gpu=1))) == 1


# --- auto, and explaining


def test_auto_takes_local_until_an_image_is_asked_for(house: House) -> None:
    assert house.service.create(parse_spec({"gpu": 1, "workdir": "/tmp"})).backend == "local"
    row = house.service.create(parse_spec({"gpu": 1, "image": images.REFERENCE, "grace": "0s"}))
    assert row.backend == house.kind
    assert house.nodes(row) == ["simgpu1 c 1:3"]


def test_explain_names_every_backend_and_why_it_was_passed(house: House) -> None:
    spec = parse_spec({"gpu": 1, "image": images.REFERENCE})
    found = {one.backend: one for one in house.service.explain(spec).backends}
    assert list(found) == ["local", "docker", "podman"]
    assert found[house.kind].ok
    assert "IMAGE_UNKNOWN" in [problem.code for problem in found["local"].problems]
    other = "podman" if house.kind == "docker" else "docker"
    assert [problem.code for problem in found[other].problems] == ["ENGINE_NOT_RUNNING"]
    told = house.dibs("explain", "--gpu", "1", "--image", images.REFERENCE).stdout
    for name in found:
        assert name in told


def test_the_configured_order_decides(house: House) -> None:
    house.settings(f'backends = ["{house.kind}", "local"]')
    service = house.again()
    assert service.create(parse_spec({"gpu": 1, "image": images.REFERENCE, "grace": "0s"})).backend == house.kind
    # Without an image this engine cannot: the next one is taken, and why is told.
    assert service.create(parse_spec({"workdir": "/tmp"})).backend == "local"


def test_both_engines_at_once_never_give_the_same_card_twice(tmp_path: Path) -> None:
    engines = {kind: shared.engine(kind) for kind in ("docker", "podman")}
    for kind, engine in engines.items():
        if isinstance(engine, str):
            pytest.skip(f"{kind} is not here: {engine}")
    docker, podman = engines["docker"], engines["podman"]
    assert not isinstance(docker, str)
    assert not isinstance(podman, str)
    house = House(docker, tmp_path / "home")
    config = house.home.config / "config.toml"
    config.write_text(config.read_text() + f'[podman]\nsocket = "{podman.socket}"\n')
    house.again()
    house.world()
    try:
        rows = [house.create(gpu=1, backend=kind) for kind in ("docker", "podman", "docker", "podman")]
        leased = [device.id for lease in house.service.leases() for device in lease.devices]
        assert len(set(leased)) == 4
        with pytest.raises(Busy):
            house.create(gpu=1, backend="podman")
        for row in rows:
            house.service.remove(row.id, 0.0)
        assert house.service.leases() == []
    finally:
        house.close()
        podman.remove_containers()


def test_without_any_image_an_engine_says_what_is_missing(house: House) -> None:
    with pytest.raises(DibsError) as caught:
        house.create(image="", gpu=1)
    assert "IMAGE_INVALID" in [problem.code for problem in caught.value.problems]


def test_sd_44_a_card_that_no_engine_can_pass_makes_no_container(
    house: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its spec has a hook, and lies where only dibs reads it."""
    simulated.off(house.home)
    folder = tmp_path / "cdi"
    folder.mkdir()
    monkeypatch.setenv("DIBS_CDI_DIRS", str(folder))
    [card] = own_cards(house.engine, 1)
    hook = {"hookName": "createContainer", "path": "/bin/true"}
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "vendor.example/gpu",
        "devices": [{"name": card.name, "containerEdits": {"deviceNodes": [card.node()], "hooks": [hook]}}],
    }
    (folder / "vendor.json").write_text(json.dumps(spec))
    with pytest.raises(Unsupported) as caught:
        house.create(device="vendor.example/gpu=0")
    assert caught.value.code == "CDI_NAME_UNKNOWN"
    assert "dibs doctor" in str(caught.value)
    assert house.engine.containers() == []

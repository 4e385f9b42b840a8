"""Engines set up in other ways: pods, and a Docker that keeps its containers over a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.engines.images import REFERENCE
from tests.engines.running import Engine
from tests.engines.whole.house import House

from dibs.process import name_of


def test_a_container_in_a_pod_holds_its_card(house: House) -> None:
    if house.kind != "podman":
        pytest.skip("Docker has no pods")
    prefix = house.engine.prefix
    status, pod = house.engine.api("POST", f"{prefix}/pods/create", json={"name": "team", "no_infra": True})
    assert status == 201, pod
    try:
        house.foreign("trainer", pod="team", devices=[{"path": "sim.dibs/gpu=0"}])
        state, note = house.states()["gpu-0"]
        assert (state, "trainer" in note) == ("external", True)
        assert house.nodes(house.create(gpu=1)) != ["simgpu0 c 1:3"]
    finally:
        status, answer = house.engine.api("DELETE", f"{prefix}/pods/team?force=true&timeout=0")
        assert status == 200, answer


@pytest.fixture
def live_restore(house: House) -> Iterator[House]:
    if house.kind != "docker":
        pytest.skip("Podman has no daemon whose restart containers would have to survive")
    restart(house.engine, live_restore=True)
    yield house
    house.engine.remove_containers()
    restart(house.engine, live_restore=False)


def restart(engine: Engine, *, live_restore: bool) -> None:
    engine.options = {"live-restore": live_restore}
    engine.kill()
    engine.start()
    assert json.loads((engine.folder / "daemon.json").read_text())["live-restore"] is live_restore


def test_a_sandbox_outlives_a_restart_of_a_docker_with_live_restore(live_restore: House) -> None:
    house = live_restore
    row = house.create(gpu=1, command=["sleep", "1000"], image=REFERENCE)
    pid = house.pid(row)
    house.engine.kill()
    house.engine.start()
    assert name_of(pid) is not None, "what the setting is for"
    assert house.again().sandbox(row.id).state == "running"
    assert house.states()["gpu-0"][0] == "held"
    assert house.exec(row.id, "echo", "there")[0] == "there\n"
    house.service.remove(row.id, 0.0)
    assert name_of(pid) is None
    assert house.states()["gpu-0"][0] == "free"

"""A running container holds its devices, whatever its labels say: ours are those whose id is in the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.whole.house import House, own_cards, until, vendor_spec

from dibs.backends.port import TakesSnapshots, must
from dibs.devices import simulated
from dibs.errors import Busy
from dibs.process import name_of
from dibs.sandbox import Sandbox
from dibs.workloads.reconcile import handle_of


def taken(house: House) -> dict[str, str]:
    return {name: note for name, (state, note) in house.states().items() if state == "external"}


def card(house: House, number: int) -> dict[str, Any]:
    """A simulated card, asked for past dibs."""
    name = f"sim.dibs/gpu={number}"
    if house.kind == "docker":
        return {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [name]}]}
    return {"devices": [{"path": name}]}


def labels_of(house: House, row: Sandbox) -> dict[str, str]:
    return {str(name): str(value) for name, value in house.container(row)["Config"]["Labels"].items()}


def start(house: House, name: str) -> None:
    status, answer = house.engine.api("POST", f"{house.engine.prefix}/containers/{name}/start")
    assert status == 204, answer


def is_not_given_away(house: House, name: str) -> None:
    """gpu-0 is a container's, by its name, and is not given away."""
    found = taken(house)
    assert list(found) == ["gpu-0"]
    assert name in found["gpu-0"]
    with pytest.raises(Busy, match=name):
        house.create(device="gpu-0")
    assert house.nodes(house.create(gpu=1)) == ["simgpu1 c 1:3"]


def test_an_ended_sandbox_that_was_started_by_hand_holds_its_card(house: House) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    house.service.stop(row.id, 0.0)
    assert taken(house) == {}
    start(house, f"dibs-{row.id}")
    is_not_given_away(house, f"dibs-{row.id}")
    house.remove(f"dibs-{row.id}")
    assert taken(house) == {}


def test_forged_labels_hide_no_container(house: House) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    labels = labels_of(house, row)
    house.service.remove(row.id, 0.0)
    house.foreign("forged", labels=labels, **card(house, 0))
    is_not_given_away(house, "forged")


def test_labels_of_a_live_sandbox_hide_no_other_container(house: House) -> None:
    row = house.create(device="gpu-3", command=["sleep", "1000"])
    house.foreign("forged", labels=labels_of(house, row), **card(house, 0))
    is_not_given_away(house, "forged")


@pytest.mark.parametrize("way", ["commit", "snapshot"])
def test_a_container_made_of_an_image_of_a_sandbox_holds_its_card(house: House, way: str) -> None:
    row = house.create(device="gpu-3", command=["sleep", "1000"])
    name = f"localhost/dibs-of-{row.id.lower()}:1"
    if way == "snapshot":
        must(house.service.backend_of(row), TakesSnapshots).snapshot(handle_of(row), name)
    else:
        repository, _, tag = name.rpartition(":")
        prefix = "/v1.41" if house.kind == "docker" else house.engine.prefix
        path = f"{prefix}/commit?container=dibs-{row.id}&repo={repository}&tag={tag}"
        status, answer = house.engine.api("POST", path, json={})
        assert status in (200, 201), answer
    try:
        house.foreign("offspring", image=name, **card(house, 0))
        is_not_given_away(house, "offspring")
    finally:
        house.remove("offspring")
        house.engine.api("DELETE", f"{house.engine.prefix}/images/{name.replace('/', '%2F')}?force=true")


def test_another_home_at_the_same_path_does_not_make_a_container_ours(house: House) -> None:
    """The same path in another mount namespace, or a ledger that was lost: the container is not in this one."""
    row = house.create(gpu=1, command=["sleep", "1000"])
    house.service.close()
    for file in house.home.state.glob("ledger.db*"):
        file.unlink()
    house.again()
    assert house.states()["gpu-0"][0] != "free"
    assert house.nodes(house.create(gpu=1)) == ["simgpu1 c 1:3"]
    assert name_of(house.pid(row)) is not None


def test_a_sandbox_that_its_engine_starts_again_keeps_its_card(house: House) -> None:
    row = house.create(gpu=1, command=["sh", "-c", "sleep 1000"])
    pid = house.pid(row)
    set_restart_policy(house, row, "always")
    import os
    import signal

    os.kill(pid, signal.SIGKILL)
    until(lambda: house.pid(row) not in (0, pid), why="the engine starts it again")
    assert house.again().sandbox(row.id).state == "running"
    assert house.states()["gpu-0"][0] == "held"
    house.service.stop(row.id, 0.0)
    assert house.container(row)["HostConfig"]["RestartPolicy"]["Name"] in ("no", ""), "it is not started once more"
    assert house.states()["gpu-0"][0] == "free"


def set_restart_policy(house: House, row: Sandbox, name: str) -> None:
    if house.kind == "docker":
        path, body = f"/v1.41/containers/dibs-{row.id}/update", {"RestartPolicy": {"Name": name}}
    else:
        path, body = f"/v5.0.0/libpod/containers/dibs-{row.id}/update?restartPolicy={name}", {}
    status, answer = house.engine.api("POST", path, json=body)
    assert status in (200, 201), answer


def test_an_ended_sandbox_with_a_restart_policy_set_by_hand_does_not_come_back(house: House) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    set_restart_policy(house, row, "always")
    house.service.stop(row.id, 0.0)
    assert not house.service.sandbox(row.id).live
    house.engine.kill()
    house.engine.start()
    assert house.container(row)["State"]["Status"] != "running"
    assert house.nodes(house.again().create(house.spec(gpu=1))) == ["simgpu0 c 1:3"]


def test_a_container_in_a_crash_loop_holds_its_card_all_the_time(house: House) -> None:
    policy = {"RestartPolicy": {"Name": "always"}} if house.kind == "docker" else {"restart_policy": "always"}
    house.foreign("crashing", command=("sh", "-c", "exit 3"), **card(house, 0), **policy)
    until(lambda: int(house.inspected("crashing")["RestartCount"]) > 1)
    for _ in range(10):
        assert list(taken(house)) == ["gpu-0"]
    house.remove("crashing")
    assert taken(house) == {}


def test_a_container_that_may_open_a_device_by_a_rule_holds_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.off(house.home)
    monkeypatch.setenv("DIBS_CDI_DIRS", str(house.engine.etc_cdi))
    cards = own_cards(house.engine, 2)
    vendor_spec(house.engine, cards)
    folder = str(Path(cards[0].source).parent)
    if house.kind == "docker":
        host: dict[str, Any] = {"DeviceCgroupRules": [f"c {cards[0].numbers} rwm"], "Binds": [f"{folder}:/x"]}
    else:
        rule = {"allow": True, "type": "c", "major": cards[0].major, "minor": cards[0].minor, "access": "rwm"}
        mount = {"type": "bind", "source": folder, "destination": "/x", "options": ["rbind"]}
        host = {"device_cgroup_rule": [rule], "mounts": [mount]}
    house.foreign("ruled", **host)
    assert {name: state for name, (state, _) in house.states().items()} == {"gpu-0": "external", "gpu-1": "free"}
    with pytest.raises(Busy, match="ruled"):
        house.create(device="vendor.example/gpu=0")


def privileged(house: House) -> dict[str, Any]:
    return {"Privileged" if house.kind == "docker" else "privileged": True}


def test_a_privileged_container_is_named_by_the_doctor_and_blocks_nothing(house: House) -> None:
    house.foreign("mighty", **privileged(house))
    assert taken(house) == {}
    done = house.dibs("doctor", "-o", "json")
    [found] = [one for one in json.loads(done.stdout)["findings"] if one["id"] == f"engine.{house.kind}.privileged"]
    assert "mighty" in found["title"] + found["why"]


def test_a_privileged_container_holds_what_it_asked_for(house: House) -> None:
    house.foreign("mighty", **privileged(house), **card(house, 0))
    assert list(taken(house)) == ["gpu-0"]


def test_a_container_that_its_engine_has_forgotten_holds_its_card(house: House) -> None:
    house.foreign("somebody", **card(house, 0))
    identity = str(house.inspected("somebody")["Id"])
    pid = int(house.inspected("somebody")["State"]["Pid"])
    house.engine.restart_with_empty_run()
    assert house.inspected("somebody")["State"]["Status"] == "exited"
    house.again()
    is_not_given_away(house, identity[:12])
    import os
    import signal

    os.kill(pid, signal.SIGKILL)
    until(lambda: name_of(pid) is None)
    assert taken(house) == {}


def test_a_real_container_holds_no_simulated_card(house: House) -> None:
    """A vendor's card of the same number is another card."""
    node = {"path": "/dev/nvidia0", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}
    device = {"name": "0", "containerEdits": {"deviceNodes": [node]}}
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device]}
    (house.engine.etc_cdi / "nvidia.json").write_text(json.dumps(spec))
    name = "nvidia.com/gpu=0"
    host = (
        {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [name]}]}
        if house.kind == "docker"
        else {"devices": [{"path": name}]}
    )
    house.foreign("real", **host)
    assert taken(house) == {}


def test_simulated_cards_of_two_homes_do_not_meet(house: House, tmp_path: Path) -> None:
    other = House(house.engine, tmp_path / "other")
    other.world()
    try:
        mine, theirs = house.create(gpu=1), other.create(gpu=1)
        local = other.service.create(
            other.spec(gpu=1, backend="local", image="", workdir="/tmp", command=["sleep", "9"])
        )
        assert house.nodes(mine) == other.nodes(theirs) == ["simgpu0 c 1:3"]
        assert taken(house) == taken(other) == {}
        house.engine.kill()
        assert [state for state, _ in house.states().values()] == ["held", "free", "free", "free"]
        assert [state for state, _ in other.states().values()] == ["held", "held", "free", "free"]
        house.engine.start()
        other.service.remove(local.id, 0.0)
        other.again()
        house.again()
    finally:
        other.close()


@pytest.mark.parametrize("backend", ["engine", "local"])
def test_a_container_that_takes_a_card_between_the_plan_and_the_start_is_reported(
    house: House, backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A person starts it by hand, when the card is booked and before the command runs."""
    from dibs.workloads.delivery import Delivery

    real = Delivery.deliver

    def deliver(self: Delivery, *words: Any) -> Any:
        house.foreign("by-hand", **card(house, 0))
        return real(self, *words)

    monkeypatch.setattr(Delivery, "deliver", deliver)
    said = tmp_path / "ran"
    more: dict[str, Any] = {"backend": "local"} if backend == "local" else {}
    if backend == "local":
        more |= {"image": "", "mounts": [f"{tmp_path}:{tmp_path}:rw"]}
    with pytest.raises(Busy, match="has taken it since") as caught:
        house.create(device="gpu-0", command=["sh", "-c", f"echo ran >{said}; sleep 1000"], **more)
    assert caught.value.code == "DEVICES_BUSY"
    assert "by-hand" in str(caught.value)
    assert house.again().leases() == []
    assert house.states()["gpu-0"][0] == "external"
    if backend == "local":
        assert not said.exists(), "the command was held back"

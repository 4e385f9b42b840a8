"""Engines that have lost track of containers which run on: absence is proved by processes, not by an engine's word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.engines.running import processes_naming
from tests.engines.whole.house import House, until

from dibs.backends.engines import ttl
from dibs.process import name_of
from dibs.sandbox import Sandbox
from dibs.workloads.reconcile import handle_of


def container_id(row: Sandbox) -> str:
    return handle_of(row).data["container"]


def members(container: str) -> list[int]:
    """Live processes in a control group of the container, found without dibs."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            groups = Path(f"/proc/{entry}/cgroup").read_text() if entry.isdigit() else ""
            if container in groups and "conmon" not in groups and name_of(int(entry)) is not None:
                found.append(int(entry))
        except OSError:
            continue
    return found


@pytest.fixture
def forgotten(house: House) -> tuple[House, Sandbox, int]:
    """A sandbox with a card that runs, and of which its engine knows no longer that it does."""
    row = house.create(gpu=1, command=["sleep", "1000"])
    pid = house.pid(row)
    house.engine.restart_with_empty_run()
    assert house.container(row)["State"]["Status"] == "exited", "what the engine says"
    assert name_of(pid) is not None, "what is the case"
    return house, row, pid


def test_a_card_stays_held_by_a_process_that_its_engine_has_forgotten(
    forgotten: tuple[House, Sandbox, int],
) -> None:
    house, row, pid = forgotten
    house.again()
    assert house.service.sandbox(row.id).live
    assert house.states()["gpu-0"][0] == "held"
    assert house.nodes(house.create(gpu=1)) != ["simgpu0 c 1:3"]
    assert name_of(pid) is not None


@pytest.mark.parametrize("verb", ["stop", "rm"])
def test_a_sandbox_that_its_engine_has_forgotten_is_ended_and_proved_gone(
    forgotten: tuple[House, Sandbox, int], verb: str
) -> None:
    house, row, _ = forgotten
    done = house.dibs("sandbox", verb, row.id)
    assert done.returncode == 0, done.stderr
    container = container_id(row)
    assert members(container) == []
    assert processes_naming(container) == [], "neither containerd's shim nor conmon is left"
    ended = house.again().sandbox(row.id)
    assert (ended.state, ended.reason is not None and "stopped on request" in ended.reason) == ("exited", True)
    assert house.states()["gpu-0"][0] == "free"
    if verb == "rm":
        assert f"dibs-{row.id}" not in house.names()


def test_a_forgotten_sandbox_is_asked_before_it_is_forced(house: House, tmp_path: Path) -> None:
    script = "trap 'echo asked >/out/said; exit 0' TERM; echo ready >/out/ready; while :; do sleep 0.1; done"
    row = house.create(command=["sh", "-c", script], mounts=[f"{tmp_path}:/out:rw"], grace="30s")
    until((tmp_path / "ready").exists)
    house.engine.restart_with_empty_run()
    house.again().stop(row.id)
    assert (tmp_path / "said").read_text() == "asked\n"
    assert members(container_id(row)) == []


def test_a_paused_sandbox_that_its_engine_has_forgotten_is_thawed_and_ended(house: House) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    pid = house.pid(row)
    house.service.pause(row.id)
    house.engine.restart_with_empty_run()
    assert house.again().sandbox(row.id).live
    assert name_of(pid) is not None
    house.service.remove(row.id, 0.0)
    assert members(container_id(row)) == []
    assert house.states()["gpu-0"][0] == "free"


def test_a_forgotten_container_that_was_removed_by_hand_still_holds_its_card(
    forgotten: tuple[House, Sandbox, int],
) -> None:
    house, row, pid = forgotten
    house.remove(f"dibs-{row.id}")
    if name_of(pid) is None:
        pytest.skip("the engine ended the process after all")
    assert house.again().sandbox(row.id).live
    assert house.states()["gpu-0"][0] == "held"
    house.service.remove(row.id, 0.0)
    assert members(container_id(row)) == []
    assert house.states()["gpu-0"][0] == "free"


def test_a_forgotten_sandbox_that_ends_by_itself_frees_its_card(forgotten: tuple[House, Sandbox, int]) -> None:
    house, row, pid = forgotten
    os.kill(pid, 9)
    until(lambda: name_of(pid) is None)
    assert not house.again().sandbox(row.id).live
    assert house.states()["gpu-0"][0] == "free"


def test_a_first_process_whose_main_thread_has_ended_is_not_gone(house: House) -> None:
    """The kernel shows such a process as a zombie, while its other threads run."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"
    )
    import subprocess
    import sys

    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z")
        assert name_of(child.pid) is not None
    finally:
        child.kill()
        child.wait()
    assert name_of(child.pid) is None


def test_an_engine_that_was_only_restarted_finds_its_containers_again(house: House) -> None:
    """Without an empty /run: Docker ends what it finds (no live-restore), Podman has no daemon to restart."""
    row = house.create(gpu=1, command=["sleep", "1000"])
    pid = house.pid(row)
    house.engine.kill()
    house.engine.start()
    service = house.again()
    if name_of(pid) is None:
        assert not service.sandbox(row.id).live
        assert house.states()["gpu-0"][0] == "free"
    else:
        assert service.sandbox(row.id).live
        service.remove(row.id, 0.0)
        assert name_of(pid) is None


# --- its starter was killed before the first process was recorded


def lose_the_record(house: House, row: Sandbox) -> None:
    """As if `dibs` had been killed between the start of the container and its note of the first process."""
    for name in ("init", "record"):
        (Path(handle_of(row).folder) / name).unlink()


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("verb", ["stop", "rm"])
def test_a_forgotten_container_whose_first_process_was_never_recorded_is_ended(
    house: House, verb: str, paused: bool
) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    pid = house.pid(row)
    if paused:
        house.service.pause(row.id)
    lose_the_record(house, row)
    house.engine.restart_with_empty_run()
    assert name_of(pid) is not None
    assert house.again().sandbox(row.id).live
    assert house.states()["gpu-0"][0] == "held"
    done = house.dibs("sandbox", verb, row.id)
    assert done.returncode == 0, done.stderr
    assert members(container_id(row)) == []
    assert processes_naming(container_id(row)) == [], "neither containerd's shim nor conmon is left"
    assert house.again().leases() == []
    assert house.states()["gpu-0"][0] == "free"


def test_a_container_that_was_removed_by_hand_after_its_engine_forgot_it_is_ended_without_a_record(
    house: House,
) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    pid = house.pid(row)
    house.service.pause(row.id)
    lose_the_record(house, row)
    house.engine.restart_with_empty_run()
    house.engine.api("DELETE", f"{house.engine.prefix}/containers/dibs-{row.id}?force=true&timeout=0")
    assert name_of(pid) is not None
    house.again().remove(row.id, 0.0)
    assert members(container_id(row)) == []
    assert house.states()["gpu-0"][0] == "free"


def test_the_first_process_of_a_container_is_recorded_by_the_next_look(house: House) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    lose_the_record(house, row)
    assert house.again().sandbox(row.id).state == "running"
    init = ttl.init_of(Path(handle_of(row).folder))
    assert init is not None
    assert init.pid == house.pid(row)
    record = ttl.record_of(Path(handle_of(row).folder))
    assert record is not None
    assert record.groups

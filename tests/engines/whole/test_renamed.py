"""Containers that were renamed by hand: a sandbox is its container's id, never whatever has its name."""

from __future__ import annotations

import os

import pytest
from tests.engines import images
from tests.engines.whole.house import House

from dibs.backends.port import Handle
from dibs.process import name_of
from dibs.sandbox import Sandbox
from dibs.workloads.reconcile import handle_of


@pytest.fixture
def renamed(house: House) -> tuple[House, Sandbox, int]:
    """A sandbox with a card whose container has another name now, and a foreign container in place of it."""
    row = house.create(gpu=1, command=["sleep", "1000"])
    rename(house, f"dibs-{row.id}", "moved")
    house.foreign(f"dibs-{row.id}")
    return house, row, int(house.inspected(f"dibs-{row.id}")["State"]["Pid"])


def rename(house: House, old: str, new: str) -> None:
    status, answer = house.engine.api("POST", f"{house.engine.prefix}/containers/{old}/rename?name={new}")
    assert status == 204, answer


def test_a_renamed_sandbox_is_still_the_one_that_is_used(renamed: tuple[House, Sandbox, int]) -> None:
    house, row, _ = renamed
    assert house.again().sandbox(row.id).state == "running"
    said, _ = house.exec(row.id, "sh", "-c", "ls /dev/simgpu0; touch /marked")
    assert said == "/dev/simgpu0\n"
    own = int(house.inspected("moved")["State"]["Pid"])
    assert os.path.exists(f"/proc/{own}/root/marked")
    house.service.pause(row.id)
    assert house.inspected("moved")["State"]["Status"] == "paused"
    assert house.inspected(f"dibs-{row.id}")["State"]["Status"] == "running"
    house.service.resume(row.id)


@pytest.mark.parametrize("verb", ["stop", "rm"])
def test_a_foreign_container_of_a_sandboxs_name_is_never_touched(
    renamed: tuple[House, Sandbox, int], verb: str
) -> None:
    house, row, foreign = renamed
    own = int(house.inspected("moved")["State"]["Pid"])
    done = house.dibs("sandbox", verb, row.id)
    assert done.returncode == 0, done.stderr
    assert name_of(own) is None
    assert name_of(foreign) is not None
    assert ("moved" in house.names()) == (verb == "stop")
    assert house.states()["gpu-0"][0] == "free"
    house.dibs("sandbox", "rm", row.id)
    assert house.names() == {f"dibs-{row.id}"}


def test_a_foreign_container_does_not_stand_for_a_sandbox_that_is_gone(house: House) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    house.remove(f"dibs-{row.id}")
    house.foreign(f"dibs-{row.id}")
    ended = house.again().sandbox(row.id)
    assert not ended.live
    assert house.states()["gpu-0"][0] == "free"
    assert house.inspected(f"dibs-{row.id}")["State"]["Status"] == "running"


def test_what_was_left_unfinished_is_found_under_another_name_and_nothing_foreign_is_taken_for_it(house: House) -> None:
    row = house.create(gpu=1, command=["sleep", "1000"])
    labels = {"dibs.home": str(house.home.state), "dibs.sandbox": "sb-unfinished"}
    if house.kind == "docker":
        path, body = "/containers/create?name=moved", {"Image": images.REFERENCE, "Labels": labels}
    else:
        path, body = "/containers/create", {"name": "moved", "image": images.REFERENCE, "labels": labels}
    assert house.engine.api("POST", house.engine.prefix + path, json=body)[0] == 201
    house.foreign("dibs-sb-unfinished")
    backend = house.service.registry.get(house.kind)
    backend.discard(Handle(house.kind, "sb-unfinished", str(house.home.sandbox("sb-unfinished"))))
    assert house.names() == {f"dibs-{row.id}", "dibs-sb-unfinished"}
    assert handle_of(row).data["container"] == house.container(row)["Id"]

"""What only engines can do for OpenSandbox's clients, and what happens when an engine or a container goes away.

Real engines under a running gateway: snapshots through the SDK's own calls; containers that are killed or removed
by hand; an engine that is killed and comes back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.sandboxes import SnapshotFilter
from opensandbox.sync.manager import SandboxManagerSync
from opensandbox.sync.sandbox import SandboxSync
from tests.engines import shared
from tests.engines.running import Engine
from tests.opensandbox.conftest import Place, clear

from dibs.ledger.snapshots import Snapshots
from dibs.ledger.store import Ledger
from dibs.process import myself
from dibs.sandbox import SandboxId

ENDED = ("Failed", "Terminated")


class Room(msgspec.Struct):
    """A place on an engine, and the engine itself."""

    place: Place
    engine: Engine

    def create(self, **more: Any) -> SandboxSync:
        given = {"entrypoint": ["sleep", "1000"], "timeout": timedelta(minutes=10), **more}
        if "snapshot_id" not in given:
            given |= {"image": self.place.image, "extensions": {"dibs.backend": self.place.backend}}
        return SandboxSync.create(connection_config=self.place.sync(), **given)

    def pid(self, sandbox_id: str) -> int:
        """The container's first process, as the engine says."""
        answer = self.engine.api("GET", f"{self.engine.prefix}/containers/dibs-{sandbox_id}/json")[1]
        found: int = answer["State"]["Pid"]  # type: ignore[index]
        return found

    def running(self) -> set[str]:
        """The sandboxes whose containers run, as the engine says."""
        return {
            str(one["Names"][0]).lstrip("/").removeprefix("dibs-")  # type: ignore[index]
            for one in self.engine.containers()
            if one["State"] == "running"
        }

    def remove_by_hand(self, sandbox_id: str) -> None:
        status, answer = self.engine.api("DELETE", f"{self.engine.prefix}/containers/dibs-{sandbox_id}?force=true")
        assert status < 300, answer

    def state(self, sandbox_id: str) -> str:
        return self.place.state(sandbox_id)

    def until(self, question: Callable[[], Any]) -> Any:
        return self.place.gateway.until(question, 60.0)

    def leased(self) -> list[str]:
        """The sandboxes that hold something, by the ledger itself."""
        with Ledger(self.place.gateway.home) as ledger:
            return [lease.sandbox_id for lease in ledger.leases()]


@pytest.fixture(params=["docker", "podman"])
def room(request: pytest.FixtureRequest) -> Iterator[Room]:
    place: Place = request.getfixturevalue(request.param)
    engine = shared.engine(request.param)
    assert isinstance(engine, Engine)
    yield Room(place, engine)
    if not engine.answers():
        engine.start()
    clear(place)


# --- snapshots


def test_a_snapshot_is_made_listed_restored_and_removed_with_the_sdk(room: Room) -> None:
    with contextlib.closing(SandboxManagerSync.create(room.place.sync())) as manager:
        first = room.create(resource={"gpu": "2"}, env={"KEPT": "yes"})
        first.files.write_file("/srv/note.txt", "remember me")
        made = first.create_snapshot(name="before")
        assert made.sandbox_id == first.id
        room.until(lambda: manager.get_snapshot(made.id).status.state != "Creating")
        status = manager.get_snapshot(made.id).status
        assert status.state == "Ready", status
        wanted = SnapshotFilter(sandbox_id=first.id, states=["Ready"], name="before")
        assert [one.id for one in manager.list_snapshots(wanted).snapshot_infos] == [made.id]
        assert manager.list_snapshots(SnapshotFilter(name="after")).snapshot_infos == []
        first.kill()
        first.close()

        second = room.create(snapshot_id=made.id)
        assert second.files.read_file("/srv/note.txt") == "remember me"
        assert second.get_info().snapshot_id == made.id
        # The devices were the first one's: nothing of them is told to the second.
        told = second.commands.run('echo "$KEPT,$DIBS_GPU_COUNT,$DIBS_GPUS,$DIBS_GPU_UUIDS,$CUDA_VISIBLE_DEVICES"')
        assert told.text == "yes,0,,,"
        assert second.commands.run("ls /dev | grep -c simgpu").text == "0"

        with pytest.raises(SandboxApiException) as caught:  # something is made of it
            manager.delete_snapshot(made.id)
        assert (caught.value.status_code, caught.value.error.code) == (409, "SNAPSHOT_IN_USE")
        assert manager.get_snapshot(made.id).status.state == "Ready"
        second.kill()
        second.close()
        manager.delete_snapshot(made.id)
        assert manager.list_snapshots(SnapshotFilter()).snapshot_infos == []
        assert _images(room, made.id) == []
        for gone in (lambda: manager.get_snapshot(made.id), lambda: room.create(snapshot_id=made.id)):
            with pytest.raises(SandboxApiException) as caught:
                gone()
            assert caught.value.error.code == "SNAPSHOT_NOT_FOUND"


def _images(room: Room, snapshot_id: str) -> list[str]:
    listed = room.engine.api("GET", f"{room.engine.prefix}/images/json")[1]
    assert isinstance(listed, list)
    return [tag for image in listed for tag in image.get("RepoTags") or () if snapshot_id in tag]


def test_a_snapshot_whose_image_was_removed_by_hand_can_still_be_removed(room: Room) -> None:
    sandbox = room.place.made()
    room.until(lambda: room.state(sandbox) == "Running")
    made = room.place.ask("POST", f"/v1/sandboxes/{sandbox}/snapshots", {})
    assert made.status == 202
    where = f"/v1/snapshots/{made.data['id']}"
    room.until(lambda: room.place.ask("GET", where).data["status"]["state"] == "Ready")
    (image,) = _images(room, made.data["id"])
    status, answer = room.engine.api("DELETE", f"{room.engine.prefix}/images/{image}")
    assert status == 200, answer
    assert room.place.ask("DELETE", where, token=room.place.other).status == 404
    assert room.place.ask("DELETE", where).status == 204
    assert room.place.ask("DELETE", where).status == 404


def test_a_snapshot_is_made_by_the_next_gateway_if_its_own_was_killed(room: Room) -> None:
    sandbox = room.place.made()
    room.until(lambda: room.state(sandbox) == "Running")
    gateway = room.place.gateway
    os.kill(room.engine.process, signal.SIGSTOP)  # so that it is surely not made before the kill
    try:
        made = room.place.ask("POST", f"/v1/sandboxes/{sandbox}/snapshots", {"name": "late"})
        assert made.status == 202
        gateway.stop(signal.SIGKILL)
    finally:
        os.kill(room.engine.process, signal.SIGCONT)
    gateway.start(gateway.port)
    where = f"/v1/snapshots/{made.data['id']}"
    room.until(lambda: room.place.ask("GET", where).data["status"]["state"] != "Creating")
    assert room.place.ask("GET", where).data["status"]["state"] == "Ready"
    assert len(_images(room, made.data["id"])) == 1
    assert room.place.ask("DELETE", where).status == 204
    assert _images(room, made.data["id"]) == []
    wanted = json.dumps({"label": [f"dibs.snapshot=localhost/dibs-snapshot:{made.data['id']}"]})
    left = room.engine.api("GET", f"{room.engine.prefix}/images/json?{urlencode({'filters': wanted})}")
    assert left == (200, [])


def test_an_abandoned_snapshot_can_be_removed(room: Room) -> None:
    sandbox = room.place.made()
    room.until(lambda: room.state(sandbox) == "Running")
    with Ledger(room.place.gateway.home) as ledger:
        row = ledger.sandbox(SandboxId(sandbox))
        made = Snapshots(ledger).add(
            sandbox, tenant=row.tenant, name="", backend=row.backend, repository="localhost/dibs-snapshot",
            owner=msgspec.structs.replace(myself(), started=1),
        )  # fmt: skip
    assert room.place.ask("DELETE", f"/v1/snapshots/{made.id}").status == 204
    assert room.place.ask("GET", f"/v1/snapshots/{made.id}").status == 404


# --- containers that go away


@pytest.mark.parametrize("how", ["killed", "removed"])
def test_a_container_that_ends_by_hand_frees_its_devices(room: Room, how: str) -> None:
    sandbox, other = (room.place.made(resourceLimits={"gpu": "4"}) for _ in range(2))
    room.until(lambda: room.state(sandbox) == room.state(other) == "Running")
    if how == "killed":
        os.kill(room.pid(sandbox), signal.SIGKILL)
    else:
        room.remove_by_hand(sandbox)
    room.until(lambda: room.state(sandbox) in ENDED)
    assert sandbox not in room.leased()
    assert room.state(other) == "Running"
    # And a new request gets what was freed.
    third = room.place.made(resourceLimits={"gpu": "4"})
    room.until(lambda: room.state(third) == "Running")


# --- clients that go away


@pytest.mark.parametrize("who", ["client", "gateway"])
def test_a_foreground_command_ends_with_its_client(room: Room, who: str) -> None:
    """An engine goes on with a command whose connection is gone: execd has to kill it, with all that it has begun."""
    sandbox = room.place.made()
    room.until(lambda: room.state(sandbox) == "Running")
    mark = f"{300000 + os.getpid()}.{'12'[who == 'client']}"
    path = f"/v1/sandboxes/{sandbox}/proxy/44772/command"
    gateway = room.place.gateway
    with contextlib.closing(HTTPConnection("127.0.0.1", gateway.port, timeout=60)) as line:
        body = json.dumps({"command": f"sleep {mark} & sleep {mark}"})
        line.request("POST", path, body, {"OPEN-SANDBOX-API-KEY": room.place.token})
        assert b"init" in line.getresponse().readline()
        room.until(lambda: len(_named(mark)) == 2)
        if who == "gateway":
            assert gateway.stop() == 0
            gateway.start(gateway.port)
    room.until(lambda: not _named(mark))
    assert room.state(sandbox) == "Running"


def _named(mark: str) -> list[str]:
    """The processes `sleep <mark>` of this host: those of containers are among them."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{entry}/cmdline").read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(entry)
    return found


def test_what_runs_in_the_background_outlives_the_gateway(room: Room) -> None:
    sandbox = room.create()
    opts = RunCommandOpts(background=True)
    begun = sandbox.commands.run("echo one; sleep 1000", opts=opts)
    place = room.place
    assert place.gateway.stop() == 0
    place.gateway.start(place.gateway.port)
    assert begun.id is not None
    assert sandbox.commands.get_command_status(begun.id).running
    assert sandbox.commands.get_background_command_logs(begun.id).content.strip() == "one"
    sandbox.commands.interrupt(begun.id)
    assert not sandbox.commands.get_command_status(begun.id).running
    sandbox.kill()
    sandbox.close()


# --- an engine that goes away


def test_while_its_engine_is_away_nothing_is_promised_and_nothing_lost(room: Room) -> None:
    place = room.place
    lives, dies = (place.made(resourceLimits={"gpu": "2"}) for _ in range(2))
    room.until(lambda: room.state(lives) == room.state(dies) == "Running")
    pid = room.pid(dies)
    room.engine.kill()
    for _ in range(3):  # the first one finds it out, the others know
        refused = place.create(resourceLimits={"gpu": "1"})
        # These clients know no 503; on our own API it is one.
        assert (refused.status, refused.data["code"]) == (500, "ENGINE_NOT_RUNNING"), refused.body
        wanted = {"image": place.image, "backend": place.backend, "command": ["true"], "gpu": 1}
        refused = place.gateway.ask("POST", "/api/v1/sandboxes", wanted)
        assert (refused.status, refused.data["code"]) == (503, "ENGINE_NOT_RUNNING"), refused.body
    assert sorted(room.leased()) == sorted([lives, dies])
    assert room.state(lives) == "Running"
    os.kill(pid, signal.SIGKILL)
    room.engine.start()
    room.until(lambda: dies not in room.leased())
    assert room.state(dies) in ENDED
    # Docker ends the containers of one that was killed when it starts again; Podman's go on.
    survived = lives in room.running()
    assert survived == (room.engine.kind == "podman")
    if survived:
        assert lives in room.leased()
        box = SandboxSync.connect(lives, connection_config=place.sync())
        assert box.commands.run("echo here").text == "here"
        box.close()
    else:
        room.until(lambda: lives not in room.leased())
    # It is listened to again.
    new = place.made(resourceLimits={"gpu": "1"})
    room.until(lambda: room.state(new) == "Running")
    room.remove_by_hand(new)
    room.until(lambda: new not in room.leased())


def test_what_was_accepted_just_before_its_engine_went_away_fails_with_the_reason(room: Room) -> None:
    killing = threading.Thread(target=room.engine.kill)
    killing.start()
    made = [room.place.create(resourceLimits={"gpu": "1"}) for _ in range(4)]
    killing.join()
    room.engine.start()
    refused = [answer for answer in made if answer.status != 202]
    assert [answer.body for answer in refused if not answer.data["code"].startswith("ENGINE_")] == []
    accepted = {answer.data["id"] for answer in made if answer.status == 202}
    room.until(lambda: {room.state(one) for one in accepted} <= {"Running", *ENDED})
    room.until(lambda: set(room.leased()) == room.running() & accepted)

"""kill -9 between any two lines of a creation on an engine: no container, no lease and no unknown command remains."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines import images
from tests.engines.whole.house import House, until

from dibs.backends.engines.cgroups import trees
from dibs.workloads.reconcile import reconcile

# Where the creating process kills itself: before or after one of these calls.
POINTS = [
    ("after", "backend", "render"),
    ("after", "ledger", "reserve"),
    ("before", "backend", "create"),
    ("after", "client", "create"),
    ("after", "backend", "create"),
    ("after", "ledger", "record_handle"),
    ("before", "backend", "attach"),
    ("after", "backend", "attach"),
    ("before", "backend", "start"),
    ("after", "client", "start"),
    ("after", "backend", "start"),
    ("after", "backend", "observe"),
    ("before", "ledger", "attach"),
    ("after", "ledger", "attach"),
]

SCRIPT = """
import os, signal, sys
from dibs.backends.engines.client import Client
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads
when, where, verb, engine, image = sys.argv[1:6]
service = Workloads()
def die():
    os.kill(os.getpid(), signal.SIGKILL)
if where == "client":  # the engine has heard it, and its answer is not read
    real = Client.answer
    def answer(self, method, path, **more):
        found = real(self, method, path, **more)
        if method == "POST" and path.partition("?")[0].endswith("/" + verb):
            die()
        return found
    Client.answer = answer
    real_call = Client.call
    def call(self, method, path, **more):
        return answer(self, method, path, **more)[1]
    Client.call = call
else:
    kind = type(service.registry.get(engine)) if where == "backend" else Ledger
    real = getattr(kind, verb)
    def deadly(*args, **kwargs):
        if when == "after":
            real(*args, **kwargs)
        die()
    setattr(kind, verb, deadly)
mapping = {"gpu": 4, "grace": "0s", "command": ["sleep", "1000"], "backend": engine, "image": image}
service.launch(parse_spec(mapping))
"""


@pytest.mark.parametrize(("when", "where", "verb"), POINTS)
def test_a_creator_that_dies_leaves_no_container_and_no_lease(house: House, when: str, where: str, verb: str) -> None:
    house.service.leases()
    words = [sys.executable, "-c", SCRIPT, when, where, verb, house.kind, images.REFERENCE]
    result = subprocess.run(words, env=house.env, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == -signal.SIGKILL, result.stderr
    # All four at once: they can only be had when nothing of the dead one is booked, and its container is gone.
    row = house.create(gpu=4, wait="60s")
    running = {str(one["Names"][0]).lstrip("/") for one in house.engine.containers() if one["State"] == "running"}  # type: ignore[index]
    assert running == {f"dibs-{row.id}"}
    house.service.remove(row.id, 0.0)
    until(lambda: not keepers(house), why="a process that keeps time is left")
    left = [one for one in house.service.sandboxes(all=True) if one.id != row.id]
    for one in left:
        house.service.remove(one.id, 0.0)
    assert house.free()
    assert list(house.home.sandboxes.iterdir()) == []


# After the call of this member; the calls of the other one are over or under way.
GROUP_POINTS = [
    ("after", "ledger", "reserve", 1),
    ("after", "ledger", "reserve", 2),
    ("after", "backend", "create", 1),
    ("after", "backend", "create", 2),
    ("after", "ledger", "record_handle", 1),
    ("after", "ledger", "record_handle", 2),
    ("after", "backend", "start", 1),
    ("after", "backend", "start", 2),
    ("after", "backend", "observe", 1),
    ("after", "backend", "observe", 2),
    ("after", "ledger", "attach", 1),
    ("after", "ledger", "attach", 2),
]

GROUP_SCRIPT = """
import itertools, os, signal, sys, threading
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads.groups import launch_group
from dibs.workloads.service import Workloads
when, where, verb, count, engine, image = sys.argv[1:7]
service = Workloads()
kind = type(service.registry.get(engine)) if where == "backend" else Ledger
real, calls, done = getattr(kind, verb), itertools.count(1), threading.Semaphore(0)
def deadly(*args, **kwargs):
    mine = next(calls)  # members are made at the same time
    found = real(*args, **kwargs)
    if mine < int(count):
        done.release()
        return found
    for _ in range(1, int(count)):
        done.acquire()
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, verb, deadly)
mapping = {"gpu": 2, "grace": "0s", "name": "job", "command": ["sleep", "1000"], "backend": engine, "image": image}
launch_group(service, parse_spec(mapping), 2, foreground=False)
"""


@pytest.mark.parametrize(("when", "where", "verb", "count"), GROUP_POINTS)
def test_a_maker_of_a_group_that_dies_leaves_all_or_nothing(
    house: House, when: str, where: str, verb: str, count: int
) -> None:
    house.service.leases()
    words = [sys.executable, "-c", GROUP_SCRIPT, when, where, verb, str(count), house.kind, images.REFERENCE]
    result = subprocess.run(words, env=house.env, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == -signal.SIGKILL, result.stderr
    reconcile(house.service.ledger, house.service.registry)
    running = [row for row in house.service.sandboxes() if row.state == "running"]
    if len(running) == 2:  # it died after its work: they run on, in the background
        assert (verb, count) == ("attach", 2)
        for row in running:
            house.service.remove(row.id, 0.0)
    # All four cards at once: they can only be had when nothing of the group is left. One member never runs alone.
    row = house.create(gpu=4, wait="120s")
    containers = {str(one["Names"][0]).lstrip("/") for one in house.engine.containers() if one["State"] == "running"}  # type: ignore[index]
    assert containers == {f"dibs-{row.id}"}
    for one in house.service.sandboxes(all=True):
        house.service.remove(one.id, 0.0)
    until(lambda: not keepers(house), why="a process that keeps time is left")
    assert house.free()
    assert list(house.home.sandboxes.iterdir()) == []


def test_what_the_engine_makes_after_its_creator_was_killed_is_removed(house: House) -> None:
    """It had heard the request when nothing of it was there yet to be found."""
    words = [sys.executable, "-c", SCRIPT, "before", "backend", "create", house.kind, images.REFERENCE]
    result = subprocess.run(words, env=house.env, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == -signal.SIGKILL, result.stderr
    [row] = [row for row in house.again().sandboxes(all=True) if row.state == "failed"]
    name = f"dibs-{row.id}"
    labels = {"dibs.home": str(house.home.state), "dibs.sandbox": row.id}
    body = (
        {"Image": images.REFERENCE, "Labels": labels}
        if house.kind == "docker"
        else {"image": images.REFERENCE, "name": name, "labels": labels}
    )
    path = f"{house.engine.prefix}/containers/create" + (f"?name={name}" if house.kind == "docker" else "")
    assert house.engine.api("POST", path, body)[0] == 201

    def gone() -> bool:
        house.again().leases()
        return name not in {str(one["Names"][0]).lstrip("/") for one in house.engine.containers()}  # type: ignore[index]

    until(gone)


GIVING_UP = """
import os, signal, sys
from dibs.errors import BackendUnavailable
from dibs.request import parse_spec
from dibs.workloads import orphans
from dibs.workloads.service import Workloads
when, engine, image = sys.argv[1:4]
service = Workloads()
kind = type(service.registry.get(engine))
def away(*_):
    raise BackendUnavailable("the engine was killed")
kind.start = kind.delete = away
expect, looks = orphans.expect, []
def deadly(*args):
    looks.append(args)
    if when == "after":
        expect(*args)
    if len(looks) == 2:  # the one before the end is told; what is noted at first is that the start was broken off
        os.kill(os.getpid(), signal.SIGKILL)
orphans.expect = deadly
mapping = {"gpu": 4, "grace": "0s", "command": ["sleep", "1000"], "backend": engine, "image": image}
service.create(parse_spec(mapping))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_creator_that_dies_while_it_gives_up_leaves_nothing(house: House, when: str) -> None:
    words = [sys.executable, "-c", GIVING_UP, when, house.kind, images.REFERENCE]
    result = subprocess.run(words, env=house.env, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == -signal.SIGKILL, result.stderr
    [row] = house.again().sandboxes(all=True)
    assert (row.state, row.live, house.service.leases()) == ("failed", False, [])
    assert house.engine.containers() == []
    assert house.free()


def test_what_a_runtime_leaves_after_its_engine_was_killed_is_ended(house: House) -> None:
    """An engine that is killed while it sets a container up leaves a runtime that goes on without it."""
    words = [sys.executable, "-c", SCRIPT, "before", "backend", "start", house.kind, images.REFERENCE]
    result = subprocess.run(words, env=house.env, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == -signal.SIGKILL, result.stderr
    [one] = house.engine.containers()
    assert [row.state for row in house.again().sandboxes(all=True)] == ["failed"]
    assert house.engine.containers() == []
    group = Path(trees()[0]) / f"dibs-test-{one['Id']}"
    group.mkdir()
    late = subprocess.Popen(["sleep", "1000"])  # as a runtime's that waits to be told to run the command
    try:
        (group / "cgroup.procs").write_text(str(late.pid))

        def ended() -> bool:
            house.again().leases()
            return late.poll() is not None

        until(ended)
        until(lambda: house.again().leases() == [] and not group.exists())
    finally:
        late.kill()
        late.wait()
        if group.exists():
            group.rmdir()


def keepers(house: House) -> list[int]:
    """Processes that keep the time of a container of this home."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"import ttl_daemon" in words and str(house.home.state).encode() in words:
            found.append(int(entry.name))
    return found

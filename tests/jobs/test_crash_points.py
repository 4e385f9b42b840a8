"""kill -9 between any two steps of a job: the next process goes on with it, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import shared
from tests.engines.images import REFERENCE
from tests.engines.whole.house import House
from tests.jobs.submitting import objects, options, removed

from dibs.home import Home
from dibs.ledger.jobs import JobBook
from dibs.process import absent
from dibs.workloads.jobs.keepers import Drivers
from dibs.workloads.jobs.model import Job, Options
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.reconcile import reconcile
from dibs.workloads.service import Workloads

PATIENCE = 120.0
# Where the driver kills itself: before or after which call of a verb.
POINTS = [
    ("after", "JobBook", "add", 1),
    ("before", "Ledger", "reserve", 1),
    ("after", "Ledger", "reserve", 2),
    ("before", "JobBook", "move", 1),
    ("after", "JobBook", "move", 1),
    ("before", "LocalBackend", "create", 1),
    ("after", "LocalBackend", "create", 1),
    ("after", "LocalBackend", "create", 2),
    ("after", "LocalBackend", "observe", 1),
    ("after", "Ledger", "attach", 1),
    ("before", "LocalBackend", "start", 1),
    ("after", "LocalBackend", "start", 1),
    ("after", "LocalBackend", "start", 2),
    ("after", "JobBook", "move", 2),
    ("before", "Ledger", "group", 1),
    ("before", "JobBook", "move", 3),
    ("after", "JobBook", "move", 3),
    ("before", "JobBook", "move", 4),
    ("after", "JobBook", "move", 4),
]
# An engine goes on with what it was asked for when the asker is killed; the first two of these find most.
ENGINE_POINTS = [
    ("after", "EngineBackend", "create", 1),
    ("before", "Ledger", "group", 1),
    ("before", "EngineBackend", "create", 2),
    ("after", "EngineBackend", "create", 2),
    ("before", "EngineBackend", "start", 1),
    ("after", "EngineBackend", "start", 1),
    ("after", "JobBook", "move", 1),
    ("after", "JobBook", "move", 2),
    ("after", "JobBook", "move", 3),
]
SOAK = bool(os.environ.get("DIBS_SOAK"))

SCRIPT = """
import itertools, os, signal, sys
from dibs.backends.engines.backend import EngineBackend
from dibs.backends.local.backend import LocalBackend
from dibs.ledger.jobs import JobBook
from dibs.ledger.store import Ledger
from dibs.workloads.jobs.driver import Driver
from dibs.workloads.jobs.model import JobSpec, Objects, Options
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads
import msgspec
when, where, verb, number, attended = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "1"
kind = {"JobBook": JobBook, "Ledger": Ledger, "LocalBackend": LocalBackend, "EngineBackend": EngineBackend}[where]
real, calls = getattr(kind, verb), itertools.count(1)
def deadly(*args, **kwargs):
    mine = next(calls)  # ranks are made at the same time
    if mine == number and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = real(*args, **kwargs)
    if mine == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
setattr(kind, verb, deadly)
spec = msgspec.json.decode(sys.stdin.buffer.read(), type=JobSpec)
with Workloads() as service:
    job = Jobs(service).submit(spec.objects, spec.options, attended=attended)
    Driver(service, JobBook(service.ledger).job(job.id), on_session=(lambda *_: None) if attended else None).run()
"""


def killed(
    home: Home, work: Path, command: list[str], point: tuple[str, str, str, int], *, attended: bool, engine: str = ""
) -> None:
    import msgspec

    from dibs.workloads.jobs.model import JobSpec

    if engine:
        what = objects(command, gpus=2, trainer={"image": REFERENCE})
        spec = JobSpec(what, Options(backend=engine))
    else:
        spec = JobSpec(objects(command, gpus=4), msgspec.structs.replace(options(), workdir=str(work)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, point), str(int(attended))],
        input=msgspec.json.encode(spec), cwd=work, env={**os.environ, "DIBS_HOME": str(home.state)},
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr.decode()


def ended(jobs: Jobs, name: str = "demo") -> Job:
    until = time.monotonic() + PATIENCE
    while (job := jobs.get(name)).live:
        assert time.monotonic() < until, (job.state, job.status)
        time.sleep(0.05)
    return job


@pytest.mark.parametrize("point", POINTS, ids=lambda one: "-".join(map(str, one)))
def test_a_job_whose_driver_was_killed_is_finished_by_another_process(
    eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: tuple[str, str, str, int]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    killed(eight_gpus, work, ["sh", "-c", "echo $DIBS_RANK $DIBS_GPU_COUNT"], point, attended=False)
    with Workloads(eight_gpus) as service:  # any dibs: it finds that the job has no driver, and starts a keeper
        jobs = Jobs(service)
        if not jobs.list():
            assert point[1:3] == ("JobBook", "add")
            return
        job = ended(jobs)
        assert job.state == "complete", (job.status, jobs.events(job.id))
        assert [rank.phase for rank in job.ranks] == ["Succeeded"] * 2
        said = sorted(one.record.data.decode() for one in jobs.logs(job.id))
        assert said == ["0 4\n", "1 4\n"]
        assert service.leases() == []
        assert service.queue() == []
        assert service.sandboxes() == []
        removed(service, job)


@pytest.mark.parametrize(
    "point", [("after", "JobBook", "move", 1), ("after", "LocalBackend", "start", 1), ("before", "Ledger", "group", 1)]
)
def test_a_job_in_the_foreground_ends_with_its_terminal(
    eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: tuple[str, str, str, int]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    killed(eight_gpus, work, ["sleep", "1000"], point, attended=True)
    with Workloads(eight_gpus) as service:
        job = ended(Jobs(service))
        failed = job.condition("Failed")
        assert failed is not None
        assert (job.state, failed.reason) == ("failed", "ClientGone")
        assert (service.leases(), service.sandboxes()) == ([], [])


@pytest.mark.parametrize("point", POINTS if SOAK else POINTS[::6], ids=lambda one: "-".join(map(str, one)))
def test_a_gateway_goes_on_with_what_another_had_accepted(
    eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: tuple[str, str, str, int]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    killed(eight_gpus, work, ["sh", "-c", "echo $DIBS_RANK $DIBS_GPU_COUNT"], point, attended=False)
    with Workloads(eight_gpus, compare=False) as service:
        if not Jobs(service).list():
            assert point[1:3] == ("JobBook", "add")  # it was not accepted
            return
        job = _finished_by_a_gateway(eight_gpus, service)
        assert job.state == "complete", (job.status, Jobs(service).events(job.id))
        said = sorted(one.record.data.decode() for one in Jobs(service).logs(job.id))
        assert said == ["0 4\n", "1 4\n"]
        assert (service.leases(), service.queue(), service.sandboxes()) == ([], [], [])
        removed(service, job)


def test_ranks_that_run_stay_when_their_gateway_is_killed(
    eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    killed(eight_gpus, work, ["sh", "-c", "sleep 1"], ("before", "Ledger", "group", 1), attended=False)
    with Workloads(eight_gpus, compare=False) as service:
        before = JobBook(service.ledger).job("demo")
        assert (before.state, absent(before.owner)) == ("running", True)
        job = _finished_by_a_gateway(eight_gpus, service)
        assert (job.state, job.status.attempt) == ("complete", 1)
        assert service.leases() == []


def _finished_by_a_gateway(home: Home, service: Workloads) -> Job:
    """Driven by the threads of a gateway, as its watcher calls them."""
    drivers = Drivers(lambda: Workloads(home, compare=False), lambda: False)
    jobs, until = Jobs(service), time.monotonic() + PATIENCE
    while jobs.get("demo").live:
        assert time.monotonic() < until
        reconcile(service.ledger, service.registry)
        drivers.tend(service)
        time.sleep(0.05)
    return jobs.get("demo")


@pytest.fixture(params=["docker", "podman"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    engine = shared.engine(request.param)
    if isinstance(engine, str):
        pytest.skip(f"{request.param} is not here: {engine}")
    if not engine.answers():
        engine.start()
    found = House(engine, engine.home)
    found.world("4", model="H100")
    yield found
    found.service.close()


@pytest.mark.parametrize("point", ENGINE_POINTS if SOAK else ENGINE_POINTS[:2], ids=lambda one: "-".join(map(str, one)))
def test_on_an_engine_a_job_whose_driver_was_killed_is_finished_by_another_process(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: tuple[str, str, str, int]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIBS_HOME", str(house.home.state))
    command = ["sh", "-c", "echo $DIBS_RANK $DIBS_GPU_COUNT"]
    killed(house.home, tmp_path, command, point, attended=False, engine=house.kind)
    service = house.again()
    jobs = Jobs(service)
    job = ended(jobs)
    assert job.state == "complete", (job.status, jobs.events(job.id))
    assert sorted(one.record.data.decode() for one in jobs.logs(job.id)) == ["0 2\n", "1 2\n"]
    assert (service.leases(), service.queue(), service.sandboxes()) == ([], [], [])
    removed(service, job)
    until = time.monotonic() + PATIENCE
    while left := _containers(house):
        assert time.monotonic() < until, left
        service.sandboxes()  # any dibs looks for what an engine made after its asker was killed
        time.sleep(0.2)


def _containers(house: House) -> list[str]:
    """What the engine itself has of this home."""
    found: list[Any] = house.engine.containers()
    return [str(one["Id"]) for one in found if (one["Labels"] or {}).get("dibs.home") == str(house.home.state)]

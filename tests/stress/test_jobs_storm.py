"""Many jobs on few cards, with kill -9 of dibs, of the gateway and of ranks: all ranks or none, no deadlock, no leak.

`make soak` runs it for three minutes with twenty jobs at a time; the ordinary suite for a few seconds. The oracle takes
nothing from dibs: each rank holds a lock on a file per card while it runs, and writes down that it has begun. All cards
are alike, so that first come, first served has one meaning: a job that waits, and whose driver lives, is not overtaken.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dibs.errors import DibsError
from dibs.home import Home
from dibs.ledger.jobs import JobBook
from dibs.ledger.rows import Ticket
from dibs.process import absent
from dibs.workloads.jobs.model import Job
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.queue import request_of
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

SOAK = bool(os.environ.get("DIBS_SOAK"))
SECONDS = 180.0 if SOAK else 8.0
JOBS = 20 if SOAK else 6
CARDS = 8
PATIENCE = 240.0

RANK = """
import fcntl, os, sys, time
begun = []
for card in os.environ["DIBS_GPUS"].split(","):
    lock = open("cards/" + card.replace("/", "_"), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        open("twice", "a").write(f"{card} {os.environ['DIBS_GROUP']}\\n")
    begun.append(lock)
with open("begun", "a") as book:
    book.write(f"{os.environ['DIBS_GROUP']} {os.environ['DIBS_RANK']} {os.environ['DIBS_NODES']}\\n")
time.sleep(float(sys.argv[1]))
"""

GATEWAY = """
import sys, time
from dibs.home import find_home
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads
home = find_home()
dispatcher = Dispatcher(lambda: Workloads(home, compare=False), workers=1)
dispatcher.start()
print("serving", flush=True)
time.sleep(100000)
"""


@pytest.fixture(scope="module", autouse=True)
def say_the_size() -> None:
    if not SOAK:
        print(f"{JOBS} jobs for {SECONDS:g} s; DIBS_SOAK=1 (make soak): 20 jobs for three minutes")


def test_jobs_in_a_storm(eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("DIBS_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    work = tmp_path / "work"
    (work / "cards").mkdir(parents=True)
    (work / "rank.py").write_text(RANK)
    monkeypatch.chdir(work)
    storm = Storm(eight_gpus, work, dice)
    try:
        storm.rage(SECONDS)
        storm.calm()
    finally:
        storm.close()
    print(f"{storm.submitted} jobs, {storm.kills} kills, {storm.served} groups booked, ended: {storm.ends}")
    assert not (work / "twice").exists(), (work / "twice").read_text()
    assert storm.halves == []
    assert storm.overtaken == []
    with Workloads(eight_gpus) as service:
        assert [job.name for job in Jobs(service).list(all=False)] == []
        assert _incomplete(work, Jobs(service).list()) == []
        assert (service.leases(), service.queue(), service.sandboxes()) == ([], [], [])
        for job in Jobs(service).list():
            Jobs(service).delete(job.id)
    assert _left_running(work) == []
    assert [one.name for one in eight_gpus.sandboxes.iterdir()] == []  # removed with their jobs, logs and all
    assert storm.submitted >= JOBS
    assert storm.ends.get("complete", 0) >= (20 if SOAK else 1)


class Storm:
    def __init__(self, home: Home, work: Path, dice: random.Random) -> None:
        self.home, self.work, self.dice = home, work, dice
        self.gateways: list[subprocess.Popen[bytes]] = []
        self.submitted = self.kills = self.served = 0
        self.ends: dict[str, int] = {}
        self.halves: list[str] = []
        self.overtaken: list[str] = []
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def rage(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with Workloads(self.home) as service:
            jobs = Jobs(service)
            while time.monotonic() < until or self.submitted < JOBS:
                live = jobs.list(all=False)
                if len(live) < JOBS:
                    self._submit()
                self._serve()
                if self.dice.random() < 0.3:
                    self._kill(service)
                time.sleep(0.1)

    def _submit(self) -> None:
        """A detached `dibs train`, as a user starts it; some of them are killed on the way."""
        self.submitted += 1
        nodes, gpus = self.dice.randint(1, 4), self.dice.randint(1, 2)
        last = f"{self.dice.uniform(0.1, 1.5):.2f}"
        words = [
            sys.executable, "-m", "dibs", "train", "--detach", "--backend", "local", "--runtime", "plain",
            "--name", f"job{self.submitted}", "--nodes", str(nodes), "--gpu", str(gpus), "--",
            "python3", "rank.py", last,
        ]  # fmt: skip
        env = {**os.environ, "DIBS_HOME": str(self.home.state)}
        process = subprocess.Popen(words, cwd=self.work, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self.dice.random() < 0.2:
            time.sleep(self.dice.uniform(0.0, 0.6))
            process.kill()
            self.kills += 1
        process.wait()

    def _serve(self) -> None:
        self.gateways = [one for one in self.gateways if one.poll() is None]
        if not self.gateways:
            env = {**os.environ, "DIBS_HOME": str(self.home.state)}
            self.gateways.append(
                subprocess.Popen([sys.executable, "-c", GATEWAY], cwd=self.work, env=env, stdout=subprocess.DEVNULL)
            )

    def _kill(self, service: Workloads) -> None:
        """A gateway, a keeper, or a rank."""
        what = self.dice.choice(["gateway", "driver", "rank"])
        if what == "gateway" and self.gateways:
            self.gateways[0].kill()
        elif what == "driver":
            rows = [row for row in JobBook(service.ledger).jobs(live_only=True) if row.owner.pid != os.getpid()]
            if rows:
                _end(self.dice.choice(rows).owner.pid)
        elif what == "rank":
            handles = [handle_of(one) for one in service.sandboxes()]
            inits = [handle.init.pid for handle in handles if handle.init is not None]
            if inits:
                _end(self.dice.choice(inits))
        self.kills += 1

    def _watch(self) -> None:
        """Whenever the books are looked at, a job's group is booked as a whole or not at all, and in its turn."""
        before: list[Ticket] = []
        groups: dict[str, str] = {}
        with Workloads(self.home, compare=False) as service:
            while not self._watching.wait(0.05):
                try:
                    with service.ledger.writing():
                        jobs = [Jobs(service).get(row.id) for row in JobBook(service.ledger).jobs(live_only=True)]
                        booked = {job.id: len(service.ledger.group(job.status.group)) for job in jobs}
                        queue = service.ledger.tickets()
                        free = CARDS - sum(len(lease.devices) for lease in service.ledger.leases())
                except DibsError:
                    continue
                waiting = _patient(queue)
                for job in jobs:
                    if not job.status.group:
                        continue
                    if booked[job.id] != len(job.ranks):
                        self.halves.append(f"{job.name}: {job.status.group}")
                    if groups.get(job.id) != job.status.group:
                        groups[job.id] = job.status.group
                        self.served += 1
                        # What was free when it was booked was enough for all in front of it, and then for itself.
                        ahead = [one for one in waiting if _same(one, _ahead(before, job.id))]
                        if free < sum(_cards(one) for one in ahead):
                            self.overtaken.append(f"{job.name} overtook {[one.sandbox_id for one in ahead]}")
                before = queue

    def calm(self) -> None:
        """No more kills: everything that was accepted comes to an end."""
        until = time.monotonic() + PATIENCE
        with Workloads(self.home) as service:
            while left := Jobs(service).list(all=False):
                self._serve()
                assert time.monotonic() < until, [(job.name, job.state, job.status.waits_for) for job in left]
                time.sleep(0.2)
            for job in Jobs(service).list():
                self.ends[job.state] = self.ends.get(job.state, 0) + 1

    def close(self) -> None:
        self._watching.set()
        self._watcher.join()
        for one in self.gateways:
            one.kill()
            one.wait()


def _patient(queue: list[Ticket]) -> list[Ticket]:
    """Those whose driver lives, and has not been called: it is not the one that keeps the others waiting."""
    return [one for one in queue if one.called_at is None and not absent(one.owner)]


def _ahead(queue: list[Ticket], job_id: str) -> list[Ticket]:
    """Who was in front of a job; it is behind all of them if it had no place yet."""
    places = [number for number, one in enumerate(queue) if one.sandbox_id == job_id]
    return _patient(queue[: places[0]] if places else queue)


def _same(ticket: Ticket, others: list[Ticket]) -> bool:
    """Whether it is among them, with the same driver: it has waited from one look to the other."""
    return any((one.id, one.owner) == (ticket.id, ticket.owner) for one in others)


def _cards(ticket: Ticket) -> int:
    return sum(int(selector.count) for selector in request_of(ticket.request).gpus)


def _incomplete(work: Path, jobs: Sequence[Job]) -> list[str]:
    """Jobs that are called complete though not every rank of their last group has begun."""
    begun: dict[str, set[int]] = {}
    for line in (work / "begun").read_text().splitlines():
        group, rank, _ = line.split()
        begun.setdefault(group, set()).add(int(rank))
    return [
        f"{job.name}: {begun.get(job.status.group)}"
        for job in jobs
        if job.state == "complete" and begun.get(job.status.group) != set(range(len(job.ranks)))
    ]


def _left_running(work: Path) -> list[str]:
    """Ranks that still hold a card, by its lock, and processes that still have their program."""
    held = []
    for file in (work / "cards").iterdir():
        with file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                held.append(file.name)
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"rank.py" in words and os.readlink(entry / "cwd") == str(work):
                held.append(f"process {entry.name}")
        except OSError:
            continue  # it has ended meanwhile
    return held


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

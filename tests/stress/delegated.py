"""Gateways of two hosts that deliver to one simulated cluster and are killed all the time. A program, started by
`test_delegated_kills`; it forks, so it has no threads of its own.

    python -m tests.stress.delegated <kills> <seed> <url of a PostgreSQL> <folder>

Each gateway admits, delivers, removes, and dies: after some requests, or at a random point of its own code. Meanwhile
the cluster holds its scheduler, refuses late, moves what runs and loses nodes. The clocks of the gateways run fast, so
that a silent one is taken over within seconds. It prints a line per violation, and ends with 1 if there is one.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psycopg
from tests.stress.load import shared_devices

from dibs.backends.fake.cluster import FakeCluster
from dibs.backends.fake.scheduled import FakeClusterBackend
from dibs.errors import DibsError
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads import dispatcher
from dibs.workloads.admission import Asking, admit_all
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.service import Workloads

_LOG = logging.getLogger("storm")
HOSTS = ("one", "two")
SPEED = 10.0  # of the gateways' clocks
THOROUGH = 0.5  # seconds between two looks of a gateway at everything; times SPEED far below what counts as silence
NODES, CARDS = 2, 4
MOST = 8  # live sandboxes at a time, of both
MOST_ACTS = 12  # requests after which a gateway dies, if it does not come to the point where it is to die before
SETTLE = 180.0
POINTS = [
    (where, verb)
    for where, verbs in {
        "ledger": (
            "delegate",
            "record_handle",
            "bind",
            "attach",
            "forget_pending",
            "adopt",
            "set_state",
            "add_sandbox",
        ),
        "backend": ("create", "placement", "start", "observe", "stop", "delete", "discard", "status"),
    }.items()
    for verb in verbs
]


# -- a gateway --------------------------------------------------------------------------------------------------------


def _arm(dice: random.Random) -> None:
    """Die at a point of the code, before or after it, when it is reached for the nth time."""
    where, verb = dice.choice(POINTS)
    kind: Any = FakeClusterBackend if where == "backend" else Ledger
    real, after, left = getattr(kind, verb), dice.random() < 0.5, dice.randrange(1, 4)

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        answer = real(*args, **kwargs) if left or after else None
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(kind, verb, deadly)


def _be(host: str, folder: Path) -> None:
    os.environ |= {"DIBS_HOST_ID": f"host-{host}", "DIBS_BOOT_ID": f"boot-{host}", "DIBS_HOME": str(folder / host)}


def _gateway(host: str, folder: Path, seed: int, *, deadly: bool, admits: bool) -> NoReturn:
    """In a process of its own; it never returns."""
    _be(host, folder)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the storm
    log = os.open(folder / f"{host}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.WARNING)
    dice = random.Random(seed)
    dispatcher._THOROUGH = THOROUGH
    if deadly and dice.random() < 0.6:
        _arm(dice)
    try:
        hands = Dispatcher(Workloads, workers=2, clock=lambda: time.monotonic() * SPEED)
        hands.start()
        with Workloads() as service, (folder / "accepted").open("a") as accepted:
            left = dice.randrange(1, MOST_ACTS) if deadly else -1
            while left:
                left -= 1
                with contextlib.suppress(DibsError):  # another gateway was faster, or it is not in that state any more
                    _act(service, hands, dice, accepted, admits=admits)
                time.sleep(dice.uniform(0.0, 0.2))
            os.kill(os.getpid(), signal.SIGKILL)  # its other threads are anywhere
    except BaseException:
        _LOG.exception("a gateway failed")
        raise
    finally:
        os._exit(9)


def _act(service: Workloads, hands: Dispatcher, dice: random.Random, accepted: Any, *, admits: bool) -> None:
    rows = service.sandboxes()
    if admits and len(rows) < MOST and dice.random() < 0.7:
        word = dice.choice([["sleep", "1000"], ["sleep", "1000"], ["true"], ["echo", "said"]])
        spec = {"gpu": dice.randrange(1, 4), "backend": "fake-cluster", "command": word, "wait": "1h"}
        [admitted] = admit_all([Asking(workloads=service, spec=parse_spec(spec))])
        if isinstance(admitted, Exception):
            raise admitted
        accepted.write(f"{admitted.row.id}\n")
        accepted.flush()
        hands.submit(admitted)
    elif admits and rows and dice.random() < 0.5:
        service.remove(dice.choice(rows).id, 0.0)


# -- the storm --------------------------------------------------------------------------------------------------------


class Kills:
    def __init__(self, kills: int, seed: int, url: str, folder: Path) -> None:
        self.wanted, self.url, self.folder = kills, url, folder
        self.dice = random.Random(seed)
        self.cluster = FakeCluster.make(str(folder / "cluster.db"), nodes=NODES, cards=CARDS)
        self.living: dict[int, str] = {}  # process id → host
        self.told: Counter[str] = Counter()
        os.environ |= {"DIBS_LEDGER": url, "DIBS_FAKE_CLUSTER": self.cluster.path}

    def begin(self, host: str, *, deadly: bool = True, admits: bool = True) -> None:
        sys.stdout.flush()
        seed = self.dice.randrange(1 << 32)
        pid = os.fork()
        if pid == 0:
            _gateway(host, self.folder, seed, deadly=deadly, admits=admits)
        self.living[pid] = host

    def reap(self) -> list[str]:
        """The hosts whose gateway has died."""
        dead = []
        for pid in list(self.living):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                host = self.living.pop(pid)
                if not os.WIFSIGNALED(status):
                    raise SystemExit(f"a gateway ended by itself:\n{(self.folder / f'{host}.log').read_text()[-6000:]}")
                dead.append(host)
        return dead

    def run(self) -> list[str]:
        found: list[str] = []
        self._make_tables()
        for host in HOSTS:
            self.begin(host)
        while self.told["kills"] < self.wanted and not found:
            for host in self.reap():
                self.told["kills"] += 1
                if self.told["kills"] % 25 == 0:
                    (self.folder / "progress").write_text(f"{dict(self.told)}\n")
                found = self.violations()
                self.begin(host)
            self.disturb()
            time.sleep(0.02)
        return found or self.settle()

    def _make_tables(self) -> None:
        """In a process of its own: names of hosts are read once."""
        if os.fork() == 0:
            _be("judge", self.folder)
            with Workloads() as service:
                os._exit(len(service.sandboxes()))
        assert os.wait()[1] == 0

    def disturb(self) -> None:
        """What a cluster does without being asked."""
        if self.dice.random() > 0.1:
            return
        pods = self.cluster.pods()
        held = [pod for pod in pods if pod.state in ("bound", "running")]
        what = self.dice.choice(("hold", "go on", "go on", "delay", "refuse", "move", "lose", "time"))
        if what == "hold":
            self.cluster.hold("0/2 nodes are available: 2 node(s) had untolerated taint")
        elif what == "go on":
            self.cluster.hold("")
        elif what == "delay":
            self.cluster.delay(self.dice.choice((0.0, 0.0, 5.0)))
        elif what == "time":
            self.cluster.advance(5.0)
        elif what == "refuse" and (waiting := [pod for pod in pods if pod.state == "pending"]):
            self.cluster.refuse(self.dice.choice(waiting).id, "it will never fit")
        elif what == "move" and held:
            pod = self.dice.choice(held)
            with contextlib.suppress(AssertionError):  # no room there
                self.cluster.move(pod.id, "node-0" if pod.node == "node-1" else "node-1")
        elif what == "lose" and held and self.dice.random() < 0.3:
            self.cluster.lose(self.dice.choice(held).id)
        else:
            return
        self.told[what] += 1

    # -- the judge --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def looking(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url, connect_timeout=30) as connection:
            yield connection

    def violations(self) -> list[str]:
        with self.looking() as db:
            twice = db.execute(
                "SELECT unit_id FROM lease_units WHERE live = 1 GROUP BY domain, unit_id HAVING count(*) > 1"
            ).fetchall()
            leases = db.execute("SELECT id, devices FROM leases WHERE state <> 'free'").fetchall()
        found = [f"unit {row[0]} is live twice" for row in twice] + shared_devices(leases)
        return found + [f"{pod.id} was started {pod.starts} times" for pod in self.cluster.pods() if pod.starts > 1]

    def states(self) -> dict[str, str]:
        with self.looking() as db:
            return dict(db.execute("SELECT id, state FROM sandboxes").fetchall())

    def settle(self) -> list[str]:
        """No further requests: every accepted sandbox ends, and nothing is left."""
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)
        while self.living:
            self.reap()
        self.cluster.hold("")
        self.cluster.delay(0.0)
        for host in HOSTS:
            self.begin(host, deadly=False, admits=False)
        calm = self._until(lambda: not self._unsettled())
        found = [] if calm else [f"stuck: {one}" for one in self._unsettled()]
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)
        while self.living:
            self.reap()
        return found + self.violations() + self._left()

    def _until(self, condition: Any) -> bool:
        until = time.monotonic() + SETTLE
        while not condition():
            if self.reap() or time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _unsettled(self) -> list[str]:
        """What is on its way, or held by the ledger otherwise than by the cluster."""
        with self.looking() as db:
            rows = db.execute("SELECT id, state, step, waits_for FROM sandboxes").fetchall()
            found = [" ".join(row) for row in rows if row[1] in ("queued", "creating", "stopping")]
            running = {row[0] for row in db.execute("SELECT id FROM sandboxes WHERE state = 'running'").fetchall()}
        # What can be placed, and is not: there are eight cards, and those who wait come first.
        waiting = [pod for pod in self.cluster.pods() if pod.state == "pending"]
        if waiting:
            self._make_room(running)
        pods = {pod.id for pod in self.cluster.pods() if pod.state == "running"}
        return found + [f"{one} runs in one book only" for one in running ^ pods]

    def _make_room(self, running: set[str]) -> None:
        for pod in self.cluster.pods():
            if pod.id in running and pod.state == "running":
                self.cluster.lose(pod.id)
                return

    def _left(self) -> list[str]:
        _be("judge", self.folder)
        accepted = set((self.folder / "accepted").read_text().split())
        with Workloads() as service:
            states = self.states()
            self.told["accepted"] = len(accepted)
            self.told |= Counter(f"ended as {state}" for state in states.values())
            found = [f"{one} was accepted and is forgotten" for one in accepted - set(states)]
            for row in service.sandboxes():
                lease = [one for one in service.leases() if one.sandbox_id == row.id]
                mine = sorted(device.id for one in lease for device in one.devices)
                if mine != self.cluster.cards_of(row.id):
                    found.append(f"{row.id} has {self.cluster.cards_of(row.id)}, its lease says {mine}")
                service.remove(row.id, 0.0)
            found += [f"lease {lease.id} is left" for lease in service.leases()]
            found += [f"sandbox {row.id} is left: {row.state}" for row in service.sandboxes()]
            found += [f"{ticket.id} still waits" for ticket in service.queue()]
        found += [f"pod {pod.id} is left: {pod.state}" for pod in self.cluster.pods() if pod.exit is None]
        return found + [f"cards of {pod.id} are left" for pod in self.cluster.pods() if self.cluster.cards_of(pod.id)]


def main() -> None:
    kills, seed, url, folder = sys.argv[1:5]
    storm = Kills(int(kills), int(seed), url, Path(folder))
    began = time.monotonic()
    found = storm.run()
    print(f"seed {seed}: {dict(sorted(storm.told.items()))} in {time.monotonic() - began:.0f} s")
    for line in found:
        print(f"VIOLATION: {line}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

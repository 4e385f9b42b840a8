"""Fifty clients and four cards on a real engine, while the engine and the clients are killed: nothing is booked twice.

Real processes, the real ledger, a real engine; only the cards are simulated. Two things are looked at all the time,
past dibs: the units of live leases, and the nodes in the containers' own /dev. Three minutes for each engine at full
size (`DIBS_SOAK=1`); what runs otherwise is the same, shorter.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.engines import images
from tests.engines.installing import CannotInstall
from tests.engines.running import Engine, _processes

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.workloads.service import Workloads

pytestmark = pytest.mark.stress

CLIENTS = 50
CARDS = 4
SECONDS = 180.0 if os.environ.get("DIBS_SOAK") else 30.0
# What a client may end with: done; killed, or its container was (255 where Docker finds it dead after its own start,
# 143 where it ends by itself what it finds running then); the engine was away (86), or came back meanwhile (88).
STATED = frozenset((0, 86, 88, 137, 143, 255, -signal.SIGKILL))


class Crowd:
    """The clients, and those who look at them."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.dice = random.Random(seed)
        self.home = Home(state=engine.home, config=engine.home / "config").make()
        self.home.config.mkdir(exist_ok=True)
        (self.home.config / "config.toml").write_text(f'[{engine.kind}]\nsocket = "{engine.socket}"\n')
        simulate(self.home, parse_world(str(CARDS), model="H100"))
        Workloads(self.home).ledger.close()
        self.work = engine.folder / "work"  # a working directory that the engine sees at the same path
        self.work.mkdir()
        self.children: list[subprocess.Popen[bytes]] = []
        self.ends: Counter[int] = Counter()
        self.words: Counter[str] = Counter()
        self.broken: list[str] = []
        self.most = 0  # containers with a card, seen at once
        self.looks = 0

    def start(self) -> None:
        words = [sys.executable, "-m", "dibs", "run", "-q", "--no-tty", "--gpu", "1", "--wait", "20m", "--grace", "0s"]
        words += ["--backend", self.engine.kind, "--image", images.REFERENCE, "--clean-env"]
        self.children.append(
            subprocess.Popen(
                [*words, "--", "sleep", f"{self.dice.uniform(0, 0.5):.2f}"],
                env={**os.environ, "DIBS_HOME": str(self.home.state)}, stdin=subprocess.DEVNULL, cwd=self.work,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            )
        )  # fmt: skip

    def reap(self) -> None:
        left = []
        for child in self.children:
            if child.poll() is None:
                left.append(child)
                continue
            assert child.stderr is not None
            said = child.stderr.read().decode(errors="replace")
            child.stderr.close()
            self.ends[child.returncode] += 1
            if said:
                self.words[f"{child.returncode}: {said.strip().splitlines()[-1][-160:]}"] += 1
            if child.returncode not in STATED or "Traceback" in said:
                self.broken.append(f"{child.returncode}: {said}")
        self.children = left

    def kill_client(self) -> None:
        victim = self.dice.choice(self.children)
        victim.kill()

    # --- looking

    def booked_twice(self) -> list[str]:
        with sqlite3.connect(self.home.ledger) as connection:
            rows = connection.execute(
                "SELECT unit_id FROM lease_units WHERE live = 1 GROUP BY unit_id HAVING count(*) > 1"
            ).fetchall()
        connection.close()
        return [str(row[0]) for row in rows]

    def in_two_containers(self) -> list[str]:
        """Cards that are in the /dev of two containers at the same moment."""
        seen: dict[str, dict[int, tuple[int, str]]] = {}
        for pid in _processes(self.engine.folder.name):
            try:
                cards = [name for name in os.listdir(f"/proc/{pid}/root/dev") if name.startswith("simgpu")]
                space = os.stat(f"/proc/{pid}/ns/mnt").st_ino
                began = _began(pid)
            except OSError:
                continue
            for card in cards:
                seen.setdefault(card, {})[space] = (pid, began)
        self.looks += 1
        self.most = max(self.most, len({space for spaces in seen.values() for space in spaces}))
        found = []
        for card, spaces in seen.items():
            # One may have ended before the other began: only those count that are all still there now.
            alive = [pid for pid, began in spaces.values() if _began(pid) == began]
            if len(alive) > 1:
                found.append(f"{card}: {'; '.join(map(_described, alive))}")
        return found


def _described(pid: int) -> str:
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        group = Path(f"/proc/{pid}/cgroup").read_text().strip().splitlines()[-1]
    except OSError:
        return f"{pid} is gone"
    said = [_words(one).replace(b"\0", b" ").decode(errors="replace")[:300] for one in (pid, parent)]
    return f"{pid} {said[0]!r} in {group}, child of {parent} {said[1]!r}"


def _began(pid: int) -> str:
    """When a process began; empty if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_fifty_clients_share_four_cards_while_the_engine_is_killed(kind: str) -> None:
    try:
        engine = Engine(kind)
        engine.start()
        engine.load()
    except CannotInstall as error:
        pytest.skip(f"{kind} is not here: {error}")
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    crowd = Crowd(engine, seed)
    kills = Counter[str]()
    try:
        began = time.monotonic()
        next_engine, next_client = began + 6.0, began + 3.0
        while (now := time.monotonic()) < began + SECONDS:
            crowd.reap()
            while len(crowd.children) < CLIENTS:
                crowd.start()
            assert crowd.booked_twice() == []
            assert crowd.in_two_containers() == []
            if now > next_client:
                crowd.kill_client()
                kills["dibs"] += 1
                next_client = now + crowd.dice.uniform(0.2, 1.5)
            if now > next_engine and crowd.ends[0]:  # fifty who all start at once are busy with that at first
                engine.kill()
                kills[kind] += 1
                if crowd.dice.random() < 0.5:
                    time.sleep(crowd.dice.uniform(0, 1.0))
                    assert crowd.booked_twice() == []
                    assert crowd.in_two_containers() == []
                engine.start()
                next_engine = time.monotonic() + crowd.dice.uniform(4.0, 12.0)
            time.sleep(0.05)
        settle(crowd)
        print(
            f"{kind}: {SECONDS:.0f} s, {sum(crowd.ends.values())} clients, {crowd.ends[0]} served, "
            f"kills {dict(kills)}, at most {crowd.most} containers at once, {crowd.looks} looks; "
            f"ends {dict(crowd.ends)}"
        )
        for line, number in crowd.words.most_common(8):
            print(f"  {number} × {line}")
        assert crowd.broken == []
        assert crowd.ends[0], "some must have been served"
        assert set(kills) == {"dibs", kind}, "both kinds must have been hit"
        assert crowd.most <= CARDS
    finally:
        for child in crowd.children:
            child.kill()
            child.wait()
            if child.stderr is not None:
                child.stderr.close()
        engine.stop()
    assert _processes(engine.folder.name) == []
    assert not engine.folder.exists()


def settle(crowd: Crowd) -> None:
    """All end at once; then nothing is held, nothing runs, and what has ended can be removed."""
    for child in crowd.children:
        child.kill()
    for child in crowd.children:
        child.wait()
    crowd.reap()
    deadline = time.monotonic() + 60
    while True:
        with Workloads(crowd.home) as service:
            live = (service.leases(), service.sandboxes(), service.queue())
            ended = {f"dibs-{row.id}": row.id for row in service.sandboxes(all=True)}
        running = [one for one in crowd.engine.containers() if one["State"] in ("running", "paused", "created")]
        if not (any(live) or running) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert live == ([], [], [])
    assert running == []
    left = {str(one["Names"][0]).lstrip("/") for one in crowd.engine.containers()}  # type: ignore[index]
    assert left <= set(ended), "a container that no ledger knows"
    with Workloads(crowd.home) as service:
        for name in sorted(left)[:20]:
            service.remove(ended[name], 0.0)
    now = {str(one["Names"][0]).lstrip("/") for one in crowd.engine.containers()}  # type: ignore[index]
    assert now == left - set(sorted(left)[:20])
    token = str(crowd.home.state).encode()
    while keepers := [pid for pid in _pids() if b"import ttl_daemon" in _words(pid) and token in _words(pid)]:
        assert time.monotonic() < deadline + 30, f"processes that keep time are left: {keepers}"
        time.sleep(0.1)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""

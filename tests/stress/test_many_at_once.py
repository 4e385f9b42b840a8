"""Many at once, and many kills: nothing is booked twice, nothing is lost, nothing leaks.

Real processes, the real ledger, real sandboxes; only the GPUs are simulated. Each command proves on its own that it is
alone on its device: it makes a folder named after the device, which fails if it exists already. With DIBS_SOAK=1
there are two hundred processes and five hundred kills.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.workloads.service import Workloads

pytestmark = pytest.mark.stress

SOAK = bool(os.environ.get("DIBS_SOAK"))  # read now: a test has no DIBS_ variables of ours
PROCESSES = 200 if SOAK else 60
KILLS = 500 if SOAK else 100

ALONE = (
    'lock="lock-$CUDA_VISIBLE_DEVICES"; mkdir "$lock" 2>>collisions && echo x >>ran && sleep {pause} && rmdir "$lock"'
)


def start(home: Home, folder: Path, pause: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dibs", "run", "-q", "--no-tty", "--gpu", "1", "--wait", "20m", "--grace", "0s"]
    return subprocess.Popen(
        [*command, "--", "sh", "-c", ALONE.format(pause=pause)],
        cwd=folder,
        env={**os.environ, "DIBS_HOME": str(home.state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def processes_of(home: Home) -> dict[int, str]:
    """Every process that belongs to this test: dibs, shims, bubblewrap, commands. All of them name its folder."""
    found = {}
    needle = str(home.state.parent).encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environ = file.read()
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                cmdline = file.read()
            cwd = os.readlink(f"/proc/{entry}/cwd").encode()
        except OSError:
            continue
        if needle in environ or needle in cmdline or needle in cwd:
            found[int(entry)] = cmdline.replace(b"\0", b" ").decode(errors="replace")
    return found


def overtaken(home: Home) -> int:
    """The most places by which a request was served before its turn."""
    connection = sqlite3.connect(home.ledger)
    rows = connection.execute("SELECT kind, detail FROM events WHERE kind LIKE 'queue.%' ORDER BY seq").fetchall()
    connection.close()
    joined = [detail for kind, detail in rows if kind == "queue.joined"]
    served = [detail.removesuffix(": served") for kind, detail in rows if detail.endswith(": served")]
    places = {ticket: place for place, ticket in enumerate(joined)}
    return max(places[ticket] - turn for turn, ticket in enumerate(served))


def settled(home: Home) -> None:
    """After the next start of dibs: no live lease, no live sandbox, an empty queue, no process left."""
    deadline = time.monotonic() + 60
    while True:
        with Workloads(home) as service:
            left = (service.leases(), service.sandboxes(), service.queue(), processes_of(home))
        if not any(left) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert left == ([], [], [], {})


def test_many_processes_ask_for_one_of_eight_gpus(tmp_path: Path) -> None:
    home = Home(state=tmp_path / "home", config=tmp_path).make()
    work = tmp_path / "work"
    work.mkdir()
    simulate(home, parse_world("8", model="H100"))
    children = [start(home, work, 0.02) for _ in range(PROCESSES)]
    failed = [(child.wait(), child.stderr.read().decode() if child.stderr else "") for child in children]
    for child in children:
        if child.stderr:
            child.stderr.close()
    assert [code for code in failed if code[0] != 0] == []
    assert (work / "ran").read_text().count("x") == PROCESSES
    assert not (work / "collisions").exists() or (work / "collisions").read_text() == ""
    # Eight GPUs may be free at once, each for one of the first eight; among those the quickest goes first.
    assert overtaken(home) < 8, "first come, first served"
    settled(home)


def test_kills_at_random_points_leak_nothing(tmp_path: Path) -> None:
    home = Home(state=tmp_path / "home", config=tmp_path).make()
    work = tmp_path / "work"
    work.mkdir()
    simulate(home, parse_world("8", model="H100"))
    Workloads(home).ledger.close()  # so that there is a ledger to look into from the first kill on
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    children: list[subprocess.Popen[bytes]] = []
    kills = {"dibs": 0, "shim": 0, "sandbox": 0}
    # Commands are few on a slow machine: a kind that was hit less often goes first, until each was hit often.
    while sum(kills.values()) < KILLS or min(kills.values()) <= KILLS // 25:
        children = [child for child in children if child.poll() is None or child.stderr is None or child.stderr.close()]
        while len(children) < 20:
            children.append(start(home, work, dice.uniform(0, 0.2)))
        time.sleep(dice.uniform(0, 0.05))
        victims = processes_of(home)
        if not victims:
            continue
        kinds: dict[str, list[int]] = {"dibs": [], "shim": [], "sandbox": []}
        for pid, line in victims.items():
            kind = "dibs" if "-m dibs run" in line else "shim" if "shim" in line else "sandbox"
            kinds[kind].append(pid)
        kind = min((kind for kind, pids in kinds.items() if pids), key=lambda kind: (kills[kind], dice.random()))
        try:
            os.kill(dice.choice(kinds[kind]), signal.SIGKILL)
        except ProcessLookupError:
            continue
        kills[kind] += 1
        with sqlite3.connect(home.ledger) as connection:
            twice = connection.execute(
                "SELECT unit_id FROM lease_units WHERE live = 1 GROUP BY unit_id HAVING count(*) > 1"
            ).fetchall()
        connection.close()
        assert twice == []
    for child in children:
        child.wait()
        if child.stderr:
            child.stderr.close()
    print(f"kills: {kills}")
    # A killed command leaves its folder behind; no other command may have found one of a live lease.
    settled(home)

"""Very many wait at once: all are served in their order or told in time that they are not, and nothing is refused.

Real processes, the real ledger, real sandboxes; only the GPUs are simulated. With DIBS_SOAK=1 there are a thousand.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.stress.test_many_at_once import overtaken, settled

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home

pytestmark = pytest.mark.stress

WAITERS = 1000 if os.environ.get("DIBS_SOAK") else 120
IMPATIENT = 10  # one in so many waits only for a short while
SHORT = 5.0
ALONE = 'mkdir "lock-$CUDA_VISIBLE_DEVICES" && sleep 0.05 && rmdir "lock-$CUDA_VISIBLE_DEVICES"'


def start(home: Home, folder: Path, wait: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dibs", "run", "-q", "--no-tty", "--gpu", "1", "--wait", wait, "--grace", "0s"]
    return subprocess.Popen(
        [*command, "--", "sh", "-c", ALONE],
        cwd=folder,
        env={**os.environ, "DIBS_HOME": str(home.state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def memory_of(pid: int) -> int:
    """What a process keeps for itself, in kilobytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def times_in_queue(home: Home) -> dict[str, list[float]]:
    """For how long those who were served, and those who were not, stood in the queue."""
    found: dict[str, list[float]] = {"served": [], "late": []}
    joined: dict[str, float] = {}
    connection = sqlite3.connect(home.ledger)
    for at, kind, detail in connection.execute("SELECT at, kind, detail FROM events WHERE kind LIKE 'queue.%'"):
        ticket, _, why = detail.partition(": ")
        if kind == "queue.joined":
            joined[ticket] = at
        else:
            found["served" if why == "served" else "late"].append(at - joined[ticket])
    connection.close()
    return found


def test_very_many_wait_and_each_is_served_in_turn_or_told_in_time(tmp_path: Path) -> None:
    home = Home(state=tmp_path / "home", config=tmp_path).make()
    work = tmp_path / "work"
    work.mkdir()
    simulate(home, parse_world("8", model="H100"))
    began = time.monotonic()
    children = {
        number: start(home, work, f"{SHORT}s" if number % IMPATIENT == 0 else "2h") for number in range(WAITERS)
    }
    largest = 0
    for child in children.values():
        while child.poll() is None:
            largest = max(largest, memory_of(children[max(children)].pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5.0)
    took = time.monotonic() - began
    ends = {}
    for number, child in children.items():
        assert child.stderr is not None
        ends[number] = (child.returncode, child.stderr.read().decode())
        child.stderr.close()
    served = [number for number, (code, _) in ends.items() if code == 0]
    late = [number for number, (code, errors) in ends.items() if code == 90 and "WAIT_TIMEOUT" in errors]
    waited = times_in_queue(home)
    queued = sum(map(len, waited.values()))
    overtime = max(waited["late"], default=SHORT) - SHORT
    print(
        f"{WAITERS} at once, {queued} had to queue: {len(served)} served, {len(late)} timed out in {took:.0f} s;"
        f" overtaken by {overtaken(home)} places at most; told {overtime:.1f} s late at most; {largest} kB each"
    )
    assert {number: end for number, end in ends.items() if number not in served and number not in late} == {}
    assert set(late) <= {number for number in children if number % IMPATIENT == 0}, "only the impatient give up"
    # How long it takes to leave says how busy the machine is; a forgotten waiter would stay for minutes.
    assert max(waited["late"], default=0.0) < SHORT + 60.0
    # Eight GPUs may be free at once, each for one of the first eight; among those the quickest goes first.
    assert overtaken(home) < 8 + len(late), "first come, first served"
    settled(home)

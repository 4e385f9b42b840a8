"""Two gateways with four workers each book the same eight units on one PostgreSQL; half of them are killed meanwhile.

The witness is the kernel: a process that books a unit locks a file of its name, and no lock may be refused. The lock
goes with its process, and the booking of a dead process is freed only when it is proved gone. Once the ledger has its
own lock, once only the unique index: it alone is the proof.

A record beside the ledger is written before the commit that it belongs to. Without the lock others see it too early,
and a worker that is killed in between leaves it behind: booking is refused then, and a worker asks again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import psycopg
import pytest
from tests.postgres import server

from dibs.home import Home
from dibs.ledger.store import Ledger
from dibs.sandbox import SandboxState

_WORKER = """
import fcntl, random, sys, time
from pathlib import Path
from dibs.errors import BackendUnavailable, Busy
from dibs.home import find_home
from dibs.ledger import postgres
from dibs.ledger.rows import LeasedDevice
from dibs.receipt import Facts, Receipt
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Handle, Parts, SandboxState, SandboxId, Sandbox
from dibs.ledger.store import Ledger, new_id
from dibs.process import myself

RECEIPT = Receipt("", "", "fake", 1.0, "delivered", False, {}, (), (), {}, Facts(), Facts())
locks, rounds, locked = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "locked"
if not locked:
    postgres._LOCK = "SELECT 1"
ledger, dice, done = Ledger(find_home()), random.Random(sys.argv[4]), 0
while done < rounds:
    row = Sandbox(id=SandboxId(new_id("sb")), name=new_id("n"), backend="fake", state=SandboxState.CREATING, uid=0,
                     username="a", owner=myself(), parts=Parts(spec=SandboxSpec()), folder="/", created_at=time.time())
    units = dice.sample([f"gpu-{n}" for n in range(8)], dice.randint(1, 3))
    try:
        with ledger.writing():
            ledger.add_sandbox(row)
            ledger.reserve(row.id, [LeasedDevice(unit, units=(unit,)) for unit in units])
    except (Busy, BackendUnavailable) as refusal:
        if isinstance(refusal, BackendUnavailable) and refusal.code != "LEDGER_INCOMPLETE":
            raise
        for recorded in ledger.unknown():
            if not ledger.sandbox(recorded).live:  # a worker of the other home has ended it
                ledger.drop_unknown(recorded)
        for other in ledger.sandboxes(live_only=True):
            if other.orphaned:
                with ledger.writing():
                    ledger.end(other.id, SandboxState.FAILED, exit=None, reason="its owner is gone")
        continue
    files = [open(locks / unit, "w") for unit in units]
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with ledger.writing():
        ledger.attach(row.id, handle=Handle("fake", row.id, "/"), receipt=RECEIPT)
    for file in files:
        file.close()
    with ledger.writing():
        assert ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
    done += 1
    print(done, flush=True)
"""
_ROUNDS = 60


def stdout(worker: subprocess.Popen[str]) -> IO[str]:
    assert worker.stdout is not None
    return worker.stdout


@pytest.mark.stress
@pytest.mark.parametrize("way", ["locked", "index-only"])
def test_no_unit_is_ever_booked_twice_though_half_are_killed(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    url = server.shared().new_database()
    monkeypatch.setenv("DIBS_LEDGER", url)
    locks = tmp_path / "locks"
    locks.mkdir()
    homes = [tmp_path / "one", tmp_path / "two"]
    Ledger(home).close()  # the tables: it is the lock that keeps two from making them at once
    dice = random.Random(4)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(locks), str(_ROUNDS), way, str(number)],
            env={**os.environ, "DIBS_HOME": str(homes[number % 2])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    try:
        for worker in workers[:4]:
            for _ in range(dice.randint(5, 30)):
                assert stdout(worker).readline(), "it has failed before its time"
            worker.send_signal(signal.SIGKILL)
        rest = [worker.communicate()[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            stdout(worker).close()
    assert [worker.returncode for worker in workers] == [-9] * 4 + [0] * 4
    assert all(text.split()[-1] == str(_ROUNDS) for text in rest[4:])
    with Ledger(home) as ledger:
        for row in ledger.sandboxes(live_only=True):
            assert row.orphaned
            with ledger.writing():
                ledger.end(row.id, SandboxState.FAILED, exit=None, reason="its owner is gone")
        assert ledger.holders() == {}
        assert ledger.tickets() == []
    with psycopg.connect(url) as connection:
        index = connection.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'lease_units_live'").fetchone()
        assert index is not None
        assert "UNIQUE" in index[0]
        count = connection.execute("SELECT count(*) FROM sandboxes WHERE state = 'exited'").fetchone()
        assert count is not None
        assert count[0] >= 4 * _ROUNDS

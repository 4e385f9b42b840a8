"""Leases per second: reserve, attach, end, with one process and with eight on one ledger."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import row, title

_WORKER = """
import sys, time
from pathlib import Path
from dibs.request.spec import SandboxSpec
from dibs.home import Home
from dibs.ledger.rows import LeasedDevice
from dibs.sandbox import Parts, SandboxState, SandboxId, Sandbox
from dibs.ledger.store import Ledger, new_id
from dibs.process import myself
folder, number, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
ledger = Ledger(Home(state=folder, config=folder))
print("ready", flush=True)
input()
done, end = 0, time.perf_counter() + seconds
while time.perf_counter() < end:
    row = Sandbox(id=SandboxId(new_id("sb")), name=new_id("n"), backend="fake", state=SandboxState.CREATING, uid=0,
                     username="a", owner=myself(), parts=Parts(spec=SandboxSpec()), folder="/", created_at=time.time())
    with ledger.writing():
        ledger.holders()
        ledger.add_sandbox(row)
        ledger.reserve(row.id, [LeasedDevice("gpu-" + number, units=("gpu-" + number,))])
    with ledger.writing():
        ledger.attach(row.id, handle=b"{}", receipt=b"{}")
    with ledger.writing():
        ledger.end(row.id, SandboxState.EXITED, exit=b"{}", reason="done")
    done += 1
print(done)
"""


def _rate(processes: int, seconds: float = 2.0) -> float:
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", _WORKER, str(Path(folder)), str(number), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(processes)
        ]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        began = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        done = sum(int(worker.communicate()[0]) for worker in workers)
        return done / (time.perf_counter() - began)


def leases() -> None:
    title("leases per second (reserve, attach, end: three transactions each)")
    one = _rate(1)
    row("1 process", f"{one:.0f}/s", "1.00×")
    for processes in (2, 8):
        rate = _rate(processes)
        row(f"{processes} processes on one ledger", f"{rate:.0f}/s", f"{rate / one:.2f}×")

"""kill -9 of a gateway at any point of a delivery: what it had accepted runs in the end, once, on its devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.home import Home
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.service import Workloads

POINTS = [
    ("before", "ledger", "reserve"),
    ("after", "backend", "finalise"),
    ("before", "backend", "create"),
    ("after", "backend", "create"),
    ("after", "backend", "observe"),
    ("before", "ledger", "attach"),
    ("after", "ledger", "attach"),
    ("before", "backend", "start"),
    ("after", "backend", "start"),
    ("before", "ledger", "forget_pending"),
    ("after", "ledger", "forget_pending"),
]

SCRIPT = """
import os, signal, sys, threading
from dibs.backends.local.backend import LocalBackend
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads.admission import Asking, admit_all
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.service import Workloads
when, where, verb = sys.argv[1:4]
kind = LocalBackend if where == "backend" else Ledger
real = getattr(kind, verb)
def deadly(*args, **kwargs):
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, verb, deadly)
hands = Dispatcher(Workloads, workers=1)
with Workloads() as service:
    command = ["sh", "-c", "echo $VALUE >> ran; sleep 1000"]
    spec = parse_spec({"gpu": 8, "name": "one", "command": command, "workdir": os.getcwd(), "env": {"VALUE": "kept"}})
    hands.start()
    hands.submit(admit_all([Asking(workloads=service, spec=spec)])[0])
    threading.Event().wait()
"""


@pytest.mark.parametrize(("when", "where", "verb"), POINTS)
def test_what_was_accepted_runs_once(eight_gpus: Home, tmp_path: Path, when: str, where: str, verb: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, when, where, verb], cwd=work, capture_output=True, text=True, check=False
    )
    assert result.returncode == -9, result.stderr
    hands = Dispatcher(lambda: Workloads(eight_gpus), workers=1)
    hands.start()
    try:
        with Workloads(eight_gpus) as service:
            if verb == "reserve":  # the answer was never given, so nothing was promised
                assert service.sandboxes() == []
                return
            ran = work / "ran"
            while not (ran.exists() and ran.read_text()) or service.sandbox("one").pending is not None:
                assert service.sandbox("one").live, service.sandbox("one").reason
                os.sched_yield()
            row = service.sandbox("one")
            assert row.state == "running"
            assert [len(lease.devices) for lease in service.leases()] == [8]
            assert service.receipt("one").verdict == "delivered"
            assert ran.read_text() == "kept\n"
            service.remove("one", 0.0)
            assert service.leases() == []
    finally:
        hands.stop()

"""Signals to the first process of a container: none is sent before it would be heard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dibs.backends.engines import looking

BLOCKS_LATER = """
import signal, sys
print("up", flush=True)
sys.stdin.readline()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("blocked", flush=True)
sys.stdin.readline()
"""


def blocked(pid: int) -> bool:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("SigBlk:"))
    return bool(int(line.split()[1], 16) & 1 << 14)


def test_an_init_that_does_not_mind_signals_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BLOCKS_LATER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    stdin, stdout = child.stdin, child.stdout
    assert stdout.readline() == "up\n"
    waits: list[float] = []

    def go_on(seconds: float) -> None:
        """Instead of sleeping: let it get on."""
        if not waits:
            print(file=stdin, flush=True)
            assert stdout.readline() == "blocked\n"
        waits.append(seconds)

    monkeypatch.setattr("dibs.backends.engines.looking.time.sleep", go_on)
    looking.await_init(child.pid)
    assert waits
    assert blocked(child.pid)
    child.communicate("\n", timeout=60)


def test_whoever_is_gone_is_not_waited_for() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    looking.await_init(child.pid)

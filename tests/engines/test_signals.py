"""Signals to the first process of a container: none is sent before it would be heard."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dibs.backends.engines import process_view

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


def sleeping_with(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Only there: `subprocess`, which these tests use too, sleeps as it always does."""
    monkeypatch.setattr(process_view, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


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

    sleeping_with(monkeypatch, go_on)
    process_view.await_init(child.pid)
    assert waits
    assert blocked(child.pid)
    child.communicate("\n", timeout=60)


def test_a_process_that_is_gone_is_not_waited_for() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    process_view.await_init(child.pid)


# Docker's init does so: all signals are blocked, and waited for.
WAITS = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.signal(signal.SIGTTIN, signal.SIG_IGN)
print("waits", flush=True)
signal.sigwait([signal.SIGTERM])
"""


def test_an_init_that_waits_for_signals_minds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", WAITS], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "waits\n"
    while blocked(child.pid):  # from then on it waits, and the kernel shows no mask
        pass
    waits: list[float] = []
    sleeping_with(monkeypatch, waits.append)
    process_view.await_init(child.pid)
    assert not waits
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 0

"""A gateway for a test: the real server in a process of its own, on a unix socket, with the test's home.

The processes come from one that has loaded everything already (`nursery`), so that a gateway per test is cheap.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import msgspec

from dibs.home import Home


class Served(msgspec.Struct):
    """A running gateway."""

    url: str
    pid: int
    log: Path


@cache
def _nursery() -> subprocess.Popen[str]:
    script = Path(__file__).with_name("nursery.py")
    found = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end() -> None:
        found.communicate()

    atexit.register(end)
    return found


@contextmanager
def gateway_on(home: Home) -> Iterator[Served]:
    """Serve a home until the end of the block. Fails, with its log, if it dies or has a defect."""
    folder = Path(tempfile.mkdtemp(prefix="dibs-gw-"))  # a socket's path must be short
    log = folder / "log"
    environ = {name: value for name, value in os.environ.items() if name != "DIBS_URL"}
    asked = {"state": str(home.state), "config": str(home.config), "socket": f"{folder}/s", "log": str(log)}
    nursery = _nursery()
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(json.dumps({**asked, "environ": environ}) + "\n")
    nursery.stdin.flush()
    pid = int(nursery.stdout.readline() or 0)
    assert pid, log.read_text()
    descriptor = os.pidfd_open(pid)
    try:
        yield Served(f"unix://{folder}/s", pid, log)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        ended = select.select([descriptor], [], [], 30)[0]
        if not ended:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        text = log.read_text()
        shutil.rmtree(folder)
    assert ended, f"the gateway did not stop:\n{text}"
    assert "a defect" not in text, text

"""The process that owns a test cluster: it starts everything, says so on stdout, and ends it when its stdin ends.

    python -m tests.cluster.keeper BINARIES

Whoever started it may be killed without warning: its end of the pipe then closes, and the cluster goes. If the keeper
itself is killed, its processes die with it, and the next one sweeps its folder. It reads commands, one per line
(`stop NAME`, `start NAME`), so that tests can take a part of the control plane away.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.control_plane import CannotStart, ControlPlane

_PREFIX = "dibs-cluster-"
_TRIES = 3
_YOUNG = 300.0  # s


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; they close the pipe
    sweep()
    binaries = Path(sys.argv[1])
    failure = ""
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        (folder / "keeper").write_text(own_name(os.getpid()))
        plane = ControlPlane(binaries, folder)
        try:
            plane.start()
        except CannotStart as error:
            failure = str(error)
            plane.stop()
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            say({"folder": str(folder), "server": f"https://{plane.address}:{plane.port}"})
            serve(plane)
        finally:
            plane.stop()
            shutil.rmtree(folder, ignore_errors=True)
        return 0
    say({"error": failure})
    return 1


def serve(plane: ControlPlane) -> None:
    """Commands until the pipe closes."""
    starts = {
        "kube-apiserver": plane.start_api_server,
        "kube-controller-manager": plane.start_controllers,
        "kube-scheduler": plane.start_scheduler,
    }
    for line in sys.stdin:
        verb, _, name = line.strip().partition(" ")
        if verb == "stop":
            plane.processes[name].kill()
            plane.processes[name].wait()
        elif verb == "start":
            starts[name]()
        say({"done": line.strip()})


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


def own_name(pid: int) -> str:
    """A process by its id and start time, which no other process shares; empty if it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        return ""
    return f"{pid} {fields[19]}"


def _alive(name: str) -> bool:
    try:
        return own_name(int(name.split(maxsplit=1)[0])) == name
    except FileNotFoundError:
        return False


def sweep() -> None:
    """Remove folders whose keeper was killed; their processes died with it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            name = (folder / "keeper").read_text()
        except PermissionError:
            continue  # of another user
        except FileNotFoundError:
            if not folder.exists() or time.time() - folder.stat().st_mtime < _YOUNG:
                continue  # its keeper is about to write its name
            name = ""
        if name and _alive(name):
            continue
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

"""A look at a container between its set-up and its command.

The runtime (runc) makes everything ready, then waits on a fifo to be told to run the command. In that moment its
process is looked at from outside, exactly as a running container is: nodes, mounts, limits, namespaces, user. Only the
environment, the words and the folder of the command are not in the process yet; they are read from what the runtime was
told, changes by CDI included.

Podman stops there when asked to. Docker does not: a thread of ours watches its control group while Docker starts it.
That look is the proof; of a command that goes on, the environment is read once more from its own process (`observe`).
Where none could be taken, there is none, and the look comes after the start: it never makes one up.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec

from dibs.backends.engines import container_view, process_view
from dibs.backends.engines.cgroups import trees
from dibs.backends.engines.process_view import View
from dibs.backends.port import Observation
from dibs.errors import BackendUnavailable

_TICK = 0.002  # seconds between two looks at a process; the moment lasts for several of them, mostly
_PAUSE = 0.01  # seconds between two looks for a group: it is there long before that moment
_PLACES = ("docker/{id}", "system.slice/docker-{id}.scope", "docker.slice/docker-{id}.scope")


def waits(pid: int) -> bool:
    """Whether a process is a runtime's that waits to run the command."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            if file.read().strip() not in ("wait_for_partner", "fifo_open"):
                return False
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[1:2] == [b"init"]
    except OSError:
        return False


def told(bundle: str) -> dict[str, Any] | None:
    """What the runtime was told, from its bundle's `config.json`."""
    try:
        with open(bundle, "rb") as file:
            document: dict[str, Any] = msgspec.json.decode(file.read())
    except (OSError, msgspec.DecodeError):
        return None
    return document if "process" in document else None


def look(view: View, config: dict[str, Any]) -> Observation | None:
    """As `observe.look`, of a process that was seen waiting; None if it has ended meanwhile."""
    process = config["process"]
    env = dict(line.partition("=")[::2] for line in process.get("env") or ())
    told = {
        **container_view.spoken([str(word) for word in process.get("args") or ()]),
        "workdir": os.path.normpath(process.get("cwd") or "/"),
        "seccomp": "filter" if (config.get("linux") or {}).get("seccomp") else "none",
    }
    try:
        seen = container_view.look(view, env, told, "before start")
    except BackendUnavailable:
        return None
    return seen if process_view.is_whole(view.pid) else None


class Watcher(threading.Thread):
    """Waits for that moment of a container that another thread starts. `stop` gives what was seen."""

    def __init__(self, view: View, places: list[str]) -> None:
        """`view`: without a process yet. `places`: where groups of this engine were found before; a place that is found
        is put first."""
        super().__init__(name="dibs-early-look", daemon=True)
        self._view = view
        self._over = threading.Event()
        self._seen: Observation | None = None
        self._places = places

    def run(self) -> None:
        file, pid = "", 0
        while not self._over.wait(_TICK if pid else _PAUSE):
            file = file or self._find()
            pid = pid or (_first(file) if file else 0)
            if not pid or not waits(pid):
                continue
            config = _bundle(pid)
            self._view.pid = pid
            self._seen = look(self._view, config) if config is not None else None
            return

    def _find(self) -> str:
        for place in self._places:
            path = place.format(id=self._view.container)
            if os.path.exists(path):
                self._places[:] = [place]  # all of its containers are there
                return path
        return ""

    def stop(self) -> Observation | None:
        self._over.set()
        self.join()
        return self._seen


def places() -> list[str]:
    """Where Docker may put the group of a container."""
    return [f"{tree}/{place}/cgroup.procs" for tree in trees() for place in _PLACES]


def _first(path: str) -> int:
    try:
        with open(path) as file:
            line = file.readline().strip()
    except OSError:
        return 0
    return int(line) if line else 0


def _bundle(pid: int) -> dict[str, Any] | None:
    """The parent is the shim, or the runtime itself: both work in the bundle's folder."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        return told(f"/proc/{parent}/cwd/config.json")
    except OSError:
        return None

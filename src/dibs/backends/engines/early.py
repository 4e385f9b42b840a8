"""A look at a container between its set-up and its command.

The runtime (runc) makes everything ready, then waits on a fifo to be told to run the command. In that moment its
process is looked at from outside, exactly as a running container is: nodes, mounts, limits, namespaces. Only the
environment is not in the process yet; it is read from what the runtime was told, changes by CDI included.

Podman stops there when asked to. Docker does not: a thread of ours watches its control group while Docker starts it.
That look is the proof; of a command that goes on, the environment is read once more from its own process (`looks`).
Where none could be taken, there is none, and the look comes after the start: it never makes one up.
"""

from __future__ import annotations

import os
import threading

import msgspec

from dibs.backends.engines import looking
from dibs.backends.engines.cgroups import Groups, trees
from dibs.backends.engines.facts import own_task
from dibs.backends.port import Observation
from dibs.errors import BackendUnavailable
from dibs.process import ProcessName

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


def environment(bundle: str) -> dict[str, str] | None:
    """What the runtime was told, from its bundle's `config.json`."""
    try:
        with open(bundle, "rb") as file:
            process = msgspec.json.decode(file.read())["process"]
    except (OSError, msgspec.DecodeError, KeyError):
        return None
    return dict(line.partition("=")[::2] for line in process.get("env") or ())


def look(pid: int, engine: ProcessName | None, env: dict[str, str]) -> Observation | None:
    """As `backend.look`, of a process that was seen waiting; None if it has ended meanwhile."""
    try:
        return Observation(
            looking.device_nodes(pid),
            env,
            looking.mounts(pid),
            Groups(pid).limits(),
            looking.isolation(pid, own_task(engine.pid) if engine else "/proc/self"),
        )
    except BackendUnavailable:
        return None


class Watcher(threading.Thread):
    """Waits for that moment of a container that somebody else starts. `stop` gives what was seen."""

    def __init__(self, container: str, engine: ProcessName | None, places: list[str]) -> None:
        """`places`: where groups of this engine were found before; a place that is found is put first."""
        super().__init__(name="dibs-early-look", daemon=True)
        self._engine = engine
        self._container = container
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
            env = _bundle_environment(pid)
            self._seen = look(pid, self._engine, env) if env is not None else None
            return

    def _find(self) -> str:
        for place in self._places:
            path = place.format(id=self._container)
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


def _bundle_environment(pid: int) -> dict[str, str] | None:
    """The parent is the shim, or the runtime itself: both work in the bundle's folder."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        return environment(f"/proc/{parent}/cwd/config.json")
    except OSError:
        return None

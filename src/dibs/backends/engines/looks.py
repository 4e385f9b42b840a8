"""Looks at a container from outside: those that a start itself takes, and those that somebody asks for.

Only the kernel is asked (`looking`, `cgroups`). The look that a start took is used once, with the environment of the
running command if it still runs; where there was none, it is looked at now. What ended before anybody could look is
described by the engine's record alone (`recorded`).
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from dibs.backends.engines import keeping, looking
from dibs.backends.engines.cgroups import Groups
from dibs.backends.engines.engine import container
from dibs.backends.engines.facts import own_task
from dibs.backends.engines.lives import Lives
from dibs.backends.port import Handle, Observation
from dibs.errors import BackendUnavailable, Conflict
from dibs.home import Home
from dibs.process import ProcessName, absent

MOST_LOOKS = 256  # that are remembered; each is asked for right after its start


class Looks(Lives):
    """What is seen of containers."""

    def __init__(self, home: Home, address: str = "") -> None:
        super().__init__(home, address)
        self._looks: dict[str, Observation] = {}  # taken during starts

    def _remember_look(self, handle: Handle, seen: Observation | None) -> None:
        """For those who ask after the command has ended."""
        with self._lock:
            if seen is not None:
                while len(self._looks) >= MOST_LOOKS:
                    self._looks.pop(next(iter(self._looks)))
                self._looks[handle.folder] = seen

    def observe(self, handle: Handle) -> Observation:
        folder = Path(handle.folder)
        with self._lock:
            before = self._looks.pop(handle.folder, None)
        init = keeping.init_of(folder)
        facts = self.facts()
        if init is None and before is None:
            state = self._state(handle) or {}
            if state.get("Pid"):
                init = keeping.remember_init(folder, int(state["Pid"]), handle.data.get("container", ""))
        ended = Conflict("the sandbox has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        legacy = handle.data.get("way") == "legacy"
        if init is not None:
            try:
                if before is not None and not legacy:
                    # Nodes, mounts, limits and namespaces were there before the command. What it has for an
                    # environment is in its process only now.
                    found = msgspec.structs.replace(before, env=looking.environment(init.pid))
                else:
                    found = look(init.pid, facts.peer, legacy=legacy)
            except BackendUnavailable:
                if before is None and not _ends(init):
                    raise
            else:
                if not absent(init):  # or the pid may have been somebody else's
                    return found
        elif facts.peer is None:
            raise BackendUnavailable(
                "the container's process is not visible from here", field="sandbox", value=handle.sandbox_id,
                code="OBSERVATION_FAILED", remedy="run dibs on the host of the engine",
            )  # fmt: skip
        if before is None:
            raise ended
        return before

    def recorded(self, handle: Handle) -> Observation:
        """What the engine says that a container got, for one that ended before anybody could look at it.

        The engine's word, not a look: a receipt that is made from it says so.
        """
        from dibs.backends.engines.recording import recorded

        document = self.ask(handle, "GET", container(handle) + "/json")
        return recorded(document, self.facts())


def look(pid: int, engine: ProcessName | None, *, legacy: bool = False) -> Observation:
    """A running container, from outside."""
    nodes = looking.device_nodes(pid)
    if legacy:
        from dibs.backends.engines.passing import CONTROL_NODES

        nodes = tuple(node for node in nodes if node.path not in CONTROL_NODES)
    return Observation(
        nodes,
        looking.environment(pid),
        looking.mounts(pid),
        Groups(pid).limits(),
        looking.isolation(pid, own_task(engine.pid) if engine else "/proc/self"),
    )


def _ends(process: ProcessName) -> bool:
    """Whether a process that cannot be looked at is just ending: then it is gone in a moment."""
    deadline = time.monotonic() + 1.0
    while not absent(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True

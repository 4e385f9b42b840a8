"""Looks at a container from outside: those that a start itself takes, and those made on request.

Only the kernel is asked (`process_view`, `cgroups`). The look that a start took is used once, with the environment of
the running command if it still runs; where there was none, it is looked at now. What ended before anybody could look is
described by the engine's record alone (`recorded`).
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends import proc, safe_open
from dibs.backends.engines import container_view, engine_record, networks, process_view, ttl
from dibs.backends.engines.engine import container
from dibs.backends.engines.facts import own_task
from dibs.backends.engines.process_view import View
from dibs.backends.engines.status import Lives
from dibs.backends.port import Handle, NodeFact, Observation
from dibs.errors import BackendUnavailable, Conflict
from dibs.home import Home
from dibs.process import ProcessName, absent

MOST_LOOKS = 256  # that are remembered; each is asked for right after its start


class Looks(Lives):
    """What is seen of containers."""

    def __init__(self, home: Home, address: str = "") -> None:
        super().__init__(home, address)
        self._looks: dict[str, Observation | None] = {}  # taken during starts; None: there was no time for one

    def _remember_look(self, handle: Handle, seen: Observation | None) -> None:
        """For observations that are asked for after the command has ended."""
        with self._lock:
            while len(self._looks) >= MOST_LOOKS:
                self._looks.pop(next(iter(self._looks)))
            self._looks[handle.folder] = seen

    def _view(self, handle: Handle, pid: int) -> View:
        peer = self.facts().peer
        data = handle.data
        return View(
            pid=pid,
            container=data.get("container", ""),
            engine=own_task(peer.pid) if peer is not None else "/proc/self",
            user=data.get("user", ""),
            volumes=frozenset(filter(None, data.get("volumes", "").split("\n"))),
            legacy=data.get("way") == "legacy",
            seccomp="seccomp" in data,
            asked=frozenset(data),
        )

    def observe(self, handle: Handle) -> Observation:
        folder = Path(handle.folder)
        with self._lock:
            first = handle.folder in self._looks
            before = self._looks.pop(handle.folder, None)
        document = self._document(handle)
        init = ttl.init_of(folder)
        if init is None and before is None:
            pid = int(((document or {}).get("State") or {}).get("Pid") or 0)
            init = ttl.remember_init(folder, pid, handle.data.get("container", "")) if pid else None
        found = before
        if before is not None and init is not None:
            before = msgspec.structs.replace(before, nodes=_with_nodes(before.nodes, init.pid, document))
        if init is not None:
            found = self._running(handle, init, before, document) or before
        elif self.facts().peer is None:
            raise BackendUnavailable(
                "the container's process is not visible from here", field="sandbox", value=handle.sandbox_id,
                code="OBSERVATION_FAILED", remedy="run dibs on the host of the engine",
            )  # fmt: skip
        if found is None and (not first or document is None):
            raise Conflict("the sandbox has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        return _with_report(found, handle, document or {}, podman=self.name == "podman")

    def _running(
        self, handle: Handle, init: ProcessName, before: Observation | None, document: dict[str, Any] | None
    ) -> Observation | None:
        """A running container; None if it is ending. What was seen before its command ran need not be looked at again,
        but for the environment: with an init before it, nothing in the container can change how that was started."""
        view = self._view(handle, init.pid)
        steady = "init" in handle.data
        try:
            if before is not None and not view.legacy:
                if not steady:
                    return before
                origin = {**before.origin, "env": "after start"}
                found = msgspec.structs.replace(before, env=process_view.environment(init.pid), origin=origin)
            else:
                env = process_view.environment(init.pid)
                words = [os.fsdecode(word) for word in proc.words(init.pid, "cmdline")[:-1]]
                told = container_view.spoken(words if steady else engine_record.words(document or {}))
                told["seccomp"] = "filter" if proc.status(init.pid).get("Seccomp") == "2" else "none"
                found = container_view.look(view, env, told, "after start")
                found = msgspec.structs.replace(found, nodes=_with_nodes(found.nodes, init.pid, document))
        except (BackendUnavailable, OSError) as error:
            if not _ends(init):
                raise (
                    error if isinstance(error, BackendUnavailable) else process_view.unreadable("it", error)
                ) from error
            return None
        return found if process_view.is_whole(init.pid) and not absent(init) else None

    def recorded(self, handle: Handle) -> Observation:
        """What the engine says that a container got, for one that ended before it could be inspected.

        The engine's word, not a look: a receipt that is made from it says so.
        """
        document = self.ask(handle, "GET", container(handle) + "/json")
        return engine_record.recorded(document, self.facts())


def _with_nodes(nodes: tuple[NodeFact, ...], pid: int, document: dict[str, Any] | None) -> tuple[NodeFact, ...]:
    """Nodes that the engine says it has made outside of /dev are looked for there. Folders of the image are not
    searched: a node in them cannot be opened unless the engine allows its numbers."""
    host = (document or {}).get("HostConfig") or {}
    found = {*nodes}
    for device in host.get("Devices") or ():
        path = os.path.normpath(str(device.get("PathInContainer") or "/"))
        if path.startswith("/") and not proc.below(path, "/dev"):
            with suppress(OSError), safe_open.opened(f"/proc/{pid}/root", path) as fd:
                info = os.fstat(fd)
                if stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                    found.add(proc.node(path, info))
    return tuple(sorted(found))


def _with_report(seen: Observation | None, handle: Handle, document: dict[str, Any], *, podman: bool) -> Observation:
    """What the kernel showed, and what the engine reports beside it. Of a container that ended before it could be
    looked at there is the report alone."""
    if not document.get("Config"):
        seen = seen or Observation(unseen=(*PARTS, *UNREPORTED))
        return msgspec.structs.replace(seen, unseen=(*seen.unseen, *(set(REPORTED) - seen.process.keys())))
    sent = msgspec.json.decode(handle.data.get("sent") or "{}")
    reported = {
        **container_view.spoken(engine_record.words(document)),
        "workdir": os.path.normpath(document["Config"].get("WorkingDir") or "/"),
        "options": engine_record.options(document, sent, podman=podman),
        "image": str(document.get("Image") or "").removeprefix("sha256:"),
        **networks.told(document),
    }
    if not podman:  # Docker tells its init apart from the command
        reported["init"] = "yes" if document["HostConfig"].get("Init") else "no"
    if seen is None:
        return Observation(process=reported, origin={"": "engine"}, unseen=(*PARTS, *UNREPORTED))
    limits = dict(seen.limits)
    if not (document["HostConfig"].get("PidsLimit") or 0) > 0:
        limits.pop("pids", None)  # what systemd gives every unit
    process = {**reported, **seen.process}
    origin = {**seen.origin, **dict.fromkeys(process.keys() - seen.process.keys(), "engine")}
    return msgspec.structs.replace(seen, limits=limits, process=process, origin=origin)


PARTS = ("nodes", "env", "mounts", "limits", "isolation")
REPORTED = ("command", "init", "options", "image", "workdir", "network", "published")
UNREPORTED = ("user", "groups", "capabilities", "kernel_files", "read_only", "seccomp")


def _ends(process: ProcessName) -> bool:
    """Whether a process that cannot be looked at is just ending: then it is gone in a moment."""
    deadline = time.monotonic() + 1.0
    while not absent(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True

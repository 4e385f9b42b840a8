"""What became of a container: its state, its end, its log.

The engine says what state it is in; `ttl` has what dibs itself noted beside it. An end counts only when the
container's processes are gone (`absence`), whatever the engine says. While the engine is away nothing is known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends.engines import absence, errors, process_view, rendering, states, ttl
from dibs.backends.engines.cgroups import is_of
from dibs.backends.engines.client import EngineError, Unreachable
from dibs.backends.engines.engine import Engine, container
from dibs.backends.port import Exit, ExitReason, Handle, LogRecord, Phase, Status
from dibs.errors import BackendUnavailable, Conflict, NotFound, StateError
from dibs.http import query
from dibs.process import ProcessName, absent

NOTICED = 2.0  # seconds in which an engine notices that a container has ended; arbitrary
AWAY = frozenset(("ENGINE_NOT_RUNNING", "ENGINE_UNREACHABLE", "ENGINE_DENIED"))  # of an engine that says nothing
SLICE = 5.0  # seconds of one wait for an end, before the state is looked at again


class Lives(Engine):
    """States and ends."""

    wait_condition: str  # of the wait request, for a container that was started

    def _document(self, handle: Handle) -> dict[str, Any] | None:
        """The engine's word; None if there is no such container, or only a foreign one of its name."""
        try:
            status, document = self.answer(handle, "GET", container(handle) + "/json", accept=(404,))
        except NotFound:
            return None  # it went while the engine looked for it
        except BackendUnavailable as error:
            if error.code != "CONTAINER_BROKEN":
                raise
            # Its processes go first, then its files, last its name.
            return {"Id": handle.data.get("container", ""), "State": {"Status": "removing"}}
        found: dict[str, Any] = document
        return found if status != 404 and self._is_ours(handle, found) else None

    def _is_ours(self, handle: Handle, document: dict[str, Any]) -> bool:
        """Whether it is the container that was made for a sandbox: by its id; before that is known, by its labels."""
        identity = handle.data.get("container")
        if identity:
            return str(document.get("Id", "")) == identity
        labels = (document.get("Config") or {}).get("Labels") or {}
        return (labels.get("dibs.home"), labels.get("dibs.sandbox")) == (str(self._home.state), handle.sandbox_id)

    def _state(self, handle: Handle) -> dict[str, Any] | None:
        document = self._document(handle)
        return None if document is None else document["State"]

    def status(self, handle: Handle) -> Status:
        folder = Path(handle.folder)
        try:
            document = self._document(handle)
            state = None if document is None else document["State"]
            found = self._told(folder, state)
            if document is not None and found.phase is Phase.EXITED:
                self._keep_ended(handle, document)
        except BackendUnavailable as error:
            return self._untold(handle, error)
        if found.phase is Phase.HELD and ttl.init_of(folder) is None:
            return found  # it was never started
        if found.phase in (Phase.RUNNING, Phase.PAUSED):
            return self._confirmed(handle, found, state or {})
        if left := absence.left(folder, handle.data.get("container", "")):
            word = str((state or {}).get("Status") or "unknown").lower()
            return Status(Phase.UNKNOWN, detail=f"{self.name} says that it is {word}, but {left}")
        if (proved := ttl.gone(folder)) is not None:
            return Status(Phase.EXITED, _proved(proved))
        if found.phase is Phase.UNKNOWN and ttl.init_of(folder) is not None:
            return Status(Phase.EXITED, states.exit_of(state or {}, ttl.ending(folder)))  # its removal was cut off
        return found

    def _untold(self, handle: Handle, error: BackendUnavailable) -> Status:
        """While the engine is away nothing is known: it can say later how a container ended. One that answers, and
        fails (its disk is full), may never: then it counts that the processes are gone."""
        folder = Path(handle.folder)
        deadline = time.monotonic() + NOTICED
        while (proved := ttl.gone(folder)) is None:
            started = ttl.init_of(folder) is not None
            if error.code in AWAY or not started or absence.left(folder, handle.data.get("container", "")):
                return Status(Phase.UNKNOWN, detail=str(error))
            if time.monotonic() > deadline:
                proved = ttl.note_gone(folder, ExitReason.LOST)
                break
            time.sleep(0.1)
            try:
                self._document(handle)
            except BackendUnavailable as again:
                error = again
            else:
                return self.status(handle)
        return Status(Phase.EXITED, _proved(proved))

    def _keep_ended(self, handle: Handle, document: dict[str, Any]) -> None:
        """Take a restart policy away that was set by hand: the engine would start it again, without a lease."""
        policy = ((document.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name") or "no"
        if policy != "no":
            self._forbid_restart(handle)

    def _forbid_restart(self, handle: Handle) -> None:
        raise NotImplementedError

    def _confirmed(self, handle: Handle, told: Status, state: dict[str, Any]) -> Status:
        """What an engine calls running, compared with its processes. One that cannot write (its disk is full) or whose
        shim was killed may never notice an end."""
        folder, identity = Path(handle.folder), handle.data.get("container", "")
        init = ttl.init_of(folder)
        if init is None:
            self._note_init(handle, state)
            return told
        if not absent(init) or str(state.get("Status")).lower() == "restarting":
            return told
        deadline = time.monotonic() + NOTICED
        while True:
            pid = int(state.get("Pid") or 0)
            if pid and is_of(pid, identity) and ttl.remember_init(folder, pid, identity) is not None:
                return told  # started again past dibs
            if absence.left(folder, identity):
                return told
            if time.monotonic() > deadline:
                return Status(Phase.EXITED, _proved(ttl.note_gone(folder, ExitReason.LOST)))
            time.sleep(0.05)
            try:
                state = self._state(handle) or {}
            except BackendUnavailable as error:
                return self._untold(handle, error)  # it knew, and can no longer say it
            if states.PHASES.get(str(state.get("Status", "")).lower()) not in (Phase.RUNNING, Phase.PAUSED):
                return self.status(handle)

    def _note_init(self, handle: Handle, state: dict[str, Any]) -> None:
        """Make up for a missing record: its starter was killed right after the start. Its keeper waits for that."""
        pid, identity = int(state.get("Pid") or 0), handle.data.get("container", "")
        if pid and identity and is_of(pid, identity):
            ttl.remember_init(Path(handle.folder), pid, identity)

    def _told(self, folder: Path, state: dict[str, Any] | None) -> Status:
        """What the engine says, with what dibs knows of the reason."""
        ending = ttl.ending(folder)
        if state is not None:
            return states.status_of(state, ending)
        if ending is not None and ending[0] is ExitReason.NOT_STARTED:
            return Status(Phase.EXITED, Exit(137, ExitReason.NOT_STARTED, 9, at=ending[1]))
        return Status(Phase.ABSENT)

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        filters = msgspec.json.encode({"label": [f"dibs.home={self._home.state}"]}).decode()
        try:
            with self.asking() as client:
                listed = client.containers(filters)
        except BackendUnavailable as error:
            if error.code in AWAY:
                return {handle.sandbox_id: Status(Phase.UNKNOWN, detail=str(error)) for handle in handles}
            listed = []  # it answers and fails: each is looked at for itself, by its processes if need be
        seen = {str(one.get("Id", "")): str(one.get("State", "")).lower() for one in listed}
        found = {}
        for handle in handles:
            phase = states.PHASES.get(seen.get(handle.data.get("container", ""), ""), Phase.UNKNOWN)
            try:
                runs = phase in (Phase.RUNNING, Phase.PAUSED) and self._visible(handle) is not None
                status = Status(phase) if runs or phase is Phase.HELD else self.status(handle)
            except StateError as error:  # another user's, on a shared ledger: what is beside it only that one may read
                status = Status(phase if phase in (Phase.RUNNING, Phase.PAUSED) else Phase.UNKNOWN, detail=str(error))
            found[handle.sandbox_id] = status
        return found

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            status = self.status(handle)
            if status.phase in (Phase.EXITED, Phase.ABSENT):
                return status
            left = SLICE if until is None else min(SLICE, until - time.monotonic())
            if left <= 0:
                return status
            if status.phase in (Phase.HELD, Phase.UNKNOWN):
                time.sleep(min(left, 0.05))  # engines answer at once about what was not started
                continue
            try:
                self.client().call("POST", f"{container(handle)}/wait?{self.wait_condition}", timeout=left)
            except TimeoutError:
                continue
            except Unreachable:
                self.forget()
                time.sleep(min(left, 0.2))
            except EngineError as error:
                if error.status == 404:
                    continue
                if (status := self.status(handle)).phase in (Phase.EXITED, Phase.ABSENT):
                    return status  # it could not note the end that it was asked to wait for
                raise errors.translate(self.name, error, value=handle.sandbox_id) from error

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        path = container(handle) + "/logs"
        with self.asking(handle.sandbox_id) as client:
            try:
                connection, response = client.stream(
                    "GET", path + query(stdout=True, stderr=True, timestamps=True, follow=follow)
                )
            except EngineError as error:
                if error.status == 404 and ttl.ending(Path(handle.folder)) is not None:
                    return iter(())  # it never ran
                raise
        raw = handle.data.get("tty") == "1" and self.name == "docker"
        return self._records(handle, rendering.records(connection, response, raw=raw))

    def _records(self, handle: Handle, records: Iterator[LogRecord]) -> Iterator[LogRecord]:
        """An engine that goes away while it is read is told in our words."""
        try:
            yield from records
        except OSError as error:
            raise errors.unreachable(self.name, Unreachable(handle.sandbox_id, error)) from error

    def _await_init(self, handle: Handle) -> None:
        """Before a signal is sent: where the engine has put an init before the command, until that one minds it."""
        init = self._visible(handle) if handle.data.get("init") else None
        if init is not None:
            process_view.await_init(init.pid)

    def _visible(self, handle: Handle) -> ProcessName | None:
        """Its first process, if it lives and can be seen."""
        init = ttl.init_of(Path(handle.folder))
        return init if init is not None and not absent(init) else None


def _proved(gone: tuple[ExitReason, float]) -> Exit:
    """How a container ended that was proved gone past its engine: the engine does not know its exit code."""
    reason, at = gone
    detail = "its engine could not say how it ended" if reason is ExitReason.LOST else ""
    return Exit(137, reason, None if reason is ExitReason.LOST else 9, detail, at)


def not_running(status: Status, handle: Handle) -> Conflict:
    remedy = {Phase.PAUSED: "resume it first", Phase.HELD: "start it first"}.get(status.phase, "")
    return Conflict(
        f"the sandbox is {status.phase}", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING", remedy=remedy
    )

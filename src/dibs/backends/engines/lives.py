"""What became of a container: its state, its end, its log.

The engine is the one who knows; `keeping` has what dibs itself noted beside it. While the engine is away nothing is
known, and nothing is ever taken for ended that is not proved to be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends.engines import errors, keeping, looking, rendering, states
from dibs.backends.engines.client import EngineError, Unreachable
from dibs.backends.engines.engine import Engine, container, container_name
from dibs.backends.port import Exit, Handle, LogRecord, Phase, Status
from dibs.errors import BackendUnavailable, Conflict, NotFound
from dibs.http import query
from dibs.process import ProcessName, absent

SLICE = 5.0  # seconds of one wait for an end, before the state is looked at again


class Lives(Engine):
    """States and ends."""

    wait_condition: str  # of the wait request, for a container that was started

    def _document(self, handle: Handle) -> dict[str, Any] | None:
        """The engine's word; None if there is no such container."""
        try:
            status, document = self.answer(handle, "GET", container(handle) + "/json", accept=(404,))
        except NotFound:
            return None  # it went while the engine looked for it
        except BackendUnavailable as error:
            if error.code != "CONTAINER_BROKEN":
                raise
            return {"Id": "", "State": {"Status": "removing"}}  # its processes go first, then its files, last its name
        found: dict[str, Any] = document
        return None if status == 404 else found

    def _state(self, handle: Handle) -> dict[str, Any] | None:
        document = self._document(handle)
        return None if document is None else document["State"]

    def status(self, handle: Handle) -> Status:
        folder = Path(handle.folder)
        try:
            state = self._state(handle)
        except BackendUnavailable as error:
            return Status(Phase.UNKNOWN, detail=str(error))
        ending = keeping.ending(folder)
        if state is not None:
            found = states.status_of(state, ending)
            if found.phase is Phase.UNKNOWN and (init := keeping.init_of(folder)) is not None and absent(init):
                return Status(Phase.EXITED, states.exit_of(state, ending))  # its removal was cut off; it does not run
            return found
        if ending is not None and ending[0] == "not-started":
            return Status(Phase.EXITED, Exit(137, "not-started", 9, at=ending[1]))
        init = keeping.init_of(folder)
        if init is not None and not absent(init):
            return Status(Phase.UNKNOWN, detail="the engine does not know it, and its process is not proved gone")
        return Status(Phase.ABSENT)

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        filters = msgspec.json.encode({"label": [f"dibs.home={self._home.state}"]}).decode()
        try:
            listed = self.ask(None, "GET", "/containers/json" + query(all=True, filters=filters)) or []
        except BackendUnavailable as error:
            return {handle.sandbox_id: Status(Phase.UNKNOWN, detail=str(error)) for handle in handles}
        seen = {one["Names"][0].lstrip("/"): str(one.get("State", "")).lower() for one in listed if one.get("Names")}
        found = {}
        for handle in handles:
            phase = states.PHASES.get(seen.get(container_name(handle.sandbox_id), ""), Phase.UNKNOWN)
            lives = phase in (Phase.RUNNING, Phase.PAUSED, Phase.HELD)
            found[handle.sandbox_id] = Status(phase) if lives else self.status(handle)
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
                if error.status != 404:
                    raise errors.translate(self.name, error, value=handle.sandbox_id) from error

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        path = container(handle) + "/logs"
        with self.asking(handle.sandbox_id) as client:
            try:
                connection, response = client.stream(
                    "GET", path + query(stdout=True, stderr=True, timestamps=True, follow=follow)
                )
            except EngineError as error:
                if error.status == 404 and keeping.ending(Path(handle.folder)) is not None:
                    return iter(())  # it never ran
                raise
        raw = handle.data.get("tty") == "1" and self.name == "docker"
        return rendering.records(connection, response, raw=raw)

    def _await_init(self, handle: Handle) -> None:
        """Before a signal is sent: where the engine has put an init before the command, until that one minds it."""
        init = self._visible(handle) if handle.data.get("init") else None
        if init is not None:
            looking.await_init(init.pid)

    def _visible(self, handle: Handle) -> ProcessName | None:
        """Its first process, if it lives and can be seen."""
        init = keeping.init_of(Path(handle.folder))
        return init if init is not None and not absent(init) else None


def not_running(status: Status, handle: Handle) -> Conflict:
    remedy = {Phase.PAUSED: "resume it first", Phase.HELD: "start it first"}.get(status.phase, "")
    return Conflict(
        f"the sandbox is {status.phase}", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING", remedy=remedy
    )

"""The ends of a container: paused, stopped, removed, out of time.

A container is found by its id, or by its name and labels while that is not known, so whatever was left unfinished can
be removed by any process of this home (`discard`). Nothing is said to be gone before its processes are.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec

from dibs.backends.engines import absence, errors, networks, states, ttl
from dibs.backends.engines.client import Client, EngineError, message_of
from dibs.backends.engines.engine import container, container_name
from dibs.backends.engines.status import Lives, not_running
from dibs.backends.port import ExitReason, Handle, Phase, Status
from dibs.errors import BackendUnavailable, Conflict
from dibs.http import query

GONE = 30.0  # seconds for a container to vanish after its removal was asked for


class Endings(Lives):
    """Changing and ending what runs."""

    def pause(self, handle: Handle) -> None:
        self._freeze(handle, "pause", Phase.PAUSED)

    def resume(self, handle: Handle) -> None:
        self._freeze(handle, "unpause", Phase.RUNNING)

    def _freeze(self, handle: Handle, verb: str, wanted: Phase) -> None:
        path = f"{container(handle)}/{verb}"
        status, said = self.answer(handle, "POST", path, accept=(404, 409, 500))
        if status in (200, 204):
            return
        found = self.status(handle)
        if found.phase is wanted:
            return
        if {found.phase, wanted} == {Phase.RUNNING, Phase.PAUSED}:  # nothing but the engine is in the way
            error = EngineError(status, message_of(msgspec.json.encode(said)), f"POST {path}")
            raise errors.translate(self.name, error, field="sandbox", value=handle.sandbox_id)
        raise not_running(found, handle)

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        folder = Path(handle.folder)
        status = self.status(handle)
        if status.phase in (Phase.EXITED, Phase.ABSENT):
            return
        if status.phase is Phase.HELD:
            ttl.ask_end(folder, "not-started")
            self._discard(handle)
            return
        if status.phase is Phase.UNKNOWN:
            self._end_past_engine(handle, status, grace_seconds)
            return
        ttl.ask_end(folder, "stopped")
        base = container(handle)
        accept = (304, 404, 409, 500)
        if status.phase is Phase.PAUSED:
            if grace_seconds <= 0:
                self.answer(handle, "POST", f"{base}/kill?signal=SIGKILL", accept=accept)
            self.answer(handle, "POST", f"{base}/unpause", accept=accept)
        if grace_seconds > 0:
            grace = int(-(-grace_seconds // 1))
            self._await_init(handle)
            self.answer(
                handle, "POST", f"{base}/stop" + query(t=grace, timeout=grace), timeout=grace + 60.0, accept=accept
            )
        status = self.wait(handle, 0.0)
        if status.phase in (Phase.RUNNING, Phase.PAUSED):
            self.answer(handle, "POST", f"{base}/kill?signal=SIGKILL", accept=accept)
            status = self.wait(handle, 30.0)
        if status.phase not in (Phase.EXITED, Phase.ABSENT):
            self._end_past_engine(handle, status, 0.0)

    def delete(self, handle: Handle) -> None:
        status = self.status(handle)
        if status.phase is Phase.UNKNOWN:
            self._end_past_engine(handle, status, 0.0)
        elif status.phase not in (Phase.EXITED, Phase.ABSENT):
            raise Conflict(
                f"the sandbox is {status.phase}", value=handle.sandbox_id, code="STILL_RUNNING", remedy="stop it first"
            )
        self._remove(handle)
        self._sweep_networks(handle)
        _forget(Path(handle.folder))

    def _sweep_networks(self, handle: Handle) -> None:
        """What is left of its network goes with the last container on it; if not now, then with the next one."""
        with self.asking(handle.sandbox_id, "sandbox") as client:
            networks.sweep(client, self._home)

    def _end_past_engine(self, handle: Handle, status: Status, grace: float) -> None:
        """End what its engine does not end: it has forgotten that it runs, cannot be asked, or fails to remove it.

        Without a first process on record, and without any process that is seen to be of it, there is no proof, and the
        sandbox stays.
        """
        folder, identity = Path(handle.folder), handle.data.get("container", "")
        if ttl.init_of(folder) is None and not absence.members(folder, identity):
            if not status.detail.endswith("removing"):
                reason = status.detail or f"the sandbox did not end: {self.name} says that it is {status.phase}"
                raise BackendUnavailable(reason, field="sandbox", value=handle.sandbox_id)
            self._discard(handle)  # an engine that was killed while it removed a container has to be asked once more
            return
        try:
            forgotten = (self._state(handle) or {}).get("Status") not in ("running", "paused")
        except BackendUnavailable:
            forgotten = False  # it may come back, and then looks for the shim
        ttl.ask_end(folder, "stopped")
        killed = absence.end(folder, identity, grace, forgotten=forgotten)
        asked = ttl.ending(folder)
        ttl.note_gone(folder, (asked[0] if asked else ExitReason.STOPPED) if killed else ExitReason.LOST)

    def discard(self, handle: Handle) -> None:
        self._discard(handle)
        self._sweep_networks(handle)
        _forget(Path(handle.folder))

    def _discard(self, handle: Handle) -> None:
        """Remove what never came to an end of its own, with processes of which the engine may not know."""
        known = handle.data.get("container")
        for identity in [known] if known else self._unfinished(handle):
            self._remove(msgspec.structs.replace(handle, data={**handle.data, "container": identity}))
            if self.facts().peer is not None:
                absence.end(Path(handle.folder), identity, forgotten=True)

    def _unfinished(self, handle: Handle) -> list[str]:
        """The ids of what was made for a sandbox whose handle was never written. By its labels, and its name: a
        container under another name may be made of an image of the sandbox, with its labels, unless it never ran."""
        labels = [f"dibs.home={self._home.state}", f"dibs.sandbox={handle.sandbox_id}"]
        filters = msgspec.json.encode({"label": labels}).decode()
        with self.asking(handle.sandbox_id) as client:
            listed = client.containers(filters)
        name = container_name(handle.sandbox_id)
        return [
            str(one["Id"])
            for one in listed
            if name in [str(word).lstrip("/") for word in one.get("Names") or ()]
            or states.PHASES.get(str(one.get("State", "")).lower()) is Phase.HELD
        ]

    def _remove(self, handle: Handle) -> None:
        """Remove the container, by force; returns when it is gone."""
        deadline = time.monotonic() + GONE
        path = container(handle) + query(force=True, v=True, timeout=0 if self.name == "podman" else None)
        while True:
            status, answer = self.answer(handle, "DELETE", path, accept=(404, 409, 500))
            if status == 404:
                return
            if status < 300:
                broken = [one.get("Err") for one in answer if one.get("Err")] if isinstance(answer, list) else []
                if not broken:
                    return
                answer = {"message": str(broken[0])}
            if time.monotonic() > deadline:
                said = answer.get("message", "") if isinstance(answer, dict) else str(answer)
                raise BackendUnavailable(
                    f"the container cannot be removed ({self.name} says: {errors.one_line(said)})",
                    field="sandbox", value=handle.sandbox_id, code="ENGINE_FAILED",
                )  # fmt: skip
            time.sleep(0.05)

    # --- its time

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        folder = Path(handle.folder)
        status = self.status(handle)
        if status.phase not in (Phase.RUNNING, Phase.PAUSED, Phase.HELD):
            raise not_running(status, handle)
        ttl.set_deadline(folder, at)
        keeper = ttl.keeper_of(folder)
        if keeper is not None and ttl.nudge(keeper):
            return
        if at is not None:
            ttl.finish_keeper(folder, self._keeper(handle, self.client()))

    def keep_time(self, handle: Handle) -> bool:
        """See to the time to live of a container whose keeper was killed; whether it was ended, because it is over."""
        folder = Path(handle.folder)
        at = ttl.deadline(folder)
        if at is None or ttl.keeper_of(folder) is not None:
            return False
        if ttl.overdue(handle):
            ttl.ask_end(folder, "expired")
            self.stop(handle, float(handle.data.get("grace", "10")))
            return True
        ttl.finish_keeper(folder, self._keeper(handle, self.client()))
        return False

    def overdue(self, handle: Handle, now: float | None = None) -> bool:
        """Whether its time to live is over; see `ttl.overdue`."""
        return ttl.overdue(handle, now)

    def _keeper(self, handle: Handle, client: Client, pipe: int = -1) -> ttl.Starting:
        address = ttl.address_of(client.target)
        base = client.prefix + container(handle)
        grace = float(handle.data.get("grace", "10"))
        return ttl.begin_keeper(Path(handle.folder), address, base, self.wait_condition, grace, pipe)


def _forget(folder: Path) -> None:
    keeper = ttl.keeper_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if keeper is not None:
        ttl.nudge(keeper)  # without a deadline it has nothing to do

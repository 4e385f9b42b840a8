"""What Docker and Podman have in common: the verbs of the port, over an engine's own API.

    engine    the connection and the engine's capabilities
    create    containers and images
    start     starting a container
    observe   observation from outside
    status    status, and the survey of all containers
    attach    attach, exec, logs, ports
    files     copying in and out, snapshots
    stop      pause, stop, removal, TTL

`docker` and `podman` have only the differences. No state in memory matters: a container is found by its name
(`dibs-<sandbox id>`), and dibs' own notes on it are in the sandbox's folder (`ttl`).

An engine cannot hold a container before its command (`holds` is false): `create` creates it, `start` runs it, and
`observe` follows immediately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.backends.engines.attach import Conversations
from dibs.backends.engines.cgroups import Groups
from dibs.backends.engines.create import Creations
from dibs.backends.engines.files import Files
from dibs.backends.engines.singleflight import Together
from dibs.backends.engines.start import Starts
from dibs.backends.engines.status import not_running
from dibs.backends.port import Handle, Phase, Status, Usage
from dibs.errors import BackendUnavailable, StateError, Unsupported
from dibs.home import Home
from dibs.process import absent

if TYPE_CHECKING:
    from dibs.backends.engines.events import Watch
    from dibs.backends.engines.external import ExternalHolder, Given


# Seconds in which an engine that does not tell about its containers is not asked for them again: one that is stuck is
# enough for that, and every device request would wait each time.
UNANSWERED = 30.0


class EngineBackend(Creations, Starts, Conversations, Files):
    """See `dibs.backends.port.Backend`."""

    holds = False

    def __init__(self, home: Home, address: str = "") -> None:
        super().__init__(home, address)
        self._external = Together(self._look_for_holders)
        self._unanswered: tuple[float, BackendUnavailable] | None = None

    # --- filled in by each engine

    def _events_path(self, filters: str) -> str:
        raise NotImplementedError

    def _given(self, document: dict[str, Any]) -> Given:
        """What a container may open beyond what its description says of devices."""
        raise NotImplementedError

    def _stats(self, handle: Handle) -> Usage:
        raise Unsupported("what it uses cannot be seen from here", field="sandbox", value=handle.sandbox_id)

    # --- its time

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        """As `Lives.survey`; what is found to run without its keeper is kept to its time again."""
        found = super().survey(handles)
        for handle in handles:
            if found[handle.sandbox_id].phase not in (Phase.RUNNING, Phase.PAUSED, Phase.UNKNOWN):
                continue
            try:
                if self.keep_time(handle):
                    found[handle.sandbox_id] = self.status(handle)
            except StateError:
                continue  # another user's, whose own commands see to it
            except BackendUnavailable as error:
                found[handle.sandbox_id] = Status(Phase.UNKNOWN, detail=str(error))
        return found

    # --- what it uses

    def usage(self, handle: Handle) -> Usage:
        init = self._visible(handle)
        if init is not None:
            found = Groups(init.pid).usage()
            if found is not None and not absent(init):
                return found
        status = self.status(handle)
        if status.phase not in (Phase.RUNNING, Phase.PAUSED):
            raise not_running(status, handle)
        return self._stats(handle)

    # --- beyond the port

    def watch(self, on_change: Callable[[str, str], None]) -> Watch:
        """Follow the engine's events in a thread: `on_change(sandbox id, what)`; an id of "" says: look at all."""
        from dibs.backends.engines.events import Watch

        filters = msgspec.json.encode({"type": ["container"], "label": [f"dibs.home={self._home.state}"]}).decode()
        return Watch(self.client, self._events_path(filters), on_change).start()

    def external_holders(self, ours: Callable[[], Collection[str]]) -> list[ExternalHolder]:
        """Running containers that have devices, but for those with an id of `ours`. Raises BackendUnavailable."""
        return self._external(ours)

    def _look_for_holders(self, ours: Callable[[], Collection[str]]) -> list[ExternalHolder]:
        from dibs.backends.engines.external import PATIENCE, holders

        if self._unanswered is not None and time.monotonic() - self._unanswered[0] < UNANSWERED:
            raise self._unanswered[1]
        began = time.monotonic()
        try:
            with self.asking() as client:
                found = holders(self.name, client, ours, self._given)
        except BackendUnavailable as error:
            now = time.monotonic()
            stuck = now - began >= PATIENCE and not self._silent  # the silent one is seen to by `client`
            self._unanswered = (now, error) if stuck else None
            raise
        self._unanswered = None
        return found

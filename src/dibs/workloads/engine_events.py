"""What engines tell by themselves: whose sandbox may have ended.

The dispatcher of a gateway has one. An engine is followed from the first sandbox on that it runs, until the gateway
stops. What it tells is a hint, not a proof: a listener then looks (`reconcile`). While the engine is away nothing is
heard; when it is back, everything of it is looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dibs.backends.port import Watch, Watches
from dibs.workloads.registry import Registry

EVERYTHING = ""  # in place of a sandbox's id
_ENDS = frozenset(("die", "died", "destroy", "remove", "oom", "cleanup"))


class Listening:
    """`follow` and `heard` are for one thread; the engines' threads call `wake`."""

    def __init__(self, registry: Registry, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._wake = wake
        self._lock = threading.Lock()
        self._heard: set[str] = set()
        self._asked: set[str] = set()
        self._watches: list[Watch] = []

    def follow(self, backends: Iterable[str]) -> None:
        """Hear of the sandboxes of these, if they have something to tell; of those before, too."""
        for name in set(backends) - self._asked:
            self._asked.add(name)
            backend = self._registry.get(name)
            if isinstance(backend, Watches):
                self._watches.append(backend.watch(self._told))

    def heard(self) -> frozenset[str]:
        """The sandboxes that may have ended since the last call; or EVERYTHING."""
        with self._lock:
            found = frozenset(self._heard)
            self._heard.clear()
        return found

    def _told(self, sandbox_id: str, what: str) -> None:
        if sandbox_id == EVERYTHING or what in _ENDS:
            with self._lock:
                self._heard.add(sandbox_id)
            self._wake()

    def close(self) -> None:
        """Their threads have ended when this returns."""
        while self._watches:
            self._watches.pop().close()

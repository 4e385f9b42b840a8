"""The engine's events, followed in a thread.

A gateway uses it to hear at once that a container has ended, instead of asking. Events are hints, not truth: a
listener looks at the status. While the engine is away the thread tries again, and says "look at all" when it is back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import msgspec

from dibs.backends.engines.client import Client, EngineError, Unreachable
from dibs.errors import DibsError
from dibs.http import Connection

CHANGES = frozenset(("start", "die", "died", "kill", "oom", "stop", "destroy", "remove", "pause", "unpause", "cleanup"))
RETRY = 1.0  # seconds between tries


class Watch:
    """A running look at the events of an engine; `close` ends it."""

    def __init__(self, client: Callable[[], Client], path: str, on_change: Callable[[str, str], None]) -> None:
        self._client = client
        self._path = path
        self._on_change = on_change
        self._over = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="dibs-engine-events", daemon=True)
        self.listening = threading.Event()

    def start(self) -> Watch:
        self._thread.start()
        return self

    def close(self) -> None:
        self._over.set()
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._connection, response = self._client().stream("GET", self._path)
                if self._over.is_set():
                    return  # it may have been closed before there was a connection to cut
                self.listening.set()
                self._on_change("", "listening")
                for line in response.lines():
                    self._tell(line)
            except (Unreachable, EngineError, DibsError, OSError):
                if self._over.is_set():
                    return
            finally:
                connection, self._connection = self._connection, None
                if connection is not None:
                    with contextlib.suppress(OSError):
                        connection.close()
            self.listening.clear()
            self._over.wait(RETRY)

    def _tell(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError:
            self._on_change("", "unreadable event")
            return
        action = str(event.get("Action") or event.get("status") or "").partition(":")[0].strip()
        attributes = (event.get("Actor") or {}).get("Attributes") or {}
        if action in CHANGES and attributes.get("dibs.sandbox"):
            self._on_change(str(attributes["dibs.sandbox"]), action)

"""Sandboxes of the fake world, and the conversations with them.

`world` keeps them; nothing in here runs, and every change is told through the world's condition `changed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dibs.backends.fake.processes import FakeProcess
from dibs.backends.port import Exit, ExitReason, LogRecord, Observation, Output, Phase, Realisation, Workload
from dibs.errors import Conflict, Unsupported

if TYPE_CHECKING:
    import socket

    from dibs.backends.fake.world import FakeWorld


class FakeSandbox:
    def __init__(self, workload: Workload, realisation: Realisation) -> None:
        self.workload = workload
        self.observation = msgspec.convert(msgspec.to_builtins(realisation.expectation), Observation)
        self.phase = Phase.HELD
        self.exit: Exit | None = None
        self.log: list[LogRecord] = []
        self.process: FakeProcess | None = None
        self.sessions: list[FakeSession] = []
        self.expires: float | None = None
        self.files: dict[str, bytes] = {}
        self.ports: dict[int, Callable[[socket.socket], None]] = {}
        self.used = (0.0, 0)
        self.execs: list[FakeProcess] = []


class FakeSession:
    """See `Session` in the port."""

    def __init__(self, world: FakeWorld, sandbox: FakeSandbox, process: FakeProcess | None, *, can_send: bool) -> None:
        self._world = world
        self._sandbox = sandbox
        self._own = process
        self._can_send = can_send
        self._queue: list[Output | Exit] = []
        self._ended: Exit | None = None

    @property
    def _process(self) -> FakeProcess | None:
        return self._own or self._sandbox.process

    def push(self, item: Output | Exit) -> None:
        self._queue.append(item)

    def fileno(self) -> int:
        raise Unsupported("a fake session has no descriptor", field="fileno", remedy="call receive with a timeout")

    def send(self, data: bytes) -> None:
        with self._world.changed:
            if not self._can_send:
                raise Conflict("the workload was started without input", code="INPUT_CLOSED")
            if self._process is not None and self._process.exit is None and self._process.on_input is not None:
                self._process.on_input(data)
            self._world.changed.notify_all()

    def end_of_input(self) -> None:
        with self._world.changed:
            process = self._process
            if process is not None and process.exit is None and process.on_end_of_input is not None:
                self._world.settle(self._sandbox, process, process.on_end_of_input())

    def signal(self, number: int) -> None:
        with self._world.changed:
            process = self._process
            if process is not None and process.exit is None:
                self._world.signal(self._sandbox, process, number)

    def resize(self, rows: int, columns: int) -> None:
        if self._process is not None:
            self._process.size = (rows, columns)

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        with self._world.changed:
            self._world.changed.wait_for(lambda: self._queue or self._ended is not None, timeout)
            found, self._queue = self._queue, []
            if found and isinstance(found[-1], Exit):
                self._ended = found[-1]
            return found or ([self._ended] if self._ended is not None else [])

    def close(self) -> None:
        """Say goodbye: the workload goes on. A command of exec is hung up, as by a terminal that is closed."""
        self._detach()
        if self._own is not None and self._own.exit is None:
            with self._world.changed:
                self._world.signal(self._sandbox, self._own, 1)

    def vanish(self) -> None:
        """Be gone without a word, as a client that was killed."""
        self._detach()
        sandbox = self._sandbox
        with self._world.changed:
            if self._own is None and sandbox.workload.foreground and sandbox.process is not None:
                self._world.end(sandbox, Exit(129, ExitReason.CLIENT_GONE, 1))

    def _detach(self) -> None:
        if self in self._sandbox.sessions:
            self._sandbox.sessions.remove(self)

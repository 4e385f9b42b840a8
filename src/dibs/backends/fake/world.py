"""The fake world: its sandboxes, its clock, and everything that a test can turn in it.

It has no process and no files, and no clock of its own: `advance` moves time. It can be told to go wrong: `fail_next`,
`tamper`, `lose`, `forbid`. `listen` opens a port in a sandbox, `use` says what it uses.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from dibs.backends.fake.processes import PROGRAMS, FakeProcess, Program
from dibs.backends.fake.sandboxes import FakeSandbox, FakeSession
from dibs.backends.port import Capability, Exit, ExitReason, Handle, Observation, Phase
from dibs.errors import CommandFailed, Conflict, DibsError, NotFound

if TYPE_CHECKING:
    import socket

EPOCH = 1_700_000_000.0  # the fake world's clock starts here


class FakeWorld:
    """Where the sandboxes of a `FakeBackend` are."""

    holds = True

    def __init__(self, programs: dict[str, Program] | None = None, *, name: str = "fake", holds: bool = True) -> None:
        self.name = name
        self.holds = holds
        self.changed = threading.Condition()
        self.now = EPOCH
        self.calls: list[tuple[str, str]] = []
        self._programs = {**PROGRAMS, **(programs or {})}
        self._sandboxes: dict[str, FakeSandbox] = {}
        self._exec_sessions: dict[int, FakeSession] = {}
        self._failures: dict[str, list[DibsError]] = {}
        self._forbidden: dict[str, Capability] = {}

    # --- what tests turn

    def fail_next(self, verb: str, error: DibsError) -> None:
        """The next call of a verb raises this."""
        self._failures.setdefault(verb, []).append(error)

    def forbid(
        self, what: Literal["cpu", "memory", "pids", "available", "network.private"], reason: str, remedy: str = ""
    ) -> None:
        self._forbidden[what] = Capability(ok=False, reason=reason, remedy=remedy)

    def tamper(self, sandbox_id: str, observation: Observation) -> None:
        """Let something else be seen in a sandbox than what was planned."""
        self._find(sandbox_id).observation = observation

    def observation(self, sandbox_id: str) -> Observation:
        return self._find(sandbox_id).observation

    def advance(self, seconds: float) -> None:
        """Let time pass: sandboxes whose time to live is over end."""
        with self.changed:
            self.now += seconds
            for sandbox in self._sandboxes.values():
                if sandbox.expires is not None and sandbox.expires <= self.now and sandbox.exit is None:
                    self.end(sandbox, Exit(143, ExitReason.EXPIRED, 15))

    def listen(self, sandbox_id: str, port: int, answer: Callable[[socket.socket], None]) -> None:
        """Open a port. For each connection `answer` gets the sandbox's end of it, in the thread that connects."""
        self._find(sandbox_id).ports[port] = answer

    def use(self, sandbox_id: str, cpu_seconds: float, memory_bytes: int) -> None:
        """What `usage` shall say."""
        self._find(sandbox_id).used = (cpu_seconds, memory_bytes)

    def lose(self, sandbox_id: str) -> None:
        """Let a sandbox vanish without an exit status, as when its keeper is killed."""
        with self.changed:
            sandbox = self._find(sandbox_id)
            sandbox.phase = Phase.ABSENT
            lost = Exit(137, ExitReason.LOST, 9, at=self.now)
            sandbox.exit = lost
            for session in sandbox.sessions:
                session.push(lost)
            self.changed.notify_all()

    def finish(self, sandbox_id: str, code: int = 0) -> None:
        """Let the main command end by itself."""
        with self.changed:
            sandbox = self._find(sandbox_id)
            if sandbox.process is not None:
                self.settle(sandbox, sandbox.process, code)

    def caller_dies(self) -> None:
        """What is held and was not started goes away; but what an engine has made stays."""
        if not self.holds:
            return
        with self.changed:
            for sandbox in self._sandboxes.values():
                if sandbox.phase is Phase.HELD:
                    self.end(sandbox, Exit(137, ExitReason.NOT_STARTED, 9))

    # --- what happens in it

    def settle(self, sandbox: FakeSandbox, process: FakeProcess, code: int | None) -> None:
        """A program has given its exit code, or goes on."""
        if code is not None:
            ended = Exit(code, at=self.now)
            if process is sandbox.process:
                self.end(sandbox, ended)
            else:
                self._end_exec(process, ended)
        self.changed.notify_all()

    def signal(self, sandbox: FakeSandbox, process: FakeProcess, number: int) -> None:
        if process.on_signal is not None and number != 9:
            self.settle(sandbox, process, process.on_signal(number))
            return
        ended = Exit(128 + number, ExitReason.SIGNALLED, number)
        if process is sandbox.process:
            self.end(sandbox, ended)
        else:
            self._end_exec(process, ended)

    def end(self, sandbox: FakeSandbox, ended: Exit) -> None:
        ended = msgspec.structs.replace(ended, at=self.now)
        sandbox.phase, sandbox.exit = Phase.EXITED, ended
        if sandbox.process is not None:
            sandbox.process.exit = ended
        for session in sandbox.sessions:
            session.push(ended)
        for process in sandbox.execs:
            if process.exit is None:
                self._end_exec(process, Exit(137, ExitReason.SIGNALLED, 9))
        self.changed.notify_all()

    def _end_exec(self, process: FakeProcess, ended: Exit) -> None:
        process.exit = ended
        self._exec_sessions.pop(id(process)).push(ended)
        self.changed.notify_all()

    def _called(self, verb: str, sandbox_id: str) -> None:
        self.calls.append((verb, sandbox_id))
        waiting = self._failures.get(verb)
        if waiting:
            raise waiting.pop(0)

    # --- finding

    def _find(self, sandbox_id: str) -> FakeSandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            raise NotFound("there is no such sandbox", field="sandbox", value=sandbox_id)
        return sandbox

    def _over(self, handle: Handle) -> bool:
        sandbox = self._sandboxes.get(handle.sandbox_id)
        return sandbox is None or sandbox.exit is not None

    def _running(self, handle: Handle) -> FakeSandbox:
        sandbox = self._find(handle.sandbox_id)
        if sandbox.phase is not Phase.RUNNING:
            raise Conflict(f"the sandbox is {sandbox.phase}", value=handle.sandbox_id, code="NOT_RUNNING")
        return sandbox

    def _change(self, handle: Handle, allowed: tuple[Phase, ...], wanted: Phase) -> None:
        with self.changed:
            sandbox = self._find(handle.sandbox_id)
            if sandbox.phase not in allowed:
                raise Conflict(f"the sandbox is {sandbox.phase}", value=handle.sandbox_id, code="NOT_RUNNING")
            sandbox.phase = wanted
            self.changed.notify_all()

    def _program(self, command: str) -> Program:
        program = self._programs.get(posixpath.basename(command))
        if program is None:
            raise CommandFailed("there is no such command", missing=True, value=command)
        return program

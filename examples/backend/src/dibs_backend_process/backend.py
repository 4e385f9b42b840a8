"""The required verbs of the port, over `subprocess`.

Its workloads are children of the process that makes them, and end with it. A real backend keeps what it must remember
with its engine, so that any process can go on with it; this one keeps it in memory to stay short.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from dibs.backends.port import (
    Capability,
    Exit,
    ExitReason,
    Expectation,
    Handle,
    LogRecord,
    Observation,
    Output,
    Phase,
    Realisation,
    Session,
    Status,
    Workload,
)
from dibs.errors import CommandFailed, Conflict, InvalidRequest, NotFound, Problem

Stream = Literal["stdout", "stderr"]
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_KILL_WAITS = 10.0  # seconds; a process that was killed is gone sooner, unless the kernel holds it


class Child:
    """One workload: held, then a process, then its exit. `changed` guards everything in it."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.process: subprocess.Popen[bytes] | None = None
        self.exit: Exit | None = None
        self.stopped = False
        self.log: list[LogRecord] = []
        self.changed = threading.Condition()
        self.bells: list[int] = []  # a byte is written to each of them when there is something new

    def run(self) -> None:
        workload = self.workload
        try:
            self.process = subprocess.Popen(
                workload.command,
                env=workload.env,
                cwd=workload.workdir,
                stdin=subprocess.PIPE if workload.interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=_as_leader,  # noqa: PLW1509 - it must end with dibs, however that ends
                bufsize=0,
            )
        except (FileNotFoundError, PermissionError) as error:
            self._end(Exit(137, ExitReason.NOT_STARTED, 9))
            missing = isinstance(error, FileNotFoundError)
            raise CommandFailed(f"it cannot be run: {error}", missing=missing, value=workload.command[0]) from error
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        process = self.process
        assert process is not None
        readers = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("stdout", "stderr")]
        for reader in readers:
            reader.start()
        code = process.wait()
        for reader in readers:
            reader.join()
        number = -code if code < 0 else 0
        reason = ExitReason.STOPPED if self.stopped else ExitReason.SIGNALLED if number else ExitReason.EXITED
        self._end(Exit(128 + number if number else code, reason, number, at=time.time()))
        if process.stdin is not None:
            process.stdin.close()

    def _read(self, name: Stream) -> None:
        assert self.process is not None
        pipe = self.process.stdout if name == "stdout" else self.process.stderr
        assert pipe is not None
        with pipe:
            while data := pipe.read(65536):
                with self.changed:
                    self.log.append(LogRecord(time.time(), name, data))
                    self._ring()

    def _end(self, how: Exit) -> None:
        with self.changed:
            self.exit = how
            self._ring()

    def _ring(self) -> None:
        self.changed.notify_all()
        for bell in self.bells:
            with contextlib.suppress(BlockingIOError):  # it is full of bytes that say the same
                os.write(bell, b"!")

    def more_than(self, seen: int) -> Callable[[], bool]:
        return lambda: len(self.log) > seen or self.exit is not None

    def signal(self, number: int) -> None:
        if self.process is not None and self.exit is None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return  # it ends just now

    def stop(self, grace: float) -> None:
        if self.process is None:
            self._end(self.exit or Exit(137, ExitReason.NOT_STARTED, 9))
            return
        self.stopped = self.exit is None
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_WAITS)):
            if patience > 0 and self.exit is None:
                self.signal(number)
                self.wait(patience)

    def wait(self, timeout: float | None) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.exit is not None, timeout)


def _as_leader() -> None:
    """In the child: a process group of its own, which ends if dibs does."""
    os.setpgrp()
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)


class ProcessBackend:
    """See `dibs.backends.port.Backend`. It has none of the optional protocols."""

    holds = False  # a process that does not run cannot be looked at

    def __init__(self, name: str) -> None:
        self.name = name
        self._children: dict[str, Child] = {}

    def available(self) -> Capability:
        return Capability(ok=True)

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002 - nothing is kept in it
        if not workload.command or not workload.command[0]:
            problem = Problem("COMMAND_INVALID", "command", "", "a command is needed", "say what shall run")
            raise InvalidRequest([problem])
        expected = Expectation(env=workload.env)
        return Realisation(self.name, {"command": list(workload.command), "workdir": workload.workdir}, expected)

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:  # noqa: ARG002
        self._children[workload.id] = Child(workload)
        return Handle(self.name, workload.id, str(folder))

    def start(self, handle: Handle) -> None:
        child = self._find(handle)
        if child.process is not None or child.exit is not None:
            raise Conflict("it was started before", field="sandbox", value=handle.sandbox_id, code="NOT_HELD")
        child.run()

    def observe(self, handle: Handle) -> Observation:
        """What the kernel says of the process, not what was asked for."""
        child = self._find(handle)
        if child.process is None or child.exit is not None:
            raise Conflict("it does not run", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        try:
            pairs = Path(f"/proc/{child.process.pid}/environ").read_bytes().decode().split("\0")
        except OSError:
            return Observation(unseen=("env",))  # it has ended meanwhile
        if pairs == [""]:
            return Observation(unseen=("env",))
        return Observation(env=dict(pair.split("=", 1) for pair in pairs if pair), origin={"": "after start"})

    def status(self, handle: Handle) -> Status:
        child = self._children.get(handle.sandbox_id)
        if child is None:
            return Status(Phase.ABSENT)  # what this process did not make has ended with the process that made it
        if child.exit is not None:
            return Status(Phase.EXITED, child.exit)
        return Status(Phase.HELD if child.process is None else Phase.RUNNING)

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        child = self._children.get(handle.sandbox_id)
        if child is not None:
            child.wait(timeout)
        return self.status(handle)

    def attach(self, handle: Handle) -> Session:
        child = self._find(handle)
        if child.exit is not None:
            raise Conflict("it has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        return ChildSession(child)

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        return _records(self._find(handle), follow=follow)

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        child = self._children.get(handle.sandbox_id)
        if child is not None:
            child.stop(grace_seconds)

    def delete(self, handle: Handle) -> None:
        child = self._children.get(handle.sandbox_id)
        if child is not None and child.exit is None:
            raise Conflict("it still runs", field="sandbox", value=handle.sandbox_id, code="STILL_RUNNING")
        self._children.pop(handle.sandbox_id, None)

    def discard(self, handle: Handle) -> None:
        self.stop(handle, 0)
        self.delete(handle)

    def _find(self, handle: Handle) -> Child:
        child = self._children.get(handle.sandbox_id)
        if child is None:
            raise NotFound("there is no such process", field="sandbox", value=handle.sandbox_id)
        return child


def _records(child: Child, *, follow: bool) -> Iterator[LogRecord]:
    done = 0
    while True:
        with child.changed:
            news = child.changed.wait_for(child.more_than(done), 1.0 if follow else 0)
            pending, ended = child.log[done:], child.exit is not None
        done += len(pending)
        yield from pending
        if not follow or (ended and not pending):
            return
        if not news:
            yield LogRecord(0.0, "stdout", b"")  # nothing came: the reader may stop here


class ChildSession:
    """See `Session` in the port: the output from now on, and last the exit."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._told = False
        self._reading, self._bell = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._bell, False)
        with child.changed:
            self._seen = len(child.log)
            child.bells.append(self._bell)

    def fileno(self) -> int:
        return self._reading

    def send(self, data: bytes) -> None:
        process = self._child.process
        if process is None or process.stdin is None or process.stdin.closed:
            raise Conflict("it takes no input", code="INPUT_CLOSED")
        process.stdin.write(data)

    def end_of_input(self) -> None:
        process = self._child.process
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def signal(self, number: int) -> None:
        self._child.signal(number)

    def resize(self, rows: int, columns: int) -> None:
        """There is no terminal."""

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        child = self._child
        with child.changed:
            child.changed.wait_for(child.more_than(self._seen), timeout)
            with contextlib.suppress(BlockingIOError):
                os.read(self._reading, 1 << 16)
            records, self._seen = child.log[self._seen :], len(child.log)
            found: list[Output | Exit] = [Output(record.stream, record.data) for record in records]
            if child.exit is not None and not self._told:
                self._told = True
                found.append(child.exit)
        return found

    def close(self) -> None:
        with self._child.changed:
            if self._bell in self._child.bells:
                self._child.bells.remove(self._bell)
                os.close(self._bell)
                os.close(self._reading)

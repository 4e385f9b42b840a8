"""A backend that runs nothing, for the tests of everything above a backend, here and in users' own projects.

It keeps the whole port in memory, deterministically: no process, no clock of its own (`advance` moves time), no files.
Commands are small Python programs: `true`, `false`, `echo`, `env`, `cat`, `sleep` and `exit` come with it, `programs`
adds more. It can be told to go wrong: `fail_next`, `tamper`, `lose`, `forbid`.

`listen` opens a port in a sandbox, `use` says what it uses.

It must behave as the port says wherever it can, because layers above are built against it; `tests/conformance` runs the
same suite against it as against the real ones.
"""

from __future__ import annotations

import io
import posixpath
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from dibs.backends.port import (
    Capability,
    Exec,
    Exit,
    Expectation,
    Handle,
    Limits,
    LogRecord,
    NodeFact,
    Observation,
    Output,
    Phase,
    Realisation,
    Session,
    Status,
    Usage,
    Workload,
)
from dibs.errors import (
    BackendUnavailable,
    CommandFailed,
    Conflict,
    DibsError,
    InvalidRequest,
    NotFound,
    Problem,
    Unsupported,
)

if TYPE_CHECKING:
    import socket

Stream = Literal["stdout", "stderr"]
_PULSE = 1.0  # seconds of silence after which whoever follows a log is told so
EPOCH = 1_700_000_000.0  # the fake world's clock starts here


class FakeProcess:
    """A command of the fake world. A program gets it, writes to it, and may set what it does with input and signals."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str], write: Callable[[Stream, bytes], None]) -> None:
        self.command = command
        self.env = env
        self.user = ""
        self.write = write
        self.exit: Exit | None = None
        self.on_input: Callable[[bytes], None] | None = None
        self.on_end_of_input: Callable[[], int | None] | None = None
        self.on_signal: Callable[[int], int | None] | None = None
        self.size: tuple[int, int] | None = None


# A program gives its exit code, or None to go on until it is told to end.
Program = Callable[[FakeProcess], int | None]


def _echo(process: FakeProcess) -> int:
    process.write("stdout", (" ".join(process.command[1:]) + "\n").encode())
    return 0


def _env(process: FakeProcess) -> int:
    process.write("stdout", "".join(f"{k}={v}\n" for k, v in process.env.items()).encode())
    return 0


def _cat(process: FakeProcess) -> None:
    process.on_input = lambda data: process.write("stdout", data)
    process.on_end_of_input = lambda: 0


PROGRAMS: dict[str, Program] = {
    "true": lambda _: 0,
    "false": lambda _: 1,
    "exit": lambda process: int(process.command[1]),
    "sleep": lambda _: None,
    "echo": _echo,
    "env": _env,
    "cat": _cat,
}


class _Sandbox:
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

    def __init__(self, backend: FakeBackend, sandbox: _Sandbox, process: FakeProcess | None, *, can_send: bool) -> None:
        self._backend = backend
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
        with self._backend.changed:
            if not self._can_send:
                raise Conflict("the workload was started without input", code="INPUT_CLOSED")
            if self._process is not None and self._process.exit is None and self._process.on_input is not None:
                self._process.on_input(data)
            self._backend.changed.notify_all()

    def end_of_input(self) -> None:
        with self._backend.changed:
            process = self._process
            if process is not None and process.exit is None and process.on_end_of_input is not None:
                self._backend.settle(self._sandbox, process, process.on_end_of_input())

    def signal(self, number: int) -> None:
        with self._backend.changed:
            process = self._process
            if process is not None and process.exit is None:
                self._backend.signal(self._sandbox, process, number)

    def resize(self, rows: int, columns: int) -> None:
        if self._process is not None:
            self._process.size = (rows, columns)

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        with self._backend.changed:
            self._backend.changed.wait_for(lambda: self._queue or self._ended is not None, timeout)
            found, self._queue = self._queue, []
            if found and isinstance(found[-1], Exit):
                self._ended = found[-1]
            return found or ([self._ended] if self._ended is not None else [])

    def close(self) -> None:
        """Say goodbye: the workload goes on. A command of exec is hung up, as by a terminal that is closed."""
        self._detach()
        if self._own is not None and self._own.exit is None:
            with self._backend.changed:
                self._backend.signal(self._sandbox, self._own, 1)

    def vanish(self) -> None:
        """Be gone without a word, as a client that was killed."""
        self._detach()
        sandbox = self._sandbox
        with self._backend.changed:
            if self._own is None and sandbox.workload.foreground and sandbox.process is not None:
                self._backend.end(sandbox, Exit(129, "client-gone", 1))

    def _detach(self) -> None:
        if self in self._sandbox.sessions:
            self._sandbox.sessions.remove(self)


class FakeBackend:
    """See `dibs.backends.port.Backend`. Without `holds` it is like an engine: a look only after the start."""

    holds = True

    def __init__(self, programs: dict[str, Program] | None = None, *, name: str = "fake", holds: bool = True) -> None:
        self.name = name
        self.holds = holds
        self.changed = threading.Condition()
        self.now = EPOCH
        self.calls: list[tuple[str, str]] = []
        self._programs = {**PROGRAMS, **(programs or {})}
        self._sandboxes: dict[str, _Sandbox] = {}
        self._exec_sessions: dict[int, FakeSession] = {}
        self._failures: dict[str, list[DibsError]] = {}
        self._forbidden: dict[str, Capability] = {}

    # --- what tests turn

    def fail_next(self, verb: str, error: DibsError) -> None:
        """The next call of a verb raises this."""
        self._failures.setdefault(verb, []).append(error)

    def forbid(self, what: Literal["cpu", "memory", "pids", "available"], reason: str, remedy: str = "") -> None:
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
                    self.end(sandbox, Exit(143, "expired", 15))

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
            lost = Exit(137, "lost", 9, at=self.now)
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
                    self.end(sandbox, Exit(137, "not-started", 9))

    # --- the port

    def available(self) -> Capability:
        return self._forbidden.get("available", Capability(ok=True))

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        return self._forbidden.get(limit, Capability(ok=True))

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002  # there are no files here
        self._called("render", workload.id)
        if not self.available().ok:
            raise BackendUnavailable(self.available().reason, field="backend", value=self.name)
        problems = [*_wrong(workload)]
        for name, value in _asked(workload.limits).items():
            capability = self._forbidden.get(name)
            if capability is not None:
                problems.append(
                    Problem("LIMIT_NOT_ENFORCEABLE", name, str(value), capability.reason, capability.remedy)
                )
        if problems:
            unsupported = all(problem.code == "LIMIT_NOT_ENFORCEABLE" for problem in problems)
            raise (Unsupported if unsupported else InvalidRequest)(problems)
        nodes = {
            NodeFact(node.path, "b" if node.type == "b" else "c", node.major, node.minor)
            for device in workload.devices
            for edits in (device.attachment.spec_edits, device.attachment.edits)
            for node in edits.device_nodes
        }
        mounts = sorted(f"{mount.target} {'rw' if mount.writable else 'ro'}" for mount in workload.mounts)
        limits = {
            key: value
            for key, value in (
                ("cpu_millis", workload.limits.cpu_millis),
                ("memory_bytes", workload.limits.memory_bytes),
                ("pids", workload.limits.pids),
                ("shm_bytes", workload.shm_bytes),
            )
            if value is not None
        }
        native = {"command": list(workload.command), "devices": [str(device.id) for device in workload.devices]}
        return Realisation(
            self.name, native, Expectation(tuple(sorted(nodes)), dict(workload.env), tuple(mounts), limits)
        )

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        self._called("create", workload.id)
        with self.changed:
            if workload.id in self._sandboxes:
                raise Conflict("there is a sandbox with this id", field="id", value=workload.id)
            self._sandboxes[workload.id] = _Sandbox(workload, realisation)
        return Handle(self.name, workload.id, str(folder))

    def observe(self, handle: Handle) -> Observation:
        self._called("observe", handle.sandbox_id)
        sandbox = self._find(handle.sandbox_id)
        if sandbox.exit is not None:
            raise Conflict("the sandbox has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        if sandbox.phase is Phase.HELD and not self.holds:
            raise Conflict("the sandbox does not run yet", value=handle.sandbox_id, code="NOT_RUNNING")
        return sandbox.observation

    def start(self, handle: Handle) -> None:
        self._called("start", handle.sandbox_id)
        with self.changed:
            sandbox = self._find(handle.sandbox_id)
            if sandbox.phase is not Phase.HELD:
                raise Conflict(f"the sandbox is {sandbox.phase}", code="NOT_HELD", value=handle.sandbox_id)
            workload = sandbox.workload
            try:
                program = self._program(workload.command[0])
            except CommandFailed:
                self.end(sandbox, Exit(137, "not-started", 9))
                raise
            sandbox.phase = Phase.RUNNING
            if workload.ttl_seconds is not None:
                sandbox.expires = self.now + workload.ttl_seconds

            def write(stream: Stream, data: bytes) -> None:
                sandbox.log.append(LogRecord(self.now, stream, data))
                for session in sandbox.sessions:
                    session.push(Output(stream, data))
                self.changed.notify_all()

            sandbox.process = FakeProcess(workload.command, dict(workload.env), write)
            sandbox.process.user = workload.user
            self.settle(sandbox, sandbox.process, program(sandbox.process))

    def status(self, handle: Handle) -> Status:
        sandbox = self._sandboxes.get(handle.sandbox_id)
        if sandbox is None:
            return Status(Phase.ABSENT)
        return Status(sandbox.phase, sandbox.exit)

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        return {handle.sandbox_id: self.status(handle) for handle in handles}

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        with self.changed:
            self.changed.wait_for(lambda: self._over(handle), timeout)
        return self.status(handle)

    def attach(self, handle: Handle) -> Session:
        self._called("attach", handle.sandbox_id)
        with self.changed:
            sandbox = self._find(handle.sandbox_id)
            if sandbox.exit is not None:
                raise Conflict("the sandbox has ended", value=handle.sandbox_id, code="NOT_RUNNING")
            workload = sandbox.workload
            session = FakeSession(self, sandbox, None, can_send=workload.interactive or workload.tty)
            sandbox.sessions.append(session)
            return session

    def exec(self, handle: Handle, command: Exec) -> Session:
        self._called("exec", handle.sandbox_id)
        with self.changed:
            sandbox = self._running(handle)
            program = self._program(command.command[0])
            _user(command.user)
            env = {**sandbox.workload.env, **command.env}
            process = FakeProcess(command.command, env, lambda stream, data: session.push(Output(stream, data)))
            process.user = command.user or sandbox.workload.user
            session = FakeSession(self, sandbox, process, can_send=True)
            sandbox.execs.append(process)
            self._exec_sessions[id(process)] = session
            self.settle(sandbox, process, program(process))
            return session

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        sandbox = self._find(handle.sandbox_id)
        return self._records(handle, sandbox, follow)

    def _records(self, handle: Handle, sandbox: _Sandbox, follow: bool) -> Iterator[LogRecord]:
        done = 0

        def news() -> bool:
            return len(sandbox.log) > done or self._over(handle)

        while True:
            with self.changed:
                silent = follow and not self.changed.wait_for(news, _PULSE)
                pending = sandbox.log[done:]
            done += len(pending)
            yield from pending
            if silent:
                yield LogRecord(0.0, "stdout", b"")  # nothing was written; whoever reads may stop here
            if not follow or (not pending and self._over(handle)):
                return

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        import tarfile

        sandbox = self._running(handle)
        found: dict[str, bytes] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(b"".join(archive)), mode="r:*") as tar:
                for member in tar:
                    parts = member.name.split("/")
                    out = member.linkname.startswith("/") or ".." in member.linkname.split("/")
                    if member.name.startswith("/") or ".." in parts or member.isdev() or (member.islnk() and out):
                        raise _refused(f'the archive has a name or a node that leads out: "{member.name}"')
                    if member.issym():
                        target = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
                        if target.startswith(("/", "..")):
                            raise _refused(f'the archive has a link that points out of it: "{member.name}"')
                    file = tar.extractfile(member) if member.isfile() else None
                    if file is not None:
                        found[posixpath.join(path, member.name)] = file.read()
        except tarfile.TarError as error:
            raise _refused(f"the archive cannot be read: {error}") from error
        sandbox.files.update(found)

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        import tarfile

        sandbox = self._running(handle)
        wanted = posixpath.normpath(path)
        chosen = {p: d for p, d in sandbox.files.items() if p == wanted or p.startswith(wanted + "/")}
        if not chosen:
            raise NotFound(f'"{path}" is not there', field="path", value=path)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, data in sorted(chosen.items()):
                info = tarfile.TarInfo(posixpath.relpath(name, posixpath.dirname(wanted)))
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return iter([buffer.getvalue()])

    def pause(self, handle: Handle) -> None:
        self._called("pause", handle.sandbox_id)
        self._change(handle, (Phase.RUNNING, Phase.PAUSED), Phase.PAUSED)

    def resume(self, handle: Handle) -> None:
        self._called("resume", handle.sandbox_id)
        self._change(handle, (Phase.RUNNING, Phase.PAUSED), Phase.RUNNING)

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        self._called("stop", handle.sandbox_id)
        with self.changed:
            sandbox = self._sandboxes.get(handle.sandbox_id)
            if sandbox is None or sandbox.exit is not None:
                return
            if sandbox.phase is Phase.HELD:
                self.end(sandbox, Exit(137, "not-started", 9))
                return
            process = sandbox.process
            code = None
            if grace_seconds > 0 and process is not None and process.on_signal is not None:
                code = process.on_signal(15)
                ended = Exit(code, "stopped") if code is not None else Exit(137, "stopped", 9)
            else:
                ended = Exit(143, "stopped", 15) if grace_seconds > 0 else Exit(137, "stopped", 9)
            self.end(sandbox, ended)

    def delete(self, handle: Handle) -> None:
        self._called("delete", handle.sandbox_id)
        with self.changed:
            sandbox = self._sandboxes.get(handle.sandbox_id)
            if sandbox is None:
                return
            if sandbox.exit is None:
                raise Conflict(f"the sandbox is {sandbox.phase}", code="STILL_RUNNING", value=handle.sandbox_id)
            del self._sandboxes[handle.sandbox_id]

    def discard(self, handle: Handle) -> None:
        self._called("discard", handle.sandbox_id)
        with self.changed:
            sandbox = self._sandboxes.get(handle.sandbox_id)
            if sandbox is not None and sandbox.exit is None:
                self.end(sandbox, Exit(137, "not-started" if sandbox.phase is Phase.HELD else "stopped", 9))
            self._sandboxes.pop(handle.sandbox_id, None)

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        """By the fake clock: `now` is where it stands."""
        self._called("set_expiry", handle.sandbox_id)
        with self.changed:
            sandbox = self._find(handle.sandbox_id)
            if sandbox.exit is not None:
                raise Conflict("the sandbox has ended", value=handle.sandbox_id, code="NOT_RUNNING")
            sandbox.expires = at
        self.advance(0)

    def usage(self, handle: Handle) -> Usage:
        sandbox = self._find(handle.sandbox_id)
        if sandbox.exit is not None:
            raise Conflict("the sandbox has ended", value=handle.sandbox_id, code="NOT_RUNNING")
        limits = sandbox.workload.limits
        cpus = 8.0 if limits.cpu_millis is None else limits.cpu_millis / 1000
        return Usage(*sandbox.used, limits.memory_bytes or 64 << 30, cpus)

    def connect(self, handle: Handle, port: int) -> socket.socket:
        import socket

        self._called("connect", handle.sandbox_id)
        answer = self._running(handle).ports.get(port)
        if answer is None:
            raise NotFound("nothing listens on this port", field="port", value=str(port), code="PORT_CLOSED")
        ours, theirs = socket.socketpair()
        answer(theirs)
        return ours

    def snapshot(self, handle: Handle, name: str) -> str:  # noqa: ARG002
        raise Unsupported("there are no files to keep", field="snapshot", value=name, code="SNAPSHOT_UNSUPPORTED")

    # --- inside

    def settle(self, sandbox: _Sandbox, process: FakeProcess, code: int | None) -> None:
        """A program has given its exit code, or goes on."""
        if code is not None:
            ended = Exit(code, at=self.now)
            if process is sandbox.process:
                self.end(sandbox, ended)
            else:
                self._end_exec(process, ended)
        self.changed.notify_all()

    def signal(self, sandbox: _Sandbox, process: FakeProcess, number: int) -> None:
        if process.on_signal is not None and number != 9:
            self.settle(sandbox, process, process.on_signal(number))
            return
        ended = Exit(128 + number, "signalled", number)
        if process is sandbox.process:
            self.end(sandbox, ended)
        else:
            self._end_exec(process, ended)

    def end(self, sandbox: _Sandbox, ended: Exit) -> None:
        ended = msgspec.structs.replace(ended, at=self.now)
        sandbox.phase, sandbox.exit = Phase.EXITED, ended
        if sandbox.process is not None:
            sandbox.process.exit = ended
        for session in sandbox.sessions:
            session.push(ended)
        for process in sandbox.execs:
            if process.exit is None:
                self._end_exec(process, Exit(137, "signalled", 9))
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

    def _find(self, sandbox_id: str) -> _Sandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            raise NotFound("there is no such sandbox", field="sandbox", value=sandbox_id)
        return sandbox

    def _over(self, handle: Handle) -> bool:
        sandbox = self._sandboxes.get(handle.sandbox_id)
        return sandbox is None or sandbox.exit is not None

    def _running(self, handle: Handle) -> _Sandbox:
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


def _asked(limits: Limits) -> dict[str, int]:
    asked = {"cpu": limits.cpu_millis, "memory": limits.memory_bytes, "pids": limits.pids}
    return {name: value for name, value in asked.items() if value is not None}


def _wrong(workload: Workload) -> list[Problem]:
    found = []
    if not workload.command or not workload.command[0]:
        found.append(Problem("INVALID_REQUEST", "command", "", "there is no command"))
    if not workload.workdir.startswith("/"):
        found.append(Problem("INVALID_REQUEST", "workdir", workload.workdir, "it must be an absolute path"))
    for name, value in _asked(workload.limits).items():
        if value <= 0:
            found.append(Problem("INVALID_REQUEST", name, str(value), "a limit must be more than nothing"))
    found += [] if not workload.user else _wrong_user(workload.user)
    if workload.shm_bytes is not None and workload.shm_bytes <= 0:
        reason = "shared memory must be more than nothing"
        found.append(Problem("INVALID_REQUEST", "shm_size", str(workload.shm_bytes), reason))
    return found


def _wrong_user(text: str) -> list[Problem]:
    """Every number is a user here, and no name is."""
    words = text.split(":")
    if len(words) <= 2 and all(word.isascii() and word.isdigit() for word in words):
        return []
    return [Problem("INVALID_REQUEST", "user", text, "there is no such user", 'say "uid" or "uid:gid"')]


def _user(text: str) -> None:
    problems = _wrong_user(text) if text else []
    if problems:
        raise InvalidRequest(problems)


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(reason, field="archive", code="ARCHIVE_REFUSED")

"""The port, over the fake world, deterministically: the same calls give the same answers.

It must behave as the port says wherever it can, because layers above are built against it; `tests/conformance` runs the
same suite against it as against the real ones.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dibs.backends import tar_check
from dibs.backends.fake import rendering
from dibs.backends.fake.processes import FakeProcess, Stream
from dibs.backends.fake.sandboxes import FakeSandbox, FakeSession
from dibs.backends.fake.world import FakeWorld
from dibs.backends.port import (
    Capability,
    Exec,
    Exit,
    ExitReason,
    Handle,
    LogRecord,
    Network,
    Observation,
    Output,
    Phase,
    Realisation,
    Session,
    Status,
    Usage,
    Workload,
)
from dibs.backends.tar_reader import Reader
from dibs.errors import BackendUnavailable, CommandFailed, Conflict, InvalidRequest, NotFound, Problem, Unsupported

if TYPE_CHECKING:
    import socket

_PULSE = 1.0  # seconds of silence after which a follower of the log gets an empty record


class FakeBackend(FakeWorld):
    """See `dibs.backends.port.Backend`. Without `holds` it is like an engine: a look only after the start."""

    def available(self) -> Capability:
        return self._forbidden.get("available", Capability(ok=True))

    def inspect_image(self, image: str) -> None:
        """There is nothing to know: there are no images."""

    def can_network(self, network: Network) -> Capability:
        return self._forbidden.get(f"network.{network}", Capability(ok=True))

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        return self._forbidden.get(limit, Capability(ok=True))

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002  # there are no files here
        self._called("render", workload.id)
        if not self.available().ok:
            raise BackendUnavailable(self.available().reason, field="backend", value=self.name)
        problems = [*rendering.wrong(workload)]
        for name, value in rendering.asked(workload.limits).items():
            capability = self._forbidden.get(name)
            if capability is not None:
                problems.append(
                    Problem("LIMIT_NOT_ENFORCEABLE", name, str(value), capability.reason, capability.remedy)
                )
        if problems:
            unsupported = all(problem.code == "LIMIT_NOT_ENFORCEABLE" for problem in problems)
            raise (Unsupported if unsupported else InvalidRequest)(problems)
        native = {"command": list(workload.command), "devices": [str(device.id) for device in workload.devices]}
        return Realisation(self.name, native, rendering.expected(workload))

    def finalise(self, workload: Workload, realisation: Realisation) -> Realisation:  # noqa: ARG002
        return realisation  # nothing has to be fetched

    def outdated(self, realisation: Realisation) -> bool:  # noqa: ARG002
        return False

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        self._called("create", workload.id)
        with self.changed:
            if workload.id in self._sandboxes:
                raise Conflict("there is a sandbox with this id", field="id", value=workload.id)
            self._sandboxes[workload.id] = FakeSandbox(workload, realisation)
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
                self.end(sandbox, Exit(137, ExitReason.NOT_STARTED, 9))
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
            rendering.check_user(command.user)
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

    def _records(self, handle: Handle, sandbox: FakeSandbox, follow: bool) -> Iterator[LogRecord]:
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
                yield LogRecord(0.0, "stdout", b"")  # nothing was written; a reader may stop here
            if not follow or (not pending and self._over(handle)):
                return

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        sandbox = self._running(handle)
        found: dict[str, bytes] = {}
        with tar_check.checked(archive, 0, 0) as file:
            reader = Reader(file)
            for member in reader:
                if member.kind == "file":
                    found[posixpath.join(path, member.name)] = b"".join(reader.contents())
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
                self.end(sandbox, Exit(137, ExitReason.NOT_STARTED, 9))
                return
            process = sandbox.process
            code = None
            if grace_seconds > 0 and process is not None and process.on_signal is not None:
                code = process.on_signal(15)
                ended = Exit(code, ExitReason.STOPPED) if code is not None else Exit(137, ExitReason.STOPPED, 9)
            else:
                ended = Exit(143, ExitReason.STOPPED, 15) if grace_seconds > 0 else Exit(137, ExitReason.STOPPED, 9)
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
                self.end(
                    sandbox, Exit(137, ExitReason.NOT_STARTED if sandbox.phase is Phase.HELD else ExitReason.STOPPED, 9)
                )
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

"""Going into a running sandbox: further commands, hooks, copying, connections.

`backend` calls it for sandboxes that run. The work inside is done by the `enter` program; here are its orders and its
answers, turned into the errors of the port.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from dibs.backends.local import hooks, observe, users
from dibs.backends.local.handles import groups, living_init
from dibs.backends.local.helper import Helpers
from dibs.backends.local.shim_client import Connection, ShimSession
from dibs.backends.local.wire import decode
from dibs.backends.port import Exec, Exit, Handle, Workload
from dibs.cdi.spec import Hook
from dibs.errors import BackendUnavailable, CommandFailed, Conflict, DibsError, InvalidRequest, NotFound
from dibs.process import ProcessName, as_shown

SILENCE = 300.0  # seconds that a copy may make no progress: a sandbox can stall it on purpose
PIPE = 4096  # bytes that a pipe takes at once whenever it takes any
CONNECT_TIMEOUT = 5.0  # a loopback answers at once, or its listener has no room for one more


def run(helpers: Helpers, handle: Handle, command: Exec) -> ShimSession:
    """One more command in a running sandbox."""
    init = living_init(handle)
    assert handle.init is not None
    variables, workloads = _first_process(handle.init)
    env = {**variables, **command.env}
    cwd = command.workdir or env.get("PWD", "/")
    env["PWD"] = cwd
    spec = [*_enter_spec(handle, workloads), ("mode", "exec"), ("cwd", cwd), ("tty", str(int(command.tty)))]
    spec.append(("powers", handle.data.get("powers", "")))
    if command.size is not None:
        spec += [("rows", str(command.size[0])), ("columns", str(command.size[1]))]
    spec += [("cmd", word) for word in command.command]
    spec += [("env", f"{name}={value}") for name, value in env.items()]
    if command.user:
        user = users.inside(init, command.user)
        if os.getuid() == 0:  # an ordinary user cannot become another
            spec += _as(*user)
    return _enter(helpers, handle, spec, command.command[0])


def run_hook(helpers: Helpers, hook: Hook, handle: Handle, workload: Workload, *, privileged: bool) -> None:
    """A hook in the sandbox's namespaces; raises when it fails."""
    spec = [*_enter_spec(handle), ("mode", "exec"), ("cwd", "/")]
    spec += [("cmd", word) for word in (hook.args or (hook.path,))]
    spec += [("env", item) for item in hook.env]
    # A createContainer hook's program is the host's, a startContainer hook's the sandbox's. That one is told where its
    # bundle is on the host and cannot open it, as with runtimes.
    bundle = "/proc/self/fd/200" if privileged else str(Path(handle.folder) / "bundle")
    if privileged:
        spec += [("program", hook.path), ("privileged", "1"), ("config", hooks.configuration("/").decode())]
    else:
        spec.append(("file", hook.path))
    session = _enter(helpers, handle, spec, hook.path)
    session.send(hooks.state(workload.id, "created", 1, bundle))
    session.end_of_input()
    said = b""
    until = time.monotonic() + hook.timeout if hook.timeout else None
    try:
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            for piece in session.receive(left):
                if isinstance(piece, Exit):
                    if piece.code:
                        words = said.decode(errors="replace").strip()
                        raise hooks.failed(hook, f"ended with {piece.code}{': ' + words if words else ''}")
                    return
                said = (said + piece.data)[-1000:]
            if until is not None and time.monotonic() >= until:
                session.signal(9)
                raise hooks.failed(hook, f"took longer than {hook.timeout} s")
    finally:
        session.close()


def copy_in(helpers: Helpers, handle: Handle, archive: Iterator[bytes], path: str) -> None:
    reading, writing = os.pipe()
    try:
        connection = helpers.enter(handle, stdin=reading)
    except DibsError:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    try:
        connection.send(b"H", [*_enter_spec(handle), ("mode", "in"), ("path", _inside(handle, path))])
        _copy_answer(connection, path)
        try:
            for piece in archive:
                view = memoryview(piece)
                while view:
                    _await(writing, select.POLLOUT)
                    view = view[os.write(writing, view[:PIPE]) :]
        except BrokenPipeError:
            pass  # it refused the rest: the answer says why
        finally:
            os.close(writing)
            writing = -1
        _copy_answer(connection, path)
    finally:
        if writing >= 0:
            os.close(writing)
        connection.close()


def copy_out(helpers: Helpers, handle: Handle, path: str) -> Iterator[bytes]:
    spec = [*_enter_spec(handle), ("mode", "out"), ("path", _inside(handle, path))]
    reading, writing = os.pipe()
    try:
        connection = helpers.enter(handle, stdout=writing)
        connection.send(b"H", spec)
    except (DibsError, OSError):
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        _copy_answer(connection, path)
    except DibsError:
        os.close(reading)
        connection.close()
        raise
    return _stream(reading, connection, path)


def _enter_spec(handle: Handle, workloads: tuple[int, int] | None = None) -> list[tuple[str, str]]:
    """`workloads`: the user of its command, where that is known already."""
    living_init(handle)
    init = handle.init
    assert init is not None
    spec = [
        ("pid", str(init.pid)),
        ("started", str(as_shown(init.started))),
        *(("cgroup", path) for path in groups(handle)),
    ]
    workloads = workloads or users.of_process(init.pid)
    return spec if workloads == (os.getuid(), os.getgid()) else [*spec, *_as(*workloads)]


@lru_cache(maxsize=1024)
def _first_process(init: ProcessName) -> tuple[Mapping[str, str], tuple[int, int]]:
    """Environment and user of a running sandbox's first process: they cannot change, so they are read once."""
    return observe.environment(init.pid), users.of_process(init.pid)


def _as(uid: int, gid: int) -> list[tuple[str, str]]:
    """In a spec the last one counts."""
    return [("uid", str(uid)), ("gid", str(gid))]


def connect(helpers: Helpers, handle: Handle, port: int) -> int:
    """The descriptor of a TCP connection to a port of the sandbox's own loopback."""
    connection = helpers.enter(handle)
    try:
        spec = [*_enter_spec(handle), ("mode", "connect"), ("port", str(port)), ("timeout", repr(CONNECT_TIMEOUT))]
        connection.send(b"H", spec)
        fd, fields = connection.take_descriptor()
    finally:
        connection.close()
    if fd is not None:
        return fd
    if fields.get("step") == "connect":
        raise not_connected(port, int(fields["errno"]), fields["error"])
    raise Conflict("the sandbox has ended", code="NOT_RUNNING", value=handle.sandbox_id)


def not_connected(port: int, number: int, reason: str) -> DibsError:
    if number == errno.ECONNREFUSED:
        return NotFound(
            "nothing listens on this port of the sandbox", field="port", value=str(port), code="PORT_CLOSED"
        )
    return BackendUnavailable(
        f"the sandbox's port does not answer: {reason.lower()}", field="port", value=str(port), code="PORT_UNREACHABLE"
    )


def _enter(helpers: Helpers, handle: Handle, spec: list[tuple[str, str]], command: str) -> ShimSession:
    connection = helpers.enter(handle)
    connection.send(b"H", spec)
    one = connection.next(None)
    if one is not None and one[0] == b"A":
        return ShimSession(connection, dict(decode(one[1])))
    connection.close()
    fields = dict(decode(one[1])) if one is not None else {}
    reason, step = fields.get("error", "the helper ended without a word"), fields.get("step")
    if step == "exec":
        missing = fields.get("errno") in ("2", "20")
        raise CommandFailed(reason.lower(), missing=missing, value=command)
    if step == "chdir":
        raise InvalidRequest(f"the working directory cannot be used: {reason.lower()}", field="workdir")
    if step == "enter" and fields.get("errno") in ("2", "3"):
        raise Conflict("the sandbox has ended", code="NOT_RUNNING")
    raise BackendUnavailable(f"the sandbox cannot be entered: {reason}", code="ENTER_FAILED")


def _inside(handle: Handle, path: str) -> str:
    """A path of the sandbox; a relative one starts at its working directory."""
    if path.startswith("/"):
        return path
    return os.path.join(observe.environment(living_init(handle)).get("PWD", "/"), path)


def _await(fd: int, event: int) -> None:
    """Wait for the helper, which is a process of the sandbox: what is in there may stop it."""
    poller = select.poll()
    poller.register(fd, event)
    if not poller.poll(SILENCE * 1000):
        raise _silent()


def _silent() -> BackendUnavailable:
    return BackendUnavailable(
        f"the sandbox did nothing for {SILENCE:g} seconds while files were copied", field="sandbox",
        code="ENTER_FAILED", remedy="look whether it is paused",
    )  # fmt: skip


def _copy_answer(connection: Connection, path: str) -> None:
    try:
        one = connection.next(SILENCE)
    except TimeoutError:
        raise _silent() from None
    if one is not None and one[0] in (b"A", b"X"):
        return
    fields = dict(decode(one[1])) if one is not None else {}
    reason, kind = fields.get("error", "the sandbox ended while files were copied"), fields.get("kind", "gone")
    if kind == "missing":
        raise NotFound(reason, field="path", value=path)
    if kind in ("hostile", "broken"):
        raise InvalidRequest(reason, field="archive", code="ARCHIVE_REFUSED")
    if kind == "gone":
        raise Conflict(f"the sandbox cannot be entered: {reason}", code="NOT_RUNNING")
    raise InvalidRequest(f"files cannot be copied: {reason.lower()}", field="path", value=path, code="COPY_FAILED")


def _stream(reading: int, connection: Connection, path: str) -> Iterator[bytes]:
    try:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while True:
                _await(reading, select.POLLIN)
                piece = pipe.read(65536)
                if not piece:
                    break
                yield piece
        _copy_answer(connection, path)
    finally:
        connection.close()

"""Further commands in a running container.

`backend.exec` calls it. Engines have no signal for such a command: it is sent to the command's process where that is
visible from here, else by a further command that looks for it inside.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal as signals
import time
from typing import TYPE_CHECKING, Any

from dibs.backends.engines import errors, exec_guards, process_view, ttl
from dibs.backends.engines.client import EngineError
from dibs.backends.engines.engine import container
from dibs.backends.engines.sessions import Call, StreamSession
from dibs.backends.engines.status import not_running
from dibs.backends.input_wait import waits_for_input
from dibs.backends.port import Exec, Exit, ExitReason, Handle, Phase
from dibs.errors import BackendUnavailable, CommandFailed, DibsError, InvalidRequest
from dibs.process import name_of

if TYPE_CHECKING:
    from dibs.backends.engines.attach import Conversations

_MARK = "DIBS_EXEC"
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?", re.ASCII)
_POLL = 0.05  # seconds between looks for an exit that the engine does not tell by itself


def execute(backend: Conversations, handle: Handle, command: Exec) -> StreamSession:
    if command.user and _USER.fullmatch(command.user) is None:
        remedy = "write a number, a name, or both of user and group as in 1000:1000"
        raise InvalidRequest("this cannot be a user", field="user", value=command.user, remedy=remedy)
    mark = os.urandom(8).hex()
    body = {
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Cmd": list(command.command),
        "Env": [*(f"{name}={value}" for name, value in command.env.items()), f"{_MARK}={mark}"],
        "Tty": command.tty,
        **({"User": command.user} if command.user else {}),
        **({"WorkingDir": command.workdir} if command.workdir else {}),
    }
    try:
        made = backend.ask(handle, "POST", container(handle) + "/exec", json=body)
        path = f"/exec/{made['Id']}"
        exec_guards.enter(_entry(backend, handle, path, mark))
        sock = backend.hijack(handle, f"{path}/start", {"Detach": False, "Tty": command.tty})
    except CommandFailed:
        exec_guards.leave(mark)
        raise
    except DibsError as error:
        exec_guards.leave(mark)
        if error.code in ("CONTAINER_GONE", "ENGINE_FAILED", "NOT_RUNNING"):
            status = backend.status(handle)
            if status.phase is not Phase.RUNNING:
                raise not_running(status, handle) from error
        raise

    def ended(wait: bool) -> Exit | None:
        while True:
            try:
                found = backend.client().call("GET", f"{path}/json")
            except EngineError as error:
                if error.status == 404:  # the container is gone, and with it whatever it knew
                    return Exit(137, ExitReason.SIGNALLED, 9, "the sandbox ended", time.time())
                raise errors.translate(backend.name, error, value=handle.sandbox_id) from error
            if not found.get("Running"):
                code = int(found.get("ExitCode") or 0)
                number = code - 128 if 128 < code <= 192 else None
                return Exit(code, ExitReason.SIGNALLED if number else ExitReason.EXITED, number, at=time.time())
            if not wait:
                return None
            time.sleep(_POLL)

    def signal(number: int) -> None:
        _send(backend, handle, path, mark, number)

    def resize(rows: int, columns: int) -> None:
        backend.resize(f"{path}/resize", rows, columns)

    def closed(over: bool) -> None:
        """The client has gone: the command gets a hangup, as from a closed terminal, as on `local`."""
        if not over:
            with contextlib.suppress(DibsError):  # the sandbox is going, or cannot be entered
                tell_of_hangup(backend, handle, path, mark)
        exec_guards.leave(mark)

    if command.tty:
        _when_running(backend, path)  # or an early resize would be lost
    call = Call(ended=ended, signal=signal, resize=resize, closed=closed)

    def reading() -> bool | None:
        if ttl.init_of(ttl.folder_of(handle)) is None:
            return None  # its processes are not to be seen from here
        pid = int(_when_running(backend, path).get("Pid") or 0)
        return bool(pid) and _is_in(pid, handle) and waits_for_input(pid, process_view.becomes)

    return StreamSession(sock, call, tty=command.tty, can_send=True, reading=reading)


def _entry(backend: Conversations, handle: Handle, path: str, mark: str) -> exec_guards.Entry:
    home = backend.home
    address = backend.client().target
    return exec_guards.Entry(mark, path, address, str(home.state), str(home.config), handle)


def tell_of_hangup(backend: Conversations, handle: Handle, path: str, mark: str) -> None:
    """Tell a command that its client is gone. Nothing is said to one that has ended."""
    _send(backend, handle, path, mark, signals.SIGHUP)


def _send(backend: Conversations, handle: Handle, path: str, mark: str, number: int) -> None:
    found = _when_running(backend, path)
    if not found.get("Running"):
        return
    pid = int(found.get("Pid") or 0)
    if pid and _is_in(pid, handle):
        try:
            _signal_group(pid, number)
            return
        except ProcessLookupError:
            return
        except PermissionError:
            pass  # another user's engine: from inside, then
    _kill_inside(backend, handle, mark, number)


def _when_running(backend: Conversations, path: str) -> dict[str, Any]:
    """What the engine says of a command, once it has begun; nothing if that is not to be had."""
    found: dict[str, Any] = {}
    for _ in range(400):
        try:
            found = backend.client().call("GET", f"{path}/json")
        except EngineError:
            return {}
        if found.get("Pid") or found.get("ExitCode"):
            return found
        time.sleep(0.005)
    return found


def _is_in(pid: int, handle: Handle) -> bool:
    """Whether a pid of the engine is that process for us: it is in the container's own pid namespace."""
    init = ttl.init_of(ttl.folder_of(handle))
    if init is None or name_of(init.pid) != init:
        return False
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat(f"/proc/{init.pid}/ns/pid").st_ino
    except OSError:
        return False


def _signal_group(pid: int, number: int) -> None:
    """To the command and all that it has started in its own group, as from the keys of a terminal."""
    if os.getpgid(pid) == pid:
        os.killpg(pid, number)
    else:
        os.kill(pid, number)


def _kill_inside(backend: Conversations, handle: Handle, mark: str, number: int) -> None:
    """With the image's own shell. Where it has none, the signal cannot be sent, and that is told."""
    script = (
        f'n=3; for p in /proc/[0-9]*; do if grep -q "{_MARK}={mark}" "$p/environ" 2>/dev/null; '
        f'then kill -{number} "${{p#/proc/}}" && n=0; fi; done; exit $n'
    )
    body = {"AttachStdout": True, "Cmd": ["sh", "-c", script]}
    code = 3  # not found: it is there in a moment, or it has just ended
    for _ in range(20):
        made = backend.ask(handle, "POST", container(handle) + "/exec", json=body)
        with backend.hijack(handle, f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False}) as sock:
            while sock.recv(4096):
                pass
        code = int(backend.ask(handle, "GET", f"/exec/{made['Id']}/json").get("ExitCode") or 0)
        if code != 3:
            break
        time.sleep(_POLL)
    if code:
        name = signals.Signals(number).name
        raise BackendUnavailable(
            f"{name} cannot be sent: the command's process is not visible from here, nor from a shell of the image",
            field="sandbox",
            value=handle.sandbox_id,
            code="ENTER_FAILED",
        )

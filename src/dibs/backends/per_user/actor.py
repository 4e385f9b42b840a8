"""The program that carries out verbs of the local backend as one user of the host, and the messages that name them.

`workers` starts it, as root, with the uid, the groups and next to nothing of an environment; it is the user's from its
first instruction on. It serves one line to the gateway: a call, then its answer, then the next call. A sandbox that it
has created is held by it until the start; if the gateway goes away, the line ends, the program too, and with it
whatever was not started. It must decide nothing. The gateway must not trust it: its user has full control of it.

A message is a length of four bytes and JSON. Descriptors (a session, a pipe for files) travel beside it.
"""

from __future__ import annotations

import array
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from dibs.backends.port import Exec, Handle, LogRecord, Network, Realisation, Workload
from dibs.errors import BackendUnavailable, CommandFailed, DibsError, Internal, Problem

LARGEST = 32 << 20  # of a message; arbitrary, far above any request
IDLE = 90.0  # seconds without a call after which the program ends
_MOST_DESCRIPTORS = 4
_PIECE = 1 << 16


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A verb of the port, with whatever it takes."""

    verb: str
    handle: Handle | None = None
    handles: tuple[Handle, ...] = ()
    workload: Workload | None = None
    realisation: Realisation | None = None
    folder: str = ""
    command: Exec | None = None
    text: str = ""
    number: float | None = None
    flag: bool = False


class Failure(msgspec.Struct, frozen=True):
    """An error of dibs, to be raised again on the other side."""

    kind: str
    problems: tuple[Problem, ...]


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    value: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


class Talk(msgspec.Struct, frozen=True):
    """What a conversation was when its socket was handed over: whether it takes input, and what had come already."""

    interactive: bool
    waiting: bytes = b""


def failure_of(error: DibsError) -> Failure:
    return Failure(type(error).__name__, error.problems)


def error_of(failure: Failure) -> DibsError:
    """The error again. One of an unknown kind is a defect, and told as one."""
    from dibs import errors

    kind = getattr(errors, failure.kind, Internal)
    first = failure.problems[0] if failure.problems else Problem("INTERNAL", "", "", "no reason was given")
    if kind is CommandFailed:
        missing = first.code == "COMMAND_NOT_FOUND"
        return CommandFailed(first.reason, missing=missing, value=first.value, remedy=first.remedy)
    if isinstance(kind, type) and issubclass(kind, DibsError):
        return kind(failure.problems)
    return Internal(failure.problems)


class Line:
    """Messages, with descriptors, over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        body = msgspec.json.encode(message)
        head = len(body).to_bytes(4, "big")
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            sent = self.sock.sendmsg([head], [rights])
            head = head[sent:]
        self.sock.sendall(head + body)

    def receive(self) -> tuple[bytes, list[int]]:
        """One message and what came with it. Raises EOFError when the other side is gone, TimeoutError, ValueError."""
        descriptors: list[int] = []
        try:
            head = self._take(4, descriptors)
            length = int.from_bytes(head, "big")
            if length > LARGEST:
                raise ValueError("the message is too large")
            return self._take(length, descriptors), descriptors
        except BaseException:
            close_all(descriptors)
            raise

    def _take(self, count: int, descriptors: list[int]) -> bytes:
        parts = []
        size = array.array("i").itemsize
        while count:
            data, extra, _, _ = self.sock.recvmsg(min(count, _PIECE), socket.CMSG_SPACE(_MOST_DESCRIPTORS * size))
            for level, kind, payload in extra:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    found = array.array("i")
                    found.frombytes(payload[: len(payload) - len(payload) % size])
                    descriptors += found
            if not data:
                raise EOFError
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def close(self) -> None:
        self.sock.close()


def close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


# --- in the program


class Actor:
    """The local backend of one user, told what to do over a line."""

    def __init__(self, line: Line, state: Path, config: Path, groups: str) -> None:
        from dibs.backends.local import cgroups
        from dibs.backends.local.backend import LocalBackend
        from dibs.backends.local.probes import Probes
        from dibs.home import Home

        # What root has delegated to this user, in place of the groups that only root can make.
        cgroups.PARENT = groups
        self.line = line
        # The state folder is root's; what is worth remembering goes where this user may write.
        probes = Probes(state / "roots" / "probes.json")
        self.backend = LocalBackend(Home(state=state, config=config), probes=probes)

    def serve(self) -> None:
        while True:
            self.line.sock.settimeout(IDLE if not self._holds() else None)
            try:
                text, descriptors = self.line.receive()
            except (EOFError, TimeoutError, ConnectionResetError):
                return
            self.line.sock.settimeout(None)
            passed: list[int] = []
            try:
                call = msgspec.json.decode(text, type=Call)
                value = self._do(call, descriptors, passed)
                answer = Answer(msgspec.Raw(msgspec.json.encode(value)))
            except DibsError as error:
                answer = Answer(failure=failure_of(error))
            except OSError as error:
                answer = Answer(failure=failure_of(_system(error)))
            except Exception as error:  # noqa: BLE001 - a defect; whatever it is, the gateway must hear of it
                answer = Answer(failure=failure_of(Internal(f"{type(error).__name__}: {error}", field=text_of(text))))
            finally:
                close_all(descriptors)
            try:
                self.line.send(answer, tuple(passed))
            except OSError:
                return
            finally:
                close_all(passed)

    def _holds(self) -> bool:
        return self.backend.holds_some()  # as long as one is held, this program must not go away by itself

    def _do(self, call: Call, given: list[int], passed: list[int]) -> Any:
        special: dict[str, Callable[[Call, list[int], list[int]], Any]] = {
            "attach": self._talk,
            "exec": self._talk,
            "logs": self._logs,
            "copy_in": self._copy_in,
            "copy_out": self._copy_out,
            "connect": self._connect,
            "delete": self._delete,
        }
        if call.verb in special:
            return special[call.verb](call, given, passed)
        backend, handle = self.backend, call.handle
        if call.verb == "available":
            return backend.available()
        if call.verb == "can_limit":
            return backend.can_limit(cast("Literal['cpu', 'memory', 'pids']", call.text))
        if call.verb == "can_network":
            return backend.can_network(cast("Network", call.text))
        if call.verb == "render" and call.workload is not None:
            return backend.render(call.workload, Path(call.folder))
        if call.verb == "create" and call.workload is not None and call.realisation is not None:
            return backend.create(call.workload, call.realisation, Path(call.folder))
        if call.verb == "survey":
            return backend.survey(call.handles)
        if handle is not None:
            return self._on_handle(call, handle)
        raise Internal("unknown call", field="verb", value=call.verb)

    def _on_handle(self, call: Call, handle: Handle) -> Any:
        backend = self.backend
        if call.verb == "set_expiry":
            return backend.set_expiry(handle, call.number)
        if call.verb == "wait":
            return backend.wait(handle, call.number)
        if call.verb == "stop":
            return backend.stop(handle, call.number or 0.0)
        if call.verb in ("observe", "start", "status", "pause", "resume", "discard", "usage"):
            return getattr(backend, call.verb)(handle)
        raise Internal("unknown call", field="verb", value=call.verb)

    def _talk(self, call: Call, _given: list[int], passed: list[int]) -> Talk:
        from dibs.backends.local.shim_client import ShimSession

        assert call.handle is not None
        if call.verb == "attach":
            session = self.backend.attach(call.handle)
        else:
            assert call.command is not None
            session = self.backend.exec(call.handle, call.command)
        assert isinstance(session, ShimSession)
        descriptor, waiting = session.handed_over()
        passed.append(descriptor)
        return Talk(session.interactive, waiting)

    def _logs(self, call: Call, given: list[int], _passed: list[int]) -> None:
        assert call.handle is not None
        records = self.backend.logs(call.handle, follow=call.flag)
        self.line.send(Answer())  # it can be had: the rest comes through the pipe
        with os.fdopen(given.pop(), "wb", buffering=0) as pipe:
            for record in records:
                body = msgspec.msgpack.encode(record)
                pipe.write(len(body).to_bytes(4, "big") + body)

    def _copy_in(self, call: Call, given: list[int], _passed: list[int]) -> None:
        assert call.handle is not None
        with os.fdopen(given.pop(), "rb", buffering=0) as pipe:
            self.backend.copy_in(call.handle, iter(lambda: pipe.read(_PIECE), b""), call.text)

    def _copy_out(self, call: Call, given: list[int], _passed: list[int]) -> None:
        assert call.handle is not None
        pieces = self.backend.copy_out(call.handle, call.text)
        self.line.send(Answer())
        with os.fdopen(given.pop(), "wb", buffering=0) as pipe:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[pipe.write(view) :]

    def _connect(self, call: Call, _given: list[int], passed: list[int]) -> None:
        assert call.handle is not None
        passed.append(self.backend.connect(call.handle, int(call.number or 0)).detach())

    def _delete(self, call: Call, _given: list[int], _passed: list[int]) -> None:
        assert call.handle is not None
        try:
            self.backend.delete(call.handle)
        except PermissionError:
            # The folder itself stands in one of root's, who removes it; all that was in it must be gone.
            if os.path.isdir(call.handle.folder) and os.listdir(call.handle.folder):
                raise


def text_of(call: bytes) -> str:
    """The verb of a call that went wrong."""
    return str(msgspec.json.decode(call, type=dict).get("verb", ""))


def _system(error: OSError) -> BackendUnavailable:
    return BackendUnavailable(
        f"the system refused it: {error.strerror or error}", field="host", value=str(error.filename or "")
    )


def records(pipe: int) -> Iterator[LogRecord]:
    """The other end of `logs`."""
    with os.fdopen(pipe, "rb") as stream:
        while head := stream.read(4):
            length = int.from_bytes(head, "big")
            if length > LARGEST:
                raise ValueError("a piece of a log is too large")
            yield msgspec.msgpack.decode(stream.read(length), type=LogRecord)


def main() -> None:
    number, state, config, groups = sys.argv[1:5]
    os.umask(0o077)
    sock = socket.socket(fileno=int(number))
    sock.set_inheritable(False)
    Actor(Line(sock), Path(state), Path(config), groups).serve()


if __name__ == "__main__":
    main()

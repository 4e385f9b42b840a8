"""Talking to a shim, or to `enter`, which speaks the same frames.

`backend` uses `Connection` for requests and hands out `Session` for conversations. The frames are described in
`wire`.
"""

from __future__ import annotations

import _socket as socket  # the wrapper around it takes longer to load than all that it adds is worth here
import errno
import os
import select
import sys
import time
from pathlib import Path

from dibs.backends.local.wire import cut, decode, encode, frame
from dibs.backends.port import Exit, ExitReason, Output
from dibs.errors import BackendUnavailable, Conflict

INT = 4
MSG_CMSG_CLOEXEC = 0x40000000  # not in Python's module
ENOUGH = 1 << 20  # how much output one call of `receive` gives at most, or a little more
ANSWER_TIMEOUT = 10.0  # a shim that does not answer in this time is stuck; requests are handled at once
START_TIMEOUT = 75.0  # the shim itself gives up after less (SETUP_TIME), and says so


def exit_of(fields: dict[str, str]) -> Exit:
    return Exit(
        code=int(fields["code"]),
        reason=ExitReason(fields["reason"]),
        signal=int(fields["signal"]) if fields.get("signal") else None,
        detail=fields.get("detail", ""),
        at=float(fields.get("at") or 0.0),
    )


class Connection:
    """Frames over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._box = bytearray()
        self._ended = False

    @classmethod
    def to(cls, folder: Path) -> Connection | None:
        """The shim of a sandbox; None when it does not listen."""
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendUnavailable(f"the sandbox's folder cannot be opened: {error.strerror}") from error
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Through the descriptor, because a socket's path must be short and the folder's need not be.
            sock.connect(f"/proc/self/fd/{fd}/shim.sock")
        except OSError as error:
            sock.close()
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
                return None
            raise BackendUnavailable(f"the sandbox's shim cannot be reached: {error.strerror}") from error
        finally:
            os.close(fd)
        return cls(sock)

    def send(self, kind: bytes, fields: list[tuple[str, str]] | bytes = b"") -> None:
        data = memoryview(frame(kind, fields if isinstance(fields, bytes) else encode(fields)))
        # Both sides may have much to say at once. Taking in while sending is blocked keeps them from waiting for each
        # other for ever; what was taken in is there for `next`.
        poller = select.poll()
        poller.register(self.sock.fileno(), select.POLLOUT | select.POLLIN)
        while data:
            events = poller.poll()[0][1]
            if events & select.POLLOUT:
                data = data[self.sock.send(data, socket.MSG_DONTWAIT) :]
            elif not self._take(0.0):
                raise BrokenPipeError

    def say_goodbye(self) -> None:
        """Tell the other side that closing is meant. Where it does not read any more, closing must say it alone."""
        try:
            self.sock.send(frame(b"D", b""), socket.MSG_DONTWAIT)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return

    def next(self, timeout: float | None) -> tuple[bytes, bytes] | None:
        """One frame, waiting for it; None at the end. Raises TimeoutError."""
        while True:
            one = self.waiting()
            if one is not None:
                return one
            if self._ended:
                return None
            self._take(timeout)

    def waiting(self) -> tuple[bytes, bytes] | None:
        """One frame that has been taken in already."""
        return cut(self._box)

    def _take(self, timeout: float | None) -> bool:
        """Read once into the box; False at the end."""
        try:
            data = self.sock.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            poller = select.poll()
            poller.register(self.sock.fileno(), select.POLLIN)
            if timeout == 0 or not poller.poll(None if timeout is None else timeout * 1000):
                raise TimeoutError from error
            return self._take(0.0)
        except ConnectionResetError:
            data = b""
        self._ended = not data
        self._box += data
        return bool(data)

    def ask(
        self, kind: bytes, fields: list[tuple[str, str]] | None = None, timeout: float = ANSWER_TIMEOUT
    ) -> dict[str, str] | None:
        """Send a request and take its answer; None if the shim ended meanwhile."""
        try:
            self.send(kind, fields or [])
            one = self.next(timeout)
        except (BrokenPipeError, ConnectionResetError):
            return None
        except TimeoutError as error:
            raise BackendUnavailable("the sandbox's shim does not answer") from error
        return None if one is None else dict(decode(one[1]))

    def take_descriptor(self) -> tuple[int | None, dict[str, str]]:
        """A descriptor that comes with an answer, or what was said instead."""
        data, ancillary, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(INT), MSG_CMSG_CLOEXEC)
        for level, kind, passed in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                return int.from_bytes(passed[:INT], sys.byteorder), {}
        self._box += data
        one = self.next(None) if data else None
        return None, dict(decode(one[1])) if one is not None else {}

    def close(self) -> None:
        self.sock.close()


class ShimSession:
    """An attached conversation; see `Session` in the port."""

    def __init__(self, connection: Connection, hello: dict[str, str]) -> None:
        self._connection = connection
        self.interactive = hello.get("interactive") == "1"
        self._tty = hello.get("tty") == "1"
        self._exit: Exit | None = None
        self._closed = False
        # Bytes of input that the command has read: kept up to date after `count_input`, else known at the end only.
        # None: it ended, and that is not known.
        self.taken: int | None = 0

    @classmethod
    def resumed(cls, descriptor: int, *, interactive: bool, waiting: bytes) -> ShimSession:
        """A conversation that another process has `handed_over`."""
        connection = Connection(socket.socket(fileno=descriptor))
        connection._box += waiting  # noqa: SLF001 - of this module
        return cls(connection, {"interactive": "1" if interactive else "0"})

    def handed_over(self) -> tuple[int, bytes]:
        """Its socket, and what had come already, for another process. This end is closed."""
        descriptor = os.dup(self._connection.sock.fileno())
        waiting = bytes(self._connection._box)  # noqa: SLF001 - of this module
        self._connection.close()
        return descriptor, waiting

    def fileno(self) -> int:
        return self._connection.sock.fileno()

    def _send(self, kind: bytes, payload: list[tuple[str, str]] | bytes = b"") -> None:
        if self._closed:
            raise Conflict("the session is closed", code="SESSION_CLOSED")
        try:
            self._connection.send(kind, payload)
        except (BrokenPipeError, ConnectionResetError):
            return  # the process has ended; `receive` tells how

    def send(self, data: bytes) -> None:
        if not self.interactive:
            raise Conflict(
                "the workload was started without input", code="INPUT_CLOSED", remedy="start it with interactive"
            )
        for start in range(0, len(data), 65536):
            self._send(b"I", data[start : start + 65536])

    def end_of_input(self) -> None:
        if self.interactive:
            self._send(b"E")

    def count_input(self) -> bool:
        """Keep `taken` up to date; False for a terminal, where it is not known.

        From then on the descriptor may be readable when there is nothing to receive.
        """
        if not self._tty:
            self._send(b"C")
        return not self._tty

    def signal(self, number: int) -> None:
        self._send(b"S", [("number", str(number))])

    def resize(self, rows: int, columns: int) -> None:
        self._send(b"R", [("rows", str(rows)), ("columns", str(columns))])

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        if self._exit is not None:
            return [self._exit]
        found: list[Output | Exit] = []
        until = None if timeout is None else time.monotonic() + timeout
        size = 0
        while self._exit is None:
            # Once there is something to give, only what else is there already is taken.
            wait = 0.0 if found or timeout == 0 else None if until is None else max(0.0, until - time.monotonic())
            try:
                # A command that never stops talking must not keep us here. What has been taken in already is given in
                # any case: the descriptor would not tell of it again.
                one = self._connection.next(wait) if size < ENOUGH else self._connection.waiting()
            except TimeoutError:
                break
            if one is None and size >= ENOUGH:
                break
            if one is None:
                self._exit = Exit(137, ExitReason.LOST, 9, "the connection to the sandbox broke off")
            elif one[0] == b"O":
                found.append(Output("stdout", one[1]))
            elif one[0] == b"2":
                found.append(Output("stderr", one[1]))
            elif one[0] == b"C":
                self.taken = int(dict(decode(one[1]))["taken"])
            elif one[0] == b"X":
                fields = dict(decode(one[1]))
                self._exit = exit_of(fields)
                self.taken = int(fields["taken"]) if "taken" in fields else None
            if one is not None and found:
                size += len(one[1])
        if self._exit is not None:
            found.append(self._exit)
        return found

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._connection.say_goodbye()
            self._connection.close()

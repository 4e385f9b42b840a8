"""A conversation with a process of a container, over a hijacked stream.

`backend.attach` and `backend.exec` hand it out. Without a terminal both streams come in frames (one byte of stream,
three of nothing, four of length); with one there is a single raw stream. After the last byte comes the exit, which the
engine has to be asked for: at once where it knows, else in a thread, so that `receive` never waits longer than it was
told to.

`fileno` is an epoll descriptor: readable whenever `receive(0)` has something to give.
"""

from __future__ import annotations

import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

from dibs.backends.port import Exit, Output
from dibs.errors import Conflict, DibsError

_PIECE = 1 << 16
_HEAD = 8
# What Podman puts behind the output of a terminal whose process has ended before it took the end of its input.
_COMPLAINT = re.compile(rb"Error: read unixpacket @->\S+/attach: read: connection reset by peer\s*\Z")


class Line(Protocol):
    """What a session asks of its creator."""

    def exit(self, *, wait: bool) -> Exit | None:
        """How the process ended; None if it has not (only without `wait`)."""
        ...

    def signal(self, number: int) -> None: ...
    def resize(self, rows: int, columns: int) -> None: ...
    def closed(self, *, over: bool) -> None: ...


class StreamSession:
    """See `dibs.backends.port.Session`."""

    def __init__(
        self,
        sock: socket.socket,
        line: Line,
        *,
        tty: bool,
        can_send: bool,
        reading: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """`reading`: whether the command waits for input; None where that cannot be known."""
        self._sock = sock
        self._line = line
        self.reading = reading
        self._tty = tty
        self._can_send = can_send
        self._box = bytearray()
        self._ended_input = False
        self._held = b""  # output that is none, if nothing comes after it
        self._pieces: list[Output | Exit] = []
        self._streaming = True
        self._over = False
        self._closed = False
        self._told: Exit | None = None
        self._trouble: DibsError | None = None
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        self._poller.register(sock.fileno(), select.EPOLLIN)
        self._poller.register(self._bell, select.EPOLLIN)

    def fileno(self) -> int:
        return self._poller.fileno()

    # --- to it

    def send(self, data: bytes) -> None:
        if not self._can_send:
            raise Conflict("it was started without input", code="INPUT_CLOSED", remedy="start it with --interactive")
        if self._closed or not self._streaming:
            raise Conflict("the connection to the command is closed", code="SESSION_CLOSED")
        left = memoryview(data)
        poller = select.poll()
        poller.register(self._sock.fileno(), select.POLLIN | select.POLLOUT)
        try:
            while left:
                events = poller.poll()[0][1]
                if events & select.POLLOUT:
                    left = left[self._sock.send(left, socket.MSG_DONTWAIT) :]
                elif not self._take():  # both sides may have much to say: one of them has to listen
                    raise BrokenPipeError
        except OSError as error:
            raise Conflict("the connection to the command is closed", code="SESSION_CLOSED") from error

    def end_of_input(self) -> None:
        if self._closed or not self._streaming:
            return
        if self._tty:
            self._ended_input = True
            self.send(b"\x04")
            return
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side was faster

    def signal(self, number: int) -> None:
        if not self._over:
            self._line.signal(number)

    def resize(self, rows: int, columns: int) -> None:
        if not self._over:
            self._line.resize(rows, columns)

    # --- from it

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._closed:
                return []
            if self._pieces:
                found, self._pieces = self._pieces, []
                return found
            if self._trouble is not None:
                raise self._trouble
            if self._over:
                return []
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = self._poller.poll(left)
            for descriptor, _ in ready:
                if descriptor == self._bell:
                    self._ring()
                elif self._streaming:
                    self._take()
            if not ready and left is not None and (until is None or time.monotonic() >= until):
                return []

    def _take(self) -> bool:
        """Read what is there; False at the end of the stream."""
        try:
            data = self._sock.recv(_PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self._stream_is_over()
            return False
        if self._tty:
            data, self._held = self._without_complaint(self._held + data)
            if data:
                self._pieces.append(Output("stdout", data))
            return True
        self._box += data
        while len(self._box) >= _HEAD:
            size = int.from_bytes(self._box[4:_HEAD], "big")
            if len(self._box) < _HEAD + size:
                break
            stream: Literal["stdout", "stderr"] = "stderr" if self._box[0] in (2, 3) else "stdout"
            if size:
                self._pieces.append(Output(stream, bytes(self._box[_HEAD : _HEAD + size])))
            del self._box[: _HEAD + size]
        return True

    def _without_complaint(self, data: bytes) -> tuple[bytes, bytes]:
        found = _COMPLAINT.search(data) if self._ended_input else None
        return (data, b"") if found is None else (data[: found.start()], data[found.start() :])

    def _stream_is_over(self) -> None:
        self._streaming = False
        self._poller.unregister(self._sock.fileno())
        found = self._line.exit(wait=False)
        if found is not None:
            self._end(found)
            return
        threading.Thread(target=self._await_exit, name="dibs-exit", daemon=True).start()

    def _await_exit(self) -> None:
        try:
            self._told = self._line.exit(wait=True)
        except DibsError as error:
            self._trouble = error
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._bell, 1)

    def _ring(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return
        if self._told is not None:
            self._end(self._told)

    def _end(self, ended: Exit) -> None:
        self._over = True
        self._pieces.append(ended)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._poller.close()
            os.close(self._bell)
        self._sock.close()
        self._line.closed(over=self._over)


class Call:
    """A line whose parts are given one by one."""

    def __init__(
        self,
        *,
        ended: Callable[[bool], Exit | None],
        signal: Callable[[int], None],
        resize: Callable[[int, int], None],
        closed: Callable[[bool], None] | None = None,
    ) -> None:
        self._ended, self._signal, self._resize, self._closed = ended, signal, resize, closed

    def exit(self, *, wait: bool) -> Exit | None:
        return self._ended(wait)

    def signal(self, number: int) -> None:
        self._signal(number)

    def resize(self, rows: int, columns: int) -> None:
        self._resize(rows, columns)

    def closed(self, *, over: bool) -> None:
        if self._closed is not None:
            self._closed(over)

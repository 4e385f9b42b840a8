"""A conversation with a process behind a gateway, over a WebSocket. It is a `Session` of the port, with a descriptor.

The terminal loop waits on that descriptor, so the WebSocket is spoken here, by hand, on one socket: no thread reads it.
While we send, we also take in what comes: both sides may have much to say at once, and must not wait for each other.

A message is binary; its first byte says what it is:
    0 stdin · 1 stdout · 2 stderr · 3 JSON: {"signal": n}, {"resize": [rows, columns]}, {"eof": true},
    {"count": true} from us, {"counting": …}, {"taken": n}, {"reading": true},
    {"exit": {…}}, {"error": {…}} and news from the gateway
"""

from __future__ import annotations

import os
import select
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from dibs.backends.port import Exit, ExitReason, Output
from dibs.errors import Conflict, DibsError
from dibs.http import query
from dibs.remote.connection import API, Line, error_of, problem_of
from dibs.wire.service import ProblemDetails

STDIN, STDOUT, STDERR, CONTROL = b"\0", b"\1", b"\2", b"\3"
_PIECE = 1 << 15  # of input in one message
_READ = 1 << 16
_LARGEST = 64 << 20


class Socket:
    """Messages over a WebSocket, on one plain socket."""

    def __init__(self, line: Line, path: str, **parameters: Any) -> None:
        self._line = line
        address = f"ws://localhost{line.base}{API}{path}{query(**parameters)}"
        self._protocol = ClientProtocol(parse_uri(address), max_size=_LARGEST)
        self._inbox: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._ended = False
        self._sock = line.connect()
        # What was taken in while we sent no longer shows on the socket: a bell does. A waiter waits on both.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._both = select.epoll()
        self._both.register(self._bell, select.EPOLLIN)
        try:
            self._shake_hands()
            self._both.register(self._sock.fileno(), select.EPOLLIN)
            self._ring()  # a short command may be over already
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        self._both.close()
        os.close(self._bell)
        self._sock.close()

    def _ring(self) -> None:
        if self._inbox:
            os.eventfd_write(self._bell, 1)

    def _hush(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def _shake_hands(self) -> None:
        request = self._protocol.connect()
        for name, value in self._line.headers.items():
            if name != "Accept":
                request.headers[name] = value
        self._protocol.send_request(request)
        try:
            self._flush()
            while self._protocol.state is State.CONNECTING and not self._ended:
                self._take()
        except OSError as error:
            raise self._line.broken(error.strerror or str(error)) from error
        refusal = self._protocol.handshake_exc
        if isinstance(refusal, InvalidStatus):
            body = refusal.response.body or b""
            raise problem_of(bytes(body), refusal.response.status_code, self._line.target)
        if refusal is not None or self._protocol.state is State.CONNECTING:
            raise self._line.broken(f"it does not talk: {refusal or 'the connection ended'}")
        self._sock.settimeout(None)

    def fileno(self) -> int:
        return self._both.fileno()

    def _flush(self) -> None:
        """Send what is to be sent, taking in what comes while there is no room."""
        data = memoryview(b"".join(self._protocol.data_to_send()))
        poller = select.poll()
        poller.register(self._sock.fileno(), select.POLLOUT | select.POLLIN)
        self._sock.setblocking(False)
        try:
            while data and not self._ended:
                events = poller.poll()[0][1]
                if events & select.POLLOUT:
                    try:
                        data = data[self._sock.send(data) :]
                    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                        continue
                elif not self._read():
                    raise BrokenPipeError
        finally:
            self._sock.settimeout(None)

    def _read(self) -> bool:
        """Read what is there into the protocol, without waiting; False at the end."""
        try:
            data = self._sock.recv(_READ)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except (ConnectionResetError, BrokenPipeError):
            data = b""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
            self._ended = True
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._frame(event)
        return bool(data)

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                self._inbox.append(b"".join(self._parts))
                self._parts.clear()
        elif frame.opcode is Opcode.CLOSE:
            self._ended = True

    def _take(self) -> None:
        """Wait for more and read it; answer what the protocol itself wants answered."""
        if not isinstance(self._sock, ssl.SSLSocket) or not self._sock.pending():
            select.select([self._sock], [], [])
        self._sock.setblocking(False)
        try:
            self._read()
        finally:
            self._sock.settimeout(None)
        self._answer()

    def _answer(self) -> None:
        try:
            self._flush()
        except (BrokenPipeError, ConnectionResetError):
            self._ended = True

    def send(self, message: bytes) -> None:
        """Raises BrokenPipeError when it has no reader any more."""
        if self._ended:
            raise BrokenPipeError
        try:
            self._protocol.send_binary(message)
        except WebSocketException as error:
            raise BrokenPipeError from error
        self._flush()
        self._ring()

    def receive(self, timeout: float | None) -> list[bytes] | None:
        """The messages that have come, waiting for at most `timeout` seconds; None when there will be no more."""
        self._hush()
        while not self._inbox:
            if self._ended:
                return None
            pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
            if not pending and not select.select([self._sock], [], [], timeout)[0]:
                return []
            self._sock.setblocking(False)
            try:
                self._read()
            finally:
                self._sock.settimeout(None)
            self._answer()
            if timeout is not None and not self._inbox and not self._ended:
                return []
        # Whatever else is there shows on no descriptor once it was read: take it all.
        while not self._ended and select.select([self._sock], [], [], 0)[0] and len(self._inbox) < 64:
            self._sock.setblocking(False)
            try:
                self._read()
            finally:
                self._sock.settimeout(None)
        found = list(self._inbox)
        self._inbox.clear()
        return found

    def put_back(self, messages: list[bytes]) -> None:
        """Messages that came before their reader."""
        self._inbox.extendleft(reversed(messages))
        self._ring()

    def close(self) -> None:
        if not self._ended and self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._answer()
        self._release()


class RemoteSession:
    """See `Session` in the port."""

    def __init__(self, line: Socket, *, interactive: bool = True) -> None:
        self._line = line
        self._interactive = interactive
        self._exit: Exit | None = None
        # How much of its input the command has read: kept up to date after `count_input`, else known at its end, if
        # at all.
        self.taken: int | None = None
        self._reads: bool | None = None  # whether the command waits for input, as far as the gateway has told
        self._closed = False
        self._busy = False
        self._late: list[bytes] = []  # what a signal handler wanted to say in the middle of another message

    def fileno(self) -> int:
        return self._line.fileno()

    def _send(self, message: bytes) -> None:
        if self._closed:
            raise Conflict("the session is closed", code="SESSION_CLOSED")
        if self._busy:
            self._late.append(message)
            return
        self._busy = True
        try:
            self._line.send(message)
            while self._late:
                self._line.send(self._late.pop(0))
        except OSError:
            return  # the process has ended, or the gateway is gone: `receive` tells
        finally:
            self._busy = False

    def _control(self, **words: Any) -> None:
        self._send(CONTROL + msgspec.json.encode(words))

    def send(self, data: bytes) -> None:
        if not self._interactive:
            raise Conflict(
                "the workload was started without input", code="INPUT_CLOSED", remedy="start it with interactive"
            )
        for start in range(0, len(data), _PIECE):
            self._send(STDIN + data[start : start + _PIECE])

    def end_of_input(self) -> None:
        if self._interactive:
            self._control(eof=True)

    def count_input(self) -> bool:
        """Keep `taken` up to date; False where the gateway cannot. Then `reading` may know when input is wanted."""
        self._control(count=True)
        for words in news(self._line, keep=True):
            if "counting" in words:
                self._reads = False if words["counting"] == "reading" else None
                self.taken = 0 if words["counting"] == "bytes" else self.taken
                return bool(words["counting"] == "bytes")
        self._reads = False  # it is over already, and reads nothing any more
        return False

    def reading(self) -> bool | None:
        return self._reads

    def signal(self, number: int) -> None:
        self._control(signal=number)

    def resize(self, rows: int, columns: int) -> None:
        self._control(resize=[rows, columns])

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        if self._exit is not None:
            return [self._exit]
        try:
            messages = self._line.receive(timeout)
        except OSError:
            messages = None
        if messages is None:
            self._exit = Exit(137, ExitReason.LOST, 9, "the connection to the gateway broke off")
            return [self._exit]
        found: list[Output | Exit] = []
        for message in messages:
            item = self._read(message)
            if item is not None:
                found.append(item)
            if isinstance(item, Exit):
                self._exit = item
                break
        return found

    def _read(self, message: bytes) -> Output | Exit | None:
        kind, rest = message[:1], message[1:]
        if kind == STDOUT:
            return Output("stdout", rest)
        if kind == STDERR:
            return Output("stderr", rest)
        if kind == CONTROL:
            words = read_control(rest)
            if "reading" in words:
                self._reads = True
            if "exit" not in words and "taken" in words:
                self.taken = words["taken"]
            if "exit" in words:
                self.taken = words.get("taken")
                return msgspec.convert(words["exit"], Exit)
            if "error" in words:
                raise refusal_of(words["error"])
        return None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._line.close()


def read_control(text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}  # a word of a later gateway


def refusal_of(problem: Any) -> DibsError:
    return error_of(msgspec.convert(problem, ProblemDetails))


def news(line: Socket, *, keep: bool = False) -> Iterator[dict[str, Any]]:
    """The control messages up to one that the reader knows to be the last. `keep` puts the others back at the end."""
    kept: list[bytes] = []
    try:
        while True:
            messages = line.receive(None)
            if messages is None:
                return
            for number, message in enumerate(messages):
                if message[:1] == CONTROL:
                    words = read_control(message[1:])
                    line.put_back(messages[number + 1 :])
                    kept += [message] if keep and "counting" not in words else []
                    yield words
                    break
                kept += [message] if keep else []
    finally:
        if kept:
            line.put_back(kept)

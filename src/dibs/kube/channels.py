"""Several streams over one WebSocket, as the API server speaks it for exec, attach and port-forward.

`Cluster.channels` opens one. The first byte of a message is its channel, the rest belongs to the stream. Framing is
done by `websockets` without I/O; the socket is ours, so that one descriptor can be waited for and nothing needs a
thread. A lock guards it: one thread may send while another receives.

Protocols: `v5.channel.k8s.io` (exec, attach: stdin 0, stdout 1, stderr 2, error 3, resize 4, close 255) and
`v4.channel.k8s.io` (port-forward: data and error per port).
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

_CLOSE = 255
_PIECE = 1 << 16
_LARGEST = 1 << 25  # of one message
_SENT_AT_ONCE = 1 << 15  # bytes of stdin in one message: kubelets refuse larger ones


class Declined(Exception):
    """The server answered without switching to WebSocket."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body


class Channels:
    """Messages of one connection. `receive` gives (channel, data) pairs; after the last one `over` is true."""

    def __init__(
        self, sock: socket.socket, authority: str, path: str, protocol: str, headers: Mapping[str, str]
    ) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._partial = bytearray()
        self._found: list[tuple[int, bytes]] = []
        self.over = False
        self.closed = False
        try:
            self._ws = ClientProtocol(parse_uri(f"wss://{authority}{path}"), max_size=_LARGEST, subprotocols=[protocol])  # type: ignore[list-item]
            self._shake_hands(headers)
            sock.settimeout(0)
            self._poller = select.epoll()
            self._poller.register(sock.fileno(), select.EPOLLIN)
        except BaseException:
            sock.close()
            raise
        self._events()  # what came together with the answer

    def _shake_hands(self, headers: Mapping[str, str]) -> None:
        request = self._ws.connect()
        for name, value in {"User-Agent": "dibs", **headers}.items():
            request.headers[name] = value
        self._ws.send_request(request)
        for data in self._ws.data_to_send():
            self._sock.sendall(data)
        while self._ws.state is State.CONNECTING and self._ws.handshake_exc is None:
            data = self._sock.recv(_PIECE)
            if data:
                self._ws.receive_data(data)
            else:
                self._ws.receive_eof()
        error = self._ws.handshake_exc
        if error is None:
            return
        answers = [one for one in self._ws.events_received() if isinstance(one, Response)]
        if isinstance(error, InvalidHandshake) and answers:
            raise Declined(answers[0].status_code, bytes(answers[0].body or b""))
        raise ConnectionError(f"no WebSocket: {error}")

    def fileno(self) -> int:
        return self._poller.fileno()

    # -- to it

    def send(self, channel: int, data: bytes) -> None:
        """Raises BrokenPipeError when the other side is gone."""
        for start in range(0, len(data), _SENT_AT_ONCE) or (0,):
            with self._lock:
                if self.over or self.closed:
                    raise BrokenPipeError("the stream is closed")
                self._ws.send_binary(bytes((channel,)) + data[start : start + _SENT_AT_ONCE])
                self._flush()

    def close_channel(self, channel: int) -> None:
        """Nothing more comes on this one (v5)."""
        self.send(_CLOSE, bytes((channel,)))

    def _flush(self) -> None:
        """Send what is due; while the other side does not take it, listen to it."""
        for data in self._ws.data_to_send():
            left = memoryview(data)
            while left:
                try:
                    left = left[self._sock.send(left) :]
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    self._read()
                    poller = select.poll()
                    poller.register(self._sock.fileno(), select.POLLIN | select.POLLOUT)
                    poller.poll(1000)
                except OSError as error:
                    self.over = True
                    raise BrokenPipeError("the stream is closed") from error

    # -- from it

    def receive(self, timeout: float | None = None) -> list[tuple[int, bytes]]:
        """What has come, waiting for at most `timeout` seconds; empty if nothing has, or if it is over."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if not self.over and not self.closed:
                    self._read()
                    self._reply()
                found, self._found = self._found, []
            if found or self.over or self.closed:
                return found
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return []
            self._poller.poll(left)

    def _reply(self) -> None:
        try:
            self._flush()  # pongs, and the answer to a close
        except BrokenPipeError:
            return  # `over` says so

    def _read(self) -> None:
        """All that is there: a TLS line keeps data that its descriptor does not show."""
        while not self.over:
            try:
                data = self._sock.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError:
                data = b""
            if data:
                self._ws.receive_data(data)
            else:
                self._ws.receive_eof()
                self.over = True
            self._events()

    def _events(self) -> None:
        for event in self._ws.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                self._partial += event.data
                if event.fin and self._partial:
                    self._found.append((self._partial[0], bytes(self._partial[1:])))
                    self._partial.clear()
            elif event.opcode is Opcode.CLOSE:
                self.over = True

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._poller.close()
            self._sock.close()

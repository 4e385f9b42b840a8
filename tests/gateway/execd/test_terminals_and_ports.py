"""Terminals over WebSocket, and whatever listens on a port of a sandbox."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ..conftest import RunningGateway  # noqa: TID252 - tests are no installed package

SERVER = r"""
import asyncio, base64, hashlib, http.server, sys

class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.socket()
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        seen = "".join(f"{k.lower()}: {v}\n" for k, v in self.headers.items())
        data = f"{self.command} {self.path}\n{seen}\n".encode() + body
        if self.path.startswith("/count"):
            data = str(len(body)).encode()
        self.send_response(418)
        self.send_header("X-Kept", "yes"); self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers(); self.wfile.write(data)
    do_GET = do_POST = do_DELETE = do_PUT = answer
    def socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers(); self.wfile.flush()
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8: break
            size = head[1] & 127
            mask = self.rfile.read(4); data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            self.wfile.write(bytes([0x80 | head[0] & 15, size]) + data); self.wfile.flush()
        self.close_connection = True

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Box:
    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway
        reply = gateway.ask("POST", "/api/v1/sandboxes", {"root": "host", "command": ["sleep", "1000"]})
        self.id = reply.data["id"]
        gateway.sandbox(self.id, "running")

    def path(self, port: int, rest: str) -> str:
        return f"/v1/sandboxes/{self.id}/proxy/{port}{rest}"

    @contextmanager
    def socket(self, port: int, rest: str, **options: Any) -> Iterator[ClientConnection]:
        headers = {"Authorization": f"Bearer {self.gateway.token}"}
        url = self.gateway.url.replace("http", "ws") + self.path(port, rest)
        with connect(url, additional_headers=headers, proxy=None, **options) as found:
            yield found

    def terminal(self, **body: Any) -> str:
        reply = self.gateway.ask("POST", self.path(44772, "/pty"), body)
        assert reply.status == 201, reply.body
        return str(reply.data["session_id"])


@pytest.fixture
def box(served: RunningGateway) -> Iterator[Box]:
    """A sandbox of its own for each test, on one gateway."""
    made = Box(served)
    yield made
    served.ask("DELETE", f"/api/v1/sandboxes/{made.id}")


def until(socket: ClientConnection, wanted: bytes, kind: int = 1) -> bytes:
    """What came on a channel, up to the words that are waited for."""
    seen = b""
    while wanted not in seen:
        frame = socket.recv(20)
        if isinstance(frame, bytes) and frame[0] == kind:
            seen += frame[1:]
    return seen


def told(socket: ClientConnection, kind: str) -> Any:
    while True:
        frame = socket.recv(20)
        if isinstance(frame, str) and (data := json.loads(frame))["type"] == kind:
            return data


def test_a_terminal_takes_input_signals_and_a_size(box: Box) -> None:
    terminal = box.terminal(cwd="/")
    with box.socket(44772, f"/pty/{terminal}/ws") as socket:
        assert told(socket, "connected") == {"type": "connected", "session_id": terminal, "mode": "pty"}
        socket.send(json.dumps({"type": "resize", "cols": 91, "rows": 37}))
        socket.send(b"\x00stty size; pwd; echo mark$((1+1))\n")
        seen = until(socket, b"mark2")
        assert b"37 91" in seen
        socket.send(json.dumps({"type": "ping"}))
        assert told(socket, "pong")
        socket.send(json.dumps({"type": "nonsense"}))
        assert told(socket, "error")["code"] == "INVALID_FRAME"
        socket.send(b"\x00(echo up$((1+1)); sleep 1000)\n")
        until(socket, b"up2")  # before that the shell itself would take the key
        socket.send(b"\x00\x03")  # the key, as a terminal sends it
        socket.send(b"\x00exit 5\n")
        assert told(socket, "exit")["exit_code"] == 5
        with pytest.raises(ConnectionClosed):
            socket.recv(20)
    status = box.gateway.ask("GET", box.path(44772, f"/pty/{terminal}")).data
    assert status["running"] is False


def test_a_terminal_stays_when_its_client_goes_and_tells_what_was_missed(box: Box) -> None:
    terminal = box.terminal()
    with box.socket(44772, f"/pty/{terminal}/ws?pty=0") as socket:
        assert told(socket, "connected")["mode"] == "pipe"
        socket.send(b"\x00echo err >&2; X=7\n")
        until(socket, b"err\n", kind=2)
        socket.send(b"\x00echo first\n")
        until(socket, b"first\n")
        socket.send(b"\x00while [ ! -f /tmp/go ]; do sleep 0.05; done; echo later $X\n")
    offset = box.gateway.ask("GET", box.path(44772, f"/pty/{terminal}")).data["output_offset"]
    assert offset == len(b"err\nfirst\n")
    box.gateway.ask("POST", box.path(44772, "/command"), {"command": "touch /tmp/go"})
    box.gateway.until(
        lambda: box.gateway.ask("GET", box.path(44772, f"/pty/{terminal}")).data["output_offset"] > offset
    )
    with box.socket(44772, f"/pty/{terminal}/ws?since={offset}") as socket:
        frame = socket.recv(20)
        assert isinstance(frame, bytes)
        assert (frame[0], int.from_bytes(frame[1:9], "big"), frame[9:]) == (3, offset + 8, b"later 7\n")
        assert told(socket, "connected")
    assert box.gateway.ask("DELETE", box.path(44772, f"/pty/{terminal}")).status == 200
    assert box.gateway.ask("DELETE", box.path(44772, f"/pty/{terminal}")).status == 404


def test_one_client_at_a_time_unless_it_is_taken_over(box: Box) -> None:
    terminal = box.terminal()
    with box.socket(44772, f"/pty/{terminal}/ws") as first:
        told(first, "connected")
        with pytest.raises(InvalidStatus) as caught, box.socket(44772, f"/pty/{terminal}/ws"):
            pass
        assert caught.value.response.status_code == 409
        with box.socket(44772, f"/pty/{terminal}/ws?takeover=1") as second:
            told(second, "connected")
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    first.recv(20)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "TAKEN_OVER")
            second.send(b"\x00echo mine$((1+1))\n")
            until(second, b"mine2")
    with pytest.raises(InvalidStatus) as caught, box.socket(44772, "/pty/pty-unknown/ws"):
        pass
    assert caught.value.response.status_code == 404


def listen(box: Box) -> int:
    """Start a server in the sandbox; its port."""
    command = {"argv": ["python3", "-c", SERVER], "background": True}
    reply = box.gateway.ask("POST", box.path(44772, "/command"), command)
    started = json.loads(reply.body.split(b"\n\n")[0])["text"]
    logs = box.path(44772, f"/command/{started}/logs")
    return int(box.gateway.until(lambda: box.gateway.ask("GET", logs).body.strip()))


def test_http_passes_to_a_port_without_what_is_the_gateways(box: Box) -> None:
    port = listen(box)
    headers = {
        "X-Mine": "kept",
        "Cookie": "secret=1",
        "X-Forwarded-For": "6.6.6.6",
        "Connection": "X-Hop",
        "X-Hop": "1",
    }
    reply = box.gateway.ask("POST", box.path(port, "/a%2Fb//c?x=1&y=%20"), b"the body", headers=headers)
    assert reply.status == 418
    assert reply.headers["x-kept"] == "yes"
    head, _, body = reply.body.decode().partition("\n\n")
    line, *fields = head.split("\n")
    seen = dict(field.split(": ", 1) for field in fields)
    assert (line, body) == ("POST /a%2Fb//c?x=1&y=%20", "the body")
    assert seen["x-mine"] == "kept"
    assert not {"authorization", "cookie", "x-hop"} & set(seen)
    assert seen["host"] == f"127.0.0.1:{port}"
    assert seen["x-forwarded-for"] == "127.0.0.1"
    assert seen["x-forwarded-prefix"] == box.path(port, "")


def test_a_body_without_a_length_passes_in_pieces(box: Box) -> None:
    port = listen(box)
    connection = http.client.HTTPConnection("127.0.0.1", box.gateway.port, timeout=120)
    headers = {"Authorization": f"Bearer {box.gateway.token}"}
    connection.request(
        "POST", box.path(port, "/count"), (b"x" * 100_000 for _ in range(50)), headers, encode_chunked=True
    )
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (418, b"5000000")
    connection.close()


def test_a_websocket_passes_to_a_port(box: Box) -> None:
    port = listen(box)
    with box.socket(port, "/socket", compression=None) as socket:
        socket.send("text")
        assert socket.recv(20) == "text"
        socket.send(b"\x00bytes")
        assert socket.recv(20) == b"\x00bytes"


def test_a_port_without_a_listener_is_not_found(box: Box) -> None:
    reply = box.gateway.ask("GET", box.path(1, "/"))
    assert reply.status in (404, 502)
    assert set(reply.data) == {"code", "message"}
    for wrong in ("0", "65536", "-1", "x"):
        reply = box.gateway.ask("GET", f"/v1/sandboxes/{box.id}/proxy/{wrong}/")
        assert (reply.status, set(reply.data)) == (404, {"code", "message"})
    with pytest.raises(InvalidStatus) as caught, box.socket(1, "/"):
        pass
    assert caught.value.response.status_code in (404, 503)

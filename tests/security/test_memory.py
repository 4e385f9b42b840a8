"""What a sandbox or a client sends does not pile up in the gateway. Growth is measured; time is not."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pytest
from tests.gateway.conftest import Reply
from tests.security.conftest import BODY, Scene

MUCH = 48 << 20  # bytes of acceptable growth; the attacks below need hundreds of megabytes

TOOLS = "/tmp/tools"  # inside the sandbox


def resident(scene: Scene) -> int:
    """The most memory that the gateway ever had."""
    with open(f"/proc/{scene.gateway.process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))


class Box:
    """Another sandbox of red, whose inhabitant is hostile."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        # A folder of its own on PATH: an ordinary user's sandbox cannot write to those of the system.
        env = {"PATH": f"{TOOLS}:/usr/local/bin:/usr/bin:/bin"}
        made = scene.gateway.ask("POST", "/v1/sandboxes", {**BODY, "env": env}, token=scene.red)
        self.id = made.data["id"]
        self.path = f"/v1/sandboxes/{self.id}/proxy/"

        def there() -> bool:
            return scene.gateway.ask("GET", f"{self.path}44772/ping", token=scene.red).status == 200

        scene.gateway.until(there)

    def ask(self, method: str, path: str, body: object = None, **more: Any) -> Reply:
        return self.scene.gateway.ask(method, f"{self.path}44772{path}", body, token=self.scene.red, **more)

    def run(self, command: str) -> Reply:
        return self.ask("POST", "/command", {"command": command})

    def tool(self, name: str, text: str) -> None:
        """Put a program in the place of one that the gateway's scripts use."""
        place = f"{TOOLS}/{name}"
        written = f"printf '%s\\n' '#!/bin/dash' '{text}' > {place}.new"
        found = self.run(f"mkdir -p {TOOLS} && {written} && chmod 755 {place}.new")
        assert b"execution_complete" in found.body, found.body
        self.run(f"mv {place}.new {place}")


@pytest.fixture
def box(scene: Scene) -> Box:
    return Box(scene)


@pytest.fixture
def growth(scene: Scene) -> Callable[[], int]:
    before = resident(scene)
    return lambda: resident(scene) - before


ENDLESS = "/usr/bin/tr '\\\\0' x < /dev/zero".replace("'", '"')


@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/files/download?path=/etc/passwd", None),
        ("GET", "/files/info?path=/etc/passwd", None),
        ("GET", "/directories/list?path=/etc", None),
        ("POST", "/command", {"command": "true"}),
        ("POST", "/command", {"command": "true", "background": True}),
        ("POST", "/files/replace", {"/etc/hostname": {"old": "a", "new": "b"}}),
    ],
)
def test_an_endless_line_of_the_sandboxs_shell_is_not_gathered(
    box: Box, growth: Callable[[], int], stream: str, method: str, path: str, body: object
) -> None:
    """The shell that all of execd's calls use is a file of the sandbox."""
    box.tool("sh", f"exec {ENDLESS} >&{stream}")
    found = box.ask(method, path, body)
    assert found.status >= 400, found.body[:300]
    assert growth() < MUCH


def test_an_endless_line_of_a_tool_is_not_gathered(box: Box, growth: Callable[[], int]) -> None:
    box.tool("stat", f"exec {ENDLESS} >&2")
    assert box.ask("GET", "/files/download?path=/etc/passwd").status >= 400
    assert growth() < MUCH


@pytest.mark.parametrize("word", ["-1", "x", "9" * 5000, "1e9", "0x10", "", " "])
def test_a_size_that_is_none_is_an_error_of_the_sandbox(box: Box, word: str) -> None:
    box.tool("stat", f'echo "{word}"')
    found = box.ask("GET", "/files/download?path=/etc/passwd")
    assert found.data["code"] == "RUNTIME_ERROR"


@pytest.mark.parametrize("path", ["/command", "/session", "/pty", "/directories", "/files/mv", "/files/replace"])
@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_execd_is_limited_like_any_other(
    scene: Scene, growth: Callable[[], int], path: str, announced: bool
) -> None:
    size = 64 << 20
    connection = HTTPConnection("127.0.0.1", scene.gateway.port, timeout=60)
    connection.putrequest("POST", scene.execd + path)
    for name, value in scene.door.items():
        connection.putheader(name, value)
    connection.putheader("Content-Type", "application/json")
    connection.putheader(*(("Content-Length", str(size)) if announced else ("Transfer-Encoding", "chunked")))
    connection.endheaders()
    piece = b" " * (1 << 20)
    try:
        for _ in range(size >> 20):
            connection.send(piece if announced else b"%x\r\n%s\r\n" % (len(piece), piece))
        if not announced:
            connection.send(b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass  # it had enough
    assert connection.getresponse().status == 413
    connection.close()
    assert growth() < MUCH


def test_a_long_replacement_for_a_short_text_is_not_gathered(box: Box, growth: Callable[[], int]) -> None:
    box.run("head -c 300 /dev/zero | tr '\\0' a > /tmp/many")
    found = box.ask("POST", "/files/replace", {"/tmp/many": {"old": "a", "new": "b" * 1_000_000}}, timeout=120)
    assert found.status == 200, found.body
    assert box.ask("GET", "/files/info?path=/tmp/many").data["/tmp/many"]["size"] == 300_000_000
    assert growth() < MUCH


SERVER = """
import socket, sys
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", 0)); server.listen(8)
print(server.getsockname()[1], flush=True)
while True:
    one, _ = server.accept()
    try:
        head = b""
        while b"\\r\\n\\r\\n" not in head:
            head += one.recv(65536)
        HERE
        while True:
            one.sendall(b"x" * 65536)
    except OSError:
        pass
    one.close()
"""
HANDSHAKE = """
        import base64, hashlib
        key = [l.split(b": ")[1] for l in head.split(b"\\r\\n") if l.lower().startswith(b"sec-websocket-key")][0]
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        one.sendall(b"HTTP/1.1 101 x\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: "
                    + accept + b"\\r\\n\\r\\n" + b"\\x82\\x7f" + (1 << 33).to_bytes(8, "big"))
"""


def listening(box: Box, code: str) -> str:
    """A server of the sandbox; its port."""
    text = SERVER.replace("        HERE\n", code.strip("\n") + "\n")
    found = box.ask("POST", "/command", {"argv": ["python3", "-c", f"import sys\n{text}"], "background": True})
    command = next(line for line in found.body.split(b"\n") if b"init" in line)
    ident = json.loads(command)["text"]

    def port() -> str:
        return box.ask("GET", f"/command/{ident}/logs").body.decode().strip()

    return str(box.scene.gateway.until(port))


def test_an_endless_head_of_a_proxied_answer_is_not_gathered(box: Box, growth: Callable[[], int]) -> None:
    port = listening(box, '        one.sendall(b"HTTP/1.1 200 OK\\r\\nX: ")')
    found = box.scene.gateway.ask("GET", f"{box.path}{port}/", token=box.scene.red)
    assert found.status == 502
    assert growth() < MUCH


def test_an_endless_message_of_a_proxied_websocket_is_not_gathered(box: Box, growth: Callable[[], int]) -> None:
    port = listening(box, HANDSHAKE)
    with socket.create_connection(("127.0.0.1", box.scene.gateway.port), timeout=60) as sock:
        head = (
            f"GET {box.path}{port}/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {box.scene.red}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        sock.sendall(head.encode())
        got = io.BytesIO()
        while piece := sock.recv(1 << 16):
            got.write(piece)
            assert got.tell() < 1 << 20
            if b"\x88" in got.getvalue().partition(b"\r\n\r\n")[2][:1]:
                break
    assert b"101" in got.getvalue()[:20]
    assert growth() < MUCH


def test_a_download_that_says_nothing_ends_with_its_client(box: Box) -> None:
    """Nothing of it is left in the gateway or in the sandbox."""
    box.tool("cat", "exec /usr/bin/sleep 1000.25")
    connection = HTTPConnection("127.0.0.1", box.scene.gateway.port, timeout=60)
    headers = {"Authorization": f"Bearer {box.scene.red}"}
    connection.request("GET", f"{box.path}44772/files/download?path=/etc/passwd", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    count = 'n=0; for p in /proc/[0-9]*; do read -r c <$p/comm; [ "$c" = sleep ] && n=$((n+1)); done; exit $n'

    def asleep() -> bool:
        return b'"evalue":"1"' in box.run(count).body

    box.scene.gateway.until(asleep)
    connection.close()
    answer.close()
    box.scene.gateway.until(lambda: not asleep())

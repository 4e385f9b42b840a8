"""Clients that hang up, that read slowly, that send too much: on OpenSandbox's surface, in every phase of a life.

Afterwards nothing runs that was started for them, no descriptor is left, and the sandbox is as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import BODY, Scene

MONSTERS = [
    b"[" * 900_000, b'{"a":' * 200_000, b'{"metadata":{"a":"' + b"x" * 900_000 + b'"}}', b"\xff" * 1000, b"1" * 500_000,
]  # fmt: skip
MARK = f"86411.{os.getpid()}"  # seconds that no other process sleeps, of this run or of another one beside it
MANY = 400_000_000 + os.getpid()


def head(method: str, path: str, headers: dict[str, str], length: int | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in headers.items())]
    lines += [f"Content-Length: {length}"] if length is not None else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(method: str, path: str, headers: dict[str, str], body: Any = None) -> bytes:
    data = json.dumps(body).encode() if body is not None else b""
    return head(method, path, headers, len(data)) + data


def running(words: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words in path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(path.parts[2]))
        except OSError:
            continue
    return found


def descriptors(scene: Scene) -> int:
    """Those that are open, without the ledger's: each thread has its own, as many as were needed at once."""
    return sum("ledger.db" not in target for target in targets(scene))


def ledgers(scene: Scene) -> int:
    return sum(target.endswith("/ledger.db") for target in targets(scene))


def threads(scene: Scene) -> int:
    return len(os.listdir(f"/proc/{scene.gateway.process.pid}/task"))


def targets(scene: Scene) -> list[str]:
    folder = f"/proc/{scene.gateway.process.pid}/fd"
    found: list[str] = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed since
            found.append(os.readlink(f"{folder}/{name}"))
    return found


def test_a_client_that_hangs_up_in_any_phase_leaves_nothing(scene: Scene) -> None:
    gateway = scene.gateway
    token = {"Authorization": f"Bearer {scene.red}"}
    create = {**BODY, "metadata": {"left": "alone"}}
    phases = [
        b"POST /v1/sand",
        head("POST", "/v1/sandboxes", token, 500) + b'{"image":',
        whole("POST", "/v1/sandboxes", token, create),
        whole("GET", f"/v1/sandboxes/{scene.box}/endpoints/44772", token),
        whole("POST", f"{scene.execd}/command", scene.door, {"command": f"sleep {MARK}"}),
        whole("POST", f"{scene.execd}/command", scene.door, {"command": f"yes {MARK}"}),
        head("POST", f"{scene.execd}/command", scene.door, 100) + b'{"comm',
        head(
            "POST",
            f"{scene.execd}/files/upload",
            {**scene.door, "Content-Type": "multipart/form-data; boundary=b"},
            9999,
        )
        + b'--b\r\nContent-Disposition: form-data; name="metadata"; filename="m"\r\n\r\n{"path":"/tmp/half"}\r\n--b\r\n'
        b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\nabc',
        whole("GET", f"{scene.execd}/files/download?path=/dev/zero", scene.door),
        whole("GET", f"{scene.execd}/metrics/watch", scene.door),
        whole("GET", f"/v1/sandboxes/{scene.box}/proxy/9/", scene.door),
    ]
    for text in phases:
        for patience in (0.0, 0.15):  # at once, and when it is under way
            with socket.create_connection(("127.0.0.1", gateway.port), timeout=120) as connection:
                connection.sendall(text)
                time.sleep(patience)
    gateway.until(lambda: not running(f"sleep {MARK}"), 60)
    gateway.until(lambda: not running(f"yes {MARK}"))
    assert scene.inside("GET", "/ping").status == 200
    # What was accepted is there although its answer was never read: a list finds it.
    left = gateway.until(lambda: _left(scene))
    for item in left:
        assert gateway.ask("DELETE", f"/v1/sandboxes/{item['id']}", token=scene.red).status == 204


def _left(scene: Scene) -> list[Any]:
    reply = scene.gateway.ask("GET", "/v1/sandboxes?metadata=left%3Dalone", token=scene.red)
    return list(reply.data["items"])


def test_a_hundred_broken_connections_leave_no_descriptor(scene: Scene) -> None:
    def some(count: int) -> None:
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", scene.gateway.port), timeout=120) as connection:
                connection.sendall(whole("POST", f"{scene.execd}/command", scene.door, {"command": f"sleep {MARK}"}))
        scene.gateway.until(lambda: not running(f"sleep {MARK}"), 60)

    some(16)
    before = descriptors(scene)
    some(48)
    scene.gateway.until(lambda: descriptors(scene) <= before + 8, 60)
    assert ledgers(scene) <= threads(scene)


def test_a_slow_reader_holds_the_command_back_and_not_the_gateway(scene: Scene) -> None:
    """A command that says much more than anybody reads: the gateway does not keep it in memory."""
    with socket.create_connection(("127.0.0.1", scene.gateway.port), timeout=120) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(whole("POST", f"{scene.execd}/command", scene.door, {"command": f"yes | head -c {MANY}"}))
        connection.recv(1000)
        before = _rss(scene)
        for _ in range(20):
            assert scene.gateway.ask("GET", "/health", token=None).status == 200
            assert scene.inside("GET", "/ping").status == 200
            time.sleep(0.05)  # it would have time to grow
        assert _rss(scene) - before < 128 << 20  # of 12 GB that it would be in events
    scene.gateway.until(lambda: not running(f"head -c {MANY}"), 60)


def _rss(scene: Scene) -> int:
    text = Path(f"/proc/{scene.gateway.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS"))) * 1024


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/sandboxes"])
@pytest.mark.parametrize("body", MONSTERS)
def test_a_monstrous_body_is_refused_in_the_form_of_the_api(scene: Scene, path: str, body: bytes) -> None:
    reply = scene.gateway.ask("POST", path, body, token=scene.red)
    assert reply.status == 400
    assert set(reply.data) == {"code", "message"}
    assert len(reply.body) < 10_000


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(scene: Scene) -> None:
    with socket.create_connection(("127.0.0.1", scene.gateway.port), timeout=120) as connection:
        connection.sendall(head("POST", "/v1/sandboxes", {"Authorization": f"Bearer {scene.red}"}, 10**12))
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")

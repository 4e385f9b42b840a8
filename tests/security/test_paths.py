"""Names that try to be paths, and headers that try to be two: in every place that takes a name, on every surface."""

from __future__ import annotations

import socket
from urllib.parse import quote

import pytest

from .conftest import Scene

SLY = ["../../etc/passwd", "..", ".", "%2e%2e", "..%2f..%2fetc", "a/../../b", "\0", "%00", "a\nb", "’",
       "sb-" + "a" * 5000, "%", "*", "sb-%", "' OR 1=1 --", "-rf", "/etc/passwd", "\\..\\..", "%c0%ae%c0%ae",
       "\ud800"]  # fmt: skip
PLACES = [
    ("GET", "/v1/sandboxes/{}"), ("DELETE", "/v1/sandboxes/{}"), ("GET", "/sandboxes/{}"),
    ("GET", "/v1/sandboxes/{}/endpoints/44772"), ("GET", "/v1/sandboxes/BOX/endpoints/{}"),
    ("GET", "/v1/sandboxes/{}/proxy/44772/ping"), ("GET", "/v1/sandboxes/BOX/proxy/{}/ping"),
    ("GET", "/v1/sandboxes/BOX/proxy/44772/command/status/{}"),
    ("GET", "/v1/sandboxes/BOX/proxy/44772/command/{}/logs"),
    ("DELETE", "/v1/sandboxes/BOX/proxy/44772/session/{}"), ("GET", "/v1/sandboxes/BOX/proxy/44772/pty/{}"),
    ("GET", "/v1/sandboxes/BOX/proxy/44772/{}"), ("GET", "/v1/snapshots/{}"), ("DELETE", "/v1/snapshots/{}"),
    ("GET", "/api/v1/sandboxes/{}"), ("DELETE", "/api/v1/sandboxes/{}"), ("GET", "/api/v1/sandboxes/{}/receipt"),
    ("GET", "/api/v1/claims/{}"), ("DELETE", "/api/v1/claims/{}"), ("POST", "/api/v1/devices/{}/taints"),
    ("GET", "/{}"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "place"), PLACES)
def test_a_name_is_never_a_path(scene: Scene, method: str, place: str) -> None:
    for name in SLY:
        for text in {quote(name, safe="%", errors="surrogatepass"), quote(name, safe="/%", errors="surrogatepass")}:
            path = place.format(text).replace("BOX", scene.box)
            reply = scene.gateway.ask(method, path, {} if method == "POST" else None)
            assert 400 <= reply.status < 500 or reply.status == 501, (path, reply.status, reply.body)
            assert b"root:" not in reply.body
            assert b"Traceback" not in reply.body
            assert reply.data["code"], path
    assert scene.inside("GET", "/ping").status == 200


@pytest.mark.parametrize(
    "header", ["Authorization", "OPEN-SANDBOX-API-KEY", "OpenSandbox-Secure-Access", "X-Request-ID", "Host"]
)
@pytest.mark.parametrize("value", [b"a\rX-Evil: 1", b"a\nX-Evil: 1", b"a\0b", b"\xff\xfe", b"a" * 9000])
def test_no_header_becomes_two(scene: Scene, header: str, value: bytes) -> None:
    host = b"" if header == "Host" else b"Host: x\r\n"
    text = (
        b"GET /v1/sandboxes/"
        + scene.box.encode()
        + b"/endpoints/44772 HTTP/1.1\r\n"
        + host
        + header.encode()
        + b": "
        + value
    )
    with socket.create_connection(("127.0.0.1", scene.gateway.port), timeout=120) as connection:
        connection.sendall(text + b"\r\nConnection: close\r\n\r\n")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.split(b" ", 2)[1] in (b"400", b"401"), answer[:200]
    assert b"x-evil" not in answer.partition(b"\r\n\r\n")[0].lower()


def test_the_address_in_an_endpoint_is_a_host_and_nothing_else(scene: Scene) -> None:
    for host in ("evil/../..", "a b", 'a"b', "<script>", "x" * 300, "user@evil"):
        reply = scene.gateway.ask(
            "GET", f"/v1/sandboxes/{scene.box}/endpoints/44772", token=scene.red, headers={"Host": host}
        )
        assert reply.status in (200, 400)
        if reply.status == 200:
            assert host not in reply.data["endpoint"]


@pytest.mark.parametrize("path", ["../../../../etc/shadow", "/../../etc/shadow", "/proc/1/root/etc/shadow"])
def test_files_of_the_host_are_not_reached_from_inside(scene: Scene, path: str) -> None:
    """With the root of the host some files are the host's own by design; its secrets are not among them."""
    reply = scene.inside("GET", f"/files/download?path={quote(path)}")
    other = scene.inside("POST", "/command", {"command": f"cat {path}"})
    state = scene.gateway.home.state
    hidden = scene.inside("GET", f"/files/download?path={quote(f'/proc/1/root/{state}/gateway.token')}")
    assert reply.status in (200, 400, 403, 404)
    assert other.status == 200
    assert hidden.status in (400, 403, 404)
    assert scene.gateway.token.encode() not in hidden.body

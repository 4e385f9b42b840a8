"""Tenants of a gateway do not meet on a network, and nothing in a sandbox is taken for a program of the host."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import RunningGateway, end_all

from dibs.home import Home

SERVE = """
import http.server, sys
class Secret(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"crimson")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Secret).serve_forever()
"""
# A request without a token, from inside.
CALL = """
import http.client, sys
try:
    line = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10)
    line.request("GET", "/api/v1/whoami")
    print("answered", line.getresponse().status, flush=True)
except OSError as error:
    print("not reached", error, flush=True)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningGateway]]:
    running: list[RunningGateway] = []

    def begin(settings: str = "") -> RunningGateway:
        home = Home(state=tmp_path / "home", config=tmp_path / "home" / "config").make()
        home.config.mkdir(parents=True, exist_ok=True)
        (home.config / "config.toml").write_text(settings)
        running.append(RunningGateway(home, tmp_path).start())
        return running[-1]

    yield begin
    for gateway in running:
        gateway.stop()
        end_all(gateway.home)


def make(gateway: RunningGateway, token: str | None, **fields: Any) -> str:
    made = gateway.ask("POST", "/api/v1/sandboxes", {"backend": "local", **fields}, token=token)
    assert made.status == 202, made.data
    box: str = made.data["id"]

    def there() -> bool:
        state = gateway.ask("GET", f"/api/v1/sandboxes/{box}", token=token).data["state"]
        assert state != "failed", gateway.ask("GET", f"/api/v1/sandboxes/{box}", token=token).data
        return bool(state in ("running", "exited"))

    gateway.until(there)
    return box


def passed_on(gateway: RunningGateway, box: str, port: int, token: str) -> tuple[int, bytes]:
    reply = gateway.ask("GET", f"/v1/sandboxes/{box}/proxy/{port}/", token=token)
    return reply.status, reply.body


def answered(gateway: RunningGateway, box: str, port: int, token: str) -> bool:
    """Until its server is there."""
    gateway.until(lambda: passed_on(gateway, box, port, token)[0] == 200)
    return passed_on(gateway, box, port, token)[1] == b"crimson"


def receipt(gateway: RunningGateway, box: str, token: str | None) -> Any:
    return gateway.ask("GET", f"/api/v1/sandboxes/{box}/receipt", token=token).data


def said(gateway: RunningGateway, box: str, token: str | None) -> str:
    path = f"/api/v1/sandboxes/{box}/logs"
    gateway.until(lambda: gateway.ask("GET", f"/api/v1/sandboxes/{box}", token=token).data["state"] == "exited")
    records = gateway.ask("GET", path, token=token).body.splitlines()
    return b"".join(base64.b64decode(json.loads(record)["data"]) for record in records).decode()


@pytest.mark.parametrize("network", ["", "none"])
def test_a_tenants_server_is_reached_by_that_tenant_alone(start: Callable[..., RunningGateway], network: str) -> None:
    gateway = start()
    red, blue = (gateway.make_token(name, "--tenant", name) for name in ("red", "blue"))
    port = free_port()
    asked = {"network": network} if network else {}
    server = make(gateway, red, command=["python3", "-c", SERVE, str(port)], **asked)
    assert answered(gateway, server, port, red)
    other = make(gateway, blue, command=["sleep", "1000"], **asked)
    status, body = passed_on(gateway, other, port, blue)
    assert status in (404, 502)
    assert b"crimson" not in body
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)


def test_on_the_hosts_network_a_port_is_reached_only_where_it_is_listened_on(
    start: Callable[..., RunningGateway],
) -> None:
    """If the administrator allows it, tenants share the host's network; the gateway itself is still no open proxy."""
    gateway = start("[gateway]\nallow_host_network = true\nloopback_open = true\n")
    red, blue = (gateway.make_token(name, "--tenant", name) for name in ("red", "blue"))
    port = free_port()
    server = make(gateway, red, command=["python3", "-c", SERVE, str(port)], network="host")
    assert answered(gateway, server, port, red)
    other = make(gateway, blue, command=["sleep", "1000"], network="host")
    status, body = passed_on(gateway, other, port, blue)
    assert status == 404
    assert b"crimson" not in body
    # Not even to itself: there it would be a program of the host, without a token.
    reply = gateway.ask("GET", f"/v1/sandboxes/{other}/proxy/{gateway.port}/api/v1/whoami", token=blue)
    assert reply.status == 404
    assert "owns_all" not in reply.body.decode()


def test_the_hosts_network_is_refused_unless_the_administrator_allows_it(start: Callable[..., RunningGateway]) -> None:
    gateway = start()
    for body in ({"network": "host"}, {"network": "private", "publish": ["8080:80"]}):
        refused = gateway.ask("POST", "/api/v1/sandboxes", {"command": ["true"], **body})
        assert refused.status == 400, refused.data
        problem = refused.data["problems"][0]
        field = "publish" if "publish" in body else "network"
        code = "PUBLISH_NOT_ALLOWED" if "publish" in body else "NETWORK_NOT_ALLOWED"
        assert (problem["code"], problem["field"]) == (code, field)
        assert "gateway.allow_" in problem["remedy"]
        explained = gateway.ask("POST", "/api/v1/explain", {"backend": "local", **body}).data["backends"][0]
        assert not explained["ok"]
        assert explained["problems"][0]["code"] == code


def test_where_private_cannot_be_had_there_is_none_and_it_is_said(
    start: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DIBS_NETWORK_HELPERS", str(tmp_path / "empty"))
    gateway = start()
    box = make(gateway, gateway.token, command=["sleep", "1000"])
    found = receipt(gateway, box, gateway.token)
    line = next(line for line in found["lines"] if line["field"] == "network")
    assert (line["planned"], line["observed"]) == ("none", "none")
    assert any("passt" in note for note in found["notes"])
    explained = gateway.ask("POST", "/api/v1/explain", {"backend": "local"}).data["backends"][0]
    assert explained["ok"]
    assert any("passt" in note for note in explained["notes"])
    refused = gateway.ask("POST", "/api/v1/sandboxes", {"backend": "local", "command": ["true"], "network": "private"})
    problem = refused.data["problems"][0]
    assert (problem["code"], problem["field"], problem["value"]) == ("NETWORK_UNAVAILABLE", "network", "private")
    assert "passt" in problem["remedy"]


@pytest.mark.parametrize("network", ["host", "", "none"])
def test_a_request_from_inside_a_sandbox_is_not_one_of_this_host(
    start: Callable[..., RunningGateway], network: str
) -> None:
    gateway = start("[gateway]\nallow_host_network = true\nloopback_open = true\n")
    assert gateway.ask("GET", "/api/v1/whoami", token=None).status == 200  # we are a program of this host
    asked = {"network": network} if network else {}
    box = make(gateway, gateway.token, command=["python3", "-c", CALL, str(gateway.port)], **asked)
    words = said(gateway, box, gateway.token)
    assert ("answered 401" if network == "host" else "not reached") in words
    assert "answered 200" not in words


def test_a_container_of_the_hosts_network_is_not_this_host_either(start: Callable[..., RunningGateway]) -> None:
    """Whatever made it: another pid namespace is enough."""
    if os.getuid():
        pytest.skip("needs root: a pid namespace is made")
    gateway = start("[gateway]\nloopback_open = true\n")
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "python3", "-c", CALL, str(gateway.port)]
    done = subprocess.run(inside, capture_output=True, text=True, check=True)
    assert "answered 401" in done.stdout
    done = subprocess.run(inside[4:], capture_output=True, text=True, check=True)
    assert "answered 200" in done.stdout
    assert json.loads(gateway.ask("GET", "/api/v1/whoami", token=None).body)

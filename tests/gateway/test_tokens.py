"""Who is let in, as whom, and what for."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dibs.gateway.auth import Auth, Peer
from dibs.gateway.threads import Pool
from dibs.home import Home
from dibs.settings import GatewaySettings
from dibs.workloads.service import Workloads

from .conftest import RunningGateway


def dibs(gateway: RunningGateway, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dibs", *words]
    return subprocess.run(command, capture_output=True, text=True, env=gateway.env, check=False)


def test_tcp_clients_without_a_token_are_refused(served: RunningGateway) -> None:
    for path in ("/api/v1/sandboxes", "/metrics", "/api/v1/whoami", "/nothing"):
        reply = served.ask("GET", path, token=None)
        assert (reply.status, reply.data["code"]) == (401, "TOKEN_MISSING"), path
        assert reply.headers["www-authenticate"] == "Bearer"


def test_both_headers_are_taken(served: RunningGateway) -> None:
    assert served.ask("GET", "/api/v1/whoami").data["sees_all"] is True
    headers = {"OPEN-SANDBOX-API-KEY": served.token}
    assert served.ask("GET", "/api/v1/whoami", token=None, headers=headers).status == 200


def test_two_different_tokens_are_refused(served: RunningGateway) -> None:
    headers = {"OPEN-SANDBOX-API-KEY": "dibs_other"}
    assert served.ask("GET", "/api/v1/whoami", headers=headers).status == 401


def test_an_unknown_token_and_another_scheme_are_refused(served: RunningGateway) -> None:
    reply = served.ask("GET", "/api/v1/whoami", token="dibs_" + "x" * 43)
    assert (reply.status, reply.data["code"]) == (401, "TOKEN_UNKNOWN")
    reply = served.ask("GET", "/api/v1/whoami", token=None, headers={"Authorization": "Basic YTpi"})
    assert (reply.status, reply.data["code"]) == (401, "TOKEN_UNKNOWN")


def test_on_the_unix_socket_the_peer_is_who_it_is(served: RunningGateway) -> None:
    assert served.ask("GET", "/api/v1/whoami", unix=True).data["uid"] == os.getuid()


@pytest.mark.parametrize("host_service", [True, False])
def test_another_user_on_the_socket_gets_the_hosts_folders_only_from_a_host_service(
    home: Home, host_service: bool
) -> None:
    pool = Pool(lambda: Workloads(home))
    auth = Auth(pool, GatewaySettings(), host_service=host_service)
    stranger = auth.of_peer(Peer(1, 54321, 54321))
    assert (stranger.uid, stranger.name, stranger.owns_all) == (54321, "54321", False)
    assert stranger.remote is not host_service
    assert "admin" not in stranger.scopes
    assert auth.of_peer(Peer(1, os.getuid(), 0)).remote is False
    pool.close()


def test_a_token_is_printed_once_and_kept_as_a_hash(served: RunningGateway) -> None:
    secret = served.make_token("once")
    assert re.fullmatch(r"dibs_[A-Za-z0-9_-]{43}", secret)
    shown = json.loads(dibs(served, "token", "ls", "-o", "json").stdout)["tokens"]
    assert next(row for row in shown if row["name"] == "once")["state"] == "good"
    assert secret not in json.dumps(shown)
    for path in served.home.state.glob("ledger.db*"):
        assert secret.encode() not in path.read_bytes()


def test_a_revoked_token_is_refused_within_a_second(served: RunningGateway) -> None:
    secret = served.make_token("gone")
    assert served.ask("GET", "/api/v1/whoami", token=secret).status == 200
    assert dibs(served, "token", "revoke", "gone").stdout == "gone is revoked\n"
    reply = served.until(
        lambda: (r := served.ask("GET", "/api/v1/whoami", token=secret)).status == 401 and r, seconds=5.0
    )
    assert reply.data["code"] == "TOKEN_REVOKED"


def test_an_expired_token_is_refused(served: RunningGateway) -> None:
    secret = served.make_token("short", "--ttl", "1ms")
    reply = served.ask("GET", "/api/v1/whoami", token=secret)
    assert (reply.status, reply.data["code"]) == (401, "TOKEN_EXPIRED")


def test_a_scope_that_is_missing_is_named(served: RunningGateway) -> None:
    reader = served.make_token("reader", "--scope", "sandboxes:read")
    assert served.ask("GET", "/api/v1/sandboxes", token=reader).status == 200
    reply = served.ask("POST", "/api/v1/sandboxes", {"command": ["true"]}, token=reader)
    assert (reply.status, reply.data["code"]) == (403, "SCOPE_MISSING")
    assert "sandboxes:write" in reply.data["detail"]
    writer = served.make_token("writer")
    assert served.ask("POST", "/api/v1/devices/gpu-0/taints", {"taint": "fan"}, token=writer).status == 403
    assert served.ask("GET", "/metrics", token=writer).status == 403


def test_every_mistake_in_a_new_token_is_reported(served: RunningGateway) -> None:
    done = dibs(served, "token", "create", "Bad Name", "--tenant", "R!", "--scope", "root", "--ttl", "soon")
    assert done.returncode == 80
    for code in ("NAME_INVALID", "TENANT_INVALID", "SCOPE_INVALID", "DURATION_INVALID"):
        assert f"[{code}]" in done.stderr
    assert dibs(served, "token", "revoke", "nobody").returncode == 89


def test_a_tenant_learns_nothing_of_another(served: RunningGateway) -> None:
    red, blue = served.make_token("red", "--tenant", "red"), served.make_token("blue", "--tenant", "blue")
    made = served.ask("POST", "/api/v1/sandboxes", {"gpu": 1, "name": "mine", "command": ["sleep", "60"]}, token=red)
    assert made.status == 202
    ref = made.data["id"]
    assert served.ask("GET", f"/api/v1/sandboxes/{ref}", token=red).status == 200
    unknown = served.ask("GET", "/api/v1/sandboxes/sb-000000000000", token=blue).data
    paths = [("GET", ""), ("GET", "/receipt"), ("GET", "/logs"), ("GET", "/events"), ("GET", "/files?path=/etc"),
             ("GET", "/wait?timeout=0"), ("DELETE", ""), ("POST", "/stop"), ("POST", "/pause")]  # fmt: skip
    for method, rest in paths:
        reply = served.ask(method, f"/api/v1/sandboxes/{ref}{rest}", token=blue)
        assert reply.status == 404, (method, rest)
        assert {**reply.data, "request_id": ""} == json.loads(
            json.dumps({**unknown, "request_id": ""}).replace("sb-000000000000", ref)
        )
    assert served.ask("POST", f"/api/v1/sandboxes/{ref}/exec", {"command": ["id"]}, token=blue).status == 404
    assert served.ask("GET", "/api/v1/sandboxes", token=blue).data["total"] == 0
    assert served.ask("GET", "/api/v1/leases", token=blue).data == {"leases": []}
    seen = served.ask("GET", "/api/v1/devices", token=blue).body + served.ask("GET", "/api/v1/queue", token=blue).body
    seen += served.ask("GET", "/api/v1/events?after=0&follow=false", token=blue).body
    seen += served.ask("POST", "/api/v1/explain", {"gpu": 8}, token=blue).body
    assert b"mine" not in seen
    assert ref.encode() not in seen
    # Names do not meet either.
    again = served.ask("POST", "/api/v1/sandboxes", {"name": "mine", "command": ["true"]}, token=blue)
    assert again.status == 202
    served.sandbox(ref, "running", "exited")
    assert served.ask("DELETE", f"/api/v1/sandboxes/{ref}?grace=0s", token=red).status == 200


def test_a_quota_is_kept_and_told(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(settings="[tenants.red]\nsandboxes = 1\ngpus = 2\n")
    red = gateway.make_token("red", "--tenant", "red")
    over = gateway.ask("POST", "/api/v1/sandboxes", {"gpu": 3}, token=red)
    assert (over.status, over.data["error"]) == (403, "QuotaExceeded")
    first = gateway.ask("POST", "/api/v1/sandboxes", {"gpu": 2, "command": ["sleep", "60"]}, token=red)
    assert first.status == 202
    second = gateway.ask("POST", "/api/v1/sandboxes", {"command": ["true"]}, token=red)
    assert (second.status, second.data["error"]) == (403, "QuotaExceeded")
    assert gateway.ask("POST", "/api/v1/sandboxes", {"command": ["true"]}).status == 202


def test_loopback_is_open_only_if_the_settings_say_so(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(settings="[gateway]\nloopback_open = true\n")
    assert gateway.ask("GET", "/api/v1/whoami", token=None).status == 200
    assert gateway.ask("GET", "/api/v1/whoami", token="dibs_wrong").status == 401
    pages = ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example:8080"})
    for headers in pages:
        reply = gateway.ask("POST", "/api/v1/sandboxes", {"command": ["true"]}, token=None, headers=headers)
        assert (reply.status, reply.data["code"]) == (403, "BROWSER_REFUSED")
        assert gateway.ask("GET", "/api/v1/whoami", headers=headers).status == 200
    for host in ("localhost:80", "[::1]:80", "127.0.0.1"):
        assert gateway.ask("GET", "/api/v1/whoami", token=None, headers={"Host": host}).status == 200


def made(served: RunningGateway, token: str) -> str:
    """A running sandbox; its id."""
    body = {"image": {"uri": "host"}, "entrypoint": ["sleep", "1000"], "timeout": 3600, "resourceLimits": {}}
    reply = served.ask("POST", "/v1/sandboxes", body, token=token)
    assert reply.status == 202, reply.body
    box: str = reply.data["id"]
    served.until(lambda: served.ask("GET", f"/v1/sandboxes/{box}/proxy/44772/ping", token=token).status == 200)
    return box


def test_the_files_of_a_sandbox_need_the_scope_that_its_commands_need(served: RunningGateway) -> None:
    reader = served.make_token("files-reader", "--scope", "sandboxes:read", "--tenant", "files")
    writer = served.make_token("files-writer", "--tenant", "files")
    box = made(served, writer)
    for path in (
        f"/api/v1/sandboxes/{box}/files?path=/etc/passwd",
        f"/v1/sandboxes/{box}/proxy/44772/files/download?path=/etc/passwd",
        f"/v1/sandboxes/{box}/proxy/44772/files/info?path=/etc/passwd",
        f"/v1/sandboxes/{box}/proxy/44772/directories/list?path=/etc",
        f"/v1/sandboxes/{box}/endpoints/44772",
    ):
        refused = served.ask("GET", path, token=reader)
        assert (refused.status, refused.data["code"]) == (403, "SCOPE_MISSING"), path
        assert served.ask("GET", path, token=writer).status == 200, path


def test_the_secret_of_a_sandbox_goes_with_the_token_that_it_was_given_to(served: RunningGateway) -> None:
    first, second = (served.make_token(f"door-{name}", "--tenant", "doors") for name in ("first", "second"))
    box = made(served, first)
    doors = [
        served.ask("GET", f"/v1/sandboxes/{box}/endpoints/44772", token=one).data["headers"] for one in (first, second)
    ]
    ping = f"/v1/sandboxes/{box}/proxy/44772/ping"
    assert [served.ask("GET", ping, token=None, headers=door).status for door in doors] == [200, 200]
    revoke = [sys.executable, "-m", "dibs", "token", "revoke", "door-first"]
    subprocess.run(revoke, env=served.env, check=True, capture_output=True)
    served.until(lambda: served.ask("GET", ping, token=None, headers=doors[0]).status == 401)
    assert served.ask("GET", ping, token=None, headers=doors[0]).data["code"] == "TOKEN_REVOKED"
    assert served.ask("GET", ping, token=None, headers=doors[1]).status == 200
    name, secret = next(iter(doors[0].items()))
    for forged in (
        secret.rpartition(".")[2],
        "." + secret.rpartition(".")[2],
        f"tok-000000000000.{secret.rpartition('.')[2]}",
    ):
        assert served.ask("GET", ping, token=None, headers={name: forged}).status == 401


def test_the_streams_of_one_tenant_leave_room_for_the_others(served: RunningGateway) -> None:
    """Followed logs wait in threads; a client that uses up all threads must not keep others from stopping theirs."""
    greedy, other = (served.make_token(f"stream-{name}", "--tenant", f"stream-{name}") for name in ("greedy", "other"))
    box, theirs = made(served, greedy), made(served, other)
    follow = f"/api/v1/sandboxes/{box}/logs?follow=true"
    head = f"GET {follow} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {greedy}\r\n\r\n".encode()
    held = [socket.create_connection(("127.0.0.1", served.port), timeout=30) for _ in range(140)]
    try:
        for one in held:  # all at once: each has its place before its answer begins, so that none is cut off later
            one.sendall(head)
        answers = Counter(one.recv(200).split()[1] for one in held)
        assert answers == {b"200": 32, b"429": 108}
        assert served.ask("GET", f"/api/v1/sandboxes/{theirs}/files?path=/etc/hostname", token=other).status == 200
        assert served.ask("DELETE", f"/api/v1/sandboxes/{theirs}?grace=0s", token=other).status == 200
    finally:
        for one in held:
            one.close()


def test_a_secret_that_a_deployment_has_is_taken_as_often_as_it_likes(served: RunningGateway, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s" * 43 + "\n")
    words = ("token", "create", "deployed", "--scope", "admin", "--secret-file", str(file))
    first, second = dibs(served, *words), dibs(served, *words)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "s" * 43 not in first.stdout + first.stderr + second.stdout
    assert served.ask("GET", "/api/v1/whoami", token="s" * 43).status == 200
    other = dibs(served, "token", "create", "deployed", "--secret-file", str(file))
    assert other.returncode == 88, "the same secret with other scopes is another token"
    assert dibs(served, "token", "revoke", "deployed").returncode == 0
    assert dibs(served, *words).returncode == 88, "a revoked secret is not good again"


@pytest.mark.parametrize("secret", ["", "short", "x y" * 20, "ü" * 40])
def test_a_secret_that_could_be_guessed_or_sent_wrongly_is_refused(
    served: RunningGateway, tmp_path: Path, secret: str
) -> None:
    file = tmp_path / "token"
    file.write_text(secret)
    done = dibs(served, "token", "create", "weak", "--secret-file", str(file))
    assert done.returncode == 80
    assert "openssl rand -hex 32" in done.stderr
    assert dibs(served, "token", "create", "weak", "--secret-file", str(tmp_path / "absent")).returncode == 80

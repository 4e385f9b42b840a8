"""What bad input gets: a clear error in the API's own form, and nothing else."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.errors import InvalidRequest
from dibs.gateway.native.sandboxes import ListQuery
from dibs.wire.reading import read_body, read_query
from dibs.wire.sandboxes import ExecRequest, SandboxPatch

from .conftest import Reply, RunningGateway

ROOT = "/api/v1/sandboxes"


def raw(gateway: RunningGateway, *pieces: bytes, timeout: float = 120.0) -> bytes:
    """Send bytes as they are; everything that comes back until the gateway closes."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=timeout) as connection:
        for piece in pieces:
            connection.sendall(piece)
        found = b""
        while chunk := connection.recv(65536):
            found += chunk
            if b"\r\n\r\n" in found and (length := re.search(rb"content-length: (\d+)", found, re.IGNORECASE)):
                head, _, body = found.partition(b"\r\n\r\n")
                if len(body) >= int(length.group(1)) and b"connection: close" not in head.lower():
                    return found
        return found


def is_problem(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.data["code"]) == (status, code), reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.data["status"] == status
    assert reply.data["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b'{"gpu": }', b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100_000, b'{"a":' * 50_000]
)
def test_malformed_json_is_refused(served: RunningGateway, body: bytes) -> None:
    is_problem(served.ask("POST", ROOT, body), 400, "JSON_INVALID")


@pytest.mark.parametrize("body", [b"null", b"[]", b"5", b'"text"', b"true"])
def test_a_body_that_is_no_object_is_refused(served: RunningGateway, body: bytes) -> None:
    for method, path in (("POST", ROOT), ("POST", "/api/v1/explain"), ("POST", "/api/v1/claims/check")):
        is_problem(served.ask(method, path, body), 400, "BODY_INVALID")


@pytest.mark.parametrize(
    "field",
    ["gpu", "memory", "cpu", "pids", "command", "name", "env", "labels", "mounts", "ttl", "wait", "tty", "workdir",
     "image", "claim", "base_env", "network"],
)  # fmt: skip
def test_null_is_no_value_for_a_field(served: RunningGateway, field: str) -> None:
    reply = served.ask("POST", ROOT, {field: None})
    assert reply.status == 400, reply.body
    assert [problem["field"] for problem in reply.data["problems"]] == [field]


@pytest.mark.parametrize("labels", [{"a\n": "b"}, {"a": "b\n"}, {"a\r\n": "b"}, {"a": "\x1b[0m"}])
def test_a_label_has_no_line_break_in_it(served: RunningGateway, labels: dict[str, str]) -> None:
    reply = served.ask("PATCH", f"{ROOT}/any", {"labels": labels})
    assert (reply.status, reply.data["problems"][0]["field"]) == (400, "labels")


def test_all_problems_of_a_body_are_reported(served: RunningGateway) -> None:
    reply = served.ask("POST", f"{ROOT}/any/exec", {"command": [], "env": {"1": "x"}, "user": "root", "shell": True})
    assert reply.status == 400
    assert {problem["field"] for problem in reply.data["problems"]} == {"command", "env", "user", "shell"}


@pytest.mark.parametrize(
    ("query", "field"),
    [("page=0", "page"), ("page_size=1001", "page_size"), ("page=x", "page"), ("state=gone", "state"),
     ("label=x", "label"), ("colour=red", "colour"), ("page=1&page=2", "page"), ("all=maybe", "all"), ("%zz", "query")],
)  # fmt: skip
def test_a_wrong_query_is_refused(served: RunningGateway, query: str, field: str) -> None:
    reply = served.ask("GET", f"{ROOT}?{query}")
    assert reply.status == 400, reply.body
    assert field in {problem["field"] for problem in reply.data["problems"]} | {"query"}


@pytest.mark.parametrize(
    "ref", ["..", "%2e%2e", "UPPER", "a%00b", "x" * 65, "%F0%9F%92%A9", "sb-0000%2f..", "a%0d%0ab"]
)
def test_what_cannot_be_a_sandbox_is_unknown(served: RunningGateway, ref: str) -> None:
    assert served.ask("GET", f"{ROOT}/{ref}").status == 404


def test_unknown_paths_and_methods_are_reported_in_the_form_of_their_api(served: RunningGateway) -> None:
    is_problem(served.ask("GET", "/api/v1/nothing"), 404, "PATH_UNKNOWN")
    wrong = served.ask("PUT", ROOT, {})
    is_problem(wrong, 405, "METHOD_NOT_ALLOWED")
    assert {"GET", "POST"} <= {name.strip() for name in wrong.headers["allow"].split(",")}
    theirs = served.ask("GET", "/v1/nothing")
    assert theirs.status == 404
    assert set(theirs.data) == {"code", "message"}
    assert set(served.ask("GET", "/v1/sandboxes", token=None).data) == {"code", "message"}


def test_a_body_that_is_too_large_is_refused(served: RunningGateway) -> None:
    is_problem(served.ask("POST", ROOT, b" " * (1 << 20) + b"{}"), 413, "BODY_TOO_LARGE")


def test_a_body_that_says_nothing_of_its_length_is_counted(served: RunningGateway) -> None:
    head = (
        f"POST {ROOT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=120) as connection:
        connection.sendall(head.encode())
        for _ in range(17):
            connection.sendall(chunk)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_headers_that_are_too_large_are_refused(served: RunningGateway) -> None:
    answer = raw(served, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"HEAD_TOO_LARGE" in answer


@pytest.mark.parametrize(
    "line", [b"nonsense\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.1\r\nBad Header: x\r\n\r\n",
             b"POST /api/v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"],
)  # fmt: skip
def test_what_is_not_http_is_answered_with_an_error(served: RunningGateway, line: bytes) -> None:
    answer = raw(served, line)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"NOT_HTTP"' in answer


def test_a_request_id_is_echoed_if_it_is_harmless_and_replaced_if_not(served: RunningGateway) -> None:
    assert served.ask("GET", "/health", headers={"X-Request-ID": "run.7_a-B"}).headers["x-request-id"] == "run.7_a-B"
    for bad in ("a b", "x" * 65, "é", "a\tb", ""):
        found = served.ask("GET", "/health", headers={"X-Request-ID": bad}).headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{16}", found), bad


def test_no_header_can_be_smuggled_into_an_answer_or_a_log_line(served: RunningGateway) -> None:
    answer = raw(
        served,
        f"GET /api/v1/sandboxes/a%0d%0aX-Evil:%20yes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.token}\r\n"
        "Connection: close\r\n\r\n".encode(),
    )
    head = answer.partition(b"\r\n\r\n")[0]
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"X-Evil" not in head
    for line in served.log.splitlines():
        assert isinstance(json.loads(line), dict)


def test_slow_headers_and_slow_bodies_end_in_a_408(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(settings='[gateway]\nhead_timeout = "200ms"\nbody_timeout = "200ms"\n')
    answer = raw(gateway, b"GET /health HT")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"HEAD_TIMEOUT" in answer
    assert raw(gateway).startswith(b"HTTP/1.1 408 ")
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.token}\r\nContent-Length: 500000\r\n\r\n"
    answer = raw(gateway, f"POST {ROOT} {head}".encode() + b'{"gpu"')
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"BODY_TIMEOUT" in answer
    made = gateway.ask("POST", ROOT, {"command": ["sleep", "60"]}).data["id"]
    gateway.sandbox(made, "running")
    answer = raw(gateway, f"PUT {ROOT}/{made}/files?path=/tmp {head}".encode() + b"x" * 1000)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_hangs_up_in_any_phase_leaves_nothing(served: RunningGateway) -> None:
    made = served.ask("POST", ROOT, {"gpu": 1, "command": ["sleep", "600"]}).data["id"]
    served.sandbox(made, "running")
    auth = f"Host: x\r\nAuthorization: Bearer {served.token}\r\n"
    mark = f"611.{os.getpid()}"  # no other process sleeps so long
    body = json.dumps({"command": ["sleep", mark]})
    requests = [
        "GET /api",
        f"POST {ROOT} HTTP/1.1\r\n{auth}Content-Length: 20\r\n\r\n{{",
        f"POST {ROOT}/{made}/exec HTTP/1.1\r\n{auth}Content-Length: {len(body)}\r\n\r\n{body}",
        f"GET {ROOT}/{made}/logs?follow=true HTTP/1.1\r\n{auth}\r\n",
        f"GET {ROOT}/{made}/wait?timeout=600 HTTP/1.1\r\n{auth}\r\n",
        f"GET /api/v1/events HTTP/1.1\r\n{auth}\r\n",
        f"GET {ROOT}/{made}/files?path=/usr/lib HTTP/1.1\r\n{auth}\r\n",
        f"PUT {ROOT}/{made}/files?path=/tmp HTTP/1.1\r\n{auth}Content-Length: 100000\r\n\r\nabc",
    ]
    for text in requests:
        with socket.create_connection(("127.0.0.1", served.port), timeout=120) as connection:
            connection.sendall(text.encode())
            time.sleep(0.2)  # so that the request is really under way
    served.until(lambda: _processes(served, f"sleep {mark}") == 0)
    served.until(lambda: _threads(served, "dibs-long") == 0 or _busy_streams(served) == 0)
    assert served.ask("GET", f"{ROOT}/{made}").data["state"] == "running"
    served.ask("DELETE", f"{ROOT}/{made}?grace=0s")


def _processes(gateway: RunningGateway, words: str) -> int:
    from pathlib import Path

    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes().replace(b"\0", b" ").decode(errors="replace").startswith(words)
        except OSError:
            continue
    return found


def _threads(gateway: RunningGateway, name: str) -> int:
    from pathlib import Path

    names = [path.read_text().strip() for path in Path(f"/proc/{gateway.process.pid}/task").glob("*/comm")]
    return sum(one.startswith(name) for one in names)


def _busy_streams(gateway: RunningGateway) -> float:
    text = gateway.ask("GET", "/metrics").body.decode()
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith("dibs_work_in_threads")))


_KEYS = st.sampled_from(["labels", "ttl", "command", "env", "x"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.binary(max_size=200) | _VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_or_refused_and_nothing_else(body: bytes) -> None:
    for kind in (SandboxPatch, ExecRequest):
        try:
            found = read_body(kind, body)
        except InvalidRequest:
            continue
        assert isinstance(found, kind)


@given(st.binary(max_size=60))
def test_any_query_is_read_or_refused_and_nothing_else(query: bytes) -> None:
    try:
        found = read_query(ListQuery, query)
    except InvalidRequest:
        return
    assert isinstance(found, ListQuery)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\nCONTENT-LENGTH: 4\r\n\r\n0\r\n\r\n",
        b"X-A: one\r\n two\r\n\r\n",
        b"X-A: one\r\n\ttwo\r\n\r\n",
        b"X-A:\r\n Transfer-Encoding: chunked\r\n\r\n",
        b"X-A: one\n two\n\n",
    ],
)
def test_a_head_that_others_may_read_otherwise_is_refused(served: RunningGateway, headers: bytes) -> None:
    found = raw(served, b"POST /version HTTP/1.1\r\nHost: x\r\n" + headers)
    assert found.startswith(b"HTTP/1.1 400 "), found
    assert b"NOT_HTTP" in found
    first = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    later = raw(served, first + b"POST /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers)
    assert later.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 200 " not in later[20:], "a second request on the connection"


def test_a_large_head_that_comes_at_once_is_refused(served: RunningGateway) -> None:
    for size in (66_000, 100_000, 200_000):
        found = raw(served, b"GET /version HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * size + b"\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 431 "), found[:80]


LONG = "a" * 50_000


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/api/v1/sandboxes/{LONG}"),
        ("GET", f"/v1/sandboxes/{LONG}"),
        ("DELETE", f"/v1/sandboxes/{LONG}"),
        ("GET", f"/v1/sandboxes/{LONG}/endpoints/80"),
        ("GET", f"/v1/sandboxes/{LONG}/proxy/44772/ping"),
        ("GET", f"/v1/sandboxes/{LONG}/proxy/80/"),
        ("GET", f"/v1/snapshots/{LONG}"),
        ("GET", f"/v1/sandboxes?metadata=a%3D{LONG}"),
        ("GET", f"/api/v1/sandboxes?label=a%3D{LONG}"),
        ("GET", f"/api/v1/claims/{LONG}"),
        ("DELETE", f"/api/v1/tokens/{LONG}"),
        ("DELETE", f"/api/v1/queue/{LONG}"),
    ],
)
def test_an_id_of_any_length_is_unknown_or_refused(served: RunningGateway, method: str, path: str) -> None:
    reply = served.ask(method, path)
    assert reply.status < 500, reply.body[:300]
    assert str(served.home.state) not in reply.body.decode()


def test_an_answer_does_not_say_where_the_ledger_is() -> None:
    from dibs.errors import StateError
    from dibs.gateway.problems import opensandbox_data, problem_data

    error = StateError("it is damaged", field="ledger", value="/home/somebody/ledger.db", code="LEDGER_UNUSABLE")
    for data in (problem_data(error, ""), opensandbox_data(error)):
        assert "/home/somebody" not in str(data)
        assert "it is damaged" in str(data)


def test_silent_connections_make_room_for_those_that_ask(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(settings="[gateway]\nmax_connections = 20\nhead_timeout = 600\n")
    silent = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(50)]
    half = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(50)]
    for one in half:
        one.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n")
    try:
        for _ in range(5):
            assert gateway.ask("GET", "/api/v1/sandboxes").status == 200
    finally:
        for one in silent + half:
            one.close()


def test_too_many_connections_are_told_so_where_none_is_silent(start_gateway: Callable[..., RunningGateway]) -> None:
    """The limit holds without idle clients, and no client is disconnected while it is served."""
    gateway = start_gateway(settings="[gateway]\nmax_connections = 6\n")
    ask = f"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.token}\r\n\r\n".encode()
    streams = [socket.create_connection(("127.0.0.1", gateway.port), timeout=20) for _ in range(6)]
    for one in streams:
        one.sendall(ask)
        assert b" 200 " in one.recv(4096)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as more:
        found = more.recv(4096)
        assert b" 503 " in found
        assert b"TOO_MANY_CONNECTIONS" in found
    for one in streams:
        one.close()
    gateway.until(lambda: gateway.ask("GET", "/health").status == 200)


def upgrade(gateway: RunningGateway, path: str, token: str = "") -> bytes:
    auth = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"GET {path} HTTP/1.1\r\nHost: x\r\n{auth}Upgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as sock:
        sock.sendall(head.encode())
        return sock.recv(65536)


def test_a_refused_websocket_is_no_error_of_the_gateway(gateway: RunningGateway) -> None:
    paths = ["/api/v1/sandboxes/none/attach", "/v1/sandboxes/none/proxy/80/", "/nothing", "/version", "/"]
    for path in paths:
        for token in ("", "unknown", gateway.token):
            assert re.match(rb"HTTP/1.1 4\d\d ", found := upgrade(gateway, path, token)), (path, found)
    levels = {json.loads(line).get("level") for line in gateway.log.splitlines() if line.startswith("{")}
    assert levels <= {"info", "warning"}, gateway.log

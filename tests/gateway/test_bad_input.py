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


def test_all_problems_of_a_body_are_told(served: RunningGateway) -> None:
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


def test_unknown_paths_and_methods_are_told_in_the_form_of_their_api(served: RunningGateway) -> None:
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
def test_what_is_not_http_is_told_so(served: RunningGateway, line: bytes) -> None:
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


def test_too_many_connections_are_told_so(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(settings="[gateway]\nmax_connections = 3\n")
    held = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(3)]
    try:
        for one in held:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert one.recv(100).startswith(b"HTTP/1.1 200 ")
        answer = raw(gateway, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"TOO_MANY_CONNECTIONS" in answer
    finally:
        for one in held:
            one.close()
    gateway.until(lambda: gateway.ask("GET", "/health").status == 200)


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

"""A gateway that is stopped while its clients are in the middle of something: each is told, and nothing breaks.

That there is no trace in the log, and that the exit code is 0, is looked at by the fixture when it stops the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from tests.gateway.conftest import RunningGateway

Start = Callable[..., RunningGateway]
Ask = Callable[..., HTTPResponse]


@pytest.fixture
def gateway(start_gateway: Start) -> RunningGateway:
    return start_gateway(settings="[gateway]\ndrain = 1\n")


@pytest.fixture
def ask(gateway: RunningGateway) -> Iterator[Ask]:
    """Ask execd of a new sandbox; the answer, whose body is still to come."""
    made = gateway.ask("POST", "/api/v1/sandboxes", {"command": ["sleep", "1000"], "backend": "local"})
    assert made.status == 202, made.body
    sandbox = gateway.sandbox(made.data["id"], "running")["id"]
    with closing(HTTPConnection("127.0.0.1", gateway.port, timeout=60)) as line:

        def ask(method: str, path: str, body: Any = None, **headers: str) -> HTTPResponse:
            sent = {"Authorization": f"Bearer {gateway.token}", **headers}
            line.request(method, f"/v1/sandboxes/{sandbox}/proxy/44772{path}", body, sent)
            return line.getresponse()

        yield ask


def test_a_command_in_the_foreground_is_told_of_the_stop(gateway: RunningGateway, ask: Ask) -> None:
    answer = ask("POST", "/command", json.dumps({"command": "echo begun; sleep 1000"}))
    assert b"init" in answer.readline()
    assert gateway.stop() == 0
    last = json.loads(answer.read().strip().split(b"\n\n")[-1])
    assert (last["type"], last["error"]["evalue"]) == ("error", "137")
    assert last["error"]["traceback"] == ["the gateway was stopped"]


def test_a_stream_of_metrics_ends_with_the_gateway(gateway: RunningGateway, ask: Ask) -> None:
    answer = ask("GET", "/metrics/watch")
    assert answer.readline().startswith(b"data: ")
    assert gateway.stop() == 0
    answer.read()  # to its proper end: a stream that was cut off raises here


def test_an_upload_that_never_ends_is_refused_after_the_drain(gateway: RunningGateway, ask: Ask) -> None:
    def slow() -> Iterator[bytes]:
        yield b"--x\r\n"
        assert gateway.stop() == 0

    answer = ask("POST", "/files/upload", slow(), **{"Content-Type": "multipart/form-data; boundary=x"})
    assert (answer.status, json.loads(answer.read())["code"]) == (503, "STOPPING")

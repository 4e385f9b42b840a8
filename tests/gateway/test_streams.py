"""What goes on for a while: logs, events, conversations; and that it stops."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from .conftest import PATIENCE, RunningGateway

ROOT = "/api/v1/sandboxes"


class Reading:
    """An answer that is read piece by piece."""

    def __init__(self, gateway: RunningGateway, path: str, **headers: str) -> None:
        self.connection = HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {gateway.token}", **headers})
        self.answer: HTTPResponse = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()

    def line(self) -> str:
        return self.answer.readline().decode().rstrip("\n")

    def event(self) -> dict[str, str]:
        """The next server-sent event; comments and the retry line are passed over."""
        found: dict[str, str] = {}
        while True:
            line = self.line()
            if line.startswith((":", "retry")):
                assert self.line() == ""
                continue
            if not line:
                return found
            name, _, value = line.partition(": ")
            found[name] = value

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def sandbox(served: RunningGateway) -> Iterator[str]:
    """A sandbox that says `one`, waits for a line of input, and says `two`."""
    body = {"command": ["sh", "-c", "echo one; read x; echo two; echo three >&2; read y"], "interactive": True}
    ref = served.ask("POST", ROOT, body).data["id"]
    served.sandbox(ref, "running")
    yield ref
    served.ask("DELETE", f"{ROOT}/{ref}?grace=0s")


def talk(gateway: RunningGateway, path: str, token: str | None = None) -> ClientConnection:
    headers = {"Authorization": f"Bearer {token or gateway.token}"}
    return connect(f"ws://127.0.0.1:{gateway.port}{path}", additional_headers=headers, compression=None)


def say(conversation: ClientConnection, data: bytes = b"", **control: Any) -> None:
    conversation.send(b"\x03" + json.dumps(control).encode() if control else b"\x00" + data)


def hear(conversation: ClientConnection) -> tuple[bytes, bytes, dict[str, Any]]:
    """Everything until the end: output, errors, how it ended."""
    found = {1: b"", 2: b""}
    while True:
        frame = conversation.recv(timeout=PATIENCE)
        assert isinstance(frame, bytes)
        if frame[0] == 3:
            return found[1], found[2], json.loads(frame[1:])
        found[frame[0]] += frame[1:]


def test_logs_are_lines_of_json(served: RunningGateway) -> None:
    ref = served.ask("POST", ROOT, {"command": ["sh", "-c", "printf 'a\\nb'; printf '\\377' >&2"]}).data["id"]
    served.sandbox(ref, "exited")
    reply = served.ask("GET", f"{ROOT}/{ref}/logs")
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    records = [json.loads(line) for line in reply.body.splitlines()]
    text = {"stdout": b"", "stderr": b""}
    for record in records:
        text[record["stream"]] += base64.b64decode(record["data"])
    assert text == {"stdout": b"a\nb", "stderr": b"\xff"}


def test_followed_logs_come_as_they_are_written_and_end_with_the_sandbox(served: RunningGateway, sandbox: str) -> None:
    reading = Reading(served, f"{ROOT}/{sandbox}/logs?follow=true")
    assert base64.b64decode(json.loads(reading.line())["data"]) == b"one\n"
    with talk(served, f"{ROOT}/{sandbox}/attach") as conversation:
        say(conversation, b"go\n")
        rest = [base64.b64decode(json.loads(reading.line())["data"]) for _ in range(2)]
        assert b"".join(rest) == b"two\nthree\n"
        say(conversation, b"end\n")
        assert hear(conversation)[2]["exit"]["code"] == 0
    assert reading.line() == ""
    reading.close()


def test_logs_of_what_is_queued_begin_when_it_runs(served: RunningGateway) -> None:
    holder = served.ask("POST", ROOT, {"gpu": 8, "command": ["sleep", "600"]}).data["id"]
    ref = served.ask("POST", ROOT, {"gpu": 1, "wait": "1h", "command": ["echo", "at last"]}).data["id"]
    reading = Reading(served, f"{ROOT}/{ref}/logs?follow=true")
    served.ask("DELETE", f"{ROOT}/{holder}?grace=0s")
    assert base64.b64decode(json.loads(reading.line())["data"]) == b"at last\n"
    reading.close()


def test_a_follower_that_stops_leaves_no_thread_behind(served: RunningGateway, sandbox: str) -> None:
    readings = [Reading(served, f"{ROOT}/{sandbox}/logs?follow=true") for _ in range(5)]
    for reading in readings:
        reading.line()
    assert work_in_threads(served) >= 5
    for reading in readings:
        reading.close()
    served.until(lambda: work_in_threads(served) == 0)


def work_in_threads(gateway: RunningGateway) -> float:
    text = gateway.ask("GET", "/metrics").body.decode()
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith("dibs_work_in_threads ")))


def test_events_come_as_they_happen_and_go_on_after_the_last_id(served: RunningGateway) -> None:
    reading = Reading(served, "/api/v1/events")
    ref = served.ask("POST", ROOT, {"gpu": 1, "command": ["true"]}).data["id"]
    seen: list[tuple[int, str]] = []
    while ("sandbox.exited", ref) not in [(kind, ref) for _, kind in seen]:
        event = reading.event()
        data = json.loads(event["data"])
        assert (int(event["id"]), event["event"]) == (data["seq"], data["kind"])
        if data.get("sandbox_id") == ref:
            seen.append((data["seq"], data["kind"]))
    reading.close()
    kinds = [kind for _, kind in seen]
    assert kinds[:2] == ["sandbox.creating", "lease.reserved"]
    again = Reading(served, "/api/v1/events?follow=false", **{"Last-Event-ID": str(seen[1][0])})
    events = []
    while event := again.event():
        data = json.loads(event["data"])
        events += [data["kind"]] if data.get("sandbox_id") == ref else []
    assert events[: len(kinds) - 2] == kinds[2:]
    again.close()


def test_a_wrong_last_id_is_refused(served: RunningGateway) -> None:
    assert served.ask("GET", "/api/v1/events", headers={"Last-Event-ID": "newest"}).status == 400


def test_a_command_in_a_conversation_gets_input_and_tells_its_end(served: RunningGateway, sandbox: str) -> None:
    path = f"{ROOT}/{sandbox}/exec?command=sh&command=-c&command=cat%3B%20echo%20%24A%20%3E%262%3B%20exit%207&env=A=b"
    with talk(served, path) as conversation:
        say(conversation, b"x" * 200_000)
        say(conversation, eof=True)
        out, err, end = hear(conversation)
    assert (out, err, end["exit"]["code"]) == (b"x" * 200_000, b"b\n", 7)


def test_the_first_frame_may_say_what_to_run(served: RunningGateway, sandbox: str) -> None:
    with talk(served, f"{ROOT}/{sandbox}/exec") as conversation:
        say(conversation, exec={"command": ["sh", "-c", "stty size; kill -TERM $$"], "tty": True})
        out, _, end = hear(conversation)
    assert out.split()
    assert (end["exit"]["code"], end["exit"]["signal"]) == (143, 15)


def test_a_signal_and_a_size_reach_the_process(served: RunningGateway, sandbox: str) -> None:
    script = "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.05; done"
    with talk(served, f"{ROOT}/{sandbox}/exec") as conversation:
        say(conversation, exec={"command": ["sh", "-c", script], "tty": True})
        first = conversation.recv(timeout=PATIENCE)
        assert isinstance(first, bytes)
        assert b"ready" in first
        say(conversation, resize=[33, 44])
        out, _, end = hear(conversation)
    assert out.split() == [b"33", b"44"]
    assert end["exit"]["code"] == 3
    with talk(served, f"{ROOT}/{sandbox}/exec?command=sleep&command=600") as conversation:
        say(conversation, signal=9)
        assert hear(conversation)[2]["exit"]["signal"] == 9


def test_a_client_that_hangs_up_ends_what_was_started_for_it(served: RunningGateway, sandbox: str) -> None:
    with talk(served, f"{ROOT}/{sandbox}/exec?command=sleep&command=622") as conversation:
        conversation.ping()
        served.until(lambda: running(served, sandbox, "sleep 622"))
    served.until(lambda: not running(served, sandbox, "sleep 622"))
    with talk(served, f"{ROOT}/{sandbox}/exec?command=sleep&command=633") as conversation:
        served.until(lambda: running(served, sandbox, "sleep 633"))
        conversation.socket.shutdown(socket.SHUT_RDWR)
    served.until(lambda: not running(served, sandbox, "sleep 633"))


def running(gateway: RunningGateway, ref: str, words: str) -> bool:
    body = {"command": ["sh", "-c", "for f in /proc/[0-9]*; do tr '\\0' ' ' < $f/cmdline; echo; done 2>/dev/null"]}
    lines = gateway.ask("POST", f"{ROOT}/{ref}/exec", body).data["stdout"].splitlines()
    return any(line.startswith(words) for line in lines)


def test_an_attached_client_that_hangs_up_ends_nothing(served: RunningGateway, sandbox: str) -> None:
    with talk(served, f"{ROOT}/{sandbox}/attach") as conversation:
        conversation.ping()
    assert served.ask("GET", f"{ROOT}/{sandbox}").data["state"] == "running"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/v1/sandboxes/sb-000000000000/exec?command=id", 404), ("/api/v1/sandboxes/sb-000000000000/attach", 404),
     ("/api/v1/sandboxes/{ref}/exec?command=no-such-command", 409), ("/api/v1/sandboxes/{ref}/exec?shell=1", 400)],
)  # fmt: skip
def test_errors_are_reported_before_the_stream_starts(
    served: RunningGateway, sandbox: str, path: str, status: int
) -> None:
    with pytest.raises(InvalidStatus) as caught, talk(served, path.format(ref=sandbox)):
        pass
    assert caught.value.response.status_code == status
    assert json.loads(caught.value.response.body or b"")["status"] == status


def test_a_conversation_needs_a_token_too(served: RunningGateway, sandbox: str) -> None:
    with pytest.raises(InvalidStatus) as caught, talk(served, f"{ROOT}/{sandbox}/exec?command=id", token="dibs_no"):
        pass
    assert caught.value.response.status_code == 401


@pytest.mark.parametrize("frame", [b"\x07x", b"\x03nonsense", b'\x03{"resize": [0, 5]}', b"", "text"])
def test_a_frame_that_cannot_be_read_ends_the_conversation_with_the_reason(
    served: RunningGateway, sandbox: str, frame: bytes | str
) -> None:
    with talk(served, f"{ROOT}/{sandbox}/exec?command=sleep&command=644") as conversation:
        conversation.send(frame)
        _, _, end = hear(conversation)
        assert end["error"]["status"] == 400
        with pytest.raises(ConnectionClosed) as caught:
            conversation.recv(timeout=PATIENCE)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1008
    served.until(lambda: not running(served, sandbox, "sleep 644"))


def test_the_end_is_recorded_before_a_followed_log_ends(
    start_gateway: Callable[..., RunningGateway], tmp_path: Path
) -> None:
    """Also where the gateway's watcher, which would find it out by itself, has not looked yet."""
    late = "import dibs.workloads.dispatcher as d\nd._CALM = d._QUICK = 3600.0\n"
    (tmp_path / "sitecustomize.py").write_text(late)
    gateway = start_gateway(env={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
    ref = gateway.ask("POST", ROOT, {"command": ["sh", "-c", "echo said; exit 5"]}).data["id"]
    gateway.sandbox(ref, "running")
    reading = Reading(gateway, f"{ROOT}/{ref}/logs?follow=true")
    assert json.loads(reading.line())["stream"] == "stdout"
    assert reading.line() == ""
    reading.close()
    found = gateway.ask("GET", f"{ROOT}/{ref}").data
    assert (found["state"], found["exit"]["code"]) == ("exited", 5)

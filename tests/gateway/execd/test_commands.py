"""Commands through the real server: events, interruption, a client that goes, and what outlives the gateway."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..conftest import Reply, RunningGateway  # noqa: TID252 - tests are no installed package


class Box:
    """A sandbox of a running gateway, spoken to as a client of execd does."""

    def __init__(self, gateway: RunningGateway, sandbox_id: str, secret: str = "") -> None:
        self.gateway = gateway
        self.id = sandbox_id
        self.base = f"/v1/sandboxes/{sandbox_id}/proxy/44772"
        self.secret = secret

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        return self.gateway.ask(method, self.base + path, body, **options)

    def stream(self, path: str, body: Any) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.gateway.port, timeout=120)
        headers = {"Authorization": f"Bearer {self.gateway.token}", "Content-Type": "application/json"}
        connection.request("POST", self.base + path, json.dumps(body), headers)
        return connection, connection.getresponse()

    def run(self, body: Any, path: str = "/command") -> list[Any]:
        connection, answer = self.stream(path, body)
        data = answer.read()
        connection.close()
        assert answer.status == 200, data
        assert "text/event-stream" in str(answer.getheader("content-type"))
        return events(data)

    def out(self, command: str) -> str:
        return "\n".join(one["text"] for one in self.run({"command": command}) if one["type"] == "stdout")


def events(data: bytes) -> list[Any]:
    return [msgspec.json.decode(frame) for frame in data.split(b"\n\n") if frame]


def first_event(answer: HTTPResponse) -> Any:
    line = answer.readline()
    assert answer.readline() == b"\n"
    return msgspec.json.decode(line)


@pytest.fixture
def box(served: RunningGateway) -> Iterator[Box]:
    """A sandbox of its own for each test, on one gateway."""
    made = make(served)
    yield made
    served.ask("DELETE", f"/api/v1/sandboxes/{made.id}")


def make(gateway: RunningGateway, **more: Any) -> Box:
    reply = gateway.ask("POST", "/api/v1/sandboxes", {"root": "host", "command": ["sleep", "1000"], **more})
    assert reply.status == 202, reply.body
    gateway.sandbox(reply.data["id"], "running")
    return Box(gateway, reply.data["id"])


def test_events_come_in_order_and_end_with_one_that_is_terminal(box: Box) -> None:
    found = box.run({"command": "echo a; echo; printf tail; exit 3", "cwd": "/", "envs": {"X": "1"}})
    assert [(one["type"], one.get("text")) for one in found[1:-1]] == [
        ("stdout", "a"),
        ("stdout", "\n"),
        ("stdout", "tail"),
    ]
    assert found[0]["type"] == "init"
    assert found[-1]["error"]["evalue"] == "3"
    assert all(isinstance(one["timestamp"], int) for one in found)
    status = box.ask("GET", f"/command/status/{found[0]['text']}").data
    assert (status["running"], status["exit_code"]) == (False, 3)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"command": "true", "argv": ["true"]},
        {"command": "  "},
        {"argv": []},
        {"command": "true", "gid": 5},
        {"command": "true", "uid": -1},
        {"command": "true", "timeout": -1},
        {"command": "true", "envs": {"A=B": "c"}},
        {"command": 5},
        {"command": "true", "cwd": "/no/such"},
        {"command": "x" * 200_000},
        [],
    ],
)
def test_a_wrong_request_is_refused_before_anything_starts(box: Box, body: Any) -> None:
    reply = box.ask("POST", "/command", body)
    assert reply.status == 400
    assert set(reply.data) == {"code", "message"}


def test_malformed_json_is_refused(box: Box) -> None:
    for body in (b"{", b'{"command": "\xff"}', b"null", b""):
        reply = box.ask("POST", "/command", body, headers={"Content-Type": "application/json"})
        assert (reply.status, reply.data["code"]) == (400, "INVALID_REQUEST_BODY")


def test_a_timeout_kills_the_group_and_says_so(box: Box) -> None:
    found = box.run({"command": "sleep 321 & sleep 321", "timeout": 300})
    assert found[-1]["error"]["evalue"] == "137"
    assert "300 ms" in found[-1]["error"]["traceback"][0]
    assert box.out("pgrep -f '[s]leep 321' || echo none") == "none"


def test_an_interruption_ends_the_group(box: Box) -> None:
    connection, answer = box.stream("/command", {"command": "sleep 322 & sleep 322; echo never"})
    command = first_event(answer)["text"]
    assert box.ask("GET", f"/command/status/{command}").data["running"] is True
    assert box.ask("DELETE", f"/command?id={command}").status == 200
    rest = events(answer.read())
    connection.close()
    assert rest[-1]["error"]["evalue"] == "143"
    assert box.out("pgrep -f '[s]leep 322' || echo none") == "none"
    assert box.ask("DELETE", f"/command?id={command}").status == 200  # it has ended: nothing to do


def test_a_client_that_goes_takes_its_command_with_it(box: Box) -> None:
    """Also one that does not listen to hang-ups."""
    connection, answer = box.stream(
        "/command", {"command": "trap '' HUP TERM; echo ready; sleep 323 & wait; sleep 323"}
    )
    command = first_event(answer)["text"]
    assert first_event(answer)["text"] == "ready"
    answer.close()
    connection.close()
    box.gateway.until(lambda: not box.ask("GET", f"/command/status/{command}").data["running"])
    box.gateway.until(lambda: box.out("pgrep -f '[s]leep 323' || echo none") == "none")


def test_a_background_command_outlives_a_gateway_that_is_killed(
    start_gateway: Callable[..., RunningGateway], tmp_path: Path
) -> None:
    first = start_gateway()
    box = make(first)
    script = "echo one; while [ ! -f /tmp/go ]; do sleep 0.05; done; echo two; exit 7"
    found = box.run({"command": script, "background": True})
    assert [one["type"] for one in found] == ["init", "execution_complete"]
    command = found[0]["text"]
    other = box.run({"command": "sleep 324", "background": True})[0]["text"]
    box.gateway.until(lambda: box.ask("GET", f"/command/{command}/logs").body == b"one\n")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    first.process.stdout.close()  # type: ignore[union-attr]
    first.socket.unlink(missing_ok=True)
    second = start_gateway()
    box = Box(second, box.id)
    assert box.ask("GET", f"/command/status/{command}").data["running"] is True
    box.out("touch /tmp/go")
    second.until(lambda: not box.ask("GET", f"/command/status/{command}").data["running"])
    status = box.ask("GET", f"/command/status/{command}").data
    assert (status["exit_code"], status["content"]) == (7, script)
    reply = box.ask("GET", f"/command/{command}/logs?cursor=1")
    assert (reply.body, reply.headers["execd-commands-tail-cursor"]) == (b"two\n", "2")
    assert box.ask("DELETE", f"/command?id={other}").status == 200
    assert box.ask("GET", f"/command/status/{other}").data["exit_code"] == 143


def test_what_is_not_served_says_so_in_execds_own_form(box: Box) -> None:
    for method, path, status in (
        ("POST", "/code", 501),
        ("GET", "/code/contexts", 501),
        ("POST", "/v1/isolated/session", 501),
        ("GET", "/nothing", 404),
        ("PUT", "/command", 405),
        ("GET", "/command/status/cmd-unknown", 404),
        ("DELETE", "/command?id=unknown", 400),
        ("DELETE", "/command", 400),
        ("GET", "/files/download", 400),
        ("POST", "/session/ses-x/run", 400),
    ):
        reply = box.ask(method, path)
        assert (reply.status, set(reply.data)) == (status, {"code", "message"}), path
    assert box.ask("GET", "/v1/isolated/capabilities").data["available"] is False
    reply = box.gateway.ask("GET", f"/v1/sandboxes/{box.id}/proxy/18080/policy")
    assert (reply.status, set(reply.data)) == (501, {"code", "message"})


def test_a_paused_an_ended_and_an_unknown_sandbox_are_distinguished(box: Box) -> None:
    assert box.ask("GET", "/ping").status == 200
    assert box.gateway.ask("POST", f"/api/v1/sandboxes/{box.id}/pause").status < 300
    assert box.ask("POST", "/command", {"command": "true"}).status == 409
    assert box.gateway.ask("POST", f"/api/v1/sandboxes/{box.id}/resume").status < 300
    assert box.out("echo back") == "back"
    assert box.gateway.ask("DELETE", f"/api/v1/sandboxes/{box.id}").status < 300
    box.gateway.until(lambda: box.ask("GET", "/ping").status in (404, 409))
    assert Box(box.gateway, "sb-000000000000").ask("GET", "/ping").status == 404


def test_a_timeout_also_ends_the_stream_of_a_command_that_is_paused(box: Box) -> None:
    connection, answer = box.stream("/command", {"command": "sleep 326", "timeout": 1500})
    assert first_event(answer)["type"] == "init"
    assert box.gateway.ask("POST", f"/api/v1/sandboxes/{box.id}/pause").status < 300
    last = events(answer.read())[-1]
    connection.close()
    assert (last["type"], last["error"]["evalue"]) == ("error", "137")
    assert box.gateway.ask("POST", f"/api/v1/sandboxes/{box.id}/resume").status < 300
    box.gateway.until(lambda: box.out("pgrep -f '[s]leep 326' || echo none") == "none")


def test_another_tenant_learns_nothing_of_a_sandbox(box: Box) -> None:
    stranger = box.gateway.make_token("stranger", "--tenant", "other")
    unknown = Box(box.gateway, "sb-000000000000")
    for method, path, body in (
        ("GET", "/ping", None),
        ("POST", "/command", {"command": "true"}),
        ("GET", "/files/download?path=/etc/passwd", None),
        ("GET", "/nothing", None),
        ("GET", "/metrics", None),
    ):
        mine = box.ask(method, path, body, token=stranger)
        theirs = unknown.ask(method, path, body, token=stranger)
        assert mine.status == theirs.status == 404, path
        assert mine.body.replace(box.id.encode(), b"") == theirs.body.replace(unknown.id.encode(), b"")
    assert box.ask("GET", "/ping", token="nonsense").status == 401


def test_a_command_is_found_by_the_name_and_by_the_id_of_its_sandbox(box: Box) -> None:
    name = box.gateway.sandbox(box.id)["name"]
    command = Box(box.gateway, name).run({"command": "exit 3", "background": True})[0]["text"]
    box.gateway.until(lambda: not box.ask("GET", f"/command/status/{command}").data["running"])
    other = make(box.gateway)
    assert other.ask("GET", f"/command/status/{command}").status == 404
    assert other.ask("GET", f"/command/{command}/logs").status == 404
    assert other.ask("DELETE", f"/command?id={command}").status == 400  # the one status that clients know there


def test_how_a_background_command_ended_is_noted_though_its_client_hangs_up_just_then(box: Box) -> None:
    """Hanging up is a signal to everything that was begun for the client; the watcher's own tools must outlive it."""
    lines = ("#!/bin/sh", "kill -HUP $$", "sleep 1", 'PATH=/usr/bin:/bin exec date "$@"')
    script = "mkdir /tmp/tools; cd /tmp/tools; printf '%s\\n' \"$@\" >date; chmod +x date"
    assert box.run({"argv": ["sh", "-c", script, "sh", *lines]})[-1]["type"] == "execution_complete"
    asked = {"command": "exit 4", "background": True, "envs": {"PATH": "/tmp/tools:/usr/bin:/bin"}}
    command = box.run(asked)[0]["text"]
    box.gateway.until(lambda: not box.ask("GET", f"/command/status/{command}").data["running"])
    status = box.ask("GET", f"/command/status/{command}").data
    assert status["exit_code"] == 4
    assert status["finished_at"] > status["started_at"]


def test_a_hundred_clients_at_once(box: Box) -> None:
    streams = [box.stream("/command", {"command": f"sleep 0.5; echo {number}"}) for number in range(100)]
    for number, (connection, answer) in enumerate(streams):
        found = events(answer.read())
        connection.close()
        assert [one["text"] for one in found if one["type"] == "stdout"] == [str(number)]
        assert found[-1]["type"] == "execution_complete"


def test_a_client_that_does_not_read_costs_no_memory(box: Box) -> None:
    body = json.dumps({"command": "yes | head -c 300000000"}).encode()
    head = f"POST {box.base}/command HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {box.gateway.token}\r\n"
    before = memory(box.gateway.process.pid)
    with socket.create_connection(("127.0.0.1", box.gateway.port)) as sock:
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert sock.recv(10)
        for _ in range(30):
            box.out("true")
        assert memory(box.gateway.process.pid) - before < 30 << 20


def memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10


def test_a_session_keeps_what_was_set_and_survives_the_gateway(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway()
    box = make(gateway)
    session = box.ask("POST", "/session", {"cwd": "/"}).data["session_id"]

    def run(command: str, **more: Any) -> tuple[list[str], str]:
        found = box.run({"command": command, **more}, f"/session/{session}/run")
        code = found[-1]["error"]["evalue"] if found[-1]["type"] == "error" else "0"
        return [one["text"] for one in found if one["type"] == "stdout"], code

    assert run("pwd; export A='1 2'; B=$'x\\ny'; f() { echo \"f $1\"; }; cd /tmp; exit 4") == (["/"], "4")
    assert gateway.stop() == 0
    box = Box(start_gateway(), box.id)
    assert run('pwd; echo "$A"; echo "$B"; f z; false') == (["/tmp", "1 2", "x", "y", "f z"], "1")
    assert run("pwd", cwd="/etc") == (["/etc"], "0")
    assert run("set -eu; false; echo never") == ([], "1")
    assert run("sleep 100", timeout=200)[1] == "137"
    assert run("echo $A") == (["1 2"], "0")
    box.out('mkdir -p "$(dirname "$EXECD_ENVS")"; echo "A=new" >>"$EXECD_ENVS"')
    assert run("echo $A; A=mine") == (["new"], "0")
    assert run("echo $A") == (["mine"], "0")  # until the file is changed again
    assert box.ask("DELETE", f"/session/{session}").status == 200
    assert box.ask("DELETE", f"/session/{session}").status == 404
    assert box.ask("POST", f"/session/{session}/run", {"command": "true"}).data["code"] == "CONTEXT_NOT_FOUND"
    assert box.ask("POST", "/session/..%2f..%2fetc/run", {"command": "true"}).status == 404


def test_metrics_are_those_of_the_sandbox(box: Box) -> None:
    found = [box.ask("GET", "/metrics") for _ in range(5)]
    assert found[0].status == 200, found[0].body
    assert set(found[0].data) == {"cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib", "timestamp"}
    assert all(0 <= one.data["cpu_used_pct"] <= 100 for one in found)
    connection = HTTPConnection("127.0.0.1", box.gateway.port, timeout=120)
    connection.request("GET", f"{box.base}/metrics/watch", headers={"Authorization": f"Bearer {box.gateway.token}"})
    answer = connection.getresponse()
    lines = [line for line in (answer.readline() for _ in range(4)) if line.strip()]
    connection.close()
    assert len(lines) == 2
    assert all(line.startswith(b"data: {") for line in lines)


def test_the_secret_of_a_sandbox_opens_it_and_no_other(box: Box) -> None:
    reply = box.gateway.ask("GET", f"/v1/sandboxes/{box.id}/endpoints/44772")
    headers = reply.data["headers"]
    other = make(box.gateway)
    assert box.ask("GET", "/ping", token=None, headers=headers).status == 200
    assert other.ask("GET", "/ping", token=None, headers=headers).status == 401
    assert next(iter(headers.values())) not in box.gateway.log


def multipart(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> bytes:
    body = b""
    for name, data in parts:
        body += f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n\r\n'.encode() + data + b"\r\n"
    return body + end


@pytest.mark.root
def test_files_are_written_as_the_user_that_was_asked_for(box: Box) -> None:
    body = multipart(("metadata", b'{"path": "/tmp/his", "mode": 640}'), ("file", b"data"))
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    reply = box.ask("POST", "/v1/filesystem/1234/1235/files/upload", body, headers=headers)
    assert reply.status == 200, reply.body
    assert box.out("stat -c '%u %g %a' /tmp/his") == "1234 1235 640"
    assert box.ask("GET", "/v1/filesystem/1/1/files/download?path=/tmp/his").status == 400
    assert box.ask("GET", "/v1/filesystem/99999999999/1/files/info?path=/tmp").status == 404
    assert box.ask("GET", "/v1/filesystem/1/1/command").status == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (multipart(("file", b"x")), "INVALID_FILE_METADATA"),
        (multipart(("metadata", b'{"path": "/tmp/x"}')), "INVALID_FILE"),
        (multipart(("metadata", b'{"path": "/tmp/x"}'), ("metadata", b'{"path": "/tmp/y"}')), "INVALID_FILE_METADATA"),
        (multipart(("metadata", b"{}"), ("file", b"x")), "INVALID_FILE_METADATA"),
        (multipart(("metadata", b'{"path": "/tmp/x", "mode": 999}'), ("file", b"x")), "INVALID_FILE_METADATA"),
        (multipart(("metadata", b'{"path": ""}'), ("file", b"x")), "INVALID_FILE"),
        (multipart(("other", b"x")), "INVALID_FILE"),
        (multipart(), "INVALID_FILE"),
        (multipart(("metadata", b'{"path": "/tmp/x"}'), ("file", b"x"), end=b""), "INVALID_FILE_CONTENT"),
        (b"garbage", "INVALID_FILE_CONTENT"),
        (multipart(("metadata", b" " * 100_000)), "INVALID_FILE_METADATA"),
    ],
)
def test_a_broken_upload_is_refused_and_leaves_nothing(box: Box, body: bytes, code: str) -> None:
    reply = box.ask("POST", "/files/upload", body, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert (reply.status, reply.data["code"]) == (400, code), reply.body
    assert box.out("ls -A /tmp | grep -v '^.dibs' | wc -l") == "0"


def test_where_tmp_cannot_be_written_commands_keep_their_files_elsewhere(box: Box) -> None:
    assert box.out("chmod 0555 /tmp; [ -w /tmp ] || echo closed") == "closed"
    assert box.out("echo $EXECD_ENVS").startswith("/dev/shm/")
    command = box.run({"command": "echo said", "background": True})[0]["text"]
    box.gateway.until(lambda: not box.ask("GET", f"/command/status/{command}").data["running"])
    assert box.ask("GET", f"/command/{command}/logs").body == b"said\n"
    session = box.ask("POST", "/session").data["session_id"]
    assert box.run({"command": "exit 3"}, f"/session/{session}/run")[-1]["error"]["evalue"] == "3"


def test_a_background_command_ends_with_its_time(box: Box) -> None:
    command = box.run({"command": "echo x; sleep 325", "background": True, "timeout": 300})[0]["text"]
    box.gateway.until(lambda: not box.ask("GET", f"/command/status/{command}").data["running"])
    status = box.ask("GET", f"/command/status/{command}").data
    assert (status["exit_code"], "time" in status["error"]) == (137, True)
    assert box.out("pgrep -f '[s]leep 325' || echo none") == "none"

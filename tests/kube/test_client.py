"""What the client does with a line that breaks, a server that asks for patience, and one that is none."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import DibsError
from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube.client import Cluster
from dibs.kube.config import ClusterConfig, ExecPlugin

Script = Callable[[Callable[..., str]], None]


class Server:
    """Answers one canned response per request; None closes the line without one."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self.answers:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            with line, line.makefile("rb") as lines:
                while self.answers:
                    head = lines.readline().decode()
                    if not head:
                        break
                    fields = []
                    while (field := lines.readline().strip()) != b"":
                        fields.append(field.decode())
                    length = next((int(one[16:]) for one in fields if one.lower().startswith("content-length:")), 0)
                    lines.read(length)
                    self.asked.append(" ".join([head.split(" HTTP")[0], *(f for f in fields if f.startswith("Auth"))]))
                    answer = self.answers.pop(0)
                    if answer is None:
                        break
                    line.sendall(answer)

    def close(self) -> None:
        self.answers = []
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*answers: bytes | None) -> Server:
        servers.append(Server(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def answer(body: str, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def cluster(server: Server, **more: Any) -> Cluster:
    return Cluster(ClusterConfig(name="test", server=server.url, source="test", **more), timeout=5.0)


def test_a_list_goes_on_page_by_page(serve: Callable[..., Server]) -> None:
    server = serve(
        answer('{"metadata":{"continue":"a b"},"items":[{"n":1}]}'), answer('{"metadata":{},"items":[{"n":2}]}')
    )
    with cluster(server) as opened:
        assert opened.items(kube.PODS, dict[str, int], "team") == [{"n": 1}, {"n": 2}]
    assert server.asked[1] == "GET /api/v1/namespaces/team/pods?limit=500&continue=a%20b"


def test_a_list_that_expires_half_way_starts_again(serve: Callable[..., Server]) -> None:
    expired = answer('{"reason":"Expired","message":"too old","code":410}', "410 Gone")
    first = answer('{"metadata":{"continue":"x"},"items":[{"n":1}]}')
    server = serve(first, expired, answer('{"items":[{"n":1},{"n":2}]}'))
    with cluster(server) as opened:
        assert opened.items(kube.PODS, dict[str, int]) == [{"n": 1}, {"n": 2}]


def test_a_server_that_asks_for_patience_is_asked_again(serve: Callable[..., Server]) -> None:
    busy = answer('{"reason":"TooManyRequests"}', "429 Too Many Requests", "Retry-After: 0")
    server = serve(busy, busy, answer('{"major":"1","minor":"34+","gitVersion":"v1.34.2-gke"}'))
    with cluster(server) as opened:
        assert opened.version().has_dra


def test_one_that_stays_busy_is_given_up_and_can_be_tried_again_later(serve: Callable[..., Server]) -> None:
    server = serve(*[answer("{}", "429 Too Many Requests", "Retry-After: 0")] * 4)
    with cluster(server) as opened, pytest.raises(errors.Overloaded) as refused:
        opened.raw("/version")
    assert refused.value.retryable


def test_a_line_that_dies_is_made_anew_for_a_read_and_never_for_a_write(serve: Callable[..., Server]) -> None:
    server = serve(None, answer('{"ok":true}'), None)
    with cluster(server) as opened:
        assert opened.raw("/x") == {"ok": True}
        with pytest.raises(errors.Unreachable):
            opened.create(kube.PODS, {"metadata": {"name": "x"}}, "team")
    assert len(server.asked) == 3


def test_a_cluster_without_dra_is_reported_with_its_version(serve: Callable[..., Server]) -> None:
    server = serve(answer('{"major":"1","minor":"33","gitVersion":"v1.33.5"}'))
    with cluster(server) as opened, pytest.raises(DibsError) as refused:
        opened.require_dra()
    assert refused.value.code == "CLUSTER_TOO_OLD"
    assert "v1.33.5" in str(refused.value)


@pytest.mark.parametrize("body", ["<html>login</html>", "[]", '{"major":"x"}', ""])
def test_what_is_no_api_server_is_an_error(serve: Callable[..., Server], body: str) -> None:
    server = serve(answer(body))
    with cluster(server) as opened, pytest.raises(DibsError):
        opened.version()


def test_nothing_at_the_address_is_reported_with_the_address() -> None:
    config = ClusterConfig(name="test", server="http://127.0.0.1:1", source="test")
    with Cluster(config) as opened, pytest.raises(errors.Unreachable) as refused:
        opened.version()
    assert "http://127.0.0.1:1" in str(refused.value)


def test_a_renewed_token_file_is_read_after_a_401(serve: Callable[..., Server], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    server = serve(answer("{}"), answer('{"reason":"Unauthorized"}', "401 Unauthorized"), answer("{}"))
    with cluster(server, token_file=str(token)) as opened:
        opened.raw("/a")
        token.write_text("new\n")
        opened.raw("/b")
    assert [one.rpartition(" ")[2] for one in server.asked] == ["old", "old", "new"]


def test_credentials_that_stay_wrong_are_told_once(serve: Callable[..., Server]) -> None:
    server = serve(answer('{"reason":"Unauthorized","message":"Unauthorized"}', "401 Unauthorized"))
    with cluster(server, token="old") as opened, pytest.raises(errors.Unauthorized) as refused:
        opened.raw("/a")
    assert not refused.value.retryable
    assert len(server.asked) == 1


def test_a_credential_plugin_gives_the_token(serve: Callable[..., Server]) -> None:
    script = 'import json; print(json.dumps({"kind": "ExecCredential", "status": {"token": "from-plugin"}}))'
    server = serve(answer("{}"))
    with cluster(server, exec=ExecPlugin(command=sys.executable, args=("-c", script))) as opened:
        opened.raw("/a")
    assert server.asked[0].endswith("Bearer from-plugin")


@pytest.mark.parametrize(
    "plugin",
    [
        ExecPlugin(command="/nonexistent/plugin", hint="install it"),
        ExecPlugin(command=sys.executable, args=("-c", "import sys; sys.exit('log in first')")),
        ExecPlugin(command=sys.executable, args=("-c", "print('no json')")),
    ],
)
def test_a_plugin_that_fails_says_why(serve: Callable[..., Server], plugin: ExecPlugin) -> None:
    server = serve()
    with cluster(server, exec=plugin) as opened, pytest.raises(errors.Unauthorized) as refused:
        opened.raw("/a")
    assert refused.value.code == "CREDENTIAL_PLUGIN_FAILED"

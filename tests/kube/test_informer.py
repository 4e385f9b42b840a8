"""What is followed stays true: watches that end, expire or die, a server that goes away, objects that are made anew."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.kube.test_client import answer

from dibs.kube import client as kube
from dibs.kube.client import Cluster
from dibs.kube.config import ClusterConfig
from dibs.kube.informer import Follower
from dibs.kube.objects import Pod


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.kube.informer._PAUSES", (0.01, 0.05))


class Server:
    """Answers requests in turn, on as many lines as there are; None closes one, and the last answer the server."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.asked: list[str] = []
        self._answers = answers
        self._lines: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            self._lines.append(line)
            self._threads.append(threading.Thread(target=self._serve, args=(line,)))
            self._threads[-1].start()

    def _serve(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as lines:
            while head := lines.readline():
                while lines.readline().strip():
                    pass
                self.asked.append(head.decode())
                if not self._answers:
                    with contextlib.suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
                    return
                found = self._answers.pop(0)
                if found is None:
                    return
                line.sendall(found)

    def close(self) -> None:
        for one in (self._socket, *self._lines):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # the thread of a line closes it: it may be about to begin
        self._socket.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def follow() -> Iterator[Callable[..., Follower[Pod]]]:
    servers: list[Server] = []
    followers: list[Follower[Pod]] = []

    def start(*answers: bytes | None) -> Follower[Pod]:
        server = Server(list(answers))
        servers.append(server)
        config = ClusterConfig(name="test", server=server.url, source="test")
        found: Follower[Pod] = Follower(
            lambda: Cluster(config, timeout=5.0), kube.PODS, Pod, "team", "a=b", lambda pod: pod.metadata.labels["key"]
        )
        found.asked = server.asked  # type: ignore[attr-defined]
        followers.append(found)
        return found.start()

    yield start
    for one in followers:
        one.close()
    for server in servers:
        server.close()


def pod(name: str, version: int, key: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": {"key": key or name}}}


def listed(version: int, *pods: dict[str, Any]) -> bytes:
    return answer(json.dumps({"metadata": {"resourceVersion": str(version)}, "items": list(pods)}))


def watched(*events: tuple[str, dict[str, Any]]) -> bytes:
    """Events, and the end of the watch."""
    return answer("".join(json.dumps({"type": kind, "object": item}) + "\n" for kind, item in events))


def comes_to(follower: Follower[Pod], **versions: int) -> None:
    def there() -> bool:
        found = {key: int(one.metadata.resource_version) for key, one in follower.snapshot().items()}
        return found == versions

    until(there, lambda: f"{follower.snapshot()}; {follower.trouble}")


def until(there: Callable[[], bool], why: Callable[[], str]) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end, why()
        time.sleep(0.01)


def test_a_watch_that_ends_goes_on_where_it_was(follow: Callable[..., Follower[Pod]]) -> None:
    bookmark = ("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    follower = follow(
        listed(5, pod("a", 3)), watched(("ADDED", pod("b", 7)), bookmark), watched(("MODIFIED", pod("a", 11)))
    )
    comes_to(follower, a=11, b=7)
    watches = [one for one in follower.asked if "watch=true" in one]  # type: ignore[attr-defined]
    assert ["resourceVersion=5&" in watches[0], "resourceVersion=9&" in watches[1]] == [True, True]
    assert follower.lists == 1


@pytest.mark.parametrize(
    "expired",
    [
        answer('{"reason":"Expired","code":410}', "410 Gone"),
        watched(("ERROR", {"kind": "Status", "reason": "Expired", "code": 410, "message": "too old"})),
    ],
    ids=["before the first event", "in the middle"],
)
def test_a_watch_that_has_expired_starts_with_a_list(follow: Callable[..., Follower[Pod]], expired: bytes) -> None:
    follower = follow(listed(5, pod("a", 3), pod("gone", 4)), expired, listed(20, pod("a", 3), pod("b", 12)))
    comes_to(follower, a=3, b=12)
    assert follower.lists == 2


def test_a_watch_that_dies_is_made_anew(follow: Callable[..., Follower[Pod]]) -> None:
    follower = follow(listed(5, pod("a", 3)), None, listed(8, pod("a", 6)))
    comes_to(follower, a=6)


@pytest.mark.parametrize(
    "trouble",
    [
        answer('{"reason":"InternalError","code":500}', "500 Internal Server Error"),
        answer("<html>a proxy's page</html>"),
        watched(("MODIFIED", {"metadata": "not an object"})),
        answer('{"reason":"Forbidden","code":403,"message":"no"}', "403 Forbidden"),
    ],
    ids=["an error", "no API server", "an event that is not understood", "a right that was taken away"],
)
def test_after_trouble_everything_is_listed_again(follow: Callable[..., Follower[Pod]], trouble: bytes) -> None:
    follower = follow(listed(5, pod("a", 3)), trouble, listed(8, pod("a", 6)))
    comes_to(follower, a=6)
    assert follower.lists == 2


def test_while_the_server_is_away_nothing_is_called_current(follow: Callable[..., Follower[Pod]]) -> None:
    follower = follow(listed(5, pod("a", 3)), None)
    until(lambda: "cannot reach" in follower.trouble, lambda: follower.trouble)
    assert not follower.current
    assert not follower.wait(lambda: False, None)  # without an end: it would wait for ever if it were current
    assert follower.get("a") is not None  # what was known; callers ask the server themselves


def test_one_that_is_deleted_and_made_anew_under_another_name_stays(follow: Callable[..., Follower[Pod]]) -> None:
    """A controller makes the second pod of a sandbox before the first is gone."""
    follower = follow(
        listed(5, pod("first", 3, "box")),
        watched(("ADDED", pod("second", 7, "box")), ("DELETED", pod("first", 8, "box")), ("ADDED", pod("other", 9))),
    )
    comes_to(follower, box=7, other=9)


_ENDS = """
import atexit, sys, threading, time
atexit.register(lambda: print([one.name for one in threading.enumerate() if one.name.startswith("dibs")]))
from dibs.kube import client as kube
from dibs.kube.config import ClusterConfig
from dibs.kube.informer import Follower
from dibs.kube.objects import Pod
config = ClusterConfig(name="test", server=sys.argv[1], source="test")
follower = Follower(lambda: kube.Cluster(config), kube.PODS, Pod, "team", "a=b", lambda pod: pod.metadata.name).start()
assert follower.wait_current(60)
"""


def test_a_process_that_ends_takes_its_threads_down_first() -> None:
    """A thread that is killed in the midst of TLS brings the process down with a segmentation fault."""
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server = Server([listed(5), endless, endless])
    try:
        done = subprocess.run([sys.executable, "-c", _ENDS, server.url], capture_output=True, text=True, check=False)
    finally:
        server.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")

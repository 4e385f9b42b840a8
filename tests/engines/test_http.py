"""The HTTP client, against small servers that answer exactly what a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dibs.backends.engines.client import LISTINGS, Client, EngineError
from dibs.backends.engines.errors import translate
from dibs.errors import BackendUnavailable
from dibs.http import Connection, Declined, ProtocolError, query, segment

Serve = Callable[..., str]


def _request(line: socket.socket) -> bytes:
    """One request, to its end."""
    data = b""
    while piece := line.recv(65536):
        data += piece
        if data.endswith(b"0\r\n\r\n" if b"chunked" in data else b"\r\n\r\n") or b"HTTP/1.1" not in data:
            break
    return data


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A server with one list of answers for each connection; what it was sent is kept in `serve.heard`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = str(tmp_path / "s.sock")
    listener.bind(path)
    listener.listen()
    threads: list[threading.Thread] = []
    heard: list[bytes] = []

    def start(*connections: list[bytes]) -> str:
        def run() -> None:
            for answers in connections:
                line, _ = listener.accept()
                with line:
                    for answer in answers:
                        heard.append(_request(line))
                        line.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)
        return path

    start.heard = heard  # type: ignore[attr-defined]
    yield start
    for thread in threads:
        thread.join(10)
    listener.close()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    return ("\r\n".join([f"HTTP/1.1 {status}", *headers]) + "\r\n\r\n").encode() + body


def test_a_line_is_kept_between_requests(serve: Serve) -> None:
    one = answer(b"one", "Content-Length: 3")
    path = serve([one, answer(b"", "Content-Length: 0", status="204 No Content"), one])
    with Connection(path) as line:
        assert line.request("GET", "/a").read() == b"one"
        assert line.request("DELETE", "/b").status == 204
        assert line.request("GET", "/c").read() == b"one"


def test_a_closed_line_is_made_anew(serve: Serve) -> None:
    one = answer(b"x", "Content-Length: 1", "Connection: close")
    path = serve([one], [one])
    with Connection(path) as line:
        assert [line.request("GET", "/").read() for _ in range(2)] == [b"x", b"x"]


def test_chunks_come_as_they_are_sent_whatever_their_borders(serve: Serve) -> None:
    body = b"3\r\nabc\r\n5;x=y\r\ndefgh\r\n0\r\nTrailer: t\r\n\r\n"
    path = serve([answer(body, "Transfer-Encoding: chunked"), answer(b"!", "Content-Length: 1")])
    with Connection(path) as line:
        assert b"".join(line.request("GET", "/").iter()) == b"abcdefgh"
        assert line.request("GET", "/").read() == b"!"


def test_a_body_without_a_length_goes_to_the_end_of_the_line(serve: Serve) -> None:
    path = serve([answer(b'{"a":1}\n{"b":2}\nlast')])
    with Connection(path) as line:
        assert list(line.request("GET", "/").lines()) == [b'{"a":1}', b'{"b":2}', b"last"]


@pytest.mark.parametrize(
    "said",
    [
        b"hello\r\n\r\n",
        answer(b"abc", "Content-Length: 5"),
        answer(b"xyz\r\n", "Transfer-Encoding: chunked"),
        answer(b"", "Content-Length: -1"),
        b"",
    ],
    ids=["no-http", "too-short", "no-chunk", "no-length", "nothing"],
)
def test_what_is_no_http_is_an_error_of_the_line(serve: Serve, said: bytes) -> None:
    path = serve([said])
    with Connection(path, timeout=10) as line, pytest.raises(ProtocolError):
        line.request("GET", "/").read()


def test_a_body_of_pieces_is_sent_in_chunks(serve: Serve) -> None:
    path = serve([answer(b"", "Content-Length: 0")])
    with Connection(path) as line:
        line.request("PUT", "/", iter([b"abc", b"", b"de"]))
    sent = b"".join(serve.heard)  # type: ignore[attr-defined]
    assert b"Transfer-Encoding: chunked" in sent
    assert b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n" in sent


def test_a_hijacked_line_has_every_byte_after_the_head_and_none_of_it(serve: Serve) -> None:
    head = answer(b"first", "Connection: Upgrade", "Upgrade: tcp", status="101 UPGRADED")
    path = serve([head, b"second"])
    with Connection(path) as line, line.hijack("POST", "/attach") as sock:
        assert sock.recv(100) == b"first"
        sock.sendall(b"more")
        assert sock.recv(100) == b"second"


def test_a_hijack_that_is_declined_has_its_answer(serve: Serve) -> None:
    path = serve([answer(b"no", "Content-Length: 2", status="409 Conflict")])
    with Connection(path) as line, pytest.raises(Declined) as caught:
        line.hijack("POST", "/attach")
    assert (caught.value.response.status, caught.value.response.read()) == (409, b"no")


# Podman's answer to a list of all containers, one of which was removed between its two looks at the database.
VANISHED = b'{"message":"no container with ID 05cae0f5 found in database: no such container","response":500}'


def test_a_container_that_goes_while_all_are_listed_is_not_in_the_list(serve: Serve) -> None:
    gone = answer(VANISHED, f"Content-Length: {len(VANISHED)}", status="500 Internal Server Error")
    path = serve([gone, gone, answer(b'[{"Id":"a"}]', "Content-Length: 12")])
    assert Client(path, "").containers("{}") == [{"Id": "a"}]


def test_a_list_that_never_comes_says_nothing_of_any_container(serve: Serve) -> None:
    gone = answer(VANISHED, f"Content-Length: {len(VANISHED)}", status="500 Internal Server Error")
    path = serve([gone] * LISTINGS)
    client = Client(path, "")
    with pytest.raises(EngineError) as found:
        client.containers()
    client.close()
    assert isinstance(translate("podman", found.value), BackendUnavailable)


def test_a_request_cannot_carry_a_second_one(serve: Serve) -> None:
    path = serve([])
    with Connection(path) as line, pytest.raises(ValueError, match="line break"):
        line.request("GET", "/x\r\nHost: evil")
    assert segment("a/b c") == "a%2Fb%20c"
    assert query(a="1&2", b=True, c=None) == "?a=1%262&b=true"


@pytest.mark.parametrize("target", ["", "x", "ftp://host", "http://"])
def test_an_address_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        Connection(target)

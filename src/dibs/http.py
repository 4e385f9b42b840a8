"""HTTP/1.1 as a client, over a unix socket or TCP: for container engines and for a remote dibs.

    with Connection("unix:///run/docker.sock") as engine:
        engine.request("GET", "/info").json()
        sock = engine.hijack("POST", "/containers/x/attach?stream=1")      # a raw stream from here on

Small on purpose: `http.client` loads a mail parser, and reads ahead, which a hijacked stream cannot have.
A connection is kept open between requests. One thread at a time. It knows no status apart from what the protocol needs:
what a 404 means is the caller's business. Trouble with the line is an OSError; an answer that is no HTTP is a
`ProtocolError`, which is one too.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

_MOST_HEADERS = 1 << 18  # bytes; far more than any server sends
_PIECE = 1 << 16

Body = bytes | Iterable[bytes] | None


class ProtocolError(OSError):
    """The other side does not speak HTTP as it should."""


class Declined(Exception):
    """A hijack that was answered with an ordinary response."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.status} {response.reason}")
        self.response = response


class Response:
    """An answer. The body is read on demand; the connection is free again when it has been read to its end."""

    def __init__(self, line: _Line, status: int, reason: str, headers: dict[str, str], *, empty: bool) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers  # names in lower case
        self._line = line
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._left: int | None = None  # of the body, or of the current chunk; None: until the line ends
        self._done = empty
        if empty or self._chunked:
            self._left = 0
        elif "content-length" in headers:
            self._left = _number(headers["content-length"], 10)
            self._done = self._left == 0
        self._settle()

    def iter(self) -> Iterator[bytes]:
        """The body, piece by piece as it comes."""
        while piece := self._next():
            yield piece

    def read(self, limit: int | None = None) -> bytes:
        """The whole body. With a limit: ProtocolError if it is longer."""
        pieces, size = [], 0
        for piece in self.iter():
            pieces.append(piece)
            size += len(piece)
            if limit is not None and size > limit:
                self.close()
                raise ProtocolError(f"the answer is longer than {limit} bytes")
        return b"".join(pieces)

    def lines(self) -> Iterator[bytes]:
        """The body line by line, without line ends, as it comes."""
        rest = b""
        for piece in self.iter():
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def json(self) -> Any:
        import msgspec

        data = self.read()
        try:
            return msgspec.json.decode(data) if data.strip() else None
        except msgspec.DecodeError as error:
            raise ProtocolError(f"the answer is no JSON: {error}") from error

    def close(self) -> None:
        """Done with it. What was not read costs the connection."""
        if not self._done:
            self._done = True
            self._line.close()

    def set_timeout(self, seconds: float | None) -> None:
        """How long to wait for each further piece; None: for ever."""
        if not self._line.closed:
            self._line.sock.settimeout(seconds)

    def fileno(self) -> int:
        """To wait on, before `iter`; what was read ahead does not show here."""
        return self._line.fileno()

    def _next(self) -> bytes:
        if self._done:
            return b""
        if self._chunked and self._left == 0:
            size = self._line.text_line()
            if not size:
                size = self._line.text_line()  # the line end of the chunk before
            self._left = _number(size.partition(";")[0].strip(), 16)
            if self._left == 0:
                while self._line.text_line():
                    pass  # trailers
                return self._finish()
        piece = self._line.take(_PIECE if self._left is None else min(self._left, _PIECE))
        if not piece:
            if self._left is None:
                self._line.close()
                return self._finish()
            self._line.close()
            self._done = True
            raise ProtocolError("the answer ended too early")
        if self._left is not None:
            self._left -= len(piece)
            if self._left == 0 and not self._chunked:
                self._finish()
        return piece

    def _finish(self) -> bytes:
        self._done = True
        self._settle()
        return b""

    def _settle(self) -> None:
        if self._done:
            self._line.busy = False
            if "close" in self.headers.get("connection", "").lower():
                self._line.close()


class _Line:
    """A connected socket with what was read ahead of it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.box = bytearray()
        self.busy = False
        self.closed = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def take(self, size: int) -> bytes:
        """At least one byte and at most `size`; nothing at the end of the line."""
        if not self.box:
            return self.sock.recv(size)
        piece = bytes(self.box[:size])
        del self.box[:size]
        return piece

    def text_line(self) -> str:
        while (end := self.box.find(b"\n")) < 0:
            if len(self.box) > _MOST_HEADERS:
                raise ProtocolError("a line of the answer is too long")
            piece = self.sock.recv(_PIECE)
            if not piece:
                raise ProtocolError("the answer ended too early")
            self.box += piece
        line = bytes(self.box[:end]).rstrip(b"\r")
        del self.box[: end + 1]
        return line.decode("latin-1")

    def usable(self) -> bool:
        """Idle and still open: something to read on an idle line is its end."""
        if self.closed or self.busy or self.box:
            return False
        poller = select.poll()
        poller.register(self.sock.fileno(), select.POLLIN)
        return not poller.poll(0)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.sock.close()


class Connection:
    """A server, by `unix:///path`, `/path`, `http://host:port/base` or `https://…`. Connects when it is first used."""

    def __init__(
        self,
        target: str,
        *,
        timeout: float | None = 60.0,
        headers: Mapping[str, str] | None = None,
        context: Any = None,
        server_name: str | None = None,
    ) -> None:
        self.target = target
        self.timeout = timeout
        self._headers = dict(headers or {})
        self._context = context  # an ssl.SSLContext, for https
        self._server_name = server_name  # whom the certificate must name; None: the host of the address
        self._line: _Line | None = None
        self.base = ""
        if target.startswith("/"):
            target = f"unix://{target}"
        parts = urlsplit(target)
        self.scheme = parts.scheme
        if parts.scheme == "unix":
            self.socket_path = parts.netloc + parts.path
            self._host = "localhost"
        elif parts.scheme in ("http", "https", "tcp") and parts.hostname:
            self.socket_path = ""
            self._address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
            self._host = parts.netloc.rpartition("@")[2]
            self.base = parts.path.rstrip("/")
        else:
            raise ValueError(f"{target}: not an address; write unix:///path, http://host:port or https://host:port")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def interrupt(self) -> None:
        """From another thread: end the wait of a reader."""
        line = self._line
        if line is not None and not line.closed:
            with contextlib.suppress(OSError):
                line.sock.shutdown(socket.SHUT_RDWR)

    @property
    def authority(self) -> str:
        """What a request names as its host."""
        return self._host

    @property
    def idle(self) -> bool:
        """Whether the next request can use the line that is open."""
        return self._line is not None and self._line.usable()

    def connect(self) -> socket.socket:
        """A fresh socket to the server, not used for anything yet."""
        if self.socket_path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(self.timeout)
                sock.connect(self.socket_path)
            except BaseException:
                sock.close()
                raise
            return sock
        plain = socket.create_connection(self._address, self.timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.scheme != "https":
            return plain
        import ssl

        try:
            context = self._context or ssl.create_default_context()
            secure: socket.socket = context.wrap_socket(plain, server_hostname=self._server_name or self._address[0])
        except BaseException:
            plain.close()
            raise
        return secure

    def request(
        self,
        method: str,
        path: str,
        body: Body = None,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Send a request and read the head of its answer. An iterable body is sent in chunks as it comes.

        `timeout` is for each wait on the line, not for all of it; None: the connection's own.
        """
        line = self._line
        if line is None or not line.usable():
            self.close()
            line = self._line = _Line(self.connect())
        line.busy = True
        line.sock.settimeout(self.timeout if timeout is None else timeout)
        try:
            early = self._send(line, method, path, body, json, headers or {})
            while True:
                status, reason, found = early or _head(line)
                early = None
                if status >= 200 or status == 101:
                    break
            empty = method == "HEAD" or status in (204, 304)
            return Response(line, status, reason, found, empty=empty)
        except BaseException:
            line.close()
            raise

    def _send(
        self, line: _Line, method: str, path: str, body: Body, json: Any, headers: Mapping[str, str]
    ) -> tuple[int, str, dict[str, str]] | None:
        """Send it all; the head of the answer where the server gave one before the end of the body."""
        extra: dict[str, str] = {"Host": self._host, **self._headers, **headers}
        if json is not None:
            import msgspec

            body = msgspec.json.encode(json)
            extra.setdefault("Content-Type", "application/json")
        pieces: Iterable[bytes] = ()
        if body is None or isinstance(body, bytes):
            if body or method in ("POST", "PUT", "PATCH"):
                extra["Content-Length"] = str(len(body or b""))
        elif "Content-Length" in extra:
            pieces = body
        else:
            extra["Transfer-Encoding"] = "chunked"
            pieces = _chunks(body)
        head = _request_head(method, self.base + path, extra)
        try:
            line.sock.sendall(head + (body if isinstance(body, bytes) else b""))
            for piece in pieces:
                line.sock.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse a body before it has all of it, and then say why.
            with contextlib.suppress(OSError):
                return _head(line)
            raise
        return None

    def hijack(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        upgrade: str = "tcp",
        timeout: float | None = None,
    ) -> socket.socket:
        """A raw stream from the end of the answer's head on, on a socket of its own. Raises Declined otherwise."""
        line = _Line(self.connect())
        try:
            line.sock.settimeout(self.timeout if timeout is None else timeout)
            wanted = {"Connection": "Upgrade", "Upgrade": upgrade, **(headers or {})}
            self._send(line, method, path, None, json, wanted)
            raw = _head_alone(line.sock)
            line.box += raw
            status, reason, found = _head(line)
            plain = (
                status == 200 and "content-length" not in found and "chunked" not in found.get("transfer-encoding", "")
            )
            if status != 101 and not plain:
                line.busy = True
                found["connection"] = "close"  # no pool owns this connection: it closes when the answer has been read
                response = Response(line, status, reason, found, empty=status in (204, 304))
                raise Declined(response)
        except Declined:
            raise
        except BaseException:
            line.close()
            raise
        line.sock.settimeout(None)
        return line.sock


def segment(text: str) -> str:
    """Text as one segment of a path."""
    return quote(text, safe="")


def query(**values: str | int | bool | None) -> str:
    """`?a=b&c=d`, without what is None; true and false as engines write them."""
    pairs = []
    for name, value in values.items():
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        pairs.append(f"{quote(name, safe='')}={quote(text, safe='')}")
    return "?" + "&".join(pairs) if pairs else ""


def _request_head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path or '/'} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in one or "\n" in one for one in lines) or " " in path:
        raise ValueError("a line break or space in a request's head")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _chunks(body: Iterable[bytes]) -> Iterator[bytes]:
    for piece in body:
        if piece:
            yield b"%x\r\n" % len(piece) + piece + b"\r\n"
    yield b"0\r\n\r\n"


def _head(line: _Line) -> tuple[int, str, dict[str, str]]:
    words = line.text_line().split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise ProtocolError(f"not an HTTP answer: {' '.join(words)[:80]!r}")
    headers: dict[str, str] = {}
    while text := line.text_line():
        name, colon, value = text.partition(":")
        if not colon or len(headers) > 1000:
            raise ProtocolError(f"not a header: {text[:80]!r}")
        name = name.strip().lower()
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return int(words[1]), words[2] if len(words) > 2 else "", headers


def _head_alone(sock: socket.socket) -> bytes:
    """The head of an answer, and not a byte of what follows it."""
    data = bytearray()
    peeks = type(sock) is socket.socket  # a TLS line cannot look ahead
    while not data.endswith((b"\r\n\r\n", b"\n\n")):
        if len(data) > _MOST_HEADERS:
            raise ProtocolError("the head of the answer is too long")
        size = 1
        if peeks:
            ahead = sock.recv(4096, socket.MSG_PEEK)
            ends = [
                at + len(end) for end in (b"\r\n\r\n", b"\n\n") if (at := (bytes(data[-3:]) + ahead).find(end)) >= 0
            ]
            size = min(ends) - len(data[-3:]) if ends else len(ahead)
        piece = sock.recv(size)
        if not piece:
            raise ProtocolError("the answer ended too early")
        data += piece
    return bytes(data)


def _number(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise ProtocolError(f"not a length: {text[:40]!r}")
    return number

"""Sockets, signals, the server: one application on a unix socket and on TCP.

`cli.serve` calls `serve`. The server is uvicorn, with a protocol of our own that knows the peer of a unix socket,
limits the wait for a request's headers, and answers malformed requests in our own form. It opens exactly what
`plan_listeners` lists, and stops on SIGTERM or SIGINT without touching a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import grp
import ipaddress
import os
import re
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from dibs.errors import Conflict, DibsError, InvalidRequest, StateError
from dibs.gateway.app import App, make_app
from dibs.gateway.auth import Peer
from dibs.gateway.logs import log
from dibs.gateway.problems import PROBLEM_TYPE, Refused, problem_data
from dibs.home import Home
from dibs.settings import OFF, GatewaySettings, Settings, address

_PEER = struct.Struct("3i")
_HEAD_END = re.compile(rb"\n\r?\n")
_LINGER = 1.0  # seconds between a last answer and hanging up
_KEEP_ALIVE_IDLE = 60  # seconds before the kernel asks whether a silent peer is still there


class Listener(msgspec.Struct, frozen=True):
    """A place to listen. `open`: no token is needed there."""

    kind: str  # "unix" or "tcp"
    where: str
    host: str = ""
    port: int = 0
    loopback: bool = True

    def __str__(self) -> str:
        return f"unix:{self.where}" if self.kind == "unix" else f"http://{self.where}"


def plan_listeners(settings: GatewaySettings, home: Home) -> list[Listener]:
    """What would be opened. Raises InvalidRequest if it is nothing."""
    found: list[Listener] = []
    if settings.socket != OFF:
        found.append(Listener("unix", settings.socket or str(home.state / "gateway.sock")))
    for text in settings.listen:
        host, port = address(text)
        found.append(Listener("tcp", text, host, port, _is_loopback(host)))
    if not found:
        remedy = "give --listen 127.0.0.1:8080, or leave out --socket off"
        raise InvalidRequest("there is nothing to listen on", field="gateway.listen", remedy=remedy, code="NO_LISTENER")
    return found


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(listeners: list[Listener], settings: GatewaySettings, *, host_service: bool = False) -> list[socket.socket]:
    """Open them all, or none."""
    opened: list[socket.socket] = []
    try:
        for listener in listeners:
            if listener.kind == "unix":
                opened.append(_bind_unix(listener, settings, host_service))
            else:
                opened.append(_bind_tcp(listener))
    except BaseException:
        for one in opened:
            one.close()
        raise
    return opened


def _bind_unix(listener: Listener, settings: GatewaySettings, host_service: bool) -> socket.socket:
    path = Path(listener.where)
    if len(str(path).encode()) > 100:
        remedy = "name a shorter one with --socket, or --socket off"
        raise InvalidRequest(
            "the path is too long for a unix socket", field="gateway.socket", value=str(path), remedy=remedy,
            code="SETTING_INVALID",
        )  # fmt: skip
    if _answers(path):
        raise Conflict(
            "another gateway listens there", field="gateway.socket", value=str(path), code="ADDRESS_IN_USE",
            remedy="stop it, or name another one with --socket",
        )  # fmt: skip
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # That of the host service is made beside it and renamed: there is no moment without one, in which a client
        # would fall back to a ledger of its own.
        draft = path.with_name(f".{os.getpid()}") if host_service else path
        if path.is_socket() and not host_service:
            path.unlink()
        before = os.umask(0o777 & ~settings.socket_mode)
        try:
            one.bind(str(draft))
        finally:
            os.umask(before)
        try:
            if settings.socket_group:
                os.chown(draft, -1, grp.getgrnam(settings.socket_group).gr_gid)
            draft.chmod(settings.socket_mode)
            if draft != path:
                if path.exists() and not path.is_socket():
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                draft.rename(path)
        except BaseException:
            draft.unlink()
            raise
    except KeyError:
        one.close()
        raise InvalidRequest(
            "there is no such group", field="gateway.socket_group", value=settings.socket_group, code="SETTING_INVALID",
            remedy="make it with groupadd, or name another one",
        ) from None  # fmt: skip
    except OSError as error:
        one.close()
        raise StateError(
            f"the socket cannot be made: {error.strerror}", field="gateway.socket", value=str(path),
            code="SOCKET_UNUSABLE", remedy="name another one with --socket",
        ) from error  # fmt: skip
    return one


def _answers(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _bind_tcp(listener: Listener) -> socket.socket:
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. asyncio sets it only on sockets that were made with a protocol number; without it the
        # second part of every answer waits for the client's delayed acknowledgement, some 40 ms.
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.bind((listener.host, listener.port))
    except OSError as error:
        one.close()
        raise Conflict(
            f"it cannot be listened on: {error.strerror}", field="gateway.listen", value=listener.where,
            code="ADDRESS_IN_USE", remedy="name another one with --listen",
        ) from error  # fmt: skip
    return one


def url_of(one: socket.socket) -> str:
    """Where a bound socket is reached."""
    name = one.getsockname()
    if one.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if one.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"


class StrictConnection(h11.Connection):
    """h11, without what it tolerates and another server in the chain may read otherwise.

    That is a length and chunks at once, and header lines that go on in the next line. A head that came whole is
    measured too: h11 only counts what it has to wait for.
    """

    def __init__(self, max_head: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_head)
        self._max_head = max_head

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            self._check_head(self.trailing_data[0])
        return super().next_event()

    def _check_head(self, data: bytes) -> None:
        end = _HEAD_END.search(data)
        if end is None:
            return
        if end.start() > self._max_head:
            raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        lines = data[: end.start()].split(b"\n")[1:]
        if any(line[:1] in (b" ", b"\t") for line in lines):
            raise h11.RemoteProtocolError("a header goes on in the next line")
        names = {line.partition(b":")[0].strip().lower() for line in lines}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise h11.RemoteProtocolError("a length and chunks at once")


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, with the peer's credentials, a limit on the time for headers, and errors in our form.

    When there are too many connections, the one that has been silent for longest makes room: idle clients
    cannot keep others out. Silent are those whose request has not come, the first or a further one.
    """

    head_timeout = 15.0
    max_connections = 4096
    silent: ClassVar[dict[Protocol, None]] = {}  # in the order in which they fell silent; of each gateway its own
    _head_timer: asyncio.TimerHandle | None = None
    _ending = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = StrictConnection(self.config.h11_max_incomplete_event_size or 65536)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family == socket.AF_UNIX:
            peer = _PEER.unpack(raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            self.app_state = {**self.app_state, "peer": Peer(*peer)}
        elif raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_IDLE)
        if len(self.connections) > self.max_connections and not self._make_room():
            self._end(
                Refused(
                    503, code="TOO_MANY_CONNECTIONS", reason="the gateway has too many connections", remedy="try again"
                )
            )
            return
        self.silent[self] = None
        self._await_head()

    def _make_room(self) -> bool:
        """Hang up on the connection that has been silent for longest; False if none is."""
        for other in self.silent:
            del self.silent[other]
            other.transport.abort()
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.silent.pop(self, None)
        self._head_came()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.silent[self] = None

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self.silent.pop(self, None)
            self._head_came()
        elif self._head_timer is None and self.conn.trailing_data[0]:
            self._await_head()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout, self._head_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            reason = f"the headers did not come within {self.head_timeout:g} seconds"
            self._end(Refused(408, code="HEAD_TIMEOUT", reason=reason, remedy="send them faster"))

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words are not ours
        """Called while the parser's error is being handled."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            remedy = "send less; the gateway's max_head says how much"
            refusal = Refused(431, code="HEAD_TOO_LARGE", reason="the headers are too large", remedy=remedy)
        else:
            refusal = Refused(400, code="NOT_HTTP", reason="this is not valid HTTP", remedy="speak HTTP/1.1")
        self._end(refusal)

    def _end(self, refusal: Refused) -> None:
        """Answer outside of the application, and close. In the middle of another answer nothing can be said."""
        body = msgspec.json.encode(problem_data(refusal, ""))
        headers = [
            ("content-type", PROBLEM_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        with contextlib.suppress(h11.LocalProtocolError):
            answer = self.conn.send(h11.Response(status_code=refusal.status, headers=headers)) or b""
            answer += self.conn.send(h11.Data(data=body)) or b""
            answer += self.conn.send(h11.EndOfMessage()) or b""
            self.transport.write(answer)
        # A client that still sends would not see the answer if we hung up now.
        self._ending = True
        self.silent.pop(self, None)
        self._head_came()
        with contextlib.suppress(OSError):  # it has hung up already
            if self.transport.can_write_eof():
                self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.close)


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSockets; a refusal with a whole answer completes the handshake too, and is no error in the log."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


def protocol_for(settings: GatewaySettings) -> type[Protocol]:
    """uvicorn makes protocols from a class; the limits are put on one of this gateway's own."""
    limits: dict[str, Any] = {
        "head_timeout": settings.head_timeout, "max_connections": settings.max_connections, "silent": {}
    }  # fmt: skip
    return type("GatewayProtocol", (Protocol,), limits)


class Server(uvicorn.Server):
    """uvicorn's server with our signals: the first one stops in peace, the second one at once; the exit code is 0."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._on_stop()


def serve(settings: Settings, home: Home, *, ready: Callable[[App], None], host_service: bool = False) -> None:
    """Open, run until told to stop, close. `ready` is called when requests are answered."""
    listeners = plan_listeners(settings.gateway, home)
    sockets = bind(listeners, settings.gateway, host_service=host_service)
    try:
        asyncio.run(_run(make_app(settings, home, host_service=host_service), listeners, sockets, ready))
    finally:
        for one in sockets:
            one.close()
        for listener in listeners:
            # The host service leaves its socket: as long as that is there, no client falls back to a ledger of its own.
            if listener.kind == "unix" and not host_service:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(listener.where)


async def _run(app: App, listeners: list[Listener], sockets: list[socket.socket], ready: Callable[[App], None]) -> None:
    app.gateway.urls = tuple(
        f"unix:{listener.where}" if listener.kind == "unix" else url_of(one)
        for listener, one in zip(listeners, sockets, strict=True)
    )
    gateway = app.gateway.settings.gateway
    config = uvicorn.Config(
        app,
        http=protocol_for(gateway),
        ws=SocketProtocol,
        ws_max_size=max(gateway.max_body, 1 << 20),
        ws_per_message_deflate=False,
        # A client that is stopped, or whose reader is a pager, is silent for as long as it likes. Who is really gone is
        # told by the kernel.
        ws_ping_timeout=None,
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=gateway.keep_alive,  # type: ignore[arg-type]  # any number of seconds
        timeout_graceful_shutdown=gateway.drain,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=gateway.max_head,
    )
    server = Server(config, app.gateway.stop_streams)
    announcing = asyncio.get_running_loop().create_task(_announce(server, app, ready))
    try:
        await server.serve(sockets=sockets)
    except SystemExit as failure:
        if app.gateway.failure is not None:
            raise app.gateway.failure from failure
        raise StateError(
            "the gateway could not be started; the log says why", field="gateway", code="GATEWAY_NOT_STARTED"
        ) from failure
    finally:
        announcing.cancel()
    log.info("stopped")


async def _announce(server: Server, app: App, ready: Callable[[App], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    # What is loaded now stays. The collector need not go through it again and again: that took 30 ms each time, for
    # which a request had to wait.
    gc.freeze()
    try:
        ready(app)
    except DibsError as error:
        log.error("cannot tell how to connect: %s", error)

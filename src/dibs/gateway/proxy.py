"""Requests for a port of a sandbox: passed on to whatever listens there, HTTP and WebSocket.

`execd.routes` calls it for every port that is not one of execd's own. The connection is made by the backend, to the
sandbox's own loopback, so a port is reachable without being published anywhere. Bodies pass in pieces both ways. What
belongs to the gateway (its tokens, cookies, hop-by-hop headers, forwarded addresses) does not reach the sandbox; what
the sandbox answers does not get the gateway's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import h11
from litestar.connection import WebSocket

from dibs.errors import BackendUnavailable, DibsError, NotFound
from dibs.gateway.execd import answers

if TYPE_CHECKING:
    from dibs.gateway.execd.script_runner import Inside

PIECE = 1 << 16
LARGEST_MESSAGE = 16 << 20  # bytes of a WebSocket message from a sandbox; it is taken into memory as a whole
HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)  # fmt: skip
OURS = frozenset(
    (b"authorization", b"open-sandbox-api-key", b"opensandbox-secure-access", b"opensandbox-egress-auth",
     b"x-execd-access-token", b"cookie", b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
     b"x-forwarded-prefix", b"x-forwarded-port", b"x-real-ip", b"open-sandbox-client-ip")
)  # fmt: skip
Connect = Callable[[], Awaitable[socket.socket]]


def passed_on(scope: Any, port: int, prefix: str) -> list[tuple[bytes, bytes]]:
    """The headers for the sandbox: the client's, without what is ours, with what was forwarded."""
    named = {
        word.strip().lower() for name, value in scope["headers"] if name == b"connection" for word in value.split(b",")
    }
    kept = [
        (name, value)
        for name, value in scope["headers"]
        if name not in HOP_BY_HOP and name not in OURS and name not in named and name != b"host"
    ]
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    client = scope.get("client")
    kept.append((b"host", f"127.0.0.1:{port}".encode()))
    if client:
        kept.append((b"x-forwarded-for", str(client[0]).encode("latin-1", "replace")))
    if host:
        kept.append((b"x-forwarded-host", host))
    kept.append((b"x-forwarded-proto", scope.get("scheme", "http").replace("ws", "http").encode()))
    kept.append((b"x-forwarded-prefix", prefix.encode("latin-1", "replace")))
    return kept


class Proxied:
    """One HTTP exchange with a port of a sandbox, as an ASGI application."""

    def __init__(self, inside: Inside, port: int, target: bytes, prefix: str) -> None:
        self._inside = inside
        self._port = port
        self._target = target
        self._prefix = prefix

    async def __call__(self, scope: Any, receive: answers.Receive, send: answers.Send) -> None:
        began = False

        async def answer(message: Any) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            sock = await self._inside.connect(self._port)
            reader, writer = await asyncio.open_connection(sock=sock)
            try:
                await _exchange(receive, answer, reader, writer, self._request(scope))
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        except (OSError, h11.RemoteProtocolError) as error:
            if began:
                raise ConnectionAbortedError(f"the sandbox broke off: {error}") from error
            text = f'port "{self._port}": what listens there does not speak HTTP, or broke off: {error}'
            await answers.error(502, "PORT_BROKEN", text)(scope, receive, send)

    def _request(self, scope: Any) -> h11.Request:
        headers = passed_on(scope, self._port, self._prefix)
        names = {name for name, _ in headers}
        if b"content-length" not in names and any(name == b"transfer-encoding" for name, _ in scope["headers"]):
            headers.append((b"transfer-encoding", b"chunked"))
        headers.append((b"connection", b"close"))
        return h11.Request(method=scope["method"], target=self._target, headers=headers)


async def _exchange(
    receive: answers.Receive, send: answers.Send, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    request: h11.Request,
) -> None:  # fmt: skip
    talk = h11.Connection(h11.CLIENT)
    writer.write(talk.send(request) or b"")
    uploading = asyncio.create_task(_upload(receive, writer, talk))
    try:
        async for event in _events(reader, talk):
            if isinstance(event, h11.Response):
                headers = [(name, value) for name, value in event.headers if name not in HOP_BY_HOP]
                await send({"type": "http.response.start", "status": event.status_code, "headers": headers})
            elif isinstance(event, h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            if uploading.done() and not uploading.cancelled() and uploading.result():
                return  # the client has gone
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        uploading.cancel()
        await asyncio.gather(uploading, return_exceptions=True)


async def _upload(receive: answers.Receive, writer: asyncio.StreamWriter, talk: h11.Connection) -> bool:
    """The client's body; True if the client has gone, which also ends the connection to the sandbox."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            writer.close()
            return True
        with contextlib.suppress(ConnectionError):  # it answered without reading: the answer is what counts
            if message.get("body"):
                writer.write(talk.send(h11.Data(message["body"])) or b"")
                await writer.drain()
        more = message.get("more_body", False)
    with contextlib.suppress(ConnectionError):
        writer.write(talk.send(h11.EndOfMessage()) or b"")
    while (await receive())["type"] != "http.disconnect":
        pass
    writer.close()
    return True


async def _events(reader: asyncio.StreamReader, talk: h11.Connection) -> AsyncIterator[Any]:
    while True:
        event = talk.next_event()
        if event is h11.NEED_DATA:
            talk.receive_data(await reader.read(PIECE))
            continue
        if isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
            return
        if isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("it closed the connection")
        yield event


async def proxy_websocket(
    inside: Inside, port: int, client: WebSocket[Any, Any, Any], target: bytes, prefix: str
) -> None:
    """A WebSocket to a port of a sandbox: frames both ways, until one side closes."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed, InvalidHandshake

    skipped = (
        b"host",
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-extensions",
        b"sec-websocket-protocol",
        b"origin",
    )
    scope: Any = client.scope
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in passed_on(scope, port, prefix)
        if name not in skipped
    ]
    sock = await inside.connect(port)
    try:
        upstream = await connect(
            f"ws://127.0.0.1:{port}{target.decode('latin-1')}", sock=sock, additional_headers=headers,
            subprotocols=scope.get("subprotocols") or None, max_size=LARGEST_MESSAGE, max_queue=2,
            compression=None, user_agent_header=None, open_timeout=30, proxy=None,
        )  # fmt: skip
    except (OSError, InvalidHandshake, EOFError, TimeoutError) as error:
        sock.close()
        raise BackendUnavailable(
            f"what listens there takes no WebSocket: {error}", field="port", value=str(port), code="PORT_BROKEN"
        ) from error
    await client.accept(subprotocols=upstream.subprotocol)

    async def inwards() -> None:
        while True:
            message: Any = await client.receive()
            if message["type"] == "websocket.disconnect":
                await upstream.close(_closable(message.get("code")), message.get("reason") or "")
                return
            data = message.get("bytes")
            await upstream.send(data if data is not None else message.get("text") or "")

    async def outwards() -> None:
        try:
            async for message in upstream:
                await client.send_data(message, mode="binary" if isinstance(message, bytes) else "text")
        except ConnectionClosed:
            pass  # said below
        await client.close(_closable(upstream.close_code), upstream.close_reason or "")

    tasks = (asyncio.create_task(inwards()), asyncio.create_task(outwards()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await upstream.close()


def _closable(code: int | None) -> int:
    """A code that may be sent: 1005, 1006 and 1015 only ever stand for not having one."""
    return code if code is not None and (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code < 5000) else 1000


def port_of(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or not 0 < int(text) < 1 << 16:
        raise NotFound("it is no port", field="port", value=text, remedy="a port is between 1 and 65535")
    return int(text)


__all__ = ["DibsError", "Proxied", "passed_on", "port_of", "proxy_websocket"]

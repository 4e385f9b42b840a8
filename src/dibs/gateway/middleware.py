"""The edge of the gateway: what every request passes before a handler sees it. Plain ASGI, because every layer costs.

In this order: a request id (the caller's if it is harmless, else a new one), who is calling, how large and how slow the
body may be; afterwards one log line and the metrics. It knows no route and decides nothing about sandboxes.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import TYPE_CHECKING, Any

from dibs.errors import BackendUnavailable, DibsError
from dibs.gateway.auth import OPEN_PATHS
from dibs.gateway.logs import log
from dibs.gateway.problems import ClientGone, Refused, body_of

if TYPE_CHECKING:
    from dibs.gateway.state import Gateway

_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_UPLOAD = re.compile(r"/api/v1/sandboxes/[^/]+/files$|(?:/v1)?/sandboxes/[^/]+/proxy/", re.ASCII)
_DRAINED = 1 << 20  # behind a refused body up to this size the connection goes on
_LINGER = 2.0  # seconds, and bytes, that are read on after a refusal
_LINGERED = 256 << 20
STREAM_TYPES = (b"text/event-stream", b"application/x-ndjson", b"application/x-tar")


class Edge:
    """Wraps the whole application."""

    def __init__(self, app: Any, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._settings = gateway.settings.gateway

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await _Exchange(self._app, self._gateway, scope, receive, send).run()
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _websocket(self, scope: Any, receive: Any, send: Any) -> None:
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = request_id_of(scope["headers"])
        began = time.perf_counter()
        metrics = self._gateway.metrics
        status = 101
        try:
            state["identity"] = await self._gateway.auth.identify(scope)
        except DibsError as error:
            status = await _deny(error, scope, send, request_id)
        else:
            gauge = metrics.connections.labels("websocket")
            gauge.inc()

            async def sent(message: Any) -> None:
                nonlocal status
                if message["type"] == "websocket.http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await self._app(scope, receive, sent)
            finally:
                gauge.dec()
        metrics.count(_route(scope), "WEBSOCKET", status, None)
        _line(scope, "WEBSOCKET", status, began, request_id)


class _Exchange:
    """One request and its answer."""

    def __init__(self, app: Any, gateway: Gateway, scope: Any, receive: Any, send: Any) -> None:
        self._app = app
        self._gateway = gateway
        self._scope = scope
        self._receive = receive
        self._send = send
        self._status = 0
        self._stream = False
        self._came = 0
        self._whole = False
        self._until = 0.0
        settings = gateway.settings.gateway
        self._upload = _UPLOAD.match(scope["path"]) is not None
        self._limit = settings.max_upload if self._upload else settings.max_body
        self._patience = settings.body_timeout
        self._id = b""

    async def run(self) -> None:
        scope = self._scope
        state = scope.setdefault("state", {})
        began = time.perf_counter()
        request_id = state["request_id"] = request_id_of(scope["headers"])
        self._id = request_id.encode()
        try:
            self._check_length()
            if scope["path"] not in OPEN_PATHS:
                state["identity"] = await self._gateway.auth.identify(scope)
            await self._app(scope, self.receive, self.send)
        except DibsError as error:
            if self._status:
                self._broken(error, request_id)
            else:
                await self._refuse(error, request_id)
        except asyncio.CancelledError:
            if not self._gateway.stopping:
                raise
            await self._cut_off(request_id)
        except Exception as error:
            cause = _single(error.__cause__ or error)
            if not self._status or not isinstance(cause, DibsError | ClientGone | ConnectionError):
                raise
            self._broken(cause, request_id)
        finally:
            if self._stream:
                self._gateway.metrics.connections.labels("stream").dec()
            seconds = time.perf_counter() - began
            self._gateway.metrics.count(
                _route(scope), scope["method"], self._status or 499, None if self._stream else seconds
            )
            _line(scope, scope["method"], self._status or 499, began, request_id)

    async def _cut_off(self, request_id: str) -> None:
        """The gateway stops, and has waited for this one for long enough."""
        error = BackendUnavailable("the gateway is stopping", field="gateway", code="STOPPING", remedy="try again")
        if self._status:
            self._broken(error, request_id)
            return
        self._whole = True  # what may still come is not waited for
        await self._refuse(error, request_id)

    def _broken(self, error: Exception, request_id: str) -> None:
        """What went wrong in the middle of an answer cannot be said any more: the server hangs up before its end."""
        code = error.code if isinstance(error, DibsError) else type(error).__name__
        log.warning("an answer was broken off: %s", code, extra={"data": {"request_id": request_id}})

    def _check_length(self) -> None:
        for name, value in self._scope["headers"]:
            if name == b"content-length" and int(value) > self._limit:
                raise too_large(self._limit)

    async def receive(self) -> Any:
        """The body, within its limits. Afterwards only the end of the connection comes, which may take any time."""
        if self._whole:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._upload or not self._until:
            self._until = now + self._patience
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise Refused(
                408, code="BODY_TIMEOUT", field="body",
                reason=f"the body did not come within {self._patience:g} seconds",
                remedy="send it faster, or in smaller parts", headers={"Connection": "close"},
            ) from None  # fmt: skip
        if message["type"] == "http.request":
            self._came += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._came > self._limit:
                raise too_large(self._limit)
        else:
            self._whole = True
            raise ClientGone
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = list(message.get("headers", ()))
            headers.append((b"x-request-id", self._id))
            if self._scope["method"] == "OPTIONS":
                # Litestar answers for one handler of the path, not for all of them.
                takes = self._gateway.methods.get(_route(self._scope), "OPTIONS")
                headers = [(b"allow", takes.encode()), *(pair for pair in headers if pair[0] != b"allow")]
            self._stream = any(
                name.lower() == b"content-type" and value.startswith(STREAM_TYPES) for name, value in headers
            )
            message["headers"] = headers
            if self._stream:
                self._gateway.metrics.connections.labels("stream").inc()
        await self._send(message)

    async def _refuse(self, error: DibsError, request_id: str) -> None:
        status, media_type, body, extra = body_of(error, self._scope["path"], request_id)
        headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in extra.items()]
        if self._more_than(_DRAINED) and not any(name == b"connection" for name, _ in headers):
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        await self._drain()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _more_than(self, limit: int) -> bool:
        """Whether more of the body may still come than we would read."""
        for name, value in self._scope["headers"]:
            if name == b"transfer-encoding" or (name == b"content-length" and int(value) > limit):
                return not self._whole
        return False

    async def _drain(self) -> None:
        """Read on for a while after a refusal: if we hung up on a sender, it would not see the answer."""
        try:
            async with asyncio.timeout(_LINGER):
                while not self._whole and self._came < _LINGERED:
                    message = await self._receive()
                    self._came += len(message.get("body", b""))
                    self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        except TimeoutError:
            return


def _single(error: BaseException) -> Exception:
    """What a group of one stands for: a stream is sent by a group of tasks, and its client may leave early."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


def too_large(limit: int) -> Refused:
    return Refused(
        413, code="BODY_TOO_LARGE", reason=f"the body is larger than {limit} bytes", field="body",
        remedy="send less; the gateway's max_body and max_upload say how much",
    )  # fmt: skip


def request_id_of(headers: list[tuple[bytes, bytes]]) -> str:
    """The caller's id if it is one that cannot do harm in a header or a log, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _ID.fullmatch(value) and not value.startswith(b"dibs_"):  # a token is no id
            return value.decode()
    return os.urandom(8).hex()


async def _deny(error: DibsError, scope: Any, send: Any, request_id: str) -> int:
    """Refuse a WebSocket with a whole answer where the server can, else by closing it."""
    status, media_type, body, extra = body_of(error, scope["path"], request_id)
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.code})
        return status
    headers = [(b"content-type", media_type.encode()), (b"x-request-id", request_id.encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in extra.items()]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})
    return status


def _route(scope: Any) -> str:
    """The template of the path. An unknown path is no label: a client could make millions of them."""
    return str(scope.get("path_template") or "unmatched")


def _line(scope: Any, method: str, status: int, began: float, request_id: str) -> None:
    identity = scope["state"].get("identity")
    data = {
        "request_id": request_id,
        "method": method,
        "path": "".join(c if c.isprintable() and c != " " else "?" for c in scope["path"][:200]),
        "status": status,
        "ms": round((time.perf_counter() - began) * 1000, 1),
        "who": identity.name if identity else "",
        "tenant": identity.tenant if identity else "",
    }
    log.info("request", extra={"data": data})

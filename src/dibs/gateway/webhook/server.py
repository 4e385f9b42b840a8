"""HTTPS for the webhook: `/validate`, `/mutate` and `/healthz`, nothing else.

`cli.webhook` starts it. Reviews run in threads, because they may ask the cluster. A review that fails is an HTTP error
with its reason, so that the failurePolicy of the registration decides what becomes of the object.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dibs.errors import DibsError, InvalidRequest
from dibs.gateway.webhook import reviews
from dibs.gateway.webhook.reviews import Source

Json = dict[str, Any]
Receive = Callable[[], Awaitable[Json]]
Send = Callable[[Json], Awaitable[None]]

MOST_BYTES = 8 << 20  # an object has at most 1.5 MiB in etcd, and a review holds two
_PATHS = {"/validate": reviews.validate, "/mutate": reviews.mutate}


def application(source: Source) -> Callable[[Json, Receive, Send], Awaitable[None]]:
    """The ASGI application."""

    async def app(scope: Json, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        status, answer = await _answer(scope, receive, source)
        body = msgspec.json.encode(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _answer(scope: Json, receive: Receive, source: Source) -> tuple[int, Json]:
    path, method = scope["path"], scope["method"]
    if path == "/healthz" and method in ("GET", "HEAD"):
        return 200, {"status": "ok"}
    handler = _PATHS.get(path)
    if handler is None:
        return 404, {"error": f"no such path; there are {', '.join(_PATHS)}"}
    if method != "POST":
        return 405, {"error": "POST an AdmissionReview"}
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return 400, {"error": "the request ended early"}
        body += message.get("body", b"")
        if len(body) > MOST_BYTES:
            return 413, {"error": f"larger than {MOST_BYTES >> 20} MiB"}
        if not message.get("more_body"):
            break
    try:
        review = msgspec.json.decode(bytes(body))
    except (msgspec.DecodeError, RecursionError) as error:
        return 400, {"error": f"not JSON: {error}"}
    try:
        return 200, await asyncio.to_thread(handler, review, source)
    except InvalidRequest as error:
        return 400, {"error": str(error)}
    except DibsError as error:
        return 503, {"error": str(error)}


def serve(source: Source, host: str, port: int, certificate: str, key: str, ready: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is told the port."""
    import uvicorn

    check_certificate(certificate, key)
    config = uvicorn.Config(
        application(source), host=host, port=port, ssl_certfile=certificate, ssl_keyfile=key, log_level="warning",
        access_log=False, server_header=False, timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            ready(server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(run())


def check_certificate(certificate: str, key: str) -> None:
    """Raise InvalidRequest for a pair that cannot be used, before anything listens."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(
            f"the certificate and key cannot be used: {reason}", field="--cert", value=certificate, code="FILE_INVALID"
        ) from error

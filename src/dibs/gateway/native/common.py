"""What the handlers of the native API share: reading requests, writing answers, noticing that the caller has gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response

from dibs.errors import NotFound
from dibs.gateway.problems import ClientGone
from dibs.gateway.state import Gateway
from dibs.wire.reading import read_query

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Ask = Request[Any, Any, Any]
JSON = "application/json"
_ENCODER = msgspec.json.Encoder()
_REF = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def gateway_of(request: Any) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(_ENCODER.encode(value), status_code=status, media_type=JSON, headers=headers or {})


def query(request: Any, kind: type[S]) -> S:
    return read_query(kind, request.scope["query_string"])


class NoQuery(msgspec.Struct):
    """No parameter is known."""


def reference(request: Any) -> str:
    """The sandbox in the path. What cannot be a name or an id is as unknown as any other."""
    text = str(request.path_params["ref"])
    if not text or len(text) > 64 or not _REF.issuperset(text):
        raise unknown(text)
    return text


def unknown(text: str) -> NotFound:
    remedy = "`dibs sandbox ls --all` shows what there is"
    return NotFound("there is no such sandbox", field="sandbox", value=text[:64], remedy=remedy)


@contextlib.asynccontextmanager
async def watched(request: Ask) -> AsyncIterator[asyncio.Event]:
    """An event that is set when the caller hangs up. The body must have been read before."""
    gone = asyncio.Event()

    async def watch() -> None:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                gone.set()
                return

    task = asyncio.get_running_loop().create_task(watch())
    try:
        yield gone
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def unless_gone(gone: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; ClientGone, with the work cancelled, if the caller hangs up before."""
    loop = asyncio.get_running_loop()
    doing = loop.create_task(work)
    leaving = loop.create_task(gone.wait())
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientGone
    finally:
        for task in (doing, leaving):
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

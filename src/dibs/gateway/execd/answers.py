"""HTTP answers of the agentless execd, as ASGI applications: a whole body, or a stream.

`routes` returns them from its handlers. A stream gets its own `Client`, which knows when the other side has gone away
and waits while that side does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

Headers = Iterable[tuple[bytes, bytes]]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
_encoder = msgspec.json.Encoder()


class Whole:
    """An answer that is there as a whole."""

    def __init__(
        self, status: int, body: bytes = b"", media_type: str = "application/json", headers: Headers = ()
    ) -> None:
        self.status = status
        self.body = body
        self.headers = [(b"content-type", media_type.encode()), *headers] if body or media_type else [*headers]
        self.headers.append((b"content-length", str(len(body)).encode()))

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


def json(value: Any, status: int = 200, headers: Headers = ()) -> Whole:
    return Whole(status, _encoder.encode(value), headers=headers)


def error(status: int, code: str, message: str, headers: Headers = ()) -> Whole:
    return Whole(status, _encoder.encode({"code": code, "message": message}), headers=headers)


def done() -> Whole:
    """Success, with nothing to say."""
    return Whole(200, b"", media_type="")


class Client:
    """The other side of a stream. `gone` is set when it goes away; `write` then writes nothing."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._send = send
        self._receive = receive
        self.gone = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def begin(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone.set()

    async def write(self, data: bytes, *, last: bool = False) -> None:
        if not self.gone.is_set():
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def wait(self, work: Awaitable[Any], timeout: float | None = None) -> Any:
        """The result of `work`; None if the client goes away or the time passes before. `work` is then cancelled."""
        doing = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait((doing, leaving), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else None
        finally:
            for task in (doing, leaving):
                if not task.done():
                    task.cancel()
            await asyncio.gather(doing, leaving, return_exceptions=True)


class Streamed:
    """An answer that `write(client)` writes piece by piece."""

    def __init__(self, write: Callable[[Client], Awaitable[None]], *, headers: Headers, status: int = 200) -> None:
        self._write = write
        self._headers = headers
        self._status = status

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:  # noqa: ARG002
        client = Client(receive, send)
        await client.begin(self._status, self._headers)
        try:
            await self._write(client)
        finally:
            await client.end()

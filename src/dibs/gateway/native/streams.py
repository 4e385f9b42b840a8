"""What does not end at once: logs, events, files. Each stops when the caller hangs up, and when the gateway stops.

Log lines are newline-delimited JSON, events are server-sent, files are tar. Nothing is gathered in memory: a slow
reader holds back the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import msgspec
from litestar import Response, get, put
from litestar.response import Stream
from msgspec import Meta

from dibs.backends.port import LogRecord
from dibs.errors import Conflict, InvalidRequest
from dibs.gateway.auth import require
from dibs.gateway.native.common import Ask, gateway_of, query, reference
from dibs.gateway.native.sandboxes import READ, ROOT, WRITE
from dibs.gateway.native.views import event_view
from dibs.gateway.state import Gateway
from dibs.wire.sandboxes import Event, LogLine, Path
from dibs.workloads.identity import Identity
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

NDJSON = "application/x-ndjson"
TAR = "application/x-tar"
EVENTS = "text/event-stream"
_KEEP_ALIVE = 15.0  # seconds of silence after which a comment is sent, so that proxies keep the connection
_SILENCE = b": still here\n\n"
_ENCODER = msgspec.json.Encoder()


class LogsQuery(msgspec.Struct, frozen=True):
    """`follow`: go on until the sandbox ends."""

    follow: bool = False


class FilesQuery(msgspec.Struct, frozen=True):
    path: Path


class FollowQuery(msgspec.Struct, frozen=True):
    """`after`: only newer events; those from now on if left out. `follow` false: only what there is."""

    after: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    follow: bool = True


@get(ROOT + "/{ref:str}/logs")
async def logs(request: Ask) -> Stream:
    who = require(request, READ)
    asked = query(request, LogsQuery)
    ref = reference(request)
    gateway = gateway_of(request)
    # Asked once before the answer begins, so that what is wrong is an error and not a broken stream.
    sandbox_id = await gateway.pool.call_as(who, _check_logs, ref)
    lines = _log_lines(gateway, who, sandbox_id, asked.follow)
    await anext(lines)
    return Stream(lines, media_type=NDJSON)


def _check_logs(workloads: Workloads, ref: str) -> str:
    row = workloads.sandbox(ref)
    if not workloads.identity.touches(row):
        raise Conflict(
            f"it belongs to {row.username}", field="sandbox", value=row.name, code="NOT_YOURS",
            remedy=f"ask {row.username}, or root",
        )  # fmt: skip
    if row.state not in ("queued", "creating"):
        workloads.backend_of(row).logs(handle_of(row))
    return row.id


def _records(workloads: Workloads, who: Identity, sandbox_id: str, follow: bool) -> Iterator[LogRecord]:
    """With the records without data, which let this thread stop."""
    view = workloads.seen_by(who)
    row = view.sandbox(sandbox_id)
    return view.backend_of(row).logs(handle_of(row), follow=follow)


async def _log_lines(gateway: Gateway, who: Identity, sandbox_id: str, follow: bool) -> AsyncIterator[bytes]:
    """First an empty piece, which is not sent: with it the stream has its place, until it ends or is dropped."""
    with gateway.pool.place(who):
        yield b""
        while True:
            row = await gateway.pool.call_as(who, lambda w: w.sandbox(sandbox_id))
            if row.state not in ("queued", "creating"):
                break
            if not follow or gateway.stopping:
                return
            await gateway.changes.wait(5.0)
        if not row.created:
            return
        async with gateway.pool.stream(_records, who, sandbox_id, follow) as records:
            async for record in records:
                if gateway.stopping:
                    return
                if record.data:
                    yield _ENCODER.encode(LogLine(record.at, record.stream, record.data)) + b"\n"
    if follow:
        # A client that reads to the end and asks next must be told that it has ended.
        await gateway.pool.call_long(lambda w: w.seen_by(who).settle(sandbox_id))


@get(ROOT + "/{ref:str}/files")
async def download(request: Ask) -> Stream:
    """A file or folder as a tar stream. What is in the files is the workload's, as are its commands."""
    who = require(request, WRITE)
    path = inside(query(request, FilesQuery).path)
    ref = reference(request)
    gateway = gateway_of(request)
    chunks = _chunks(gateway, who, ref, path)
    first = await anext(chunks, b"")  # what is wrong is an error and not a broken stream

    async def whole() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    return Stream(whole(), media_type=TAR)


async def _chunks(gateway: Gateway, who: Identity, ref: str, path: str) -> Any:
    def read(workloads: Workloads) -> Iterator[bytes]:
        return workloads.seen_by(who).copy_out(ref, path)

    with gateway.pool.place(who):
        async with gateway.pool.stream(read) as chunks:
            async for chunk in chunks:
                yield chunk


@put(ROOT + "/{ref:str}/files", status_code=204)
async def upload(request: Ask) -> None:
    """Unpack a tar stream below a folder of the sandbox, as its user."""
    who = require(request, WRITE)
    path = inside(query(request, FilesQuery).path)
    ref = reference(request)

    def write(workloads: Workloads, archive: Iterator[bytes]) -> None:
        workloads.seen_by(who).copy_in(ref, archive, path)

    pool = gateway_of(request).pool
    with pool.place(who):
        await pool.feed(body_of(request), write)


async def body_of(request: Ask) -> AsyncIterator[bytes]:
    """The body as it comes. Raises ConnectionError if the caller hangs up before its end."""
    while True:
        message: Any = await request.receive()
        if message["type"] != "http.request":
            raise ConnectionAbortedError("the caller hung up")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return


def inside(path: str) -> str:
    """An absolute path without a step back. The backend keeps it inside in any case; this says so early."""
    if ".." in path.split("/"):
        raise InvalidRequest(
            "a path must not lead back", field="path", value=path, code="PATH_INVALID", remedy="leave out the .. parts"
        )
    return path


@get("/api/v1/events")
async def events(request: Ask) -> Response[Any]:
    """What happens, as server-sent events. `Last-Event-ID` goes on where a client was cut off."""
    who = require(request, READ)
    asked = query(request, FollowQuery)
    gateway = gateway_of(request)
    after = asked.after
    last = request.headers.get("last-event-id", "")
    if last:
        if not last.isascii() or not last.isdigit() or len(last) > 16:
            raise InvalidRequest(
                "this is no id of an event", field="Last-Event-ID", value=last[:64], code="FIELD_INVALID",
                remedy="send the id of the last event that came",
            )  # fmt: skip
        after = int(last)
    if after is None:
        after = await gateway.changes.look()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(_events(gateway, who, after, asked.follow), media_type=EVENTS, headers=headers)


async def _events(gateway: Gateway, who: Identity, after: int, follow: bool) -> AsyncIterator[bytes]:
    tenant = None if who.sees_all else who.tenant
    loop = asyncio.get_running_loop()
    yield b"retry: 2000\n\n"
    spoke = loop.time()
    while not gateway.stopping:
        found = await gateway.pool.call(
            lambda w, after=after: w.ledger.events(after=after, tenant=tenant, limit=500)  # type: ignore[misc]
        )
        for event in found:
            yield _sent(event_view(event))
            after = event.seq
            spoke = loop.time()
        if len(found) == 500:
            continue
        if not follow:
            return
        if loop.time() - spoke >= _KEEP_ALIVE:
            yield _SILENCE
            spoke = loop.time()
        await gateway.changes.wait(_KEEP_ALIVE)


def _sent(event: Event) -> bytes:
    """The kind is one of our own words and JSON has no line breaks, so an event cannot be forged."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.kind.encode(), _ENCODER.encode(event))


HANDLERS = (logs, download, upload, events)

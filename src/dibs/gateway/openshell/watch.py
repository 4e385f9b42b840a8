"""Following a sandbox: its status as it changes, its log, its events; and its log as it is now.

One task of the gateway watches the ledger for all who follow (`gateway.changes`). A log is followed by a thread of the
pool for as long as the stream lasts, a few pieces ahead of its reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from dibs.backends.port import LogRecord
from dibs.errors import InvalidRequest, NotFound
from dibs.gateway.openshell import sandboxes, schema, views
from dibs.gateway.openshell.calls import READ, Call, Method, Place
from dibs.ledger.rows import Event
from dibs.sandbox import Sandbox
from dibs.workloads.service import Workloads

_USUAL_LINES, _MOST_LINES = 1000, 10_000
_PAUSE = 15.0  # seconds after which a look is taken whatever was heard
_TERMINAL = ("ERROR", "STOPPED", "COMPLETED")
_LEVELS = ("", "TRACE", "DEBUG", "INFO")  # a sandbox's output has one level: INFO


async def logs(call: Call, request: Any) -> Any:
    """GetSandboxLogs: what the sandbox's own command has written."""
    place = await call.place(request.workspace_scope)
    wanted = _sources(request.sources, "sources")
    if request.lines > _MOST_LINES:
        raise InvalidRequest(
            f"must be at most {_MOST_LINES}", field="lines", value=str(request.lines), code="LINES_INVALID",
            remedy="say since_time, or follow the log with WatchSandbox",
        )  # fmt: skip
    most = request.lines or _USUAL_LINES
    since = request.since_time.ToNanoseconds() / 1e9 if request.HasField("since_time") else 0.0
    silent = _level(request.min_level, "min_level")

    def work(workloads: Workloads) -> Any:
        mine = workloads.seen_by(place.who)
        row = sandboxes.find(mine, request.sandbox)
        answer = schema.message("GetSandboxLogsResponse")()
        if not row.created or silent or not wanted:
            return answer
        lines = list(_lines(mine.logs(row.id), since))
        answer.buffer_total = len(lines)
        for at, stream, text in lines[-most:]:
            answer.logs.append(_line(row, at, stream, text))
        return answer

    return await call.gateway.pool.call_long(work)


async def watch(call: Call, request: Any) -> None:
    """WatchSandbox: what is asked for, until the client goes away or, if asked to, the sandbox has ended."""
    place = await call.place(request.workspace_scope)
    after = _cursor(request.resume_after_cursor)
    if not (request.follow_status or request.follow_logs or request.follow_events):
        raise InvalidRequest(
            "nothing to follow", field="follow_status", code="FIELD_MISSING",
            remedy="say follow_status, follow_logs or follow_events",
        )  # fmt: skip
    following = request.follow_logs and _sources(request.log_sources, "log_sources")
    following = following and not _level(request.log_min_level, "log_min_level")
    row = await _row(call, place, request.sandbox)
    lock = asyncio.Lock()  # two tasks write to one stream
    tasks = [asyncio.get_running_loop().create_task(_follow_status(call, place, request, row, after, lock))]
    if following:
        tasks.append(asyncio.get_running_loop().create_task(_follow_logs(call, place, request, row, lock)))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if following and tasks[1].done():
            tasks[1].result()  # raises if the log cannot be read; its end is no reason to stop
        await tasks[0]
        if following and request.stop_on_terminal:
            await tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _row(call: Call, place: Place, name: str) -> Sandbox:
    return await call.gateway.pool.call(lambda workloads: sandboxes.find(workloads.seen_by(place.who), name))


async def _follow_status(call: Call, place: Place, request: Any, row: Sandbox, after: int, lock: asyncio.Lock) -> None:
    changes, gateway = call.gateway.changes, call.gateway
    last: bytes = b""
    first = True

    def look(workloads: Workloads, seen: int) -> tuple[Any, list[Event], bool]:
        mine = workloads.seen_by(place.who)
        found = sandboxes.find(mine, row.name)
        events = mine.ledger.events(sandbox_id=found.id, after=seen) if request.follow_events else []
        return sandboxes.shown(mine, found, place.name), events, views.phase_of(found) in _TERMINAL

    while not gateway.stopping:
        try:
            shown, events, ended = await gateway.pool.call(look, after)
        except NotFound:
            return  # it was deleted
        if first and request.event_tail and not request.resume_after_cursor:
            events = events[-request.event_tail :]
        first = False
        for event in events:
            after = event.seq
            async with lock:
                await call.send(_event(event))
        data = shown.SerializeToString(deterministic=True)
        if request.follow_status and data != last:
            last = data
            message = schema.message("SandboxStreamEvent")(sandbox=shown, cursor=str(after) if after else "")
            async with lock:
                await call.send(message)
        if ended and request.stop_on_terminal:
            return
        await changes.wait(_PAUSE)


async def _follow_logs(call: Call, place: Place, request: Any, row: Sandbox, lock: asyncio.Lock) -> None:
    since = request.since_time.ToNanoseconds() / 1e9 if request.HasField("since_time") else 0.0
    pool = call.gateway.pool
    while not row.created:
        if not row.live or call.gateway.stopping:
            return
        await call.gateway.changes.wait(_PAUSE)
        row = await _row(call, place, row.name)

    def read(workloads: Workloads) -> Iterator[LogRecord]:
        mine, tail = workloads.seen_by(place.who), request.log_tail_lines
        skip = _before_tail(mine.logs(row.id), since, tail) if tail else 0
        return _after(mine.logs(row.id, follow=True), since, skip)

    with pool.place(place.who):
        async with pool.stream(read) as records:
            async for at, stream, text in _lines_of(records, since):
                message = schema.message("SandboxStreamEvent")(log=_line(row, at, stream, text))
                async with lock:
                    await call.send(message)


def _before_tail(records: Iterable[LogRecord], since: float, tail: int) -> int:
    """How many bytes stand before the last lines of a log."""
    sizes = [len(line) for one in records if one.at >= since for line in one.data.splitlines(keepends=True)]
    return sum(sizes[:-tail])


def _after(records: Iterable[LogRecord], since: float, skip: int) -> Iterator[LogRecord]:
    """A log without so many bytes at its beginning."""
    for one in records:
        if one.at < since:
            continue
        if skip < len(one.data):
            yield LogRecord(one.at, one.stream, one.data[skip:])
        skip = max(0, skip - len(one.data))


async def _lines_of(records: AsyncIterator[LogRecord], since: float) -> AsyncIterator[tuple[float, str, str]]:
    async for record in records:
        for line in _lines([record], since):
            yield line


def _lines(records: Iterable[LogRecord], since: float) -> Iterator[tuple[float, str, str]]:
    """By line; one that came in several pieces is several lines."""
    for record in records:
        if record.at >= since:
            for text in record.data.decode(errors="replace").splitlines():
                yield record.at, record.stream, text


def _line(row: Sandbox, at: float, stream: str, text: str) -> Any:
    found = schema.message("SandboxLogLine")(
        sandbox_id=views.sandbox_id(row), level="INFO", target=stream, message=text, source="sandbox"
    )
    views.stamp(found.event_time, at)
    return found


def _event(event: Event) -> Any:
    message = schema.message("SandboxStreamEvent")(cursor=str(event.seq))
    found = message.event
    found.source, found.type, found.reason, found.message = "dibs", "Normal", event.kind, event.detail
    views.stamp(found.event_time, event.at)
    return message


def _sources(sources: Iterable[str], field: str) -> bool:
    """Whether the sandbox's own output is wanted: the only source there is."""
    asked = list(sources)
    for one in asked:
        if one not in ("sandbox", "gateway"):
            raise InvalidRequest(
                "there is no such source", field=field, value=one[:64], code="SOURCE_INVALID",
                remedy="the known ones are sandbox and gateway; a gateway's own log is not shown to clients",
            )  # fmt: skip
    return not asked or "sandbox" in asked


def _level(level: str, field: str) -> bool:
    """Whether nothing is at that level: a sandbox's output is INFO."""
    known = ("", "TRACE", "DEBUG", "INFO", "WARN", "ERROR")
    if level.upper() not in known:
        raise InvalidRequest(
            "there is no such level", field=field, value=level[:64], code="LEVEL_INVALID",
            remedy=f"the known ones are {', '.join(known[1:])}",
        )  # fmt: skip
    return level.upper() not in _LEVELS


def _cursor(text: str) -> int:
    if not text:
        return 0
    if not text.isdigit() or len(text) > 15:
        raise InvalidRequest(
            "this is no cursor of ours", field="resume_after_cursor", value=text[:64], code="CURSOR_INVALID"
        )
    return int(text)


METHODS = (
    Method("GetSandboxLogs", "GetSandboxLogsRequest", "GetSandboxLogsResponse", logs, READ),
    Method("WatchSandbox", "WatchSandboxRequest", "SandboxStreamEvent", watch, READ, "stream"),
)

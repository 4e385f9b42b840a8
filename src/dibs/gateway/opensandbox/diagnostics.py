"""Diagnostics of one sandbox: what it wrote, what happened to it, what it is.

    logs      scope container, all: the output of its entrypoint
    events    scope lifecycle: its states; runtime: its devices and its place in the queue; all: both
    inspect   the receipt, in words; summary: inspect, events and logs on one page

Without a scope, logs and events answer plain text: the older form, which `osb devops` still asks for.
"""

from __future__ import annotations

import re
import time
from collections import deque
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get

from dibs.backends.port import LogRecord
from dibs.errors import DibsError, InvalidRequest
from dibs.gateway.auth import require
from dibs.gateway.opensandbox import rows, states, types, views
from dibs.gateway.opensandbox.answers import answer, part, text
from dibs.gateway.state import Gateway
from dibs.ledger.rows import Event
from dibs.request.durations import parse_duration
from dibs.sandbox import Sandbox
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads

Asked = Request[Any, Any, Any]
MOST = 1 << 20  # bytes of output in one answer; what is older is left out, and said to be
_LOG_SCOPES = ("container", "all")
_EVENT_SCOPES = {"lifecycle": ("sandbox.",), "runtime": ("lease.", "queue."), "all": ("",)}
_MOST_LINES = 100_000


def _parameters(request: Asked, *known: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known or name in found:
            reason = "it is given twice" if name in found else "there is no such parameter"
            remedy = f"the known ones are {', '.join(known)}" if known else "there are none"
            raise InvalidRequest(reason, field=name, value=str(value), code="PARAMETER_INVALID", remedy=remedy)
        found[name] = str(value)
    return found


def _count(found: dict[str, str], name: str, default: int) -> int:
    said = found.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,6}", said, re.ASCII) or not 1 <= int(said) <= _MOST_LINES:
        reason = f"must be a whole number from 1 to {_MOST_LINES}"
        raise InvalidRequest(reason, field=name, value=said, code="PARAMETER_INVALID")
    return int(said)


def _since(found: dict[str, str]) -> float:
    if "since" not in found:
        return 0.0
    try:
        return time.time() - parse_duration(found["since"])
    except ValueError as error:
        raise InvalidRequest(str(error), field="since", value=found["since"], code="PARAMETER_INVALID") from error


def _scope(found: dict[str, str], known: tuple[str, ...]) -> str:
    scope = found["scope"].strip().lower()
    if scope not in known:
        raise InvalidRequest(
            "there is no such scope here", field="scope", value=found["scope"], code="DIAGNOSTICS_SCOPE_UNSUPPORTED",
            remedy=f"the scopes are {', '.join(known)}",
        )  # fmt: skip
    return scope


# -- what there is --------------------------------------------------------------------------------------------------


def output(mine: Workloads, row: Sandbox, *, since: float = 0.0, most: int = MOST) -> tuple[str, bool]:
    """The newest output of the entrypoint, and whether older output was left out."""
    if not row.created:
        return "", False
    kept: deque[LogRecord] = deque()
    size, cut = 0, False
    for record in mine.logs(row.id):
        if record.at < since:
            continue
        kept.append(record)
        size += len(record.data)
        while size > most and len(kept) > 1:
            size -= len(kept.popleft().data)
            cut = True
    data = b"".join(record.data for record in kept)
    return data[-most:].decode(errors="replace"), cut or len(data) > most


def _tail(content: str, lines: int) -> str:
    return "\n".join(content.splitlines()[-lines:])


def events(mine: Workloads, row: Sandbox, scope: str = "all") -> list[Event]:
    return [event for event in mine.events(row.id) if event.kind.startswith(_EVENT_SCOPES[scope])]


def _event_lines(found: list[Event]) -> str:
    return "\n".join(f"{types.moment(event.at)} {event.kind} {event.detail}".rstrip() for event in found)


def inspect(mine: Workloads, row: Sandbox) -> str:
    """A sandbox in words, receipt included."""
    shown = rows.shown(mine, row)
    lines = [
        f"sandbox     {row.id}",
        f"name        {row.name}",
        f"backend     {row.backend}",
        f"state       {shown.status.state} ({row.state})",
        f"message     {shown.status.message or '-'}",
        f"created     {shown.created_at}",
        f"expires     {shown.expires_at or 'never'}",
        f"entrypoint  {' '.join(shown.entrypoint)}",
    ]
    lines += [f"{key:<11} {value}" for key, value in views.extensions(row).items() if value]
    if row.receipt is None:
        return "\n".join([*lines, "receipt     there is none yet" if row.live else "receipt     none"])
    receipt = row.receipt
    lines.append("receipt")
    lines += [
        f"  {line.field:<28} {line.outcome:<10} asked {line.asked}; seen {line.observed}" for line in receipt.lines
    ]
    lines += [f"  note: {note}" for note in receipt.notes]
    if not row.live:
        lines.append(f"ended       {states.ended_how(row)}")
    return "\n".join(lines)


# -- routes ---------------------------------------------------------------------------------------------------------


async def _ask(request: Asked, sandbox_id: str, work: Any) -> Any:
    identity: Identity = msgspec.structs.replace(require(request, "sandboxes:read"), remote=True)
    gateway: Gateway = request.app.state.gateway

    def look(workloads: Workloads) -> Any:
        mine, row = rows.find(workloads, identity, sandbox_id)
        return work(mine, row)

    return await gateway.pool.call_long(look)


def _content(row: Sandbox, kind: Literal["logs", "events"], scope: str, content: str, cut: bool) -> types.Diagnostic:
    return types.Diagnostic(
        sandbox_id=row.id,
        kind=kind,
        scope=scope,
        delivery="inline",
        content_type="text/plain; charset=utf-8",
        truncated=cut,
        content=content,
        content_length=len(content.encode()),
    )


@get("/sandboxes/{sandbox_id:str}/diagnostics/logs")
async def diagnostic_logs(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    found = _parameters(request, "scope", "tail", "since")
    lines, since = _count(found, "tail", _MOST_LINES), _since(found)
    scope = _scope(found, _LOG_SCOPES) if "scope" in found else ""

    def work(mine: Workloads, row: Sandbox) -> tuple[Sandbox, str, bool]:
        return (row, *output(mine, row, since=since))

    row, content, cut = await _ask(request, sandbox_id, work)
    tail = _tail(content, lines) if "tail" in found else content
    return answer(_content(row, "logs", scope, tail, cut)) if scope else text(tail)


@get("/sandboxes/{sandbox_id:str}/diagnostics/events")
async def diagnostic_events(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    found = _parameters(request, "scope", "limit")
    most = _count(found, "limit", 1000)
    scope = _scope(found, tuple(_EVENT_SCOPES)) if "scope" in found else ""

    def work(mine: Workloads, row: Sandbox) -> tuple[Sandbox, list[Event]]:
        return row, events(mine, row, scope or "all")

    row, happened = await _ask(request, sandbox_id, work)
    content = _event_lines(happened[-most:])
    if not scope:
        return text(content)
    return answer(_content(row, "events", scope, content, len(happened) > most))


@get("/sandboxes/{sandbox_id:str}/diagnostics/inspect")
async def diagnostic_inspect(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    _parameters(request)
    return text(await _ask(request, sandbox_id, inspect))


@get("/sandboxes/{sandbox_id:str}/diagnostics/summary")
async def diagnostic_summary(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    found = _parameters(request, "tail", "event_limit")
    lines, most = _count(found, "tail", 50), _count(found, "event_limit", 20)

    def work(mine: Workloads, row: Sandbox) -> str:
        try:
            wrote = _tail(output(mine, row)[0], lines)
        except DibsError as error:
            wrote = f"cannot be read: {error}"  # the rest of the page is then what explains it
        happened = _event_lines(events(mine, row)[-most:])
        return f"{inspect(mine, row)}\n\nEVENTS\n{happened}\n\nLOGS\n{wrote}\n"

    return text(await _ask(request, sandbox_id, work))


HANDLERS = [diagnostic_logs, diagnostic_events, diagnostic_inspect, diagnostic_summary]

"""Sandboxes over HTTP: create, list, get, change, remove. A handler calls the service in a thread."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, patch, post
from msgspec import UNSET, Meta

from dibs.errors import Conflict, InvalidRequest, Problem
from dibs.gateway.auth import require
from dibs.gateway.native.common import (
    Ask,
    NoQuery,
    gateway_of,
    query,
    reference,
    reply,
    unless_gone,
    watched,
)
from dibs.gateway.native.views import event_view, one_sandbox, sandbox_views
from dibs.gateway.state import Gateway
from dibs.request.durations import parse_duration
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.sandbox import Sandbox
from dibs.wire import sandboxes as ws
from dibs.wire.reading import read_body, read_object
from dibs.wire.sandboxes import (
    ENDED,
    LIVE,
    Duration,
    Events,
    SandboxPage,
    SandboxPatch,
    SandboxState,
)
from dibs.workloads.admission import Admitted, Asking
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads

READ, WRITE = "sandboxes:read", "sandboxes:write"
ROOT = "/api/v1/sandboxes"
_KEY = re.compile(r"[A-Za-z0-9._:/-]{1,128}", re.ASCII)
_STILL_CREATING = 60.0  # seconds that an end waits for a creation that is under way
_LONGEST_POLL = 600.0

Label = Annotated[str, Meta(max_length=1100, pattern=r"^[A-Za-z0-9._/-]{1,63}=[ -~]*$(?!\n)")]


class ListQuery(msgspec.Struct, frozen=True):
    """`all`: also those that have ended. `state` and `label` may be repeated: any of the states, all of the labels."""

    all: bool = False
    state: tuple[SandboxState, ...] = ()
    label: tuple[Label, ...] = ()
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Meta(ge=1, le=1000)] = 100


class GraceQuery(msgspec.Struct, frozen=True):
    """`grace`: between asking and killing; what the sandbox was made with if left out."""

    grace: Duration | None = None


class WaitQuery(msgspec.Struct, frozen=True):
    """`until`: ended, or ready (neither queued nor creating any more)."""

    timeout: Annotated[float, Meta(ge=0, le=_LONGEST_POLL)] = 30.0
    until: Literal["ended", "ready"] = "ended"


class EventsQuery(msgspec.Struct, frozen=True):
    after: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


@post(ROOT, status_code=202)
async def create(request: Ask) -> Response[bytes]:
    """Accept a sandbox: everything is checked and booked before the answer; it is made after it."""
    who = require(request, WRITE)
    gateway = gateway_of(request)
    query(request, NoQuery)
    key = idempotency_key(request)
    mapping = read_object(await request.body())
    base_env = environment_of(mapping)
    spec = within_ttl(parse_spec(mapping), gateway)

    def read(workloads: Workloads) -> Asking:
        return Asking(workloads=workloads.seen_by(who), spec=spec, base_env=base_env, idempotency_key=key)

    def show(asking: Asking, admitted: Admitted) -> tuple[bool, ws.Sandbox]:
        return admitted.again, one_sandbox(asking.workloads, admitted.row)

    again, view = await gateway.desk.take(read, show)
    headers = {"Location": f"{ROOT}/{view.id}"}
    if again:
        headers["Idempotency-Replayed"] = "true"
    return reply(view, 202, headers)


def idempotency_key(request: Ask) -> str:
    key = request.headers.get("idempotency-key")
    if key is None:
        return ""
    if _KEY.fullmatch(key) is None:
        remedy = "up to 128 letters, digits and . _ : / -"
        raise InvalidRequest(
            "this cannot be a key", field="Idempotency-Key", value=key[:128], code="IDEMPOTENCY_KEY_INVALID",
            remedy=remedy,
        )  # fmt: skip
    return key


def environment_of(mapping: dict[str, Any]) -> dict[str, str]:
    """Variables that the sandbox starts from, as those of the shell that asked. The request's own stand over them."""
    found = mapping.pop("base_env", {})
    if isinstance(found, dict) and all(
        isinstance(value, str) and name and "\0" not in name + value and "=" not in name
        for name, value in found.items()
    ):
        return found
    raise InvalidRequest(
        "must be a mapping of names to text", field="base_env", code="ENV_INVALID", remedy='write {"NAME": "value"}'
    )


def within_ttl(spec: SandboxSpec, gateway: Gateway) -> SandboxSpec:
    """Where the settings limit the time to live, a sandbox without one gets the longest."""
    longest = gateway.settings.gateway.max_sandbox_ttl
    if longest is None or spec.ttl_seconds is not None:
        return spec
    return msgspec.structs.replace(spec, ttl_seconds=longest)


@get(ROOT)
async def list_sandboxes(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    asked = query(request, ListQuery)
    labels = dict(pair.split("=", 1) for pair in asked.label)
    states: tuple[str, ...] = asked.state or ((*LIVE, *ENDED) if asked.all else LIVE)

    def look(workloads: Workloads) -> SandboxPage:
        offset = (asked.page - 1) * asked.page_size
        found, total = workloads.page(states=states, labels=labels, offset=offset, limit=asked.page_size)
        return SandboxPage(sandbox_views(workloads, found), asked.page, asked.page_size, total)

    return reply(await gateway_of(request).pool.call_as(who, look))


@get(ROOT + "/{ref:str}")
async def show(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    query(request, NoQuery)
    ref = reference(request)
    return reply(await gateway_of(request).pool.call_as(who, lambda w: one_sandbox(w, w.sandbox(ref))))


@delete(ROOT + "/{ref:str}", status_code=200)
async def remove(request: Ask) -> Response[bytes]:
    """Stop it if it runs, and remove its files. Its devices are free when this answers."""
    who = require(request, WRITE)
    grace = _grace(query(request, GraceQuery))
    return await _end(request, who, reference(request), lambda w, ref: w.remove(ref, grace))


@post(ROOT + "/{ref:str}/stop", status_code=200)
async def stop(request: Ask) -> Response[bytes]:
    who = require(request, WRITE)
    grace = _grace(query(request, GraceQuery))
    return await _end(request, who, reference(request), lambda w, ref: w.stop(ref, grace))


def _grace(asked: GraceQuery) -> float | None:
    return None if asked.grace is None else seconds(asked.grace, "grace")


def seconds(text: str, field: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(
            Problem("DURATION_INVALID", field, text, str(error), "write it as 90s, 10m or 1h30m")
        ) from error


async def _end(request: Ask, who: Identity, ref: str, work: Any) -> Response[bytes]:
    """An end waits for a creation that is under way: a client that does not want it any more need not ask again."""
    gateway = gateway_of(request)
    until = time.monotonic() + _STILL_CREATING

    def do(workloads: Workloads) -> ws.Sandbox:
        view = workloads.seen_by(who)
        return one_sandbox(view, work(view, view.sandbox(ref).id))

    while True:
        try:
            found = await gateway.pool.call_long(do)
        except Conflict as error:
            if error.code != "STILL_CREATING" or time.monotonic() > until or gateway.stopping:
                raise
            await gateway.changes.wait(1.0)
        else:
            gateway.dispatcher.nudge()
            return reply(found)


@post(ROOT + "/{ref:str}/pause", status_code=200)
async def pause(request: Ask) -> Response[bytes]:
    return await _act(request, lambda w, ref: w.pause(ref))


@post(ROOT + "/{ref:str}/resume", status_code=200)
async def resume(request: Ask) -> Response[bytes]:
    return await _act(request, lambda w, ref: w.resume(ref))


async def _act(request: Ask, work: Any) -> Response[bytes]:
    who = require(request, WRITE)
    query(request, NoQuery)
    ref = reference(request)

    def do(workloads: Workloads) -> ws.Sandbox:
        view = workloads.seen_by(who)
        row = view.sandbox(ref)
        work(view, row.id)
        return one_sandbox(view, view.sandbox(row.id))

    return reply(await gateway_of(request).pool.call_long(do))


@patch(ROOT + "/{ref:str}")
async def change(request: Ask) -> Response[bytes]:
    """Labels and the time to live. Both or neither are changed in the ledger's eyes: they are checked before."""
    who = require(request, WRITE)
    query(request, NoQuery)
    ref = reference(request)
    gateway = gateway_of(request)
    wanted = read_body(SandboxPatch, await request.body())
    until = _new_end(wanted, gateway)

    def do(workloads: Workloads) -> ws.Sandbox:
        row = workloads.sandbox(ref)
        if until is not UNSET:
            row = workloads.renew(row.id, until)
        if wanted.labels is not UNSET:
            row = workloads.relabel(row.id, wanted.labels)
        return one_sandbox(workloads, row)

    return reply(await gateway.pool.call_as(who, do))


def _new_end(wanted: SandboxPatch, gateway: Gateway) -> Any:
    if wanted.ttl is UNSET:
        return UNSET
    longest = gateway.settings.gateway.max_sandbox_ttl
    ttl = None if wanted.ttl is None else seconds(wanted.ttl, "ttl")
    if longest is not None and (ttl is None or ttl > longest):
        reason = f"this gateway lets a sandbox live for {longest:g} seconds at most"
        raise InvalidRequest(reason, field="ttl", value=str(wanted.ttl), code="TTL_TOO_LONG", remedy="say less")
    if ttl is not None and ttl < 1:
        raise InvalidRequest(
            "must be at least 1s", field="ttl", value=str(wanted.ttl), code="DURATION_INVALID", remedy="say more"
        )
    return None if ttl is None else time.time() + ttl


@get(ROOT + "/{ref:str}/wait")
async def wait(request: Ask) -> Response[bytes]:
    """The sandbox, as soon as it has ended (or is ready), or when the time is over: look at its state."""
    who = require(request, READ)
    asked = query(request, WaitQuery)
    ref = reference(request)
    gateway = gateway_of(request)
    until = time.monotonic() + asked.timeout
    first = await gateway.pool.call_as(who, lambda w: w.sandbox(ref))
    async with watched(request) as gone:
        row = await unless_gone(gone, _wait(gateway, who, first, asked.until, until))
    return reply(await gateway.pool.call_as(who, lambda w: one_sandbox(w, w.sandbox(row.id))))


async def _wait(gateway: Gateway, who: Identity, row: Sandbox, until: str, end: float) -> Sandbox:
    while row.live and (until == "ended" or row.state in ("queued", "creating")):
        left = end - time.monotonic()
        if left <= 0 or gateway.stopping:
            break
        await gateway.changes.wait(min(left, 5.0))
        row = await gateway.pool.call_as(who, Workloads.sandbox, row.id)
    return row


@get(ROOT + "/{ref:str}/receipt")
async def receipt(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    query(request, NoQuery)
    ref = reference(request)
    return reply(await gateway_of(request).pool.call_as(who, lambda w: w.receipt(ref)))


@get(ROOT + "/{ref:str}/events")
async def events(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    asked = query(request, EventsQuery)
    ref = reference(request)

    def look(workloads: Workloads) -> Events:
        row = workloads.sandbox(ref)
        found = workloads.ledger.events(sandbox_id=row.id, after=asked.after, limit=asked.limit)
        return Events(tuple(event_view(event) for event in found))

    return reply(await gateway_of(request).pool.call_as(who, look))


HANDLERS = (create, list_sandboxes, show, remove, stop, pause, resume, change, wait, receipt, events)

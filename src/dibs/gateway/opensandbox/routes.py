"""The routes of OpenSandbox's lifecycle API. Mounted by `app` at the root and under /v1.

Each handler reads the request, asks a thread of the pool, and answers with the one status code that the clients take
for success. A DibsError becomes `{code, message}` in `answers.refused`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from litestar import Request, Response, Router, delete, get, patch, post
from litestar.handlers import HTTPRouteHandler

from dibs.errors import Conflict, DibsError, InvalidRequest, NotFound, Problem, as_written
from dibs.gateway.auth import require
from dibs.gateway.opensandbox import (
    diagnostics,
    endpoints,
    expiry,
    listing,
    refusals,
    reports,
    rows,
    snapshots,
    types,
    views,
)
from dibs.gateway.opensandbox.answers import answer, nothing, part, refused
from dibs.gateway.opensandbox.requests import (
    Rules,
    Wanted,
    decode_object,
    metadata_problems,
    read_create,
    written_as,
)
from dibs.gateway.state import Gateway
from dibs.workloads import claims
from dibs.workloads.admission import Admitted, Asking
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads

Asked = Request[Any, Any, Any]
_UNTIL_MADE = 1.0  # seconds that the answer to a create is held back; most sandboxes run in a tenth of one
_WHILE_CREATING = 25.0  # seconds that a deletion waits for a creation to end; clients wait for 30


def gateway_of(request: Asked) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


def caller(request: Asked, scope: str) -> Identity:
    """Who asks. On this API every caller is remote: no folder of the host is shared with one."""
    return msgspec.structs.replace(require(request, scope), remote=True)


# -- creating -------------------------------------------------------------------------------------------------------


@post("/sandboxes")
async def create_sandbox(request: Asked) -> Response[bytes]:
    gateway, identity = gateway_of(request), caller(request, "sandboxes:write")
    body = await request.body()

    def read(workloads: Workloads) -> Asking:
        return _read(workloads, gateway, identity, body)

    shown = await gateway.desk.take(read, _show, _in_their_words)
    return answer(await _when_made(gateway, identity, shown), 202)


async def _when_made(gateway: Gateway, identity: Identity, shown: types.Sandbox) -> types.Sandbox:
    """As it is once it runs or has failed, if that is soon: clients that are told Pending sleep before they ask again.

    One that waits for devices is answered at once, and so is any other after a second."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _UNTIL_MADE
    pause = 0.01
    while shown.status.state == "Pending" and loop.time() < until and not gateway.stopping:
        try:
            made, later = await gateway.pool.call(_look_again, identity, shown.id)
        except NotFound:
            return shown  # it was removed meanwhile, but it was made
        if not later:
            return made
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    return shown


def _look_again(workloads: Workloads, identity: Identity, sandbox_id: str) -> tuple[types.Sandbox, bool]:
    """The sandbox as it is now, and whether that changes soon."""
    mine, row = rows.find(workloads, identity, sandbox_id)
    return rows.shown(mine, row), row.state != "queued" and endpoints.coming(row)


def _read(workloads: Workloads, gateway: Gateway, identity: Identity, body: bytes) -> Asking:
    mine = workloads.seen_by(identity)

    def kept_claim(name: str) -> dict[str, Any]:
        names = claims.kept(gateway.home)
        if name not in names:
            remedy = f"there are {', '.join(names)}" if names else "none is kept here; give the claim itself"
            raise NotFound("no claim is kept under that name", value=name, code="CLAIM_NOT_FOUND", remedy=remedy)
        return claims.read(claims.folder(gateway.home) / f"{name}.yaml")

    rules = Rules(
        images=frozenset(mine.registry.images),
        mounts_allow=gateway.settings.mounts_allow,
        longest_ttl=gateway.settings.gateway.max_sandbox_ttl,
        kept_claim=kept_claim,
        snapshot=lambda name: snapshots.source(mine, name),
    )
    wanted: Wanted = read_create(body, rules)
    return Asking(
        workloads=mine, spec=wanted.spec, annotations=wanted.annotations, idempotency_key=wanted.idempotency_key or ""
    )


def _show(asking: Asking, admitted: Admitted) -> types.Sandbox:
    if admitted.again:
        return rows.shown(asking.workloads, admitted.row)
    return views.sandbox(admitted.row, admitted.devices, rows.message_of(asking.workloads, admitted.row))


def _in_their_words(error: DibsError) -> DibsError:
    """The same error, with the fields called as the client has written them."""
    problems: list[Problem] = [
        msgspec.structs.replace(problem, field=written_as(problem.field)) for problem in error.problems
    ]
    told = DibsError.__new__(type(error))
    DibsError.__init__(told, problems)
    return told


# -- looking --------------------------------------------------------------------------------------------------------


@get("/sandboxes")
async def list_sandboxes(request: Asked) -> Response[bytes]:
    identity = caller(request, "sandboxes:read")
    pairs = [(str(name), str(value)) for name, value in request.query_params.multi_items()]
    query = listing.read_query(pairs)

    def work(workloads: Workloads) -> types.Sandboxes:
        return listing.sandboxes(workloads.seen_by(identity), query)

    return answer(await gateway_of(request).pool.call(work))


@get("/sandboxes/{sandbox_id:str}")
async def get_sandbox(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    identity = caller(request, "sandboxes:read")
    return answer(await gateway_of(request).pool.call(rows.show, identity, sandbox_id))


@get("/sandboxes/{sandbox_id:str}/endpoints/{port:str}")
async def get_endpoint(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    port = part(request, "port")
    identity = caller(request, "sandboxes:write")  # its token lets one do everything in the sandbox
    number = endpoints.port_of(port)
    endpoints.check_query(request)
    return answer(await endpoints.endpoint(request, gateway_of(request), identity, sandbox_id, number))


# -- changing -------------------------------------------------------------------------------------------------------


@delete("/sandboxes/{sandbox_id:str}", status_code=204)
async def delete_sandbox(request: Asked) -> None:
    sandbox_id = part(request, "sandbox_id")
    gateway, identity = gateway_of(request), caller(request, "sandboxes:write")
    loop = asyncio.get_running_loop()
    until = loop.time() + _WHILE_CREATING
    while True:
        try:
            await gateway.pool.call_long(rows.remove, identity, sandbox_id)
        except Conflict as error:
            if error.code != "STILL_CREATING" or loop.time() >= until:
                raise
            await asyncio.sleep(0.05)
        else:
            break
    gateway.dispatcher.nudge()  # a waiter may be served with what is free now


@patch("/sandboxes/{sandbox_id:str}/metadata")
async def patch_metadata(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    identity = caller(request, "sandboxes:write")
    change = decode_object(await request.body())
    problems = metadata_problems(change)
    for key, value in change.items():
        if value is not None and not isinstance(value, str):
            reason = "must be text, or null to remove it"
            problems.append(Problem("METADATA_INVALID", f"metadata.{key}", as_written(value), reason))
        elif not 0 < len(key) < 64 or not key.isprintable() or not (value or "").isprintable():
            reason = "a key has 1 to 63 printable characters, and a value is printable"
            problems.append(Problem("METADATA_INVALID", "metadata", key, reason))
    if problems:
        raise InvalidRequest(problems)

    def work(workloads: Workloads) -> types.Sandbox:
        mine, row = rows.find(workloads, identity, sandbox_id)
        return rows.shown(mine, mine.relabel(row.id, change))

    return answer(await gateway_of(request).pool.call(work))


@post("/sandboxes/{sandbox_id:str}/renew-expiration")
async def renew_expiration(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    identity = caller(request, "sandboxes:write")
    at = expiry.read_renewal(await request.body())

    def work(workloads: Workloads) -> types.Renewed:
        mine, row = rows.find(workloads, identity, sandbox_id)
        return expiry.renew(mine, row, at)

    return answer(await gateway_of(request).pool.call_long(work))


@post("/sandboxes/{sandbox_id:str}/pause", status_code=202)
async def pause_sandbox(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    identity = caller(request, "sandboxes:write")

    def work(workloads: Workloads) -> None:
        mine, row = rows.find(workloads, identity, sandbox_id)
        mine.pause(row.id)

    await gateway_of(request).pool.call_long(work)
    return nothing(202)


@post("/sandboxes/{sandbox_id:str}/resume", status_code=202)
async def resume_sandbox(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    identity = caller(request, "sandboxes:write")

    def work(workloads: Workloads) -> None:
        mine, row = rows.find(workloads, identity, sandbox_id)
        mine.resume(row.id)

    await gateway_of(request).pool.call_long(work)
    return nothing(202)


HANDLERS: list[HTTPRouteHandler] = [
    create_sandbox, list_sandboxes, get_sandbox, get_endpoint, delete_sandbox, patch_metadata, renew_expiration,
    pause_sandbox, resume_sandbox, *reports.HANDLERS, *diagnostics.HANDLERS, *snapshots.HANDLERS, *refusals.HANDLERS,
]  # fmt: skip


def route_handlers() -> list[Router]:
    """What `app` mounts: official servers answer bare and under /v1."""
    return [opensandbox_router("/"), opensandbox_router("/v1")]


def opensandbox_router(path: str) -> Router:
    """All routes below `path`. They are not part of our OpenAPI document: their contract is OpenSandbox's."""
    return Router(
        path=path, route_handlers=list(HANDLERS), include_in_schema=False, exception_handlers={DibsError: refused}
    )

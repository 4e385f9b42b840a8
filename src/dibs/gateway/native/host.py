"""What the host has and who has it; explaining; claims; who the caller is."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from msgspec import Meta

from dibs.backends import installed
from dibs.backends.port import Capability
from dibs.errors import DibsError, InvalidRequest, NotFound
from dibs.gateway.auth import require
from dibs.gateway.native.common import Ask, NoQuery, gateway_of, query, reply
from dibs.gateway.native.sandboxes import READ, WRITE
from dibs.gateway.native.views import device_view, lease_view, ticket_view
from dibs.plan.explanation import Explanation
from dibs.request import parse_request
from dibs.request.spec import parse_spec
from dibs.wire import devices as wd
from dibs.wire import service as wv
from dibs.wire.reading import convert, read_body, read_object
from dibs.workloads import claims
from dibs.workloads.explain import table_rows
from dibs.workloads.service import Workloads
from dibs.workloads.taints import parse_taint

DEVICES_WRITE = "devices:write"


class AllQuery(msgspec.Struct, frozen=True):
    """`all`: also what has ended."""

    all: bool = False


class TaintQuery(msgspec.Struct, frozen=True):
    """`key`: only the taints of this key; all of them if left out."""

    key: Annotated[str, Meta(max_length=316, pattern=r"^[a-zA-Z0-9./_-]*$(?!\n)")] = ""


@get("/api/v1/devices")
async def devices(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    query(request, NoQuery)

    def look(workloads: Workloads) -> wd.Devices:
        inventory, states = workloads.devices()
        return wd.Devices(
            tuple(device_view(state, who) for state in states),
            tuple(wd.SourceError(error.source, error.reason, error.remedy) for error in inventory.errors),
            inventory.simulated,
        )

    return reply(await gateway_of(request).pool.call_as(who, look))


@post("/api/v1/devices/{device:str}/taints", status_code=200)
async def taint(request: Ask) -> Response[bytes]:
    who = require(request, DEVICES_WRITE)
    query(request, NoQuery)
    wanted = parse_taint(read_body(wd.TaintRequest, await request.body()).taint)
    name = str(request.path_params["device"])

    def put_on(workloads: Workloads) -> wd.Device:
        device = workloads.taint(name, wanted)
        _, states = workloads.devices()
        return next(device_view(state, who) for state in states if state.device.id == device.id)

    return reply(await gateway_of(request).pool.call_as(who, put_on))


@delete("/api/v1/devices/{device:str}/taints", status_code=200)
async def untaint(request: Ask) -> Response[bytes]:
    who = require(request, DEVICES_WRITE)
    key = query(request, TaintQuery).key
    name = str(request.path_params["device"])
    gone = await gateway_of(request).pool.call_as(who, lambda w: w.untaint(name, key))
    return reply(wd.TaintsGone(gone))


@get("/api/v1/leases")
async def leases(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    everything = query(request, AllQuery).all
    found = await gateway_of(request).pool.call_as(who, lambda w: w.leases(all=everything))
    return reply(wd.Leases(tuple(lease_view(lease) for lease in found)))


@get("/api/v1/queue")
async def queue(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    query(request, NoQuery)
    tickets = await gateway_of(request).pool.call_as(who, lambda w: w.ledger.tickets())
    shown = tuple(ticket_view(one, place) for place, one in enumerate(tickets, 1) if who.sees(one.tenant))
    return reply(wd.Queue(shown, len(tickets)))


@delete("/api/v1/queue/{ticket:str}", status_code=200)
async def remove_ticket(request: Ask) -> Response[bytes]:
    """Take one out of the queue. The waiter is told so; a queued sandbox is removed."""
    who = require(request, WRITE)
    query(request, NoQuery)
    ticket = str(request.path_params["ticket"])

    def remove(workloads: Workloads) -> wd.Ticket:
        place, _ = workloads.ledger.place(ticket)
        return ticket_view(workloads.remove_ticket(ticket), place)

    return reply(await gateway_of(request).pool.call_as(who, remove))


@post("/api/v1/explain", status_code=200)
async def explain(request: Ask) -> Response[bytes]:
    """What would happen to a request. Nothing is created."""
    who = require(request, READ)
    query(request, NoQuery)
    spec = parse_spec(read_object(await request.body()))
    return reply(await gateway_of(request).pool.call_as(who, lambda w: w.explain(spec)))


@get("/api/v1/capabilities")
async def capabilities(request: Ask) -> Response[bytes]:
    """Which backends work here, and what each of them delivers."""
    who = require(request, READ)
    query(request, NoQuery)

    def look(workloads: Workloads) -> wv.Capabilities:
        registry = workloads.registry
        able = []
        for name in installed.names():
            try:
                found = registry.get(name).available()
            except DibsError as error:
                found = Capability(ok=False, reason=str(error))
            able.append(wv.BackendAbility(name, found.ok, found.reason, found.remedy))
        table = tuple(wv.Delivery(**row) for row in table_rows())
        return wv.Capabilities(tuple(able), tuple(registry.order), tuple(registry.images), table)

    return reply(await gateway_of(request).pool.call_as(who, look))


@get("/api/v1/whoami", sync_to_thread=False)
def whoami(request: Ask) -> Response[bytes]:
    query(request, NoQuery)
    who = request.scope["state"]["identity"]
    return reply(wv.WhoAmI(who.name, who.tenant, who.uid, tuple(sorted(who.scopes)), who.sees_all))


# -- claims ---------------------------------------------------------------------------------------------------------


@post("/api/v1/claims/check", status_code=200)
async def check_claim(request: Ask) -> Response[bytes]:
    """Every mistake in a claim, as Kubernetes would say it."""
    require(request, READ)
    query(request, NoQuery)
    claim = read_body(wv.ClaimRequest, await request.body()).claim

    def check(_: Workloads) -> wv.ClaimCheck:
        try:
            parse_request({"claim": claim})
        except InvalidRequest as error:
            found = tuple(wv.Problem(p.code, p.field, p.value, p.reason, p.remedy) for p in error.problems)
            return wv.ClaimCheck(ok=False, problems=found)
        return wv.ClaimCheck(ok=True, problems=())

    return reply(await gateway_of(request).pool.call(check))


@post("/api/v1/claims/solve", status_code=200)
async def solve_claim(request: Ask) -> Response[bytes]:
    """What the allocator would give for a claim on this host, and why. Nothing is booked."""
    who = require(request, READ)
    query(request, NoQuery)
    claim = read_body(wv.ClaimRequest, await request.body()).claim

    def solve(workloads: Workloads) -> Explanation:
        return workloads.explain(parse_spec({"claim": claim}))

    return reply(await gateway_of(request).pool.call_as(who, solve))


@get("/api/v1/claims")
async def list_claims(request: Ask) -> Response[bytes]:
    require(request, READ)
    query(request, NoQuery)
    gateway = gateway_of(request)
    return reply(wv.Claims(tuple(await gateway.pool.call(lambda w: claims.kept(w.home)))))


@get("/api/v1/claims/{name:str}")
async def show_claim(request: Ask) -> Response[bytes]:
    require(request, READ)
    query(request, NoQuery)
    name = _claim_name(request)
    return reply(await gateway_of(request).pool.call(lambda w: _load(w, name)))


@put("/api/v1/claims/{name:str}", status_code=200)
async def keep_claim(request: Ask) -> Response[bytes]:
    require(request, DEVICES_WRITE)
    query(request, NoQuery)
    name = _claim_name(request)
    claim = read_object(await request.body())

    def keep(workloads: Workloads) -> dict[str, Any]:
        claims.keep(workloads.home, name, claim)
        return claim

    return reply(await gateway_of(request).pool.call(keep))


@delete("/api/v1/claims/{name:str}", status_code=204)
async def forget_claim(request: Ask) -> None:
    require(request, DEVICES_WRITE)
    query(request, NoQuery)
    name = _claim_name(request)
    await gateway_of(request).pool.call(lambda w: claims.forget(w.home, name))


def _load(workloads: Workloads, name: str) -> dict[str, Any]:
    if name not in claims.kept(workloads.home):
        raise _unknown_claim(name)
    return claims.read(claims.folder(workloads.home) / f"{name}.yaml")


class _Name(msgspec.Struct):
    name: wv.ClaimName


def _claim_name(request: Ask) -> str:
    """A name that could lead elsewhere is as unknown as any other."""
    name = str(request.path_params["name"])
    try:
        return convert(_Name, {"name": name}, strict=True).name
    except InvalidRequest:
        raise _unknown_claim(name) from None


def _unknown_claim(name: str) -> NotFound:
    return NotFound(
        "no claim is kept under that name", field="claim", value=name[:64], code="CLAIM_NOT_FOUND",
        remedy="GET /api/v1/claims lists those that are",
    )  # fmt: skip


HANDLERS = (
    devices, taint, untaint, leases, queue, remove_ticket, explain, capabilities, whoami, check_claim, solve_claim,
    list_claims, show_claim, keep_claim, forget_claim,
)  # fmt: skip

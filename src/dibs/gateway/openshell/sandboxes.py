"""Sandboxes over gRPC: create, get, list, delete. Each asks a thread of the gateway's pool, as the HTTP handlers do.

A sandbox is known by its name, within a workspace. One that has ended is shown until it is deleted. How it is stopped
and started again is in `restarts`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from dibs.errors import Busy, Conflict, DibsError, InvalidRequest, NotFound, Problem
from dibs.gateway.logs import log
from dibs.gateway.opensandbox import rows as lookup
from dibs.gateway.opensandbox.views import DELETED
from dibs.gateway.openshell import drivers, names, restarts, schema, services, templates, views
from dibs.gateway.openshell.calls import READ, WRITE, Call, Method, Place, page_begin, page_size, page_token
from dibs.gateway.openshell.requests import Rules, read_create, unknown, with_hidden
from dibs.gateway.selectors import selector
from dibs.gateway.state import Gateway
from dibs.request.gpu import VENDORS
from dibs.sandbox import Sandbox
from dibs.workloads.admission import Admitted, Asking
from dibs.workloads.identity import Identity
from dibs.workloads.receipt import HIDDEN
from dibs.workloads.service import Workloads

_KEYS = "openshell/"  # how the idempotency keys of this API begin
_without_clients: set[asyncio.Task[None]] = set()  # the loop itself does not keep them
_UNTIL_MADE = 0.8  # seconds that a get is held back while the sandbox is being made; the SDK asks once a second
_WHILE_CREATING = 25.0  # seconds that a deletion waits for a creation to end; the SDK waits for 30


# -- finding --------------------------------------------------------------------------------------------------------


def visible(row: Sandbox) -> bool:
    return DELETED not in row.annotations and (row.live or views.KEPT in row.annotations)


def find(mine: Workloads, name: str) -> Sandbox:
    """By its name, in the tenant of `mine`: the one that lives, else the one that ended and was not deleted."""
    tenant = mine.identity.tenant
    try:
        row = mine.ledger.sandbox(name, tenant=tenant, uid=mine.identity.uid)
    except (NotFound, Conflict):  # Conflict: several begin so, which no name does
        row = None
    if row is not None and row.name == name and visible(row):
        return row
    kept = [row for row in mine.ledger.annotated(views.KEPT, tenant=tenant) if row.name == name and visible(row)]
    if not kept:
        raise NotFound("sandbox not found", field="name", value=name[:64], remedy="list them to see what there is")
    return kept[-1]


def everything(mine: Workloads, who: Identity) -> list[Sandbox]:
    """All sandboxes that the caller may see."""
    tenant = None if who.sees_all else who.tenant
    found = [*mine.ledger.sandboxes(live_only=True, tenant=tenant), *mine.ledger.annotated(views.KEPT, tenant=tenant)]
    return [row for row in found if visible(row)]


def shown(mine: Workloads, row: Sandbox, workspace: str) -> Any:
    leases = mine.ledger.leases(sandbox_id=row.id) if not row.proved and row.live else []
    devices = [device for lease in leases for device in lease.devices]
    return views.sandbox(row, workspace, devices, lookup.message_of(mine, row))


def coming(row: Sandbox) -> bool:
    """About to be there, without waiting for devices in use."""
    return row.state == "creating" or (row.state == "running" and not row.ready)


# -- creating -------------------------------------------------------------------------------------------------------


async def create(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)
    problems = services.exposure_problems(request.service_exposures)
    if problems:
        raise InvalidRequest(problems)
    template = None
    if request.workload_template:
        template = await call.gateway.pool.call(templates.find, place.who.tenant, request.workload_template)
    gateway = call.gateway

    written: dict[str, str] = {}

    def read(workloads: Workloads) -> Asking:
        return _asking(workloads, gateway, place, request, template, written)

    def refuse(error: DibsError) -> DibsError:
        return _in_their_words(error, written)

    def show(asking: Asking, admitted: Admitted) -> Any:
        if admitted.again:
            return shown(asking.workloads, admitted.row, place.name)
        waits = lookup.message_of(asking.workloads, admitted.row)
        return views.sandbox(admitted.row, place.name, admitted.devices, waits)

    taking = asyncio.get_running_loop().create_task(gateway.desk.take(read, show, refuse))
    try:
        made = await asyncio.shield(taking)
    except Busy:
        call.facts.update(await gateway.pool.call(holders, place.who))
        raise
    except asyncio.CancelledError:
        lost = not request.name and not request.request_id
        task = asyncio.get_running_loop().create_task(_without_client(gateway, place, taking, lost=lost))
        _without_clients.add(task)
        task.add_done_callback(_without_clients.discard)
        raise
    answer = schema.message("SandboxResponse")(sandbox=made)
    for one in request.service_exposures:
        answer.service_urls[one.service] = services.url(gateway, made.metadata.id, one.target_port)
    return answer


async def _without_client(gateway: Gateway, place: Place, taking: asyncio.Task[Any], *, lost: bool) -> None:
    """The rest of a create whose client hung up or ran out of time. `lost`: it knows neither a name nor an id to ask
    for again, so the sandbox would hold its devices for no one, and is taken back."""
    try:
        name = (await taking).metadata.name
    except DibsError:
        return  # nothing was made
    if not lost:
        return
    try:
        await _removed(gateway, place, name)
    except DibsError as error:
        log.warning("a sandbox that no client waits for is left: %s", error, extra={"data": {"name": name}})
    else:
        log.info("a create was taken back: its client is gone", extra={"data": {"name": name}})


def rules_of(workloads: Workloads, gateway: Gateway) -> Rules:
    settings = gateway.settings.gateway
    return Rules(
        images=frozenset(workloads.registry.images),
        default_image=settings.openshell_image,
        default_backend=settings.openshell_backend,
        backends=workloads.registry.order,
        longest_ttl=settings.max_sandbox_ttl,
    )


def _asking(
    workloads: Workloads, gateway: Gateway, place: Place, request: Any, template: Any, written: dict[str, str]
) -> Asking:
    """`written` is told how the client calls our fields."""
    mine = workloads.seen_by(place.who)
    wanted = read_create(request, rules_of(mine, gateway), template)
    spec, key = wanted.spec, request.request_id
    written.update(wanted.written)
    if not spec.name:
        spec = msgspec.structs.replace(spec, name=names.made_up(f"{place.who.tenant}/{key}" if key else ""))
    elif not key:
        _check_free(mine, spec.name)
    annotations = {
        views.KEPT: "true",
        views.SPEC: base64.b64encode(with_hidden(request.spec, HIDDEN).SerializeToString()).decode(),
    }
    if wanted.unused or wanted.blocks:
        annotations[views.NOTES] = msgspec.json.encode(views.Notes(wanted.unused, wanted.blocks)).decode()
    if wanted.annotations:
        annotations[views.THEIRS] = msgspec.json.encode(wanted.annotations).decode()
    if template is not None:
        annotations[views.TEMPLATE] = f"{template.metadata.name}@{template.metadata.resource_version}"
    if request.service_exposures:
        annotations[views.SERVICES] = services.encoded(request.service_exposures)
    return Asking(workloads=mine, spec=spec, annotations=annotations, idempotency_key=f"{_KEYS}{key}" if key else "")


def _check_free(mine: Workloads, name: str) -> None:
    """A name is taken until its sandbox is deleted. That of a live one is kept by the ledger itself."""
    try:
        find(mine, name)
    except NotFound:
        return
    raise Conflict(
        "a sandbox of that name is there", field="name", value=name, code="NAME_TAKEN",
        remedy="delete it first, or take another name",
    )  # fmt: skip


_AS_WRITTEN = {
    "gpu": "spec.resource_requirements.gpu", "devices": "spec.resource_requirements.gpu",
    "cpu": "spec.template.resources.limits.cpu", "memory": "spec.template.resources.limits.memory",
    "image": "spec.template.image", "command": "spec.command", "env": "spec.environment",
    **{driver: f"spec.template.driver_config.{driver}" for driver in drivers.SERVED},
    "cdi_devices": "spec.template.driver_config.cdi_devices", "device": "spec.resource_requirements.gpu",
    "backend": "annotations.dibs.backend", "network": "annotations.dibs.network", "wait": "annotations.dibs.wait",
    "Idempotency-Key": "request_id",
}  # fmt: skip


def _in_their_words(error: DibsError, written: Mapping[str, str]) -> DibsError:
    """The same error, with the fields called as the client has written them, or would write them."""
    problems: list[Problem] = []
    for problem in error.problems:
        head, dot, rest = problem.field.partition(".")
        field = f"{_called(head, written)}{dot}{rest}"
        remedy = problem.remedy.replace("--wait 10m", "the annotation dibs.wait: 10m, in spec.template.annotations")
        value = problem.value.removeprefix(_KEYS) if field == "request_id" else problem.value
        problems.append(msgspec.structs.replace(problem, field=field, value=value, remedy=remedy))
    told = DibsError.__new__(type(error))
    DibsError.__init__(told, problems)
    return told


def _called(ours: str, written: Mapping[str, str]) -> str:
    if ours in ("gpu", "devices", "device"):  # a request for GPUs may stand under the name of a vendor
        ours = next((key for key in ("gpu", *(f"{vendor}.com/gpu" for vendor in VENDORS)) if key in written), ours)
    return written.get(ours, _AS_WRITTEN.get(ours, ours)).removesuffix(".count")


def holders(workloads: Workloads, who: Identity) -> dict[str, str]:
    """Who has the devices now, for an error's metadata. What another tenant's are called is not told."""
    mine = workloads.seen_by(who)
    _, states = mine.devices()
    held = []
    for one in states:
        if one.holder is not None:
            told = who.owns_all or one.holder.tenant == who.tenant
            held.append(f"{one.device.id}={one.holder.sandbox_name if told else 'another tenant'}")
        elif one.state == "external":
            held.append(f"{one.device.id}={one.note}")
    free = sum(one.state == "free" for one in states)
    return {"available": str(free), "devices": str(len(states)), "held_by": ", ".join(held)}


# -- looking --------------------------------------------------------------------------------------------------------


async def get(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)
    return schema.message("SandboxResponse")(sandbox=await when_made(call.gateway, place, request.name))


async def when_made(gateway: Gateway, place: Place, name: str) -> Any:
    """As it is once it runs or has failed, if that is soon: who is told that it is being made sleeps for a second."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _UNTIL_MADE
    pause = 0.01

    def look(workloads: Workloads) -> tuple[Any, bool]:
        mine = workloads.seen_by(place.who)
        row = find(mine, name)
        return shown(mine, row, place.name), coming(row)

    while True:
        found, soon = await gateway.pool.call(look)
        if not soon or loop.time() >= until or gateway.stopping:
            return found
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.2)


async def list_(call: Call, request: Any) -> Any:
    selects = selector(request.label_selector)
    size = page_size(request.page_size)
    after = page_begin(request.page_token, tuple[float, str])
    everywhere = request.workspace_scope.WhichOneof("selection") == "all_workspaces"
    place = None if everywhere else await call.place(request.workspace_scope)
    who = call.who if place is None else place.who

    def work(workloads: Workloads) -> Any:
        mine = workloads.seen_by(who)
        rows = sorted((row for row in everything(mine, who) if selects(row.labels)), key=_order)
        rows = [row for row in rows if after is None or _order(row) > after]
        answer = schema.message("ListSandboxesResponse")()
        for row in rows[:size]:
            answer.sandboxes.append(shown(mine, row, place.name if place else row.tenant or "default"))
        if len(rows) > size:
            answer.next_page_token = page_token(_order(rows[size - 1]))
        return answer

    return await call.gateway.pool.call(work)


def _order(row: Sandbox) -> tuple[float, str]:
    return row.created_at, row.id


# -- deleting -------------------------------------------------------------------------------------------------------


async def delete(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)
    answer = schema.message("DeleteSandboxResponse")()
    try:
        answer.sandbox_id = await _removed(call.gateway, place, request.name)
    except NotFound:
        if not request.allow_missing:
            raise
        answer.outcome = schema.number("DELETION_OUTCOME_ALREADY_ABSENT")
        return answer
    answer.outcome = schema.number("DELETION_OUTCOME_COMPLETED")
    return answer


async def _removed(gateway: Gateway, place: Place, name: str) -> str:
    """Remove a sandbox, when its creation has ended if it is being made; its id."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _WHILE_CREATING
    while True:
        try:
            found = await gateway.pool.call_long(_remove, place.who, name)
        except Conflict as error:
            if error.code != "STILL_CREATING" or loop.time() >= until:
                raise
            await asyncio.sleep(0.05)
        else:
            gateway.dispatcher.nudge()  # a waiter may be served with what is free now
            return found


def _remove(workloads: Workloads, who: Identity, name: str) -> str:
    mine = workloads.seen_by(who)
    row = find(mine, name)
    try:
        mine.remove(row.id)
    except Conflict as error:
        if error.code not in ("WRONG_STATE", "CONFLICT"):
            raise
        if mine.ledger.sandbox(row.id).live:
            raise Conflict(
                "the sandbox changes just now", field="name", value=name, code="STILL_CREATING", remedy="try again"
            ) from error
    restarts.forget(mine, mine.ledger.sandbox(row.id))
    return views.sandbox_id(row)


def check_unknown(request: Any) -> None:
    """Refuse what the schema does not have."""
    problems = unknown(request)
    if problems:
        raise InvalidRequest(problems)


METHODS = (
    Method("CreateSandbox", "CreateSandboxRequest", "SandboxResponse", create, WRITE),
    Method("GetSandbox", "GetSandboxRequest", "SandboxResponse", get, READ),
    Method("ListSandboxes", "ListSandboxesRequest", "ListSandboxesResponse", list_, READ),
    Method("DeleteSandbox", "DeleteSandboxRequest", "DeleteSandboxResponse", delete, WRITE),
)

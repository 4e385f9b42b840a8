"""Ports of a sandbox by name. They map to the port proxy that the gateway has anyway; nothing is opened for them.

A service is remembered in an annotation of its sandbox, and is gone with it. Its URL takes the caller's own token, or
the sandbox's; the token is taken off before the request reaches the sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from dibs.errors import InvalidRequest, NotFound, Problem, Unsupported
from dibs.gateway.openshell import names, schema, views
from dibs.gateway.openshell.calls import DEFAULT, READ, WRITE, Call, Method, page_begin, page_size, page_token
from dibs.gateway.state import Gateway
from dibs.sandbox import Sandbox
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads


class Service(msgspec.Struct, frozen=True):
    port: int
    created_at: float


_SERVICES = msgspec.json.Decoder(dict[str, Service])


def encoded(exposures: Iterable[Any]) -> str:
    """What is remembered of the services of a new sandbox."""
    return _encode({one.service: Service(one.target_port, time.time()) for one in exposures})


def _encode(services: dict[str, Service]) -> str:
    return msgspec.json.encode(services).decode()


def of_row(row: Sandbox) -> dict[str, Service]:
    return _SERVICES.decode(row.annotations[views.SERVICES]) if views.SERVICES in row.annotations else {}


def url(gateway: Gateway, sandbox_id: str, port: int) -> str:
    """Where a port is reached over HTTP."""
    base = gateway.settings.gateway.public_url or next((one for one in gateway.urls if one.startswith("http")), "")
    if not base:
        raise Unsupported(
            "this gateway has no HTTP address at which a port could be reached", field="service",
            code="NO_HTTP_ADDRESS", remedy="start it with --listen HOST:PORT",
        )  # fmt: skip
    return f"{base.rstrip('/')}/v1/sandboxes/{sandbox_id}/proxy/{port}/"


def exposure_problems(exposures: Iterable[Any], field: str = "service_exposures") -> list[Problem]:
    """What is wrong with the ports that are to be exposed."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for place, one in enumerate(exposures):
        where = f"{field}[{place}]"
        problem = one.service and names.name_problem(one.service, f"{where}.service", 63)
        if problem:
            problems.append(problem)
        elif one.service in seen:
            problems.append(Problem("CONFLICT", f"{where}.service", one.service, "it is exposed twice", "name it once"))
        seen.add(one.service)
        problems += port_problems(one.target_port, one.authorization_mode, where)
    return problems


def port_problems(port: int, mode: int, where: str) -> list[Problem]:
    problems = []
    if not 1 <= port <= 65535:
        reason = "must be a number from 1 to 65535"
        problems.append(Problem("PORT_INVALID", f"{where}.target_port", str(port), reason))
    if mode not in (0, schema.number("SERVICE_AUTHORIZATION_MODE_STRIP")):
        reason = "the gateway's tokens are not handed to a sandbox"
        remedy = "leave it out, and have the service take a header of its own"
        problems.append(Problem("PASSTHROUGH_NOT_OFFERED", f"{where}.authorization_mode", str(mode), reason, remedy))
    return problems


async def expose(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)
    problems = port_problems(request.target_port, request.authorization_mode, "service")
    problem = request.name and names.name_problem(request.name, "name", 63)
    if problem:
        problems.append(problem)
    if problems:
        raise InvalidRequest(problems)
    if request.domain:
        raise Unsupported(
            "dibs gives services no host names", field="domain", value="true", code="DOMAIN_NOT_OFFERED",
            remedy="leave it out; the URL in the answer works everywhere",
        )  # fmt: skip

    def work(workloads: Workloads) -> Any:
        mine, row = _find(workloads, place.who, request.sandbox)
        with mine.ledger.writing():
            row = mine.ledger.sandbox(row.id)
            known = of_row(row)
            begun = known[request.name].created_at if request.name in known else time.time()
            known[request.name] = Service(request.target_port, begun)
            mine.ledger.set_annotations(row.id, {**row.annotations, views.SERVICES: _encode(known)})
        return _answer(call.gateway, place.name, row, request.name, known[request.name])

    return await call.gateway.pool.call(work)


async def get(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)

    def work(workloads: Workloads) -> Any:
        _, row = _find(workloads, place.who, request.sandbox)
        known = of_row(row)
        if request.name not in known:
            raise _unknown(request.name)
        return _answer(call.gateway, place.name, row, request.name, known[request.name])

    return await call.gateway.pool.call(work)


async def list_(call: Call, request: Any) -> Any:
    """Those of one sandbox, or of all sandboxes where none is named."""
    from dibs.gateway.openshell.sandboxes import everything

    size = page_size(request.page_size)
    after = page_begin(request.page_token, tuple[str, str, str])
    everywhere = request.workspace_scope.WhichOneof("selection") == "all_workspaces"
    place = None if everywhere else await call.place(request.workspace_scope)
    who = call.who if place is None else place.who

    def work(workloads: Workloads) -> Any:
        mine = workloads.seen_by(who)
        if request.sandbox and place is not None:
            rows = [_find(workloads, who, request.sandbox)[1]]
        else:
            rows = [row for row in everything(mine, who) if request.sandbox in ("", row.name)]
        services = [((row.tenant, row.name, name), row, one) for row in rows for name, one in of_row(row).items()]
        found = sorted(services, key=lambda one: one[0])
        rest = [one for one in found if after is None or one[0] > after]
        answer = schema.message("ListServicesResponse")()
        for (tenant, _, name), row, one in rest[:size]:
            workspace = place.name if place else tenant or DEFAULT
            answer.services.append(_answer(call.gateway, workspace, row, name, one))
        if len(rest) > size:
            answer.next_page_token = page_token(rest[size - 1][0])
        return answer

    return await call.gateway.pool.call(work)


async def delete(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)

    def work(workloads: Workloads) -> bool:
        mine, row = _find(workloads, place.who, request.sandbox)
        with mine.ledger.writing():
            row = mine.ledger.sandbox(row.id)
            known = of_row(row)
            there = known.pop(request.name, None) is not None
            if there:
                mine.ledger.set_annotations(row.id, {**row.annotations, views.SERVICES: _encode(known)})
        return there

    there = await call.gateway.pool.call(work)
    if not there and not request.allow_missing:
        raise _unknown(request.name)
    outcome = "COMPLETED" if there else "ALREADY_ABSENT"
    return schema.message("DeleteResponse")(outcome=schema.number(f"DELETION_OUTCOME_{outcome}"))


def _find(workloads: Workloads, who: Identity, sandbox: str) -> tuple[Workloads, Sandbox]:
    from dibs.gateway.openshell.sandboxes import find

    mine = workloads.seen_by(who)
    return mine, find(mine, sandbox)


def _unknown(name: str) -> NotFound:
    return NotFound(
        "there is no such service", field="name", value=name[:64], code="SERVICE_NOT_FOUND",
        remedy="list them to see what there is",
    )  # fmt: skip


def _answer(gateway: Gateway, workspace: str, row: Sandbox, name: str, one: Service) -> Any:
    found = schema.message("ServiceEndpointResponse")()
    end = found.endpoint
    end.metadata.id, end.metadata.name = f"{views.sandbox_id(row)}/{name}", name
    end.metadata.workspace = workspace
    views.stamp(end.metadata.created_time, one.created_at)
    end.sandbox_id, end.sandbox, end.name = views.sandbox_id(row), row.name, name
    end.target_port = one.port
    end.authorization_mode = schema.number("SERVICE_AUTHORIZATION_MODE_STRIP")
    found.url = url(gateway, row.id, one.port)
    return found


METHODS = (
    Method("ExposeService", "ExposeServiceRequest", "ServiceEndpointResponse", expose, WRITE),
    Method("GetService", "GetServiceRequest", "ServiceEndpointResponse", get, READ),
    Method("ListServices", "ListServicesRequest", "ListServicesResponse", list_, READ),
    Method("DeleteService", "DeleteServiceRequest", "DeleteResponse", delete, WRITE),
)

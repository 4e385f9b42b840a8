"""Workspaces: tenants with a name. `default` is always there: the caller's own tenant.

A workspace exists if the settings name the tenant, if a token has it, or if it was created here. Only an
administrator creates and deletes them, or sees more than one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.errors import Conflict, InvalidRequest
from dibs.gateway.openshell import names, schema, views
from dibs.gateway.openshell.calls import (
    ADMIN,
    DEFAULT,
    READ,
    Call,
    Method,
    page_begin,
    page_size,
    page_token,
    unknown_workspace,
)
from dibs.gateway.selectors import selector
from dibs.ledger.objects import Objects
from dibs.ledger.tokens import Tokens
from dibs.workloads.identity import HOST
from dibs.workloads.service import Workloads

KIND = "workspace"
TEMPLATE = "template"  # the kind of what `templates` keeps in a workspace
_LABELS = msgspec.json.Decoder(dict[str, str])


class Found(msgspec.Struct, frozen=True):
    name: str
    id: str = ""
    labels: dict[str, str] = {}
    created_at: float = 0.0


def everything(workloads: Workloads) -> dict[str, Found]:
    """All tenants but the host's own, by name."""
    found = {name: Found(name) for name in workloads.registry.settings.tenants}
    for token in Tokens(workloads.ledger).list():
        if token.tenant and token.revoked_at is None:
            found.setdefault(token.tenant, Found(token.tenant))
    for row in Objects(workloads.ledger).list(KIND):
        found[row.name] = Found(row.name, row.id, _LABELS.decode(row.body), row.created_at)
    return found


def exists(workloads: Workloads, name: str) -> bool:
    return name in everything(workloads)


async def create(call: Call, request: Any) -> Any:
    problem = names.name_problem(request.name, "name", names.LONGEST_WORKSPACE)
    if problem:
        raise InvalidRequest(problem)
    check_labels(request.labels)
    labels = dict(request.labels)

    def work(workloads: Workloads) -> Found:
        if request.name == DEFAULT or exists(workloads, request.name):
            raise Conflict(
                "a workspace of that name is there", field="name", value=request.name, code="NAME_TAKEN",
                remedy="take another name",
            )  # fmt: skip
        row = Objects(workloads.ledger).add(KIND, HOST, request.name, msgspec.json.encode(labels).decode())
        return Found(row.name, row.id, labels, row.created_at)

    return _answer(await call.gateway.pool.call(work))


async def get(call: Call, request: Any) -> Any:
    tenant = await call.tenant_of(request.name)
    if request.name == DEFAULT:
        return _answer(Found(DEFAULT))
    found = await call.gateway.pool.call(everything)
    return _answer(found.get(tenant, Found(tenant)))


async def list_(call: Call, request: Any) -> Any:
    selects = selector(request.label_selector)
    size = page_size(request.page_size)
    known = await call.gateway.pool.call(everything)
    if not call.who.sees_all:
        tenant = call.who.tenant
        known = {tenant: known.get(tenant, Found(tenant))} if tenant else {}
    after = page_begin(request.page_token, str) or ""
    found = [one for one in (Found(DEFAULT), *known.values()) if selects(one.labels) and one.name > after]
    found.sort(key=lambda one: one.name)
    answer = schema.message("ListWorkspacesResponse")()
    for one in found[:size]:
        answer.workspaces.append(_message(one))
    if len(found) > size:
        answer.next_page_token = page_token(found[size - 1].name)
    return answer


async def delete(call: Call, request: Any) -> Any:
    def work(workloads: Workloads) -> bool:
        name = request.name
        if name == DEFAULT:
            raise Conflict("it is always there", field="name", value=name, code="WORKSPACE_PERMANENT")
        books = Objects(workloads.ledger)
        with workloads.ledger.writing():
            if books.find(KIND, HOST, name) is None:
                if exists(workloads, name):
                    raise Conflict(
                        "the settings or a token name this tenant", field="name", value=name,
                        code="WORKSPACE_PERMANENT", remedy="revoke its tokens, and take it out of the settings",
                    )  # fmt: skip
                return False
            inside = [row.name for row in workloads.ledger.sandboxes(live_only=True, tenant=name)]
            inside += [row.name for row in workloads.ledger.annotated(views.KEPT, tenant=name)]
            if inside:
                raise Conflict(
                    f"there are sandboxes in it: {', '.join(sorted(inside)[:5])}", field="name", value=name,
                    code="WORKSPACE_NOT_EMPTY", remedy="delete them first",
                )  # fmt: skip
            for row in books.list(TEMPLATE, name):
                books.remove(TEMPLATE, name, row.name)
            return books.remove(KIND, HOST, name)

    gone = await call.gateway.pool.call(work)
    if not gone and not request.allow_missing:
        raise unknown_workspace(request.name)
    outcome = "COMPLETED" if gone else "ALREADY_ABSENT"
    return schema.message("DeleteResponse")(outcome=schema.number(f"DELETION_OUTCOME_{outcome}"))


def check_labels(labels: Any, field: str = "labels") -> None:
    """Labels are short texts on one line, as those of sandboxes."""
    for key, value in labels.items():
        if not 0 < len(key) < 254 or not key.isprintable() or len(value) > 253 or not (value + "x").isprintable():
            raise InvalidRequest(
                "a key has 1 to 253 printable characters, and a value 253 at most", field=field, value=key[:64],
                code="LABEL_INVALID",
            )  # fmt: skip


def _message(found: Found) -> Any:
    one = schema.message("Workspace")()
    one.metadata.id, one.metadata.name, one.metadata.workspace = found.id or found.name, found.name, found.name
    one.metadata.labels.update(found.labels)
    if found.created_at:
        views.stamp(one.metadata.created_time, found.created_at)
    one.status.phase = schema.number("WORKSPACE_PHASE_ACTIVE")
    return one


def _answer(found: Found) -> Any:
    return schema.message("WorkspaceResponse")(workspace=_message(found))


METHODS = (
    Method("CreateWorkspace", "CreateWorkspaceRequest", "WorkspaceResponse", create, ADMIN),
    Method("GetWorkspace", "GetWorkspaceRequest", "WorkspaceResponse", get, READ),
    Method("ListWorkspaces", "ListWorkspacesRequest", "ListWorkspacesResponse", list_, READ),
    Method("DeleteWorkspace", "DeleteWorkspaceRequest", "DeleteResponse", delete, ADMIN),
)

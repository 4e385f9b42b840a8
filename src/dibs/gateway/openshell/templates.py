"""Workload templates: an image, an environment and the typed triple of cpu, memory and GPUs, kept in a workspace.

What a template asks for is checked when it is kept, by the same function as a sandbox's request. Everyone who may read
the workspace reads its values, so it is no place for secrets.
"""

from __future__ import annotations

import base64
from typing import Any

from dibs.errors import InvalidRequest, NotFound, Problem
from dibs.gateway.openshell import names, schema, views
from dibs.gateway.openshell.calls import DEFAULT, READ, WRITE, Call, Method, page_begin, page_size, page_token
from dibs.gateway.openshell.requests import Rules, read_create
from dibs.gateway.openshell.workspaces import TEMPLATE, check_labels
from dibs.gateway.selectors import selector
from dibs.ledger.objects import ObjectRow, Objects
from dibs.workloads.service import Workloads

_LARGEST = 256 << 10  # bytes of one template


async def create(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)
    template = request.template
    check(template)
    kept = schema.message("SandboxWorkloadTemplate")()
    kept.CopyFrom(template)

    def work(workloads: Workloads) -> Any:
        mine = workloads.seen_by(place.who)
        asked = schema.message("CreateSandboxRequest")()
        read_create(asked, Rules(images=frozenset(mine.registry.images)), kept)
        body = base64.b64encode(kept.SerializeToString()).decode()
        row = Objects(mine.ledger).add(TEMPLATE, place.who.tenant, template.metadata.name, body)
        return _message(row, place.name)

    return schema.message("SandboxTemplateResponse")(template=await call.gateway.pool.call(work))


def check(template: Any) -> None:
    """Refuse what cannot be kept, whatever it asks for."""
    problems = []
    problem = names.name_problem(template.metadata.name, "template.metadata.name", 63)
    if problem:
        problems.append(problem)
    if not template.spec.HasField("workload"):
        reason = "there is no workload in it"
        problems.append(Problem("FIELD_MISSING", "template.spec.workload", "", reason, "it may be empty"))
    if template.ByteSize() > _LARGEST:
        reason = f"it is larger than {_LARGEST} bytes"
        problems.append(Problem("TEMPLATE_TOO_LARGE", "template", "", reason, "leave something out"))
    for field in ("id", "workspace", "resource_version", "created_time", "deletion_time"):
        descriptor = template.metadata.DESCRIPTOR.fields_by_name[field]
        if any(found is descriptor or found.name == field for found, _ in template.metadata.ListFields()):
            reason = "the gateway says this, not the client"
            problems.append(Problem("FIELD_READ_ONLY", f"template.metadata.{field}", "", reason, "leave it out"))
    if problems:
        raise InvalidRequest(problems)
    check_labels(template.metadata.labels, "template.metadata.labels")
    check_labels(template.metadata.annotations, "template.metadata.annotations")
    for key in template.metadata.annotations:
        if key.startswith("dibs."):
            raise InvalidRequest(
                "a template's annotations do not reach its sandboxes", field=f"template.metadata.annotations.{key}",
                code="UNKNOWN_ANNOTATION", remedy="put it into the request that creates a sandbox from the template",
            )  # fmt: skip


def find(workloads: Workloads, tenant: str, name: str) -> Any:
    """A template as it is kept; raises NotFound."""
    row = Objects(workloads.ledger).find(TEMPLATE, tenant, name)
    if row is None:
        raise _unknown(name)
    return _message(row, tenant or DEFAULT)


def _message(row: ObjectRow, workspace: str) -> Any:
    found = schema.message("SandboxWorkloadTemplate").FromString(base64.b64decode(row.body))
    found.metadata.id, found.metadata.workspace = row.id, workspace
    found.metadata.resource_version = int(row.created_at * 1000)
    views.stamp(found.metadata.created_time, row.created_at)
    return found


async def get(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)
    found = await call.gateway.pool.call(find, place.who.tenant, request.name)
    found.metadata.workspace = place.name
    return schema.message("SandboxTemplateResponse")(template=found)


async def list_(call: Call, request: Any) -> Any:
    selects = selector(request.label_selector)
    size = page_size(request.page_size)
    everywhere = request.workspace_scope.WhichOneof("selection") == "all_workspaces"
    place = None if everywhere else await call.place(request.workspace_scope)
    who = call.who if place is None else place.who
    tenant = None if who.sees_all else who.tenant

    def work(workloads: Workloads) -> list[ObjectRow]:
        return Objects(workloads.ledger).list(TEMPLATE, tenant)

    answer = schema.message("ListSandboxTemplatesResponse")()
    after, last = page_begin(request.page_token, tuple[str, str]), ("", "")
    for row in await call.gateway.pool.call(work):
        key = (row.tenant, row.name)
        found = _message(row, place.name if place else row.tenant or DEFAULT)
        if (after is not None and key <= after) or not selects(found.metadata.labels):
            continue
        if len(answer.templates) == size:
            answer.next_page_token = page_token(last)
            break
        answer.templates.append(found)
        last = key
    return answer


async def delete(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)

    def work(workloads: Workloads) -> bool:
        return Objects(workloads.ledger).remove(TEMPLATE, place.who.tenant, request.name)

    gone = await call.gateway.pool.call(work)
    if not gone and not request.allow_missing:
        raise _unknown(request.name)
    outcome = "COMPLETED" if gone else "ALREADY_ABSENT"
    return schema.message("DeleteResponse")(outcome=schema.number(f"DELETION_OUTCOME_{outcome}"))


def _unknown(name: str) -> NotFound:
    return NotFound(
        "there is no such template", field="workload_template", value=name[:64], code="TEMPLATE_NOT_FOUND",
        remedy="list them to see what there is",
    )  # fmt: skip


METHODS = (
    Method("CreateSandboxTemplate", "CreateSandboxTemplateRequest", "SandboxTemplateResponse", create, WRITE),
    Method("GetSandboxTemplate", "GetSandboxTemplateRequest", "SandboxTemplateResponse", get, READ),
    Method("ListSandboxTemplates", "ListSandboxTemplatesRequest", "ListSandboxTemplatesResponse", list_, READ),
    Method("DeleteSandboxTemplate", "DeleteSandboxTemplateRequest", "DeleteResponse", delete, WRITE),
)

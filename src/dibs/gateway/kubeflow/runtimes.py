"""Runtimes: those that come with dibs, and those that an administrator has written. Everyone else reads them.

A runtime that comes with dibs cannot be changed or deleted; one of the same name in a namespace is another thing.
"""

from __future__ import annotations

from typing import Any

from litestar import Response, delete, get, patch, post, put

from dibs.errors import InvalidRequest
from dibs.gateway.auth import require
from dibs.gateway.kubeflow import clusters, requests, selectors
from dibs.gateway.kubeflow.changes import merged
from dibs.gateway.kubeflow.namespaces import ADMIN, READ, namespace_of, tenant_in
from dibs.gateway.kubeflow.resources import CLUSTER_RUNTIMES, RUNTIMES, Resource
from dibs.gateway.kubeflow.status import deleted
from dibs.gateway.kubeflow.times import stamp
from dibs.gateway.native.common import Ask, gateway_of
from dibs.train.refusals import Refusals
from dibs.train.review import Review, review_runtime
from dibs.workloads.identity import HOST, Identity
from dibs.workloads.runtimes import Kept, Runtimes
from dibs.workloads.service import Workloads

Json = dict[str, Any]

_KINDS = {one.plural: one for one in (RUNTIMES, CLUSTER_RUNTIMES)}
_LISTS = [RUNTIMES.listed, CLUSTER_RUNTIMES.listed]
_ONES = [RUNTIMES.one, CLUSTER_RUNTIMES.one]


def resource_in(request: Ask) -> Resource:
    """Which of the two kinds the path names."""
    named = request.scope["path_template"].removesuffix("/{name}").rpartition("/")[2]
    return _KINDS[named]


def view(resource: Resource, kept: Kept) -> Json:
    """A runtime as the API shows it."""
    metadata: Json = {**kept.runtime["metadata"], "uid": kept.uid, "resourceVersion": kept.version, "generation": 1}
    if resource.namespaced:
        metadata["namespace"] = namespace_of(kept.tenant)
    if kept.created_at:
        metadata["creationTimestamp"] = stamp(kept.created_at)
    return {**kept.runtime, "metadata": metadata}


def _tenant(request: Ask, who: Identity, resource: Resource) -> str:
    return tenant_in(request, who) if resource.namespaced else HOST


@get([*_LISTS, RUNTIMES.everywhere])
async def list_runtimes(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    resource = resource_in(request)
    asked = requests.query(request, requests.ListQuery)
    selectors.check_list(asked, watchable=False)
    everywhere = resource.namespaced and "namespace" not in request.path_params
    tenant = (None if who.sees_all else who.tenant) if everywhere else _tenant(request, who, resource)

    def read(workloads: Workloads) -> list[Kept]:
        return Runtimes(workloads.ledger).list(resource.kind, tenant)

    pool = gateway_of(request).pool
    found = [view(resource, one) for one in await pool.call(read)]
    if await pool.call(clusters.names):
        there = await pool.call_long(clusters.runtimes, resource.kind, tenant)
        first, then = (there, found) if await pool.call(_clusters_first) else (found, there)
        known = {(one["metadata"].get("namespace"), one["metadata"]["name"]) for one in first}
        more = [one for one in then if (one["metadata"].get("namespace"), one["metadata"]["name"]) not in known]
        found = sorted([*first, *more], key=lambda one: str(one["metadata"]["name"]))
    items = [one for one in found if selectors.matches(asked, one)]
    version = max((int(one["metadata"]["resourceVersion"]) for one in items), default=1)
    return requests.show_list(request, resource, items, str(version))


@get(_ONES)
async def get_runtime(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    requests.query(request, requests.GetQuery)
    resource = resource_in(request)
    tenant, name = _tenant(request, who, resource), requests.name_in(request)
    pool = gateway_of(request).pool
    there = None
    if await pool.call(clusters.names):
        there = await pool.call_long(clusters.runtime, resource.kind, tenant, name)
        own = await pool.call(lambda workloads: Runtimes(workloads.ledger).find(resource.kind, tenant, name))
        if there is not None and (own is None or await pool.call(_clusters_first)):
            return requests.show(request, resource, there)
    found = await _find(request, resource, tenant, name)
    return requests.show(request, resource, view(resource, found))


def _clusters_first(workloads: Workloads) -> bool:
    """Where jobs go to a cluster by default, its runtime stands before one of the same name that is kept here."""
    order = workloads.registry.order
    return bool(order) and order[0] in clusters.names(workloads)


async def _find(request: Ask, resource: Resource, tenant: str, name: str) -> Kept:
    def read(workloads: Workloads) -> Kept | None:
        return Runtimes(workloads.ledger).find(resource.kind, tenant, name)

    found = await gateway_of(request).pool.call(read)
    if found is None:
        raise requests.missing(resource, name)
    return found


@post(_LISTS, status_code=201)
async def create_runtime(request: Ask) -> Response[bytes]:
    who = require(request, ADMIN)
    resource = resource_in(request)
    asked = requests.query(request, requests.WriteQuery)
    tenant = _tenant(request, who, resource)
    value = await requests.body(request)
    review = _reviewed(resource, value, None, namespace_of(tenant))
    runtime = review.job
    if asked.dryRun:
        return requests.show(request, resource, runtime, 201, review.warnings)

    def keep(workloads: Workloads) -> Kept:
        return Runtimes(workloads.ledger).add(resource.kind, tenant, runtime)

    kept = await gateway_of(request).pool.call(keep)
    return requests.show(request, resource, view(resource, kept), 201, review.warnings)


@put(_ONES)
async def replace_runtime(request: Ask) -> Response[bytes]:
    require(request, ADMIN)
    value = await requests.body(request)
    return await _change(request, lambda _: value)


@patch(_ONES)
async def patch_runtime(request: Ask) -> Response[bytes]:
    require(request, ADMIN)
    change = await merged(request)
    return await _change(request, change)


async def _change(request: Ask, change: Any) -> Response[bytes]:
    who = require(request, ADMIN)
    resource = resource_in(request)
    asked = requests.query(request, requests.WriteQuery)
    tenant, name = _tenant(request, who, resource), requests.name_in(request)
    before = await _find(request, resource, tenant, name)
    value = change(view(resource, before))
    _check_version(value, before.version)
    if isinstance(value.get("metadata"), dict) and value["metadata"].get("name") not in (None, name):
        reason = f'must be "{name}", as in the path'
        raise InvalidRequest(reason, field="metadata.name", value=str(value["metadata"]["name"]), code="NAME_INVALID")
    review = _reviewed(resource, value, before.runtime, namespace_of(tenant))
    if asked.dryRun:
        return requests.show(request, resource, review.job, 200, review.warnings)

    def keep(workloads: Workloads) -> Kept:
        return Runtimes(workloads.ledger).change(before, review.job)

    kept = await gateway_of(request).pool.call(keep)
    return requests.show(request, resource, view(resource, kept), 200, review.warnings)


@delete(_ONES, status_code=200)
async def delete_runtime(request: Ask) -> Response[bytes]:
    who = require(request, ADMIN)
    resource = resource_in(request)
    options = await requests.delete_options(request)
    tenant, name = _tenant(request, who, resource), requests.name_in(request)
    before = await _find(request, resource, tenant, name)
    requests.check_preconditions(options, before.uid, before.version)
    if not options.dryRun:
        await gateway_of(request).pool.call(lambda workloads: Runtimes(workloads.ledger).remove(before))
    return requests.reply(deleted(name, before.uid, resource.group, resource.plural))


def _reviewed(resource: Resource, value: Json, old: Json | None, namespace: str) -> Review:
    """Judged, without what the server itself fills in."""
    plain = requests.without_server_fields(value, namespace if resource.namespaced else "")
    if plain.get("kind") not in (None, resource.kind):
        reason = f"must be {resource.kind}, as in the path"
        raise InvalidRequest(reason, field="kind", value=str(plain["kind"]), code="KIND_INVALID")
    review = review_runtime(plain, old=old)
    Refusals(review.refusals).check()
    return review


def _check_version(value: Json, version: str) -> None:
    metadata = value.get("metadata")
    requests.check_version(metadata.get("resourceVersion") if isinstance(metadata, dict) else None, version)


HANDLERS = (list_runtimes, get_runtime, create_runtime, replace_runtime, patch_runtime, delete_runtime)

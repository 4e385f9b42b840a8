"""A list or a watch of a collection, as it was asked for. `trainjobs` and `pods` use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from litestar import Response
from litestar.response import Stream

from dibs.errors import InvalidRequest
from dibs.gateway.kubeflow import requests, selectors, tables, watch
from dibs.gateway.kubeflow.namespaces import home_of, namespace_of, tenant_in
from dibs.gateway.kubeflow.resources import Resource
from dibs.gateway.kubeflow.watch import Collection
from dibs.gateway.native.common import Ask, gateway_of
from dibs.workloads.identity import Identity


async def answer_list(request: Ask, who: Identity, resource: Resource, collection: Collection) -> Response[Any]:
    """Of the namespace in the path; without one of all that the caller sees."""
    asked = requests.query(request, requests.ListQuery)
    selectors.check_list(asked)
    if "namespace" in request.path_params:
        namespace: str | None = namespace_of(tenant_in(request, who))
    else:
        namespace = None if who.sees_all else home_of(who)
    if asked.watch:
        return await _watched(request, resource, collection, asked, namespace)
    await collection.refresh()
    items = [one for one in collection.items(namespace) if selectors.matches(asked, one)]
    items.sort(key=lambda one: (one["metadata"]["namespace"], one["metadata"]["name"]))
    return requests.show_list(request, resource, items, str(collection.version))


async def _watched(
    request: Ask, resource: Resource, collection: Collection, asked: requests.ListQuery, namespace: str | None
) -> Response[Any]:
    if asked.resourceVersion and not (asked.resourceVersion.isascii() and asked.resourceVersion.isdigit()):
        reason = "this is not a resource version"
        raise InvalidRequest(reason, field="resourceVersion", value=asked.resourceVersion[:64], code="FIELD_INVALID")
    as_table = tables.wanted(request.headers.get("accept", ""))
    lines = watch.stream(gateway_of(request), collection, resource, asked, namespace, as_table)
    await anext(lines)

    async def whole() -> AsyncIterator[bytes]:
        try:
            async for line in lines:
                yield line
        finally:
            await lines.aclose()  # type: ignore[attr-defined]

    return Stream(whole(), media_type="application/json;stream=watch")

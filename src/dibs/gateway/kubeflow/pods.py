"""The ranks of training jobs, as pods: listed, watched, looked at. They come and go with their job, and only so."""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from dibs.gateway.auth import require
from dibs.gateway.kubeflow import requests
from dibs.gateway.kubeflow.collections import pods_of
from dibs.gateway.kubeflow.listing import answer_list
from dibs.gateway.kubeflow.namespaces import READ, namespace_of, tenant_in
from dibs.gateway.kubeflow.resources import PODS
from dibs.gateway.native.common import Ask, gateway_of
from dibs.workloads.identity import Identity

Json = dict[str, Any]


@get([PODS.listed, PODS.everywhere])
async def list_pods(request: Ask) -> Response[Any]:
    who = require(request, READ)
    return await answer_list(request, who, PODS, pods_of(gateway_of(request)))


@get(PODS.one)
async def get_pod(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    requests.query(request, requests.GetQuery)
    return requests.show(request, PODS, await find(request, who))


async def find(request: Ask, who: Identity) -> Json:
    """The pod in the path."""
    namespace, name = namespace_of(tenant_in(request, who)), requests.name_in(request)
    collection = pods_of(gateway_of(request))
    await collection.refresh()
    found = collection.find(namespace, name)
    if found is None:
        raise requests.missing(PODS, name)
    return found


HANDLERS = (list_pods, get_pod)

"""What happened to training jobs and their ranks, as events of the core API."""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from dibs.gateway.auth import require
from dibs.gateway.kubeflow import clusters, requests, selectors, views
from dibs.gateway.kubeflow.collections import jobs_of, newest
from dibs.gateway.kubeflow.namespaces import READ, namespace_of, tenant_in, tenant_named
from dibs.gateway.kubeflow.resources import EVENTS
from dibs.gateway.native.common import Ask, gateway_of
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads

Json = dict[str, Any]


@get([EVENTS.listed, EVENTS.everywhere])
async def list_events(request: Ask) -> Response[Any]:
    """Oldest first. Those of a job that was deleted are gone with it."""
    who = require(request, READ)
    asked = requests.query(request, requests.ListQuery)
    selectors.check_list(asked, watchable=False)
    tenant = tenant_in(request, who) if "namespace" in request.path_params else None

    def read(workloads: Workloads) -> list[Json]:
        found = []
        for job in newest(workloads):
            if tenant is None or job.tenant == tenant:
                found += [views.event(job, one) for one in Jobs(workloads).events(job.id)]
        return found

    gateway = gateway_of(request)
    found = await gateway.pool.call_as(who, read)
    found.sort(key=lambda one: int(one["metadata"]["resourceVersion"]))
    if any(one.jobs for one in gateway.settings.clusters.values()):
        collection = jobs_of(gateway)
        await collection.refresh()
        place = None if tenant is None and who.sees_all else namespace_of(who.tenant if tenant is None else tenant)
        found += await gateway.pool.call_long(clusters.events, collection.items(place), tenant_named)
        found.sort(key=lambda one: str(one["lastTimestamp"]))
    items = [one for one in found if selectors.matches(asked, one)]
    version = items[-1]["metadata"]["resourceVersion"] if items else "1"
    return requests.show_list(request, EVENTS, items, version)


HANDLERS = (list_events,)

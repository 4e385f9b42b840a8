"""The two collections that can be watched: all training jobs, and all their pods. One of each per gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from dibs.gateway.kubeflow import clusters, views
from dibs.gateway.kubeflow.watch import Collection
from dibs.gateway.state import Gateway
from dibs.workloads.jobs.model import Job
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads

Json = dict[str, Any]

_ALL: WeakKeyDictionary[Gateway, dict[str, Collection]] = WeakKeyDictionary()


def jobs_of(gateway: Gateway) -> Collection:
    return _of(gateway, "jobs", lambda jobs: [views.train_job(job) for job in jobs])


def pods_of(gateway: Gateway) -> Collection:
    return _of(gateway, "pods", lambda jobs: [pod for job in jobs for pod in views.pods(job)])


def _of(gateway: Gateway, name: str, show: Callable[[list[Job]], list[Json]]) -> Collection:
    own = _ALL.setdefault(gateway, {})
    if name not in own:

        def read(workloads: Workloads) -> list[Json]:
            return show(newest(workloads))

        async def ask() -> list[Json]:
            found = await gateway.pool.call_as(gateway.auth.me, read)
            if any(one.jobs for one in gateway.settings.clusters.values()):
                more = await gateway.pool.call_long(clusters.listed, gateway.auth.me, name)
                found = [*more, *found]
            return found

        own[name] = Collection(ask, gateway.changes.look)
    return own[name]


def newest(workloads: Workloads) -> list[Job]:
    """All jobs that the caller sees, one of each name and tenant: the live one, else the newest."""
    found: dict[tuple[str, str], Job] = {}
    for job in Jobs(workloads).list():  # oldest first
        before = found.get((job.tenant, job.name))
        if before is None or job.live or not before.live:
            found[job.tenant, job.name] = job
    return list(found.values())

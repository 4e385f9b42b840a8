"""Training jobs that a cluster runs for the tenants of this gateway: where the nouns of this package go on to it.

Everything here talks to an API server, so it is called in the threads for long work. The settings say which clusters
take part (`jobs = true`); a gateway without one never comes here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dibs.errors import Conflict
from dibs.gateway.kubeflow import cluster_views
from dibs.gateway.kubeflow.namespaces import tenants_of
from dibs.settings import Quota
from dibs.train.job_annotations import BACKEND
from dibs.workloads.cluster_jobs import tenants
from dibs.workloads.cluster_jobs.service import Submitted
from dibs.workloads.identity import Identity
from dibs.workloads.runtimes import Runtimes
from dibs.workloads.service import Workloads

Json = dict[str, Any]


def names(workloads: Workloads) -> tuple[str, ...]:
    """The clusters that take part, in the order of `auto`."""
    return tenants.of_settings(workloads.registry.settings, workloads.registry.order)


def backend_of(workloads: Workloads, value: Json) -> str:
    """The cluster that a shown job or pod is on; empty for one without a cluster."""
    said = value.get("status", {}).get("dibs", {}).get("backend") or value["metadata"].get("annotations", {}).get(
        BACKEND
    )
    return said if said in names(workloads) else ""


def listed(workloads: Workloads, who: Identity, kind: str) -> list[Json]:
    """All jobs, or all their pods, of the tenants that a caller sees."""
    found: list[Json] = []
    known = set(tenants_of(who, workloads))
    for name in names(workloads):
        with tenants.opened(workloads.registry.settings, name) as cluster:
            for one in cluster.records():
                tenant = cluster.tenant_of(one.namespace)
                if tenant in known:
                    show = cluster_views.pods(one, tenant) if kind == "pods" else [cluster_views.train_job(one, tenant)]
                    found += show
    return found


def events(workloads: Workloads, jobs: list[Json], tenant_of: Any) -> list[Json]:
    """What their clusters tell of jobs of this API."""
    found: list[Json] = []
    for name in names(workloads):
        own: dict[str, list[str]] = {}
        for job in jobs:
            if backend_of(workloads, job) == name:
                own.setdefault(tenant_of(job["metadata"]["namespace"]), []).append(job["metadata"]["name"])
        if own:
            with tenants.opened(workloads.registry.settings, name) as cluster:
                for tenant, some in own.items():
                    told = cluster.events(cluster.namespace_of(tenant), some)
                    found += [cluster_views.event(one, tenant) for one in told]
    return found


def explained(workloads: Workloads, value: Json, tenant: str) -> Json:
    """A job with what only a closer look tells of its ranks."""
    name = backend_of(workloads, value)
    with tenants.opened(workloads.registry.settings, name) as cluster:
        return cluster_views.explained(value, cluster.jobs(tenant).show(value["metadata"]["name"]))


def log(workloads: Workloads, backend: str, tenant: str, pod: str, asked: dict[str, Any]) -> Iterator[bytes]:
    with tenants.opened(workloads.registry.settings, backend) as cluster:
        yield from cluster.log(cluster.namespace_of(tenant), pod, asked)


def runtimes(workloads: Workloads, kind: str, tenant: str | None) -> list[Json]:
    """Those that the clusters have."""
    found: list[Json] = []
    for name in names(workloads):
        with tenants.opened(workloads.registry.settings, name) as cluster:
            for one in cluster.runtimes(kind, tenant):
                namespace = one["metadata"].get("namespace", "")
                found.append(cluster_views.runtime(one, cluster.tenant_of(namespace) if namespace else ""))
    return found


def runtime(workloads: Workloads, kind: str, tenant: str, name: str) -> Json | None:
    for backend in names(workloads):
        with tenants.opened(workloads.registry.settings, backend) as cluster:
            found = cluster.runtime(kind, tenant, name)
            if found is not None:
                return cluster_views.runtime(found, tenant)
    return None


def submit(
    workloads: Workloads, backend: str, tenant: str, value: Json, *, trusted: bool, dry_run: bool = False
) -> Submitted:
    """A runtime of the cluster goes before one of the gateway, which a job takes along."""
    quota: Quota | None = workloads.registry.settings.tenants.get(tenant)
    kept = Runtimes(workloads.ledger)
    with tenants.opened(workloads.registry.settings, backend) as cluster:
        cluster.check_tenant(tenant, quota, value, trusted=trusted)
        return cluster.jobs(tenant).submit(
            value, fallback=lambda kind, name: kept.runtime(kind, tenant, name), dry_run=dry_run
        )


def suspend(workloads: Workloads, backend: str, before: Json, after: Json, tenant: str) -> None:
    """The one change that a cluster takes from here. Raises Conflict for any other."""
    was, is_now = (_without_suspend(one) for one in (before, after))
    if was != is_now:
        raise Conflict(
            "of a job on a cluster only spec.suspend can be changed here", field="spec", value="",
            code="WRONG_STATE", remedy="delete it, and create another",
        )  # fmt: skip
    wanted = bool(after["spec"].get("suspend"))
    if wanted != before["spec"]["suspend"]:
        with tenants.opened(workloads.registry.settings, backend) as cluster:
            cluster.jobs(tenant).suspend(before["metadata"]["name"], suspended=wanted)


def _without_suspend(value: Json) -> Json:
    metadata = {key: value["metadata"].get(key) for key in ("labels", "annotations")}
    return {**metadata, **{key: item for key, item in value["spec"].items() if key != "suspend"}}


def remove(workloads: Workloads, value: Json, tenant: str) -> None:
    with tenants.opened(workloads.registry.settings, backend_of(workloads, value)) as cluster:
        cluster.remove(tenant, value["metadata"]["name"])

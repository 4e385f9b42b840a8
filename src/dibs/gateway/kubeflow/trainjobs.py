"""TrainJobs: created, listed, watched, suspended, deleted. A job is judged as a whole before anything is written.

`train.review` judges, `workloads.jobs` runs. A deletion is answered when the job is gone and its devices are free.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Response, delete, get, patch, post, put

from dibs.errors import Conflict, DibsError, InvalidRequest, Unsupported
from dibs.gateway.auth import require
from dibs.gateway.kubeflow import clusters, requests, views
from dibs.gateway.kubeflow.changes import merged
from dibs.gateway.kubeflow.collections import jobs_of
from dibs.gateway.kubeflow.listing import answer_list
from dibs.gateway.kubeflow.namespaces import READ, WRITE, acting_in, namespace_of, tenant_in
from dibs.gateway.kubeflow.resources import TRAIN_JOBS
from dibs.gateway.kubeflow.status import deleted
from dibs.gateway.kubeflow.submission import claims_of, options_of, reviewed
from dibs.gateway.native.common import Ask, gateway_of
from dibs.train.job_annotations import BACKEND
from dibs.train.refusals import TrainRefused
from dibs.workloads.cluster_jobs.service import Submitted
from dibs.workloads.identity import Identity
from dibs.workloads.jobs.model import Job, Objects
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads

Json = dict[str, Any]

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes makes names up


@get([TRAIN_JOBS.listed, TRAIN_JOBS.everywhere])
async def list_jobs(request: Ask) -> Response[Any]:
    who = require(request, READ)
    return await answer_list(request, who, TRAIN_JOBS, jobs_of(gateway_of(request)))


@get(TRAIN_JOBS.one)
async def get_job(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    requests.query(request, requests.GetQuery)
    found, tenant = await _find(request, who)
    pool = gateway_of(request).pool
    if await pool.call(clusters.backend_of, found):
        found = await pool.call_long(clusters.explained, found, tenant)
    return requests.show(request, TRAIN_JOBS, found)


async def _find(request: Ask, who: Identity) -> tuple[Json, str]:
    tenant = tenant_in(request, who)
    name = requests.name_in(request)
    collection = jobs_of(gateway_of(request))
    await collection.refresh()
    found = collection.find(namespace_of(tenant), name)
    if found is None:
        raise requests.missing(TRAIN_JOBS, name)
    return found, tenant


async def _shown(request: Ask, job: Job) -> Json:
    """A job as it is after a change, with the number that the list has for it."""
    collection = jobs_of(gateway_of(request))
    await collection.refresh()
    return collection.find(namespace_of(job.tenant), job.name) or views.train_job(job)


@post(TRAIN_JOBS.listed, status_code=201)
async def create_job(request: Ask) -> Response[bytes]:
    """Checked, decided and written down before the answer; it runs after it, or waits for its devices."""
    who = require(request, WRITE)
    asked = requests.query(request, requests.WriteQuery)
    tenant = tenant_in(request, who)
    value = _named(requests.without_server_fields(await requests.body(request), namespace_of(tenant)))
    gateway = gateway_of(request)
    acting = acting_in(who, tenant)

    def on_host(workloads: Workloads, backend: str = "") -> Job | tuple[str, ...]:
        claims = claims_of(workloads)
        review, runtime = reviewed(workloads, tenant, value, claims)
        objects = Objects(review.job, runtime, claims)
        options = options_of(review.job, acting)
        options = msgspec.structs.replace(options, backend=backend or options.backend)
        if asked.dryRun:
            Jobs(workloads).check(objects, options)
            return review.warnings
        return Jobs(workloads).submit(objects, options, alone=True)

    made: Job | Submitted | tuple[str, ...]
    if await gateway.pool.call(clusters.names):
        await _check_name(request, tenant, value)
        sending = Sending(tenant, value, trusted=who.sees_all, dry_run=asked.dryRun != "")
        made = await gateway.pool.call_long(lambda workloads: _anywhere(workloads.seen_by(acting), sending, on_host))
    else:
        made = await gateway.pool.call_as(acting, on_host)
    if isinstance(made, Submitted):
        collection = jobs_of(gateway)
        await collection.refresh()
        found = None if asked.dryRun else collection.find(namespace_of(tenant), made.name)
        return requests.show(request, TRAIN_JOBS, found or value, 201, made.warnings)
    if not isinstance(made, Job):
        return requests.show(request, TRAIN_JOBS, value, 201, made)
    gateway.changes.nudge()
    return requests.show(request, TRAIN_JOBS, await _shown(request, made), 201, made.status.warnings)


class Sending(msgspec.Struct, frozen=True):
    """A job on its way to a host or a cluster."""

    tenant: str
    value: Json
    trusted: bool
    dry_run: bool


def _anywhere(
    workloads: Workloads, sending: Sending, on_host: Callable[[Workloads, str], Job | tuple[str, ...]]
) -> Job | Submitted | tuple[str, ...]:
    """On the first backend of `auto`, or the one that was named, that takes it; else raises why none does."""
    taken = clusters.names(workloads)
    metadata = sending.value.get("metadata")
    said = (metadata.get("annotations") or {}).get(BACKEND) if isinstance(metadata, dict) else None
    order = (str(said),) if said not in (None, "auto") else workloads.registry.order
    failures: list[DibsError] = []
    for name in order:
        try:
            if name not in taken:
                return on_host(workloads, name)
            return clusters.submit(
                workloads, name, sending.tenant, sending.value, trusted=sending.trusted, dry_run=sending.dry_run
            )
        except Conflict:
            raise
        except DibsError as error:
            failures.append(error)
    if all(isinstance(one, TrainRefused) for one in failures):
        raise failures[0]
    if len(failures) == 1:
        raise failures[0]
    raise Unsupported(dict.fromkeys(problem for one in failures for problem in one.problems))


async def _check_name(request: Ask, tenant: str, value: Json) -> None:
    """A name is taken on all backends together."""
    metadata = value.get("metadata")
    name = str(metadata.get("name")) if isinstance(metadata, dict) else ""
    collection = jobs_of(gateway_of(request))
    await collection.refresh()
    if collection.find(namespace_of(tenant), name) is not None:
        raise Conflict(
            "there is a job of that name", field="metadata.name", value=name, code="NAME_TAKEN",
            remedy="take another name, or delete that job",
        )  # fmt: skip


def _named(value: Json) -> Json:
    """With a name, where only the beginning of one is said."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") or not isinstance(metadata.get("generateName"), str):
        return value
    tail = "".join(secrets.choice(_LETTERS) for _ in range(5))
    return {**value, "metadata": {**metadata, "name": f"{metadata['generateName'][:58]}{tail}"}}


@put(TRAIN_JOBS.one)
async def replace_job(request: Ask) -> Response[bytes]:
    require(request, WRITE)
    value = await requests.body(request)
    return await _change(request, lambda _: value)


@patch(TRAIN_JOBS.one)
async def patch_job(request: Ask) -> Response[bytes]:
    """`spec.suspend` at any time; patches and metadata while it is suspended."""
    require(request, WRITE)
    return await _change(request, await merged(request))


async def _change(request: Ask, change: Callable[[Json], Json]) -> Response[bytes]:
    who = require(request, WRITE)
    asked = requests.query(request, requests.WriteQuery)
    before, tenant = await _find(request, who)
    value = change(before)
    metadata = value.get("metadata")
    said = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    requests.check_version(said, before["metadata"]["resourceVersion"])
    name = before["metadata"]["name"]
    if not isinstance(metadata, dict) or metadata.get("name") != name:
        raise InvalidRequest(f'must be "{name}", as in the path', field="metadata.name", code="NAME_INVALID")
    namespace = namespace_of(tenant)
    value, old = (requests.without_server_fields(one, namespace) for one in (value, before))
    acting = acting_in(who, tenant)
    if cluster := await gateway_of(request).pool.call(clusters.backend_of, before):
        if not asked.dryRun:
            await gateway_of(request).pool.call_long(clusters.suspend, cluster, old, value, tenant)
        found, _ = await _find(request, who)
        return requests.show(request, TRAIN_JOBS, found)

    def apply(workloads: Workloads) -> Job:
        jobs = Jobs(workloads)
        job = jobs.get(before["metadata"]["uid"])
        active = [one["name"] for one in before["status"]["jobsStatus"] if one["active"]]
        review, runtime = reviewed(workloads, tenant, value, job.spec.objects.claims, job=job, old=old, active=active)
        if asked.dryRun:
            return job
        return _applied(jobs, job, review.job, runtime)

    after = await gateway_of(request).pool.call_as(acting, apply)
    gateway_of(request).changes.nudge()
    return requests.show(request, TRAIN_JOBS, await _shown(request, after))


def _applied(jobs: Jobs, job: Job, value: Json, runtime: Json) -> Job:
    """Objects first: a job that is resumed runs with the new ones."""
    suspend = value["spec"]["suspend"]
    kept = job.spec.objects
    said = {**value, "spec": {**value["spec"], "suspend": kept.job["spec"]["suspend"]}}
    if _without_suspend(said) != _without_suspend(kept.job):
        if job.state != "suspended":
            if suspend and job.wanted != "suspend":
                jobs.suspend(job.id)
            reason = f"the job is {job.state}: everything but spec.suspend can be changed while it is suspended"
            remedy = "set spec.suspend, and try again when it is Suspended"
            raise Conflict(reason, field="spec", value="", code="WRONG_STATE", remedy=remedy)
        job = jobs.update(job.id, msgspec.structs.replace(kept, job=said, runtime=runtime))
    if suspend != (job.wanted == "suspend"):
        job = jobs.suspend(job.id) if suspend else jobs.resume(job.id)
    return job


def _without_suspend(value: Json) -> Json:
    spec = {key: item for key, item in value["spec"].items() if key != "suspend"}
    return {"metadata": value["metadata"], "spec": spec}


@delete(TRAIN_JOBS.one, status_code=200)
async def delete_job(request: Ask) -> Response[bytes]:
    who = require(request, WRITE)
    options = await requests.delete_options(request)
    before, tenant = await _find(request, who)
    metadata = before["metadata"]
    requests.check_preconditions(options, metadata["uid"], metadata["resourceVersion"])
    gateway = gateway_of(request)
    if await gateway.pool.call(clusters.backend_of, before):
        if not options.dryRun:
            await gateway.pool.call_long(clusters.remove, before, tenant)
    elif not options.dryRun:
        acting = acting_in(who, tenant)
        await gateway.pool.call_long(lambda workloads: Jobs(workloads.seen_by(acting)).delete(metadata["uid"]))
        gateway.changes.nudge()
    return requests.reply(deleted(metadata["name"], metadata["uid"], TRAIN_JOBS.group, TRAIN_JOBS.plural))


HANDLERS = (list_jobs, get_job, create_job, replace_job, patch_job, delete_job)

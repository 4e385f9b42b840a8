"""The training jobs of a cluster as a list: each with its TrainJob, its conditions and its pods.

A gateway looks at them as often as it is asked, so nothing is explained here: that is `service.show`, for one job.
Besides what dibs has submitted these are the TrainJobs that others have created. It reads, and changes nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.errors import NotFound
from dibs.kube import client as kube
from dibs.kube.client import Cluster, Resource
from dibs.workloads.cluster_jobs import objects
from dibs.workloads.cluster_jobs.strategies import Way

Json = dict[str, Any]

JOB_SET = "jobset.sigs.k8s.io/jobset-name"
ROLE = "jobset.sigs.k8s.io/replicatedjob-name"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`job`: the TrainJob, with the uid and the time of the object that owns the rest. `pods`: with JobSet's labels."""

    backend: str
    namespace: str
    name: str
    way: Way
    job: Json
    suspended: bool
    conditions: list[Json]
    jobs_status: list[Json]
    restarts: int
    pods: list[Json]


def records(cluster: Cluster, backend: str) -> list[Record]:
    """Of all namespaces, oldest first."""
    sets = _by_place(_listed(cluster, objects.JOB_SETS))
    jobs = cluster.items(objects.JOBS, dict[str, Any], labels=objects.JOB)
    pods: dict[tuple[str, str], list[Json]] = {}
    for label in (JOB_SET, objects.JOB):
        for pod in cluster.items(kube.PODS, dict[str, Any], labels=label):
            if "deletionTimestamp" not in pod["metadata"]:
                pods.setdefault((pod["metadata"]["namespace"], pod["metadata"]["labels"][label]), []).append(pod)
    found = []
    for one in _listed(cluster, objects.TRAIN_JOBS):
        place = _place(one)
        status = one.get("status", {})
        found.append(
            Record(
                backend=backend, namespace=place[0], name=place[1], way="trainer", job=one,
                suspended=bool(one["spec"].get("suspend")), conditions=status.get("conditions", []),
                jobs_status=status.get("jobsStatus", []), pods=pods.get(place, []),
                restarts=sets.get(place, {}).get("status", {}).get("restarts", 0),
            )
        )  # fmt: skip
    for one in cluster.items(objects.CONFIG_MAPS, dict[str, Any], labels=objects.JOB):
        if objects.SUBMITTED in one.get("data", {}):
            place = (one["metadata"]["namespace"], one["metadata"]["labels"][objects.JOB])
            own = [job for job in jobs if (_place(job)[0], job["metadata"]["labels"][objects.JOB]) == place]
            found.append(_submitted(backend, one, place, sets.get(place), own, pods.get(place, [])))
    return sorted(found, key=lambda one: str(one.job["metadata"]["creationTimestamp"]))


def _submitted(
    backend: str, snapshot: Json, place: tuple[str, str], job_set: Json | None, jobs: list[Json], pods: list[Json]
) -> Record:
    """One that Kubeflow Trainer does not know: what was submitted stands beside the snapshot of its runtime."""
    job = msgspec.json.decode(snapshot["data"][objects.SUBMITTED])
    own = {key: snapshot["metadata"][key] for key in ("uid", "creationTimestamp")}
    job["metadata"] = {**job["metadata"], **own}
    if job_set is not None:
        status = job_set.get("status", {})
        return Record(
            backend=backend, namespace=place[0], name=place[1], way="jobset", job=job,
            suspended=bool(job_set["spec"].get("suspend")), conditions=[_renamed(one) for one in
            status.get("conditions", [])], jobs_status=status.get("replicatedJobsStatus", []),
            restarts=status.get("restarts", 0), pods=pods,
        )  # fmt: skip
    restarts = sum(item.get("restartCount", 0) for pod in pods
                   for item in pod.get("status", {}).get("containerStatuses", []))  # fmt: skip
    return Record(
        backend=backend, namespace=place[0], name=place[1], way="jobs", job=job,
        suspended=bool(jobs) and all(one["spec"].get("suspend") for one in jobs), conditions=_conditions(jobs),
        jobs_status=[_job_status(one) for one in jobs], restarts=restarts, pods=[_as_of_jobset(one) for one in pods],
    )  # fmt: skip


def _renamed(condition: Json) -> Json:
    """A condition of a JobSet under the name that a TrainJob has for it."""
    return {**condition, "type": "Complete"} if condition["type"] == "Completed" else condition


def _conditions(jobs: list[Json]) -> list[Json]:
    """Of Indexed Jobs together: one that has failed, or all that have ended well."""
    ended: dict[str, list[Json]] = {"Failed": [], "Complete": [], "Suspended": []}
    for job in jobs:
        for one in job.get("status", {}).get("conditions", []):
            if one["type"] in ended and one["status"] == "True":
                ended[one["type"]].append(one)
    if ended["Failed"]:
        return ended["Failed"][:1]
    for kind in ("Complete", "Suspended"):
        if jobs and len(ended[kind]) == len(jobs):
            return [max(ended[kind], key=lambda one: str(one.get("lastTransitionTime", "")))]
    return []


def _job_status(job: Json) -> Json:
    status = job.get("status", {})
    ended = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    wanted = job["spec"].get("completions", 1)
    return {
        "name": job["metadata"]["labels"].get(objects.REPLICATED, job["metadata"]["name"]),
        "ready": int(status.get("ready", 0) >= wanted),
        "succeeded": int("Complete" in ended),
        "failed": int("Failed" in ended),
        "active": int(bool(status.get("active"))),
        "suspended": int(bool(job["spec"].get("suspend"))),
    }


def _as_of_jobset(pod: Json) -> Json:
    """Clients find the ranks of a job by JobSet's labels, also where there is no JobSet."""
    labels = pod["metadata"]["labels"]
    more = {JOB_SET: labels[objects.JOB], ROLE: labels.get(objects.REPLICATED, "")}
    return {**pod, "metadata": {**pod["metadata"], "labels": {**labels, **more}}}


def _listed(cluster: Cluster, resource: Resource) -> list[Json]:
    try:
        return cluster.items(resource, dict[str, Any])
    except NotFound:
        return []  # the cluster does not have that kind


def _by_place(found: list[Json]) -> dict[tuple[str, str], Json]:
    return {_place(one): one for one in found}


def _place(value: Json) -> tuple[str, str]:
    return value["metadata"]["namespace"], value["metadata"]["name"]

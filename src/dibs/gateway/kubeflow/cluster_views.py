"""A training job of a cluster as this API shows it: in the tenant's namespace, and safe for the Kubeflow SDK.

Objects are the cluster's own; what `views` leaves out or adds for jobs without a cluster is left out and added here.
Pure.
"""

from __future__ import annotations

from typing import Any

from dibs.gateway.kubeflow.namespaces import namespace_of
from dibs.gateway.kubeflow.views import SHOWN, shown_containers
from dibs.train.job_annotations import BACKEND
from dibs.train.objects import API_VERSION, TRAIN_JOB
from dibs.workloads.cluster_jobs.ranks import ClusterRank
from dibs.workloads.cluster_jobs.records import ROLE, Record
from dibs.workloads.cluster_jobs.service import ClusterJob

Json = dict[str, Any]

_INDEX = "batch.kubernetes.io/job-completion-index"
_SERVER = ("managedFields", "selfLink", "resourceVersion")


def train_job(record: Record, tenant: str) -> Json:
    metadata = {**_metadata(record.job, tenant), "name": record.name}
    metadata.setdefault("generation", 1)
    spec = {**record.job["spec"], "suspend": record.suspended}
    conditions = [one for one in record.conditions if one["type"] in SHOWN and one["status"] == "True"]
    ranks = [_rank(one) for one in record.pods]
    own: Json = {
        "state": _state(record, conditions, ranks),
        "backend": record.backend,
        "way": record.way,
        "restarts": record.restarts,
        "ranks": ranks,
    }
    status: Json = {"jobsStatus": record.jobs_status, "dibs": own}
    if conditions:
        status["conditions"] = conditions
    return {"apiVersion": API_VERSION, "kind": TRAIN_JOB, "metadata": metadata, "spec": spec, "status": status}


def explained(value: Json, job: ClusterJob) -> Json:
    """A job that was asked for alone: with the devices of each rank, and every reason why one waits."""
    own = {**value["status"]["dibs"], "ranks": [_explained(one) for one in job.ranks]}
    return {**value, "status": {**value["status"], "dibs": own}}


def pods(record: Record, tenant: str) -> list[Json]:
    return [_pod(one, record.backend, tenant) for one in record.pods]


def event(value: Json, tenant: str) -> Json:
    """With the times that older clients ask for; newer events have another one."""
    at = value.get("lastTimestamp") or value.get("eventTime") or value["metadata"]["creationTimestamp"]
    at = f"{at[:19]}Z"
    first = value.get("firstTimestamp") or at
    namespace = namespace_of(tenant)
    involved = {**value["involvedObject"], "namespace": namespace}
    metadata = {**_metadata(value, tenant), "resourceVersion": value["metadata"]["resourceVersion"]}
    times = {"firstTimestamp": first, "lastTimestamp": at}
    return {**value, "apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": involved, **times}


def runtime(value: Json, tenant: str) -> Json:
    """A runtime of the cluster; a ClusterTrainingRuntime has no namespace."""
    metadata = {key: item for key, item in value["metadata"].items() if key not in ("managedFields", "selfLink")}
    if "namespace" in metadata:
        metadata["namespace"] = namespace_of(tenant)
    return {**value, "metadata": metadata}


def _metadata(value: Json, tenant: str) -> Json:
    kept = {key: item for key, item in value["metadata"].items() if key not in _SERVER}
    return {**kept, "namespace": namespace_of(tenant)}


def _pod(pod: Json, backend: str, tenant: str) -> Json:
    containers, limits = shown_containers(pod["spec"])
    metadata = _metadata(pod, tenant)
    metadata["annotations"] = {**metadata.get("annotations", {}), BACKEND: backend, **limits}
    spec = {**pod["spec"], "containers": containers}
    return {**pod, "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _rank(pod: Json) -> Json:
    status = pod.get("status", {})
    labels = pod["metadata"]["labels"]
    found: Json = {"name": f"{labels.get(ROLE, '')}-{labels.get(_INDEX, '0')}", "phase": status.get("phase", "Pending")}
    waits = next((one.get("message", "") for one in status.get("conditions", [])
                  if one["type"] == "PodScheduled" and one["status"] == "False"), "")  # fmt: skip
    if waits:
        found["reason"] = waits
    if node := pod["spec"].get("nodeName"):
        found["node"] = node
    return found


def _explained(rank: ClusterRank) -> Json:
    found: Json = {"name": rank.name, "phase": rank.phase}
    if rank.node:
        found["node"] = rank.node
    if rank.devices:
        found["devices"] = list(rank.devices)
    if rank.restarts:
        found["restarts"] = rank.restarts
    if rank.words:
        found["reason"] = "; ".join(rank.words)
    if rank.reasons:
        found["reasons"] = [{"code": one.code, "text": one.text, "remedy": one.remedy} for one in rank.reasons]
    return found


def _state(record: Record, conditions: list[Json], ranks: list[Json]) -> str:
    if conditions:
        return str(conditions[-1]["type"])
    if record.suspended:
        return "Suspended"
    phases = {one["phase"] for one in ranks}
    return "Pending" if "Pending" in phases or not phases else "Running"

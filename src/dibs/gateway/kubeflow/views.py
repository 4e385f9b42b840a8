"""A training job as the Kubernetes API shows it: the TrainJob with its status, its ranks as pods, its events.

The nouns of this package use it. What the Kubeflow SDK trips over is respected: there are no conditions while a job
runs, and a container has limits only if the SDK knows one of them. What is left out for that stands beside it, under
`status.dibs` or in an annotation. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from dibs.gateway.kubeflow.namespaces import namespace_of
from dibs.gateway.kubeflow.resources import PODS, TRAIN_JOBS
from dibs.gateway.kubeflow.times import stamp
from dibs.ledger.rows import Event
from dibs.train.names import pod_spec, pod_template
from dibs.train.objects import API_VERSION, TRAIN_JOB
from dibs.train.refusals import Refusals
from dibs.train.rendering import examined
from dibs.workloads.jobs.model import Job, RankStatus

Json = dict[str, Any]

LIMITS: Final = "train.dibs/limits"  # on a pod: the limits that its containers really have
_STATES: Final = {"queued": "Queued", "creating": "Creating", "running": "Running", "stopping": "Stopping"}
_PHASES: Final = {"Pending": "Pending", "Creating": "Pending", "Running": "Running", "Succeeded": "Succeeded"}
_LIMITS_KNOWN: Final = ("nvidia.com/gpu", "google.com/tpu", "huawei.com/Ascend910", "cpu")
_MIG: Final = "nvidia.com/mig-"
SHOWN: Final = ("Suspended", "Complete", "Failed")  # conditions of Kubeflow Trainer; the SDK takes others for an end
_WORD: Final = re.compile(r"[A-Za-z0-9]+")


def train_job(job: Job) -> Json:
    """The TrainJob. The caller that lists it sets its resourceVersion."""
    said = job.spec.objects.job
    metadata = {
        **said["metadata"],
        "namespace": namespace_of(job.tenant),
        "uid": job.id,
        "creationTimestamp": stamp(job.created_at),
        "generation": 1,
    }
    spec = {**said["spec"], "suspend": job.wanted == "suspend"}
    return {"apiVersion": API_VERSION, "kind": TRAIN_JOB, "metadata": metadata, "spec": spec, "status": _status(job)}


def _status(job: Job) -> Json:
    status = job.status
    own: Json = {
        "state": _STATES.get(job.state) or job.state.capitalize(),
        "backend": job.backend,
        "restarts": status.restarts,
        "ranks": [_rank(one) for one in status.ranks],
    }
    if status.waits_for:
        own["waitsFor"] = status.waits_for
    if status.processes is not None:
        own["processesPerNode"] = {"count": status.processes, "reason": status.processes_reason}
    if status.warnings:
        own["warnings"] = list(status.warnings)
    made: Json = {"jobsStatus": _jobs_status(job), "dibs": own}
    conditions = [
        {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            "message": one.message,
            "lastTransitionTime": stamp(one.at),
        }
        for one in status.conditions
        if one.type in SHOWN and one.status == "True"
    ]
    if conditions:
        made["conditions"] = conditions
    return made


def _rank(rank: RankStatus) -> Json:
    found: Json = {"name": rank.name, "phase": rank.phase}
    if rank.reason:
        found["reason"] = rank.reason
    if rank.devices:
        found["devices"] = list(rank.devices)
    if rank.exit_code is not None:
        found["exitCode"] = rank.exit_code
    return found


def _jobs_status(job: Job) -> list[Json]:
    """As JobSet counts: Jobs, not pods. A Job is active while a pod of it is, and has succeeded when all have."""
    by_job: dict[str, list[str]] = {}
    for rank in job.ranks:
        by_job.setdefault(rank.job, []).append(rank.phase)
    found = []
    for name, phases in by_job.items():
        failed = "Failed" in phases and not job.live
        succeeded = not failed and all(phase == "Succeeded" for phase in phases)
        active = not failed and not succeeded and any(phase in ("Creating", "Running") for phase in phases)
        found.append(
            {
                "name": name,
                "ready": int(all(phase in ("Running", "Succeeded") for phase in phases) and active),
                "succeeded": int(succeeded),
                "failed": int(failed),
                "active": int(active),
                "suspended": int(job.state == "suspended"),
            }
        )
    return found


# -- pods -------------------------------------------------------------------------------------------------------------


def pods(job: Job) -> list[Json]:
    """Its ranks. A suspended job has none."""
    if job.state == "suspended":
        return []
    templates = _templates(job)
    return [_pod(job, rank, *templates[rank.job]) for rank in job.ranks]


def _templates(job: Job) -> dict[str, tuple[Json, Json]]:
    """Metadata and spec of the pods of each replicated job."""
    objects = job.spec.objects
    rendered = examined(objects.job, objects.runtime, objects.facts(), Refusals())
    return {
        one["name"]: (pod_template(one).get("metadata", {}), pod_spec(one))
        for one in rendered.jobset["spec"]["replicatedJobs"]
    }


def _pod(job: Job, rank: RankStatus, template: Json, spec: Json) -> Json:
    labels = {
        **template.get("labels", {}),
        "jobset.sigs.k8s.io/jobset-name": job.name,
        "jobset.sigs.k8s.io/replicatedjob-name": rank.job,
        "jobset.sigs.k8s.io/restart-attempt": str(job.status.restarts),
        "batch.kubernetes.io/job-completion-index": str(rank.index),
    }
    containers, limits = shown_containers(spec)
    annotations = {**template.get("annotations", {}), **limits}
    metadata: Json = {
        "name": rank.name,
        "namespace": namespace_of(job.tenant),
        "uid": rank.sandbox_id or f"{job.id}-{rank.name}",
        "creationTimestamp": stamp(rank.started_at or job.created_at),
        "labels": labels,
        "ownerReferences": [
            {"apiVersion": API_VERSION, "kind": TRAIN_JOB, "name": job.name, "uid": job.id, "controller": True}
        ],
    }
    if annotations:
        metadata["annotations"] = annotations
    own: Json = {**spec, "containers": containers, "hostname": rank.host.partition(".")[0]}
    if rank.sandbox_id:
        own["nodeName"] = job.backend
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": own,
        "status": _pod_status(job, rank, containers),
    }


def shown_containers(spec: Json) -> tuple[list[Json], Json]:
    """The containers, and annotations. Limits of which the SDK knows none would make it fail on the whole job."""
    found, hidden = [], {}
    for one in spec["containers"]:
        limits = one.get("resources", {}).get("limits", {})
        known = any(name in _LIMITS_KNOWN or name.startswith(_MIG) for name in limits)
        if limits and not known:
            hidden[one["name"]] = limits
            resources = {key: value for key, value in one["resources"].items() if key != "limits"}
            resources["requests"] = {**limits, **resources.get("requests", {})}
            found.append({**one, "resources": resources})
        else:
            found.append(one)
    return found, {LIMITS: msgspec.json.encode(hidden).decode()} if hidden else {}


def _pod_status(job: Job, rank: RankStatus, containers: list[Json]) -> Json:
    phase = _PHASES.get(rank.phase, "Failed")
    waits = job.status.waits_for if phase == "Pending" else ""
    message = rank.reason or waits
    made: Json = {
        "phase": phase,
        "conditions": [
            _condition("PodScheduled", bool(rank.sandbox_id), "Unschedulable", message),
            _condition("Ready", phase == "Running", "", ""),
        ],
        "containerStatuses": [_container_status(job, rank, phase, one) for one in containers],
    }
    if message:
        made["message"] = message
    if rank.started_at:
        made["startTime"] = stamp(rank.started_at)
    return made


def _condition(kind: str, is_true: bool, reason: str, message: str) -> Json:
    found: Json = {"type": kind, "status": "True" if is_true else "False"}
    if not is_true and message:
        found |= {"reason": reason, "message": message}
    return found


def _container_status(job: Job, rank: RankStatus, phase: str, container: Json) -> Json:
    image = container.get("image", "")
    state: Json
    if phase == "Pending":
        reason = "ContainerCreating" if rank.phase == "Creating" else "Queued"
        state = {"waiting": {"reason": reason, **({"message": job.status.waits_for} if job.status.waits_for else {})}}
    elif phase == "Running":
        state = {"running": {"startedAt": stamp(rank.started_at or job.created_at)}}
    else:
        ended: Json = {
            "exitCode": rank.exit_code if rank.exit_code is not None else (0 if phase == "Succeeded" else 1),
            "reason": "Completed" if phase == "Succeeded" else "Error",
        }
        if rank.reason:
            ended["message"] = rank.reason
        if rank.ended_at:
            ended["finishedAt"] = stamp(rank.ended_at)
        state = {"terminated": ended}
    return {
        "name": container["name"],
        "ready": phase == "Running",
        "restartCount": job.status.restarts,
        "image": image,
        "imageID": image,
        "started": phase == "Running",
        "state": state,
    }


# -- events -----------------------------------------------------------------------------------------------------------


def event(job: Job, one: Event) -> Json:
    """Something that has happened to a job, or to a rank of it."""
    rank = next((rank for rank in job.ranks if rank.sandbox_id and rank.sandbox_id == one.sandbox_id), None)
    involved: Json = {"namespace": namespace_of(job.tenant)}
    if rank is None:
        involved |= {"apiVersion": API_VERSION, "kind": TRAIN_JOBS.kind, "name": job.name, "uid": job.id}
    else:
        involved |= {"apiVersion": "v1", "kind": PODS.kind, "name": rank.name, "uid": rank.sandbox_id}
    at = stamp(one.at)
    reason = "".join(word.capitalize() for word in _WORD.findall(one.kind))
    name = f"{involved['name']}.{one.seq:x}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": name,
            "namespace": namespace_of(job.tenant),
            "uid": f"ev-{one.seq}",
            "creationTimestamp": at,
            "resourceVersion": str(one.seq),
        },
        "involvedObject": involved,
        "reason": reason,
        "message": one.detail or one.kind.replace(".", " ").replace("_", " "),
        "type": "Warning" if any(word in one.kind for word in ("fail", "mismatch", "lost")) else "Normal",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": "dibs"},
    }

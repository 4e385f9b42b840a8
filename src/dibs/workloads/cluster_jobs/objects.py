"""What is created on a cluster for a job, in each way. The first object owns the others: deleting it removes them all.

`service` creates them in this order. Jobs begin suspended and are released when all of them are there, so that a crash
in between leaves nothing that runs. Pure.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import msgspec

from dibs.kube.client import Resource
from dibs.train import job_annotations
from dibs.train.names import pod_spec, pod_template
from dibs.train.objects import API_VERSION, TRAIN_JOB
from dibs.train.refusals import Refusals
from dibs.train.rendering import Rendered
from dibs.workloads.cluster_jobs.strategies import Way

Json = dict[str, Any]

JOB: Final = "train.dibs/job"  # on everything of a job that no TrainJob owns
REPLICATED: Final = "train.dibs/replicated-job"
SUBMITTED: Final = "trainjob"  # beside the snapshot of the runtime: the TrainJob, where the cluster keeps no such kind
TRAIN_JOBS: Final = Resource(API_VERSION, "trainjobs", TRAIN_JOB)
JOB_SETS: Final = Resource("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet")
JOBS: Final = Resource("batch/v1", "jobs", "Job")
SERVICES: Final = Resource("v1", "services", "Service")
CONFIG_MAPS: Final = Resource("v1", "configmaps", "ConfigMap")
# Annotations that are read of a TrainJob alone.
_OURS: Final = ("train.dibs/", "kubectl.kubernetes.io/")
_KNOWN: Final = {
    (one.api, one.kind): one
    for one in (
        TRAIN_JOBS, JOB_SETS, JOBS, SERVICES, CONFIG_MAPS, Resource("v1", "secrets", "Secret"),
        Resource("scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"),
        Resource("scheduling.volcano.sh/v1beta1", "podgroups", "PodGroup"),
        Resource("resource.nvidia.com/v1beta1", "computedomains", "ComputeDomain"),
    )
}  # fmt: skip


def resource_of(value: Json) -> Resource:
    return _KNOWN[value["apiVersion"], value["kind"]]


def owner_of(name: str, way: Way) -> tuple[Resource, str]:
    """The object whose end is the end of the job."""
    return (TRAIN_JOBS, name) if way == "trainer" else (CONFIG_MAPS, f"{name}-runtime-snapshot")


def created(rendered: Rendered, way: Way) -> list[Json]:
    """In the order in which they are created; the first owns the others."""
    job = rendered.job
    if way == "trainer":
        return [_train_job(rendered)]
    snapshot = next(one for one in rendered.companions if one["kind"] == "ConfigMap" and "runtime" in one["data"])
    rest = [one for one in rendered.companions if one is not snapshot]
    snapshot = {**snapshot, "data": {**snapshot["data"], SUBMITTED: msgspec.json.encode(job).decode()}}
    jobset = _with_deadline(rendered.jobset, job["spec"].get("activeDeadlineSeconds"))
    main = [_standing_for(job, jobset)] if way == "jobset" else _indexed_jobs(job, _standing_for(job, jobset))
    return [_labelled(one, job["metadata"]["name"]) for one in (snapshot, *rest, *main)]


def _with_deadline(jobset: Json, seconds: int | None) -> Json:
    """No controller watches the deadline of the TrainJob: every Job has it."""
    if seconds is None:
        return jobset
    jobset = copy.deepcopy(jobset)
    for replicated in jobset["spec"]["replicatedJobs"]:
        own = replicated["template"]["spec"]
        own["activeDeadlineSeconds"] = min(seconds, own.get("activeDeadlineSeconds", seconds))
    return jobset


def _standing_for(job: Json, jobset: Json) -> Json:
    """With the labels and annotations of the TrainJob, which others go by (a queue of Kueue)."""
    metadata = dict(jobset["metadata"])
    for field in ("labels", "annotations"):
        own = {key: value for key, value in job["metadata"].get(field, {}).items() if not key.startswith(_OURS)}
        if both := {**own, **metadata.get(field, {})}:
            metadata[field] = both
    return {**jobset, "metadata": metadata}


def _train_job(rendered: Rendered) -> Json:
    """The job itself, with what Kubeflow Trainer would not find out: claims that an annotation names, as claims, and
    the number of processes, which it would count by the names of devices."""
    job = copy.deepcopy(rendered.job)
    annotations = job["metadata"].get("annotations", {})
    if job_annotations.CLAIMS in annotations:
        claims = job_annotations.claims(job, Refusals())
        job["spec"].setdefault("trainer", {})["resourceClaimsPerNode"] = claims
    for name in (job_annotations.CLAIMS, job_annotations.BACKEND):
        annotations.pop(name, None)
    policies = ("PET_NPROC_PER_NODE",)
    env = [one["name"] for replicated in rendered.jobset["spec"]["replicatedJobs"] for c in
           pod_spec(replicated).get("containers", []) for one in c.get("env", [])]  # fmt: skip
    if rendered.processes is not None and any(name in env for name in policies):
        job["spec"].setdefault("trainer", {}).setdefault("numProcPerNode", rendered.processes.per_node)
    return job


def _labelled(value: Json, name: str) -> Json:
    metadata = {key: item for key, item in value["metadata"].items() if key not in ("ownerReferences", "namespace")}
    metadata["labels"] = {**metadata.get("labels", {}), JOB: name}
    return {**value, "metadata": metadata}


def _indexed_jobs(job: Json, jobset: Json) -> list[Json]:
    """A headless Service for the names of the ranks, and a Job for each replica of a replicated job."""
    name = job["metadata"]["name"]
    network = jobset["spec"]["network"]
    subdomain = network.get("subdomain") or name
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": subdomain},
        "spec": {
            "clusterIP": "None",
            "selector": {JOB: name},
            "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
        },
    }
    found = [service]
    both = {field: jobset["metadata"].get(field, {}) for field in ("labels", "annotations")}
    for replicated in jobset["spec"]["replicatedJobs"]:
        for replica in range(replicated.get("replicas", 1)):
            template = copy.deepcopy(pod_template(replicated))
            metadata = template.setdefault("metadata", {})
            metadata["labels"] = {**metadata.get("labels", {}), JOB: name, REPLICATED: replicated["name"]}
            template["spec"]["subdomain"] = subdomain
            spec = {**replicated["template"]["spec"], "template": template, "suspend": True}
            said = replicated["template"].get("metadata", {})
            own: Json = {"name": f"{name}-{replicated['name']}-{replica}"}
            own |= {field: {**some, **said.get(field, {})} for field, some in both.items()}
            own["labels"][REPLICATED] = replicated["name"]
            found.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "spec": spec})
    return found


def dropped(sent: Any, answered: Any, path: str = "") -> list[str]:
    """The paths of what was sent and is not in the answer. An API server drops what is behind a gate that is off."""
    if isinstance(sent, dict):
        if not isinstance(answered, dict):
            return [path] if sent else []
        found = []
        for key, value in sent.items():
            where = f"{path}.{key}" if path else key
            if key not in answered:
                found += [where] if value not in (None, {}, [], "", False) else []
            else:
                found += dropped(value, answered[key], where)
        return found
    if isinstance(sent, list):
        if not isinstance(answered, list) or len(answered) < len(sent):
            return [path]
        return [one for index, item in enumerate(sent) for one in dropped(item, answered[index], f"{path}[{index}]")]
    return []

"""The JobSet of a TrainJob and the objects beside it: names, owner, defaults, and the order in which they are written.

`rendering` fills it. JobSet's own defaults are written out, so that what is printed is what will run. Every object
comes out with its keys sorted: the same job gives the same bytes.
"""

from __future__ import annotations

from typing import Any, Final

from dibs.train import yaml_text
from dibs.train.names import ANCESTORS, ancestor, pod_spec, pod_template
from dibs.train.objects import API_VERSION, TRAIN_JOB
from dibs.train.refusals import Refusals

Json = dict[str, Any]

JOBSET_VERSION: Final = "jobset.x-k8s.io/v1alpha2"
# What JobSet lets be changed in a pod template while it is suspended; everything else is immutable.
MUTABLE_METADATA: Final = ("annotations", "labels")
MUTABLE_POD: Final = ("nodeSelector", "tolerations", "schedulingGates")


def new(job: Json, template: Json) -> Json:
    """A JobSet from the merged template."""
    metadata = owned(job, job["metadata"]["name"])
    for field in ("annotations", "labels"):
        if template.get("metadata", {}).get(field):
            metadata[field] = template["metadata"][field]
    spec = {**template.get("spec", {}), "suspend": job["spec"]["suspend"]}
    spec.setdefault("replicatedJobs", [])
    return {"apiVersion": JOBSET_VERSION, "kind": "JobSet", "metadata": metadata, "spec": spec}


def owned(job: Json, name: str) -> Json:
    """Metadata of an object that goes with the TrainJob. Without a uid (the job is not stored) it has no owner."""
    metadata: Json = {"name": name}
    if namespace := job["metadata"].get("namespace"):
        metadata["namespace"] = namespace
    if uid := job["metadata"].get("uid"):
        metadata["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "blockOwnerDeletion": True,
                "controller": True,
                "kind": TRAIN_JOB,
                "name": job["metadata"]["name"],
                "uid": uid,
            }
        ]
    return metadata


def fill_defaults(jobset: Json) -> None:
    spec = jobset["spec"]
    network = spec.setdefault("network", {})
    network.setdefault("enableDNSHostnames", True)
    network.setdefault("publishNotReadyAddresses", True)
    spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
    spec.setdefault("successPolicy", {}).setdefault("operator", "All")
    for policy in spec.get("volumeClaimPolicies", []):
        policy.setdefault("retentionPolicy", {}).setdefault("whenDeleted", "Delete")
    for replicated in spec["replicatedJobs"]:
        if ancestor(replicated) in ANCESTORS:
            replicated["replicas"] = 1
        replicated["template"].setdefault("metadata", {})
        replicated["template"]["spec"].setdefault("completionMode", "Indexed")
        pod_template(replicated).setdefault("metadata", {})
        pod = pod_spec(replicated)
        pod.setdefault("restartPolicy", "OnFailure")
        for field in ("initContainers", "containers"):
            for container in pod.get(field, []):
                container.setdefault("resources", {})


def snapshot(job: Json, runtime: Json) -> Json:
    """The runtime as it was when the job was made. What is merged and run comes from here, not from the live one."""
    kept = {key: runtime[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    text = yaml_text.dumped(kept)
    metadata = owned(job, f"{job['metadata']['name']}-runtime-snapshot")
    return {"apiVersion": "v1", "data": {"runtime": text}, "kind": "ConfigMap", "metadata": metadata}


def check_names(jobset: Json, found: Refusals) -> None:
    """Names of jobs and pods are labels of DNS: 63 characters."""
    name = jobset["metadata"]["name"]
    for index, replicated in enumerate(jobset["spec"]["replicatedJobs"]):
        longest = f"{name}-{replicated['name']}-{max(0, replicated.get('replicas', 1) - 1)}"
        path = f"spec.replicatedJobs[{index}].name"
        text = "JobSet name is too long, {} names generated for this JobSet will exceed 63 characters"
        remedy = "give the TrainJob a shorter name"
        if len(longest) > 63:
            found.invalid(path, longest, text.format("job"), remedy)
        pods = replicated["template"]["spec"].get("completions", 1)
        if len(f"{longest}-{max(0, pods - 1)}-abcde") > 63:
            found.invalid(path, longest, text.format("pod"), remedy)


def fixed_part(jobset: Json) -> Json:
    """What a suspended JobSet does not let be changed: two jobs that differ here need two JobSets."""
    spec = {key: value for key, value in jobset["spec"].items() if key != "suspend"}
    spec["replicatedJobs"] = [_fixed_job(replicated) for replicated in spec["replicatedJobs"]]
    return spec


def _fixed_job(replicated: Json) -> Json:
    template = replicated["template"]["spec"]["template"]
    metadata = {key: value for key, value in template.get("metadata", {}).items() if key not in MUTABLE_METADATA}
    pod = {key: value for key, value in template.get("spec", {}).items() if key not in MUTABLE_POD}
    job_spec = {**replicated["template"]["spec"], "template": {"metadata": metadata, "spec": pod}}
    return {**replicated, "template": {**replicated["template"], "spec": job_spec}}


def in_order(objects: list[Json]) -> list[Json]:
    """Sorted by kind and name, with sorted keys."""
    ordered = sorted(objects, key=lambda one: (one["apiVersion"], one["kind"], one["metadata"]["name"]))
    return [_sorted(one) for one in ordered]


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value

"""podGroupPolicy: all pods of a job are scheduled together or not at all, by coscheduling or by Volcano.

`rendering` calls it last: what a gang needs is the sum over all pods, of what the scheduler will see. A limit without a
request counts, because Kubernetes makes it the request. Devices by claim are no resource of a node; they are counted
in an annotation. A policy that the cluster has no CRD for is refused by name.
"""

from __future__ import annotations

import json
from typing import Any

from dibs.quantity import Quantity
from dibs.train import jobset as jobsets
from dibs.train.accelerators import of_container
from dibs.train.facts import COSCHEDULING_CRD, VOLCANO_CRD, Facts
from dibs.train.names import MIN_DEVICES, pod_spec, pod_template
from dibs.train.refusals import Refusals

Json = dict[str, Any]

QUEUE = "scheduling.volcano.sh/queue-name"
_POLICIES = {"coscheduling": COSCHEDULING_CRD, "volcano": VOLCANO_CRD}


def enforce(job: Json, policy: Json, jobset: Json, facts: Facts, found: Refusals) -> list[Json]:
    """Mark the pods, and return the PodGroup."""
    chosen = [name for name in _POLICIES if name in policy]
    if not chosen:
        return []
    if len(chosen) > 1:
        text = "only one of coscheduling and volcano can be configured"
        found.invalid("spec.podGroupPolicy", chosen, text, "take one out of the runtime")
        return []
    crd = _POLICIES[chosen[0]]
    if facts.crds is not None and crd not in facts.crds:
        text = f"this cluster has no CustomResourceDefinition {crd}"
        found.invalid(f"spec.podGroupPolicy.{chosen[0]}", chosen[0], text, "install it, or use a runtime without it")
        return []
    name = job["metadata"]["name"]
    for replicated in jobset["spec"]["replicatedJobs"]:
        metadata = pod_template(replicated).setdefault("metadata", {})
        if chosen[0] == "coscheduling":
            metadata.setdefault("labels", {})["scheduling.x-k8s.io/pod-group"] = name
        else:
            metadata.setdefault("annotations", {})["scheduling.k8s.io/group-name"] = name
    members, amounts, devices = _needs(jobset, facts)
    spec: Json = {"minMember": members, "minResources": {key: str(amounts[key]) for key in sorted(amounts)}}
    metadata = jobsets.owned(job, name)
    if devices:
        metadata["annotations"] = {MIN_DEVICES: json.dumps(devices, sort_keys=True)}
    if chosen[0] == "coscheduling":
        spec["scheduleTimeoutSeconds"] = policy["coscheduling"]["scheduleTimeoutSeconds"]
        version = "scheduling.x-k8s.io/v1alpha1"
    else:
        spec |= _volcano(policy["volcano"], jobset, found)
        version = "scheduling.volcano.sh/v1beta1"
    return [{"apiVersion": version, "kind": "PodGroup", "metadata": metadata, "spec": spec}]


def _volcano(policy: Json, jobset: Json, found: Refusals) -> Json:
    spec: Json = {}
    annotations = jobset["metadata"].get("annotations", {})
    if QUEUE in annotations:
        if not annotations[QUEUE]:
            found.invalid(f"spec.annotations[{QUEUE}]", "", "Volcano queue name must not be empty")
        spec["queue"] = annotations[QUEUE]
    for replicated in jobset["spec"]["replicatedJobs"]:
        if priority := pod_spec(replicated).get("priorityClassName"):
            spec["priorityClassName"] = priority
    if "networkTopology" in policy:
        spec["networkTopology"] = policy["networkTopology"]
    return spec


def _needs(jobset: Json, facts: Facts) -> tuple[int, dict[str, Quantity], dict[str, int]]:
    members = 0
    amounts: dict[str, Quantity] = {}
    devices: dict[str, int] = {}
    for replicated in jobset["spec"]["replicatedJobs"]:
        count = replicated["template"]["spec"].get("parallelism", 1) * replicated.get("replicas", 1)
        members += count
        pod = pod_spec(replicated)
        for key, amount in requests_of(pod).items():
            wanted = Quantity(amount.nanos * count, binary=amount.binary, exponent=amount.exponent)
            amounts[key] = amounts[key] + wanted if key in amounts else wanted
        for container in pod.get("containers", []):
            for name, number in of_container(container, pod, facts).claimed.items():
                devices[name] = devices.get(name, 0) + number * count
    return members, amounts, devices


def requests_of(pod: Json) -> dict[str, Quantity]:
    """What a scheduler sets aside for a pod: its containers together, or its largest init container if that is more."""
    total: dict[str, Quantity] = {}
    for container in pod.get("containers", []):
        for key, amount in _container_requests(container).items():
            total[key] = total[key] + amount if key in total else amount
    for container in pod.get("initContainers", []):
        for key, amount in _container_requests(container).items():
            if container.get("restartPolicy") == "Always":  # a sidecar runs beside the others
                total[key] = total[key] + amount if key in total else amount
            elif key not in total or total[key] < amount:
                total[key] = amount
    return total


def _container_requests(container: Json) -> dict[str, Quantity]:
    resources = container.get("resources", {})
    return {k: Quantity.parse(v) for k, v in {**resources.get("limits", {}), **resources.get("requests", {})}.items()}

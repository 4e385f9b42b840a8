"""The ranks of a job on a cluster: phase, devices, restarts, and why one waits, in the scheduler's words and in ours.

`service.show` calls it. What Kubeflow Trainer leaves out of the status of a job, that a claim cannot be scheduled, is
said here for each rank. It reads, and changes nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.errors import NotFound
from dibs.kube import client as kube
from dibs.kube.client import Cluster
from dibs.kube.pending import explain_pod
from dibs.kube.verdicts import Reason, Waiting

Json = dict[str, Any]

_INDEX = "batch.kubernetes.io/job-completion-index"


class ClusterRank(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One rank. `reasons`: what dibs finds against it; `words`: what the cluster says; `devices`: what it has."""

    name: str
    job: str
    index: int
    phase: str
    pod: str = ""
    node: str = ""
    devices: tuple[str, ...] = ()
    restarts: int = 0
    reasons: tuple[Reason, ...] = ()
    words: tuple[str, ...] = ()


def ranks_of(cluster: Cluster, namespace: str, pods: list[Json], jobs: list[Json], label: str) -> list[ClusterRank]:
    """One for each index of each Job, whether it has a pod or not; of several pods the newest. `label`: its job's."""
    newest: dict[tuple[str, int], Json] = {}
    for pod in sorted(pods, key=lambda one: one["metadata"]["creationTimestamp"]):
        labels = pod["metadata"].get("labels", {})
        owner = labels.get("batch.kubernetes.io/job-name", "")
        if _INDEX in labels and "deletionTimestamp" not in pod["metadata"]:
            newest[owner, int(labels[_INDEX])] = pod
    found = []
    for job in sorted(jobs, key=lambda one: str(one["metadata"]["name"])):
        name = job["metadata"]["name"]
        for index in range(job["spec"].get("completions", 1)):
            role = job["metadata"].get("labels", {}).get(label, name)
            own = newest.get((name, index))
            found.append(_rank(cluster, namespace, f"{name}-{index}", role, index, own, job))
    return found


def _rank(
    cluster: Cluster, namespace: str, name: str, role: str, index: int, pod: Json | None, job: Json
) -> ClusterRank:
    if pod is None:
        phase = "Suspended" if job["spec"].get("suspend") else "NotCreated"
        waiting = _explained(cluster, namespace, name) if phase == "NotCreated" else None
        reasons = waiting.reasons if waiting else ()
        return ClusterRank(name=name, job=role, index=index, phase=phase, reasons=reasons, words=_words(waiting))
    status = pod.get("status", {})
    phase = str(status.get("phase", "Pending"))
    own = str(pod["metadata"]["name"])
    waiting = _explained(cluster, namespace, own) if phase == "Pending" else None
    restarts = sum(one.get("restartCount", 0) for one in status.get("containerStatuses", []))
    return ClusterRank(
        name=name, job=role, index=index, phase=phase, pod=own, node=pod["spec"].get("nodeName", ""),
        devices=_devices(cluster, namespace, pod), restarts=restarts,
        reasons=waiting.reasons if waiting else (), words=_words(waiting),
    )  # fmt: skip


def _explained(cluster: Cluster, namespace: str, pod: str) -> Waiting | None:
    try:
        return explain_pod(cluster, namespace, pod)
    except NotFound:
        return None  # not created yet, and no controller says that it could not; or gone since we listed it


def _words(waiting: Waiting | None) -> tuple[str, ...]:
    return tuple(f"{one.reason}: {one.message}" for one in waiting.words) if waiting else ()


def _devices(cluster: Cluster, namespace: str, pod: Json) -> tuple[str, ...]:
    """What its claims have been given."""
    names = [one.get("resourceClaimName") for one in pod.get("status", {}).get("resourceClaimStatuses", [])]
    names += [one.get("resourceClaimName") for one in pod["spec"].get("resourceClaims", [])]
    # Where a DeviceClass stands behind an extended resource, the scheduler makes the claim.
    names.append(pod.get("status", {}).get("extendedResourceClaimStatus", {}).get("resourceClaimName"))
    found: list[str] = []
    for name in dict.fromkeys(one for one in names if one):
        try:
            claim = cluster.get(kube.CLAIMS, name, dict[str, Any], namespace)
        except NotFound:
            continue  # it went with its pod while we looked
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        found += [f"{one['driver']}/{one['pool']}/{one['device']}" for one in results]
    return tuple(found)

"""The cluster as the place where runtimes, claims, classes and CRDs of a job are looked up.

The webhook and `service` use it. It is asked anew for every job, with one connection per thread, so that an edit counts
at once. What the service account may not read is an error, not an empty list.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dibs.errors import InvalidRequest, NotFound
from dibs.kube import client as kube
from dibs.kube.client import Cluster, Resource
from dibs.kube.config import ClusterConfig
from dibs.train.facts import Facts
from dibs.train.objects import API_VERSION, RUNTIME, read_runtime

Json = dict[str, Any]

RUNTIME_RESOURCES: Mapping[str, Resource] = {
    "TrainingRuntime": Resource(API_VERSION, "trainingruntimes", "TrainingRuntime"),
    "ClusterTrainingRuntime": Resource(
        API_VERSION, "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
    ),
}
CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
JOB_SETS = Resource("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet")


class InCluster:
    """The cluster itself. `cluster`: a connection of the caller's; else each thread gets one of its own.

    `claims_enabled`: False where the administrator does not want device claims in TrainJobs.
    """

    def __init__(self, config: ClusterConfig, cluster: Cluster | None = None, *, claims_enabled: bool = True) -> None:
        self._config = config
        self._claims_enabled = claims_enabled
        self._own = threading.local()
        if cluster is not None:
            self._own.cluster = cluster

    def runtime(self, namespace: str, job: str, kind: str, name: str) -> Json | None:
        if job:
            snapshot = self._maybe(CONFIG_MAPS, f"{job}-runtime-snapshot", namespace)
            if snapshot is not None:
                return self._from_snapshot(snapshot)
        resource = RUNTIME_RESOURCES.get(kind)
        found = self._maybe(resource, name, namespace if kind == RUNTIME else None) if resource else None
        return None if found is None else read_runtime(found)

    def _from_snapshot(self, snapshot: Json) -> Json:
        from dibs.devices.yaml_documents import Unreadable, documents

        name = snapshot["metadata"]["name"]
        try:
            [value] = documents(snapshot.get("data", {}).get("runtime", "").encode())
        except (Unreadable, ValueError) as error:
            raise InvalidRequest(f"the snapshot cannot be read: {error}", field="ConfigMap", value=name) from error
        return read_runtime(value)

    def facts(self, namespace: str) -> Facts:
        cluster = self._cluster()
        listed = {
            resource: {one["metadata"]["name"]: one for one in cluster.items(resource, dict[str, Any], place)}
            for resource, place in ((kube.TEMPLATES, namespace), (kube.CLAIMS, namespace), (kube.CLASSES, None))
        }
        crds = frozenset(one["metadata"]["name"] for one in cluster.items(kube.CUSTOM_RESOURCES, dict[str, Any]))
        return Facts(
            templates=listed[kube.TEMPLATES], claims=listed[kube.CLAIMS], classes=listed[kube.CLASSES], crds=crds,
            claims_enabled=self._claims_enabled,
        )  # fmt: skip

    def active(self, namespace: str, job: str) -> list[str]:
        found = self._maybe(JOB_SETS, job, namespace)
        statuses = (found or {}).get("status", {}).get("replicatedJobsStatus", [])
        return [one["name"] for one in statuses if one.get("active", 0) > 0]

    def _maybe(self, resource: Resource, name: str, namespace: str | None) -> Json | None:
        try:
            return self._cluster().get(resource, name, dict[str, Any], namespace)
        except NotFound:
            return None

    def _cluster(self) -> Cluster:
        found: Cluster | None = getattr(self._own, "cluster", None)
        if found is None:
            found = self._own.cluster = Cluster(self._config)
        return found

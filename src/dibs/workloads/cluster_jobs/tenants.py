"""The clusters that a gateway's tenants may run training jobs on, and the namespace that each tenant has there.

The gateway's Kubeflow surface uses it. A cluster takes part if its settings say `jobs = true`. The host's own tenant
has the namespace of the settings, any other tenant the namespace of its own name. What a tenant may do there is the
cluster's to say. A quota of dibs is not counted on a cluster, so a tenant that has one is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from dibs.errors import Conflict, NotFound, Problem, Unsupported
from dibs.http import query
from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube.client import Cluster
from dibs.kube.config import find_cluster
from dibs.settings import ClusterSettings, Quota, Settings
from dibs.train.refusals import Refusals
from dibs.workloads.cluster_jobs.records import Record, records
from dibs.workloads.cluster_jobs.service import ClusterJobs
from dibs.workloads.cluster_jobs.source import RUNTIME_RESOURCES

Json = dict[str, Any]

_PULSE: Final = 1.0  # seconds between two looks at whether the reader of a followed log is still there
_PATIENCE: Final = 60.0  # seconds to wait until the pods of a removed job are gone


def of_settings(settings: Settings, order: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The backends that are clusters for training jobs; in the order of `auto`, then the others."""
    found = [name for name, one in settings.clusters.items() if one.jobs]
    ordered = [name for name in order if name in found]
    return (*ordered, *(name for name in found if name not in ordered))


@contextmanager
def opened(settings: Settings, backend: str) -> Iterator[JobCluster]:
    """A connection for this thread."""
    own = settings.clusters[backend]
    with Cluster(find_cluster(own.context or None, own.kubeconfig)) as cluster:
        yield JobCluster(backend, own, cluster)


class JobCluster:
    """One cluster, as the place of the jobs of all tenants."""

    def __init__(self, backend: str, settings: ClusterSettings, cluster: Cluster) -> None:
        self.backend = backend
        self.cluster = cluster
        self._own = settings.namespace or cluster.config.namespace

    def namespace_of(self, tenant: str) -> str:
        """Raises where a tenant's name is one that it must not have."""
        if not tenant:
            return self._own
        if tenant == self._own or tenant.startswith("kube-"):
            reason = f'the namespace "{tenant}" of this cluster is not a tenant\'s'
            remedy = "give the tenant another name"
            raise Unsupported(Problem("NAMESPACE_FORBIDDEN", "namespace", tenant, reason, remedy))
        return tenant

    def tenant_of(self, namespace: str) -> str:
        return "" if namespace == self._own else namespace

    def jobs(self, tenant: str) -> ClusterJobs:
        return ClusterJobs(self.cluster, self.namespace_of(tenant))

    def records(self) -> list[Record]:
        """The jobs of all namespaces."""
        return records(self.cluster, self.backend)

    # -- runtimes

    def runtimes(self, kind: str, tenant: str | None) -> list[Json]:
        """Those of the cluster. `tenant` None: of all namespaces."""
        resource = RUNTIME_RESOURCES[kind]
        place = None if tenant is None or not resource.namespaced else self.namespace_of(tenant)
        try:
            return self.cluster.items(resource, dict[str, Any], place)
        except NotFound:
            return []  # it has no Kubeflow Trainer

    def runtime(self, kind: str, tenant: str, name: str) -> Json | None:
        resource = RUNTIME_RESOURCES[kind]
        try:
            return self.cluster.get(
                resource, name, dict[str, Any], self.namespace_of(tenant) if resource.namespaced else None
            )
        except NotFound:
            return None

    # -- what a pod prints, what happened

    def log(self, namespace: str, pod: str, asked: dict[str, Any]) -> Iterator[bytes]:
        """As the API server streams it; an empty piece for each second of silence. A followed log waits for its pod."""
        path = kube.PODS.path(namespace, pod, "log") + query(**asked)
        while True:
            try:
                connection, response = self.cluster.stream(path, f"get pods/log in {namespace}")
                break
            except errors.Rejected:
                if not asked.get("follow") or not self._pending(namespace, pod):
                    raise
                yield b""
                time.sleep(_PULSE)
        try:
            response.set_timeout(_PULSE if asked.get("follow") else self.cluster.timeout)
            while True:
                try:
                    piece = next(response.iter(), None)
                except TimeoutError:
                    if not asked.get("follow"):
                        raise
                    yield b""
                    continue
                if piece is None:
                    return
                yield piece
        except OSError as error:
            raise errors.from_line(error, self.cluster.name, self.cluster.config.server) from error
        finally:
            connection.close()

    def _pending(self, namespace: str, pod: str) -> bool:
        try:
            found = self.cluster.get(kube.PODS, pod, dict[str, Any], namespace)
        except NotFound:
            return False
        return bool(found.get("status", {}).get("phase", "Pending") == "Pending")

    def events(self, namespace: str, jobs: list[str]) -> list[Json]:
        """What the cluster tells of jobs, their Jobs and their pods."""
        found = self.cluster.items(kube.EVENTS, dict[str, Any], namespace)
        return [one for one in found if _about(str(one["involvedObject"].get("name", "")), jobs)]

    # -- changing

    def check_tenant(self, tenant: str, quota: Quota | None, job: Json, *, trusted: bool) -> None:
        """Refuse what would bypass a limit. `trusted`: for an administrator, who may say more about a pod."""
        self.namespace_of(tenant)
        if quota is not None and quota != Quota():
            reason = f'the tenant "{tenant}" has a quota, and what runs on a cluster is not counted in it'
            remedy = "use a ResourceQuota in the tenant's namespace, and take the quota out of the settings"
            raise Unsupported(Problem("QUOTA_NOT_ENFORCED", "backend", self.backend, reason, remedy))
        found = Refusals()
        if not trusted:
            for index, patch in enumerate(job["spec"].get("runtimePatches", [])):
                _check_powers(patch, f"spec.runtimePatches[{index}]", found)
        found.check()

    def remove(self, tenant: str, name: str) -> None:
        """Answered when its pods are gone, and with them its devices."""
        jobs = self.jobs(tenant)
        jobs.remove(name)
        until = time.monotonic() + _PATIENCE
        while jobs.remains(name):
            if time.monotonic() > until:
                raise Conflict(
                    "it is deleted, and its pods are still ending", field="job", value=name, code="JOB_ENDING",
                    remedy=f"kubectl get pods -n {self.namespace_of(tenant)}",
                )  # fmt: skip
            time.sleep(0.2)


def _about(name: str, jobs: list[str]) -> bool:
    return any(name == job or name.startswith(f"{job}-") for job in jobs)


_POWERS: Final = ("privileged", "allowPrivilegeEscalation", "procMount", "hostPath", "serviceAccountName")


def _check_powers(value: Any, path: str, found: Refusals) -> None:
    """What reaches beyond a container: an administrator's to give, in a runtime."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_powers(item, f"{path}[{index}]", found)
    elif isinstance(value, dict):
        for key, item in value.items():
            where = f"{path}.{key}"
            if (key in _POWERS and item not in (False, "")) or (key == "add" and path.endswith(".capabilities")):
                text = "a tenant of the gateway may not give this to a pod of a cluster"
                found.forbidden(where, text, "ask an administrator for a runtime that has it")
            else:
                _check_powers(item, where, found)

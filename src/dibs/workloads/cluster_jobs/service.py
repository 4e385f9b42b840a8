"""The use cases of training jobs on a cluster: submit one, look at it, remove it.

`dibs train cluster` calls it. Everything is judged, and shown to the API server as a dry run, before anything is
created; what the server would drop is refused. The cluster keeps all there is to know, so nothing is kept here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.errors import Conflict, NotFound
from dibs.kube import client as kube
from dibs.kube.client import Cluster, Resource
from dibs.train.job_annotations import check_for_cluster
from dibs.train.names import pod_spec
from dibs.train.refusals import Refusals
from dibs.train.rendering import Rendered
from dibs.train.review import Lookup, review_job
from dibs.workloads.cluster_jobs import objects, strategies
from dibs.workloads.cluster_jobs.ranks import ClusterRank, ranks_of
from dibs.workloads.cluster_jobs.source import InCluster
from dibs.workloads.cluster_jobs.strategies import Way

Json = dict[str, Any]

_GANGS = "/apis/scheduling.k8s.io/v1beta1"


class Submitted(msgspec.Struct, frozen=True):
    """`reason`: why this way. `created`: kinds and names, in order."""

    name: str
    namespace: str
    way: Way
    reason: str
    created: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as the cluster has it now."""

    name: str
    namespace: str
    cluster: str
    way: Way
    state: str
    message: str = ""
    restarts: int = 0
    ranks: tuple[ClusterRank, ...] = ()


class ClusterJobs:
    """The jobs of one namespace of one cluster."""

    def __init__(self, cluster: Cluster, namespace: str = "") -> None:
        self._cluster = cluster
        self._namespace = namespace or cluster.config.namespace

    # -- submitting ---------------------------------------------------------------------------------------------------

    def submit(
        self, job: Json, runtime: Json | None = None, *, fallback: Lookup | None = None, dry_run: bool = False
    ) -> Submitted:
        """Create it, or raise with every reason and nothing created. `runtime`: of a file; else the cluster's, else
        one of `fallback`. `dry_run`: only say what would be created."""
        rendered, brought = self._rendered(job, runtime, fallback)
        check_for_cluster(rendered.job)
        crds = {one["metadata"]["name"]: one for one in self._cluster.items(kube.CUSTOM_RESOURCES, dict[str, Any])}
        chosen = strategies.choose(rendered, crds, brought=brought)
        found = Refusals()
        strategies.check(chosen, rendered, self._serves(_GANGS, "podgroups"), found)
        found.check()
        made = objects.created(rendered, chosen.way)
        self._rehearse(rendered, made, found)
        found.check()
        if dry_run:
            told = tuple(f"{one['kind']} {one['metadata']['name']}" for one in made)
            return Submitted(
                rendered.job["metadata"]["name"], self._namespace, chosen.way, chosen.reason, told, rendered.warnings
            )
        return self._create(rendered, made, chosen)

    def _rendered(self, job: Json, runtime: Json | None, fallback: Lookup | None) -> tuple[Rendered, bool]:
        """The job, and whether it has brought its runtime along."""
        source = InCluster(self._cluster.config, self._cluster)
        brought = False

        def lookup(kind: str, name: str) -> Json | None:
            nonlocal brought
            own = source.runtime(self._namespace, "", kind, name)
            found = runtime or own or (fallback(kind, name) if fallback else None)
            brought = found is not None and (own is None or _plain(own) != _plain(found))
            return found

        review = review_job(job, lookup, source.facts(self._namespace))
        Refusals(review.refusals).check()
        assert review.rendered is not None
        return review.rendered, brought

    def _rehearse(self, rendered: Rendered, made: list[Json], found: Refusals) -> None:
        """A dry run of all of it, and of one pod of each replicated job: what the server would drop is refused."""
        name = rendered.job["metadata"]["name"]
        pods = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{name}-{one['name']}-rehearsal"},
                "spec": {**pod_spec(one), "restartPolicy": "Never"},
            }
            for one in rendered.jobset["spec"]["replicatedJobs"]
        ]
        for one in [*made, *pods]:
            resource = kube.PODS if one["kind"] == "Pod" else objects.resource_of(one)
            answer = self._cluster.create(resource, one, self._namespace, dry_run=True)
            for path in objects.dropped(one.get("spec", {}), answer.get("spec", {})):
                text = "the API server of this cluster drops this field: a feature that it needs is off"
                remedy = "switch the feature on, or leave the field out"
                found.invalid(f"{one['kind']} {one['metadata']['name']}: spec.{path}", "", text, remedy)

    def _create(self, rendered: Rendered, made: list[Json], chosen: strategies.Chosen) -> Submitted:
        cluster, namespace, told = self._cluster, self._namespace, []
        owner: Json | None = None
        try:
            for one in made:
                body = one if owner is None else _owned(one, owner)
                answer = cluster.create(objects.resource_of(one), body, namespace)
                owner = owner or answer
                told.append(f"{one['kind']} {one['metadata']['name']}")
            suspended = bool(rendered.job["spec"].get("suspend"))
            for one in made:
                if one["kind"] == "Job" and not suspended:
                    cluster.patch(objects.JOBS, one["metadata"]["name"], {"spec": {"suspend": False}}, namespace)
        except BaseException:
            if owner is not None:  # the rest goes with it
                cluster.delete(objects.resource_of(made[0]), owner["metadata"]["name"], namespace)
            raise
        name = rendered.job["metadata"]["name"]
        return Submitted(name, namespace, chosen.way, chosen.reason, tuple(told), rendered.warnings)

    # -- looking ------------------------------------------------------------------------------------------------------

    def show(self, name: str) -> ClusterJob:
        """How far it has come, rank by rank. Raises NotFound."""
        way = self._way(name)
        own, label = f"{objects.JOB}={name}", objects.REPLICATED
        if way != "jobs":
            own, label = f"jobset.sigs.k8s.io/jobset-name={name}", "jobset.sigs.k8s.io/replicatedjob-name"
        jobs = self._cluster.items(objects.JOBS, dict[str, Any], self._namespace, labels=own)
        pods = self._cluster.items(kube.PODS, dict[str, Any], self._namespace, labels=own)
        ranks = ranks_of(self._cluster, self._namespace, pods, jobs, label)
        state, message, restarts = self._state(name, way, jobs, ranks)
        return ClusterJob(
            name=name, namespace=self._namespace, cluster=self._cluster.name, way=way, state=state, message=message,
            restarts=restarts, ranks=tuple(ranks),
        )  # fmt: skip

    def _way(self, name: str) -> Way:
        for way in ("trainer", "jobset", "jobs"):
            resource = {"trainer": objects.TRAIN_JOBS, "jobset": objects.JOB_SETS}.get(way, objects.CONFIG_MAPS)
            wanted = name if way != "jobs" else objects.owner_of(name, "jobs")[1]
            if self._maybe(resource, wanted) is not None:
                return way
        raise NotFound(
            "there is no such job on this cluster", field="job", value=name, code="JOB_NOT_FOUND",
            remedy=f"kubectl get trainjobs,jobsets,jobs -n {self._namespace}",
        )  # fmt: skip

    def _state(self, name: str, way: Way, jobs: list[Json], ranks: list[ClusterRank]) -> tuple[str, str, int]:
        """In one word; what ended it; how often the whole was started again."""
        if way == "jobs":
            conditions = [one for job in jobs for one in job.get("status", {}).get("conditions", [])]
            failed = next((one for one in conditions if one["type"] == "Failed" and one["status"] == "True"), None)
            done = [one for one in conditions if one["type"] == "Complete" and one["status"] == "True"]
            restarts = sum(rank.restarts for rank in ranks)
            if failed:
                return "Failed", failed.get("message", ""), restarts
            if jobs and len(done) == len(jobs):
                return "Complete", "", restarts
            if jobs and all(job["spec"].get("suspend") for job in jobs):
                return "Suspended", "", restarts
            return _going(ranks), "", restarts
        found = self._maybe(objects.JOB_SETS, name) or {}
        status = found.get("status", {})
        for one in status.get("conditions", []):
            if one["type"] in ("Completed", "Failed", "Suspended") and one["status"] == "True":
                word = "Complete" if one["type"] == "Completed" else one["type"]
                return word, one.get("message", ""), status.get("restarts", 0)
        return _going(ranks), "", status.get("restarts", 0)

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Delete what owns the rest of it; the cluster's garbage collector removes that."""
        way = self._way(name)
        resource, own = objects.owner_of(name, way)
        labels = (self._maybe(resource, own) or {}).get("metadata", {}).get("labels", {})
        if way != "trainer" and labels.get(objects.JOB) != name:
            raise Conflict(
                "it was not submitted by dibs", field="job", value=name, code="NOT_YOURS",
                remedy=f"kubectl delete {'jobset' if way == 'jobset' else 'job'} {name}",
            )  # fmt: skip
        self._cluster.delete(resource, own, self._namespace)

    def remains(self, name: str) -> bool:
        """Whether the owner of a removed job, or a pod of it, is still there."""
        for label in (objects.JOB, "jobset.sigs.k8s.io/jobset-name"):
            if self._cluster.items(kube.PODS, dict[str, Any], self._namespace, labels=f"{label}={name}"):
                return True
        return any(self._maybe(*objects.owner_of(name, way)) is not None for way in ("trainer", "jobs"))

    # -- suspending ---------------------------------------------------------------------------------------------------

    def suspend(self, name: str, *, suspended: bool) -> None:
        """End its pods, and give their devices back; or, with False, run it again."""
        way, body = self._way(name), {"spec": {"suspend": suspended}}
        if way == "jobs":
            own = f"{objects.JOB}={name}"
            for one in self._cluster.items(objects.JOBS, dict[str, Any], self._namespace, labels=own):
                self._cluster.patch(objects.JOBS, one["metadata"]["name"], body, self._namespace)
            return
        resource = objects.TRAIN_JOBS if way == "trainer" else objects.JOB_SETS
        self._cluster.patch(resource, name, body, self._namespace)

    def _maybe(self, resource: Resource, name: str) -> Json | None:
        try:
            return self._cluster.get(resource, name, dict[str, Any], self._namespace)
        except NotFound:
            return None

    def _serves(self, path: str, plural: str) -> bool:
        try:
            found = self._cluster.raw(path)
        except NotFound:
            return False
        return any(one.get("name") == plural for one in found.get("resources", []))


def _plain(runtime: Json) -> Json:
    """What a runtime says, without what a server has written to it."""
    spec: Json = runtime["spec"]
    return spec


def _owned(value: Json, owner: Json) -> Json:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**value, "metadata": {**value["metadata"], "ownerReferences": [reference]}}


def _going(ranks: list[ClusterRank]) -> str:
    phases = {rank.phase for rank in ranks}
    return "Pending" if phases & {"Pending", "NotCreated"} or not phases else "Running"

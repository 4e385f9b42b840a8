"""TrainJobs, runtimes and claims for tests, as short as they can be said."""

from __future__ import annotations

from typing import Any

from dibs.train.facts import Facts
from dibs.train.names import ANCESTOR
from dibs.train.objects import API_VERSION, read_job, read_runtime
from dibs.train.refusals import TrainRefused
from dibs.train.rendering import Rendered, render

Json = dict[str, Any]


def job(name: str = "demo", runtime: str = "rt", *, patches: list[Json] | None = None, **spec: Any) -> Json:
    body: Json = {"runtimeRef": {"name": runtime}, **spec}
    if patches is not None:
        body["runtimePatches"] = patches
    return {"apiVersion": API_VERSION, "kind": "TrainJob", "metadata": {"name": name}, "spec": body}


def replicated(name: str = "node", step: str = "trainer", pod: Json | None = None, **container: Any) -> Json:
    node = {"name": "node" if step in ("trainer", "") else step, "image": "img:1", **container}
    metadata = {"labels": {ANCESTOR: step}} if step else {}
    spec = {"containers": [node], **(pod or {})}
    return {"name": name, "template": {"metadata": metadata, "spec": {"template": {"spec": spec}}}}


def runtime(*jobs: Json, policy: Json | None = None, **spec: Any) -> Json:
    ml = {"mlPolicy": {"torch": {}} if policy is None else policy}
    template = {"spec": {"replicatedJobs": list(jobs) or [replicated()], **spec.pop("jobset", {})}}
    body = {**ml, "template": template, **spec}
    return {"apiVersion": API_VERSION, "kind": "ClusterTrainingRuntime", "metadata": {"name": "rt"}, "spec": body}


def patch(pod: Json, job_name: str = "node", manager: str = "acme.io/team") -> Json:
    inner = {"name": job_name, "template": {"spec": {"template": {"spec": pod}}}}
    return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [inner]}}}}


def template(*requests: Json) -> Json:
    return {"spec": {"spec": {"devices": {"requests": list(requests)}}}}


def exactly(count: int = 1, device_class: str = "gpu.nvidia.com", name: str = "gpu", **more: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count, **more}}


def rendered(train_job: Json, training_runtime: Json | None = None, facts: Facts | None = None) -> Rendered:
    return render(read_job(train_job), read_runtime(training_runtime or runtime()), facts)


def refused(train_job: Json, training_runtime: Json | None = None, facts: Facts | None = None) -> list[str]:
    """Why a job is refused, a line for each problem; empty if it is not."""
    try:
        rendered(train_job, training_runtime, facts)
    except TrainRefused as error:
        return [str(problem) for problem in error.problems]
    return []


def node(made: Rendered, index: int = 0) -> Json:
    """The node container of a replicated job."""
    pod = pod_of(made, index)
    found: Json = next(one for one in pod["containers"] if one["name"] == "node")
    return found


def pod_of(made: Rendered, index: int = 0) -> Json:
    found: Json = made.jobset["spec"]["replicatedJobs"][index]["template"]["spec"]["template"]["spec"]
    return found


def env(container: Json) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container.get("env", [])}

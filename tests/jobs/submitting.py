"""Jobs for tests: made from few words, driven in this thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dibs.ledger.jobs import JobBook, JobRow
from dibs.train import shipped
from dibs.train.names import ANCESTOR
from dibs.train.objects import API_VERSION, read_job, read_runtime
from dibs.workloads.jobs.driver import Driver
from dibs.workloads.jobs.model import Job, Objects, Options
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads

Json = dict[str, Any]


def objects(
    command: list[str] | None = None, *, name: str = "demo", nodes: int = 2, gpus: int = 1, runtime: Json | None = None,
    trainer: Json | None = None, claims: dict[str, dict[str, Json]] | None = None, **spec: Any,
) -> Objects:  # fmt: skip
    said: Json = {"numNodes": nodes, "command": command or ["sleep", "1000"], **(trainer or {})}
    if gpus:
        said["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": gpus}}
    made = read_runtime(runtime) if runtime is not None else shipped.runtime("plain")
    assert made is not None
    body = {"runtimeRef": {"name": made["metadata"]["name"]}, "trainer": said, **spec}
    job = read_job({"apiVersion": API_VERSION, "kind": "TrainJob", "metadata": {"name": name}, "spec": body})
    return Objects(job, made, claims or {})


def runtime(*jobs: Json, policy: Json | None = None, **jobset: Any) -> Json:
    """A runtime without images, for `local`."""
    template = {"spec": {"replicatedJobs": list(jobs) or [replicated()], **jobset}}
    metadata = {"name": "rt", "annotations": {"train.dibs/image": "optional"}}
    spec = {"mlPolicy": policy or {"numNodes": 1}, "template": template}
    return {"apiVersion": API_VERSION, "kind": "ClusterTrainingRuntime", "metadata": metadata, "spec": spec}


def replicated(
    name: str = "node", step: str = "trainer", *, pod: Json | None = None, depends: Json | None = None, **container: Any
) -> Json:
    own = "node" if step in ("trainer", "") else step
    metadata = {"labels": {ANCESTOR: step}} if step else {}
    spec = {"containers": [{"name": own, "image": "img:1", **container}], **(pod or {})}
    made: Json = {"name": name, "template": {"metadata": metadata, "spec": {"template": {"spec": spec}}}}
    return {**made, "dependsOn": [depends]} if depends else made


def options(backend: str = "local", **more: Any) -> Options:
    return Options(backend=backend, workdir=str(Path.cwd()), base_env={"PATH": "/usr/bin:/bin"}, **more)


def submitted(service: Workloads, what: Objects, **more: Any) -> Job:
    return Jobs(service).submit(what, options(**more))


def row_of(service: Workloads, job: Job) -> JobRow:
    return JobBook(service.ledger).job(job.id)


def driven(service: Workloads, job: Job, until: str = "") -> Job:
    """Drive it in this thread until it has ended, is suspended, or is in a state."""

    def there() -> bool:
        return bool(until) and row_of(service, job).state == until

    Driver(service, row_of(service, job), idle=_short).run(there)
    return Jobs(service).get(job.id)


def removed(service: Workloads, job: Job) -> None:
    """Remove it, driving it in this thread until it is gone."""
    row = row_of(service, job)
    Jobs(service).delete(job.id, wait=False)
    if row.live:
        Driver(service, row, idle=_short).run()


def _short(pause: float) -> None:
    import time

    time.sleep(min(pause, 0.05))

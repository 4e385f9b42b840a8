"""TrainJobs: rendered against Kubeflow Trainer's own Go code, a thousand of them, and started all ranks at once.

Run alone with ``python -m bench.train``, or by name from ``python -m bench``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bench.golang import TRAINER, Reference, reference
from bench.measure import median, row, shown, title
from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.request.spec import parse_spec
from dibs.train import shipped
from dibs.train.facts import Facts
from dibs.train.objects import API_VERSION, read_runtime
from dibs.train.review import review_job
from dibs.workloads.jobs.driver import Driver
from dibs.workloads.jobs.model import Objects, Options
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads

Json = dict[str, Any]

ROUNDS = 9
RANKS = 4
JOB: Json = {
    "apiVersion": API_VERSION,
    "kind": "TrainJob",
    "metadata": {"name": "demo", "namespace": "team-a", "uid": "u"},
    "spec": {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch"},
        "trainer": {
            "numNodes": 2,
            "image": "img:2",
            "command": ["torchrun", "train.py"],
            "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": "4", "cpu": "8", "memory": "64Gi"}},
        },
        "runtimePatches": [
            {
                "manager": "acme.io/team",
                "trainingRuntimeSpec": {
                    "template": {
                        "spec": {
                            "replicatedJobs": [
                                {
                                    "name": "node",
                                    "template": {
                                        "spec": {
                                            "template": {
                                                "spec": {
                                                    "nodeSelector": {"pool": "a"},
                                                    "volumes": [{"name": "data", "emptyDir": {}}],
                                                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                                                }
                                            }
                                        }
                                    },
                                }
                            ]
                        }
                    }
                },
            }
        ],
    },
}


def _runtime() -> Json:
    found = shipped.runtime("torch-distributed")
    assert found is not None
    return {**found, "metadata": {"name": "torch"}}


def train() -> None:
    title("Training jobs")
    _rendering()
    _starting()


def _render(text: bytes, runtime: Json) -> bytes:
    """As a webhook and a controller do it together: read, judged, rendered, written."""
    review = review_job(msgspec.json.decode(text), lambda *_: runtime, Facts())
    assert review.rendered is not None
    assert not review.refusals
    return msgspec.json.encode(review.rendered.objects)


def _rendering() -> None:
    runtime = read_runtime(_runtime())
    text = msgspec.json.encode(JOB)
    _render(text, runtime)  # what is loaded or compiled once
    command = reference(TRAINER)
    ours: list[float] = []
    theirs: list[float] = []
    go = None if isinstance(command, str) else Reference(command)
    for _ in range(ROUNDS):
        ours.append(_timed(lambda: _render(text, runtime), 0.2))
        if go is not None:
            answer = go.ask({"runtime": runtime, "trainjob": JOB, "milliseconds": 200})
            theirs.append(answer["microseconds"] / 1e6)
    if go is None:
        row("one TrainJob, judged and rendered", shown(median(ours)), "", f"Kubeflow Trainer's: {command}")
    else:
        go.close()
        ratio = median([one / other for one, other in zip(ours, theirs, strict=True)])
        row("one TrainJob, judged and rendered", shown(median(ours)), f"{ratio:.2f} ×", "goal ≤ 1 ×")
        row("  Kubeflow Trainer's Go code, the same", shown(median(theirs)))
    names = [msgspec.json.encode({**JOB, "metadata": {**JOB["metadata"], "name": f"job-{n}"}}) for n in range(1000)]
    began = time.process_time()
    for one in names:
        _render(one, runtime)
    row("1,000 TrainJobs", shown(time.process_time() - began))


def _timed(call: Callable[[], object], seconds: float) -> float:
    """Processor time, as the reference counts its own: whatever else the machine does hits neither."""
    count, began = 0, time.process_time()
    while (passed := time.process_time() - began) < seconds:
        call()
        count += 1
    return passed / count


def _starting() -> None:
    """From the submission until every rank runs, against the same sandboxes one after the other."""
    with tempfile.TemporaryDirectory(prefix="dibs-bench-train-") as folder:
        home = Home(state=Path(folder) / "home", config=Path(folder) / "home" / "config").make()
        simulate(home, parse_world("8", model="H100"))
        with Workloads(home) as service:
            jobs = {"job": lambda: _job(service), "sandboxes": lambda: _sandboxes(service)}
            times = _in_turns(jobs)
    ratio = median([one / other for one, other in zip(times["job"], times["sandboxes"], strict=True)])
    row(
        f"a job of {RANKS} ranks, submitted until all run",
        shown(median(times["job"])),
        f"{ratio:.2f} ×",
        "goal ≤ 0.7 ×",
    )
    row(f"  {RANKS} sandboxes, one after the other", shown(median(times["sandboxes"])))


def _in_turns(calls: dict[str, Callable[[], Callable[[], None]]]) -> dict[str, list[float]]:
    """Seconds of each call in each round; what it gives back clears up, and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            clear = call()
            if number:
                times[name].append(time.perf_counter() - began)
            clear()
    return times


def _job(service: Workloads) -> Callable[[], None]:
    plain = shipped.runtime("plain")
    assert plain is not None
    spec = {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "plain"},
        "trainer": {
            "numNodes": RANKS,
            "command": ["sleep", "1000"],
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}},
        },
    }
    from dibs.ledger.jobs import JobBook
    from dibs.train.objects import read_job

    job = read_job({"apiVersion": API_VERSION, "kind": "TrainJob", "metadata": {"name": "bench"}, "spec": spec})
    made = Jobs(service).submit(
        Objects(job, plain), Options(backend="local", base_env=dict(os.environ), workdir=tempfile.gettempdir())
    )
    driver = Driver(service, JobBook(service.ledger).job(made.id))
    driver.run(lambda: Jobs(service).get(made.id).state == "running")

    def clear() -> None:
        running = JobBook(service.ledger).job(made.id)
        Jobs(service).delete(made.id, wait=False)
        Driver(service, running, idle=lambda _: time.sleep(0.01)).run()

    return clear


def _sandboxes(service: Workloads) -> Callable[[], None]:
    spec = parse_spec({"backend": "local", "gpu": 1, "command": ["sleep", "1000"], "workdir": tempfile.gettempdir()})
    rows = [service.create(spec) for _ in range(RANKS)]

    def clear() -> None:
        with ThreadPoolExecutor(RANKS) as threads:
            list(threads.map(lambda one: _removed(service.home, one.id), rows))

    return clear


def _removed(home: Home, sandbox_id: str) -> None:
    with Workloads(home, compare=False) as own:
        own.remove(sandbox_id, 0.0)


if __name__ == "__main__":
    train()

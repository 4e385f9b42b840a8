"""Random TrainJobs: what the released Kubeflow Trainer and JobSet make of them, and what dibs makes of them.

The controllers run on a control plane of their own. Every job agrees, or each of its differences is one that
`tests/train/allowances.py` names. DIBS_SOAK takes 1,000 jobs with a new seed, otherwise a small slice; a failure prints
the seed of its job.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import yaml
from tests.cluster import trainer
from tests.cluster.binaries import CannotBuild
from tests.cluster.control_plane import ControlPlane
from tests.cluster.running import RunningCluster
from tests.cluster.trainer import GROUP, JOB_SETS, Controllers
from tests.train import random_jobs
from tests.train.allowances import unnamed
from tests.train.comparing import FACTS, differences
from tests.train.random_jobs import SPACE

Json = dict[str, Any]

SOAK = bool(os.environ.get("DIBS_SOAK"))
JOBS = int(os.environ.get("DIBS_JOBS", 1000 if SOAK else 40))
SEED = int(os.environ.get("DIBS_SEED", random.randrange(1 << 31) if SOAK else 20261118))
_BATCH = 40
_PATIENCE = 300.0
_TIMES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_STRIPPED = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


@pytest.fixture(scope="module")
def controllers(running: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controllers]:
    """On a control plane of their own: the other tests are about clusters without them."""
    folder = tmp_path_factory.mktemp("plane")
    plane = ControlPlane(running.binaries, folder)
    try:
        plane.start()
        with trainer.started(folder, tmp_path_factory.mktemp("controllers")) as found:
            found.api.apply("/api/v1/namespaces", {"metadata": {"name": SPACE}})
            yield found
    except CannotBuild as reason:
        pytest.skip(str(reason))
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_the_released_controllers_make_of_random_jobs_what_dibs_makes_or_it_is_named(controllers: Controllers) -> None:
    print(f"seeds {SEED} to {SEED + JOBS - 1}")
    found: list[str] = []
    facts = msgspec.structs.replace(FACTS, crds=frozenset())  # no PodGroup of any scheduler
    for first in range(SEED, SEED + JOBS, _BATCH):
        cases = [random_jobs.case(seed) for seed in range(first, min(first + _BATCH, SEED + JOBS))]
        for case, outcome in zip(cases, outcomes(controllers, cases), strict=True):
            lines = unnamed(case, outcome, differences(case, outcome, facts))
            found += [f"{case['name']}: {line}" for line in lines]
    controllers.check()
    assert not found, "\n" + "\n".join(found)


def outcomes(controllers: Controllers, cases: list[Json]) -> list[Json]:
    """What becomes of each of them, once the controllers have had their say; all side by side."""
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda case: _outcome(controllers, case), cases))
    for case in cases:
        name = case["trainjob"]["metadata"]["name"]
        controllers.api("DELETE", f"{GROUP}/namespaces/{SPACE}/trainjobs/{name}")
    return found


def _outcome(controllers: Controllers, case: Json) -> Json:
    api, runtime, job = controllers.api, case["runtime"], case["trainjob"]
    space = f"{GROUP}/namespaces/{SPACE}"
    path = f"{space}/trainingruntimes" if runtime["kind"] == "TrainingRuntime" else f"{GROUP}/clustertrainingruntimes"
    code, answer = api("POST", path, runtime)
    if code != 201:
        return {"error": _error("runtime", answer)}
    # The webhooks ask the controller's own copy of the runtimes, which comes a moment later.
    end = time.monotonic() + _PATIENCE
    while True:
        code, answer = api("POST", f"{space}/trainjobs", job)
        late = code == 403 and "not found" in answer["message"]
        if not late or time.monotonic() > end:
            break
        time.sleep(0.05)
    if code != 201:
        return {"error": _error("trainjob", answer)}
    return _settled(controllers, job["metadata"]["name"])


def _settled(controllers: Controllers, name: str) -> Json:
    """The job, its JobSet and what else it owns; or the Event that says why there is none."""
    api = controllers.api
    end = time.monotonic() + _PATIENCE
    jobset: Json | None = None
    events: list[str] = []
    while jobset is None and not events:
        controllers.check()
        assert time.monotonic() < end, f"{name}: neither a JobSet nor an Event"
        time.sleep(0.05)
        code, answer = api("GET", f"{JOB_SETS}/namespaces/{SPACE}/jobsets/{name}")
        jobset = answer if code == 200 else None
        if jobset is None:
            chosen = f"fieldSelector=involvedObject.kind=TrainJob,involvedObject.name={name},type=Warning"
            events = [one["message"] for one in api.items(f"/api/v1/namespaces/{SPACE}/events?{chosen}")]
    # What comes after the JobSet is there as soon as the job says whether it is suspended, or has reconciled once.
    _, stored = api("GET", f"{GROUP}/namespaces/{SPACE}/trainjobs/{name}")
    if jobset is not None and stored["spec"].get("suspend"):
        while not stored.get("status", {}).get("conditions"):
            assert time.monotonic() < end, f"{name}: no condition"
            time.sleep(0.05)
            _, stored = api("GET", f"{GROUP}/namespaces/{SPACE}/trainjobs/{name}")
    owned = [
        one
        for kind in ("configmaps", "secrets")
        for one in api.items(f"/api/v1/namespaces/{SPACE}/{kind}")
        if any(owner["name"] == name for owner in one["metadata"].get("ownerReferences", []))
    ]
    for one in owned:
        if "runtime" in (data := one.get("data", {})):
            data["runtime"] = yaml.safe_dump(_stripped(yaml.safe_load(data["runtime"])))
    conditions = [
        {key: value for key, value in one.items() if key not in ("lastTransitionTime", "observedGeneration")}
        for one in stored.get("status", {}).get("conditions", [])
    ]
    stored.pop("status", None)
    if jobset is not None:
        jobset.pop("status", None)
    owned.sort(key=lambda one: (one["apiVersion"], one["kind"], one["metadata"]["name"]))
    outcome = {"jobset": jobset, "stored": stored, "others": owned, "conditions": conditions, "events": events}
    found: Json = _stripped(outcome)
    return found


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        found = {key: _stripped(item) for key, item in value.items() if key not in _STRIPPED}
        return {key: "<time>" if key == "time" and isinstance(item, str) else item for key, item in found.items()}
    return [_stripped(item) for item in value] if isinstance(value, list) else value


def _error(stage: str, answer: Json) -> Json:
    causes = answer.get("details", {}).get("causes")
    found = {"on": stage, "code": answer["code"], "message": _TIMES.sub("<time>", answer["message"])}
    return {**found, "causes": causes} if causes else found

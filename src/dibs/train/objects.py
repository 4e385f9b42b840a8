"""TrainJob, TrainingRuntime and ClusterTrainingRuntime (`trainer.kubeflow.org/v1alpha1`), read strictly.

Everything else in `train` works on what comes out of here: plain dicts in the API's own words, without nulls, with the
CRDs' defaults. Every mistake is reported at once, each with its path. What the fields mean together is `admission`.
"""

from __future__ import annotations

from typing import Any, Final

from dibs.train import schema
from dibs.train.refusals import Refusals

API_VERSION: Final = "trainer.kubeflow.org/v1alpha1"
GROUP: Final = "trainer.kubeflow.org"
TRAIN_JOB: Final = "TrainJob"
RUNTIME: Final = "TrainingRuntime"
CLUSTER_RUNTIME: Final = "ClusterTrainingRuntime"
RUNTIMES: Final = (RUNTIME, CLUSTER_RUNTIME)

Json = dict[str, Any]


def read_job(value: object, old: Json | None = None) -> Json:
    """A TrainJob, with defaults. `old`: what it replaces, for the rules about changes. Raises TrainRefused."""
    found = Refusals()
    job = examined_job(value, old, found)
    found.check()
    return job


def read_runtime(value: object, old: Json | None = None) -> Json:
    """A runtime of either kind, with defaults. Raises TrainRefused."""
    found = Refusals()
    runtime = examined_runtime(value, old, found)
    found.check()
    return runtime


def examined_job(value: object, old: Json | None, found: Refusals) -> Json:
    return _examined(value, TRAIN_JOB, (TRAIN_JOB,), old, found)


def examined_runtime(value: object, old: Json | None, found: Refusals) -> Json:
    return _examined(value, RUNTIME, RUNTIMES, old, found)


def _examined(value: object, kind: str, kinds: tuple[str, ...], old: Json | None, found: Refusals) -> Json:
    if isinstance(value, dict):
        if value.get("apiVersion") != API_VERSION:
            found.invalid("apiVersion", value.get("apiVersion"), f"must be {API_VERSION}")
        if value.get("kind") not in kinds:
            found.invalid("kind", value.get("kind"), f"must be {' or '.join(kinds)}")
    before = len(found)
    result: Json = schema.normalised(value, kind, found)
    if len(found) == before and not result.get("metadata", {}).get("name"):
        found.add("metadata.name", "Required value", None, "name is required")
    if all(schema.is_bound(one) for one in found):
        schema.check_rules(result, old, kind, found)
    return result

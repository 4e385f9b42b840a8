"""The names that Kubeflow Trainer and JobSet give to things. They are an interface: images and scripts rely on them."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

DEFAULT_MANAGER: Final = "trainer.kubeflow.org/trainjob-controller"
ANCESTOR: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
SUPPORT: Final = "trainer.kubeflow.org/support"
FRAMEWORK: Final = "trainer.kubeflow.org/framework"
DEPRECATION_POLICY: Final = (
    "https://trainer.kubeflow.org/en/latest/operator-guides/runtime.html#runtime-deprecation-policy"
)
TRAINER: Final = "trainer"
DATASET: Final = "dataset-initializer"
MODEL: Final = "model-initializer"
ANCESTORS: Final = (TRAINER, DATASET, MODEL)
NODE: Final = "node"
LAUNCHER: Final = "launcher"
INITIALIZER_VOLUME: Final = "initializer"
PORT: Final = 29500
COMPLETION_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

# Said on a TrainJob: yes, devices by extended resource and by claim at once are what I want.
DOUBLE_ALLOCATION: Final = "train.dibs/double-allocation"
# Said on a DeviceClass: whether its devices get a process each ("per-device") or none ("none").
PROCESSES: Final = "train.dibs/processes"
# Said by dibs on a PodGroup: devices that the gang needs by claim. Schedulers have no resource to count them in.
MIN_DEVICES: Final = "train.dibs/min-devices"


def ancestor(replicated: Json) -> str:
    """Which step of the job a replicated job is: trainer, dataset-initializer, model-initializer, or ""."""
    labels = replicated.get("template", {}).get("metadata", {}).get("labels", {})
    found: str = labels.get(ANCESTOR, "")
    return found


def pod_template(replicated: Json) -> Json:
    found: Json = replicated["template"]["spec"]["template"]
    return found


def pod_spec(replicated: Json) -> Json:
    found: Json = pod_template(replicated).setdefault("spec", {})
    return found


def containers(replicated: Json) -> list[Json]:
    found: list[Json] = pod_spec(replicated).get("containers", [])
    return found


def container(replicated: Json, name: str) -> Json | None:
    return next((one for one in containers(replicated) if one.get("name") == name), None)


def pod_path(index: int) -> str:
    """Where the pod of a replicated job stands in a runtime."""
    return f"spec.template.spec.replicatedJobs[{index}].template.spec.template.spec"


def copied(value: Any) -> Any:
    """A plain value, as JSON has it, with nothing in common with the original."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value

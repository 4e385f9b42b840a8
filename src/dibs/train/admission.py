"""What an admission webhook says about a TrainJob or a runtime: Kubeflow Trainer's rules in its words, and dibs' own.

`rendering` calls `check_job` for every job; `review` puts a whole answer together, for a new object or a change. Where
upstream looks at what is already merged and so misses a mistake (a patch for a job or container that is not there),
the runtime is looked at instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from dibs.train import job_annotations, policies
from dibs.train.facts import Facts
from dibs.train.names import (
    ANCESTORS,
    DATASET,
    DEPRECATION_POLICY,
    INITIALIZER_VOLUME,
    MODEL,
    NODE,
    SUPPORT,
    TRAINER,
    ancestor,
    container,
    pod_path,
    pod_spec,
)
from dibs.train.objects import CLUSTER_RUNTIME, GROUP, RUNTIMES
from dibs.train.refusals import Printed, Refusals

Json = dict[str, Any]

_DOMAIN_PATH: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
)
_GATE: Final = "TrainJobDynamicResourceAllocation feature gate is disabled"
_PATCHES: Final = "spec.runtimePatches"


def check_reference(job: Json, runtime: Json | None, found: Refusals) -> bool:
    """Whether the job's runtime is of a known kind and there. Without it nothing else can be said."""
    reference = job["spec"]["runtimeRef"]
    kind, group = reference["kind"], reference["apiGroup"]
    if group != GROUP or kind not in RUNTIMES:
        found.add("", f"unsupported runtime: {kind}.{group}")
        return False
    if runtime is None:
        words = "clusterTrainingRuntime" if kind == CLUSTER_RUNTIME else "trainingRuntime"
        path = "spec.RuntimeRef" if kind == CLUSTER_RUNTIME else "spec.runtimeRef"
        missing = f'{kind}.{group} "{reference["name"]}" not found'
        text = f"{missing}: specified {words} must be created before the TrainJob is created"
        found.invalid(path, _in_go_order(reference), text)
        return False
    return True


def runtime_warnings(runtime: Json, *, referenced: bool) -> Iterator[str]:
    if runtime["metadata"].get("labels", {}).get(SUPPORT) == "deprecated":
        subject = f'{runtime["kind"]} "{runtime["metadata"]["name"]}"'
        subject = f"Referenced {subject}" if referenced else subject
        yield (
            f"{subject} is deprecated and will be removed in a future release of Kubeflow Trainer. "
            f"See runtime deprecation policy: {DEPRECATION_POLICY}"
        )


def check_runtime(runtime: Json, found: Refusals) -> None:
    for index, replicated in enumerate(_jobs(runtime)):
        step, path = ancestor(replicated), f"spec.template.spec.replicatedJobs[{index}]"
        if step in ANCESTORS:
            if replicated.get("replicas", 1) != 1:
                found.invalid(f"{path}.replicas", replicated["replicas"], "always must be 1")
            if container(replicated, NODE if step == TRAINER else step) is None:
                text = f"must contain the required container for the ancestor: {step}"
                shown = [_go_container(one) for one in pod_spec(replicated).get("containers", [])]
                found.invalid(f"{pod_path(index)}.containers", shown, text)
        elif step:
            known = ", ".join(ANCESTORS)
            text = "unknown step: what a TrainJob says would reach no container"
            found.invalid(f"{path}.template.metadata.labels", step, text, f"the steps are {known}")
        defined = {claim["name"] for claim in pod_spec(replicated).get("resourceClaims", [])}
        for field in ("initContainers", "containers"):
            for number, one in enumerate(pod_spec(replicated).get(field, [])):
                for place, reference in enumerate(one.get("resources", {}).get("claims", [])):
                    if reference["name"] not in defined:
                        where = f"{pod_path(index)}.{field}[{number}].resources.claims[{place}]"
                        name = reference["name"]
                        text = f'references resourceClaim "{name}" which is not defined in the Pod\'s resourceClaims'
                        found.invalid(where, name, text)
    if "flux" in runtime["spec"].get("mlPolicy", {}):
        remedy = "the policies are torch, jax, mpi, xgboost, or none of them"
        found.invalid("spec.mlPolicy.flux", "flux", "the flux policy is not supported by dibs", remedy)


def check_job(job: Json, runtime: Json, facts: Facts, found: Refusals) -> None:
    """The rules about a TrainJob and its runtime, before anything is merged."""
    spec = job["spec"]
    jobs = {one["name"]: one for one in _jobs(runtime)}
    _initializers(spec, jobs, found)
    _patches(spec, jobs, found)
    _reserved(spec.get("trainer", {}), runtime, found)
    if "flux" in runtime["spec"].get("mlPolicy", {}):
        remedy = "the policies are torch, jax, mpi, xgboost, or none of them"
        found.invalid("spec.runtimeRef.name", spec["runtimeRef"]["name"], "the flux policy is not supported", remedy)
    if not facts.claims_enabled:
        for path in _claim_paths(job):
            found.forbidden(path, _GATE)


def _initializers(spec: Json, jobs: dict[str, Json], found: Refusals) -> None:
    reference = _in_go_order(spec["runtimeRef"])
    for name, field in ((DATASET, "dataset"), (MODEL, "model")):
        if field not in spec.get("initializer", {}):
            continue
        if name not in jobs:
            text = f"must have {name} job when trainJob is configured with input {field}Config"
        elif (own := container(jobs[name], name)) is None:
            text = f"must have container with name - {name} in the {name} job"
        elif not any(one["name"] == INITIALIZER_VOLUME for one in own.get("volumeMounts", [])):
            text = f"must have volumeMount with name - {INITIALIZER_VOLUME} in container {name} of the {name} job"
        else:
            continue
        found.invalid("spec.runtimeRef", reference, text)


def _patches(spec: Json, jobs: dict[str, Json], found: Refusals) -> None:
    for index, patch in enumerate(spec.get("runtimePatches", [])):
        if not _DOMAIN_PATH.fullmatch(patch["manager"]):
            text = 'must be a domain-prefixed path (such as "acme.io/foo")'
            found.invalid(f"{_PATCHES}.manager", patch["manager"], text)
        change = patch.get("trainingRuntimeSpec", {}).get("template", {})
        for number, one in enumerate(change.get("spec", {}).get("replicatedJobs", [])):
            path = f"{_PATCHES}[{index}].trainingRuntimeSpec.template.spec.replicatedJobs[{number}]"
            _patch_of_job(one, path, jobs, spec["runtimePatches"], found)


def _patch_of_job(patch: Json, path: str, jobs: dict[str, Json], whole: list[Json], found: Refusals) -> None:
    own = jobs.get(patch["name"])
    if own is None:
        text = "must not have replicated job that doesn't exist in the runtime job template"
        found.invalid(f"{path}.name", patch["name"], text, f"the jobs are {', '.join(jobs)}")
        return
    label = patch.get("template", {}).get("metadata", {}).get("labels", {})
    from_label = ancestor({"template": {"metadata": {"labels": label}}})
    if from_label and from_label != ancestor(own):
        text = f'must not change the step of a job: it is "{ancestor(own)}" in the runtime'
        found.invalid(f"{path}.template.metadata.labels", from_label, text)
    pod = patch.get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
    for field, noun in (("initContainers", "initContainer"), ("containers", "container")):
        known = [one["name"] for one in pod_spec(own).get(field, [])]
        for number, one in enumerate(pod.get(field, [])):
            if one["name"] not in known:
                text = f"must not have {noun} that doesn't exist in the runtime job {patch['name']}"
                remedy = f"its {field} are {', '.join(known) or 'none'}"
                found.invalid(f"{path}.template.spec.template.spec.{field}[{number}].name", one["name"], text, remedy)
            elif field == "containers" and one.get("env") and one["name"] in (DATASET, MODEL, NODE):
                text = f"must not have envs for the {DATASET}, {MODEL}, {NODE} containers"
                found.invalid(_PATCHES, _named_first(whole), text)


def _reserved(trainer: Json, runtime: Json, found: Refusals) -> None:
    policy = runtime["spec"].get("mlPolicy", {})
    for name, reserved in (("torch", policies.TORCH_ENV), ("mpi", policies.MPI_ENV)):
        used = sorted(one["name"] for one in trainer.get("env", []) if one["name"] in reserved)
        if name in policy and used:
            text = f"must not have reserved envs, invalid envs configured: [{' '.join(used)}]"
            found.invalid("spec.trainer.env", trainer["env"], text)
    if "xgboost" in policy:
        for index, one in enumerate(trainer.get("env", [])):
            if one["name"] in policies.XGBOOST_ENV:
                found.forbidden(f"spec.trainer.env[{index}]", f"{one['name']} is reserved for the XGBoost runtime")


def _claim_paths(job: Json) -> Iterator[str]:
    spec = job["spec"]
    if spec.get("trainer", {}).get("resourceClaimsPerNode"):
        yield "spec.trainer.resourceClaimsPerNode"
    if job_annotations.CLAIMS in job["metadata"].get("annotations", {}):
        yield f"metadata.annotations[{job_annotations.CLAIMS}]"
    for index, patch in enumerate(spec.get("runtimePatches", [])):
        change = patch.get("trainingRuntimeSpec", {}).get("template", {}).get("spec", {})
        for number, one in enumerate(change.get("replicatedJobs", [])):
            path = f"{_PATCHES}[{index}].trainingRuntimeSpec.template.spec.replicatedJobs[{number}]"
            path += ".template.spec.template.spec"
            pod = one.get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
            if pod.get("resourceClaims"):
                yield f"{path}.resourceClaims"
            for field in ("containers", "initContainers"):
                for place, own in enumerate(pod.get(field, [])):
                    if own.get("resources", {}).get("claims"):
                        yield f"{path}.{field}[{place}].resources.claims"


def _jobs(runtime: Json) -> list[Json]:
    found: list[Json] = runtime["spec"].get("template", {}).get("spec", {}).get("replicatedJobs", [])
    return found


def _in_go_order(reference: Json) -> Printed:
    return Printed.of({key: reference[key] for key in ("name", "apiGroup", "kind") if key in reference})


def _go_container(one: Json) -> Json:
    return {**_named_first(one), "resources": one.get("resources", {})}


def _named_first(value: Any) -> Any:
    """Values are printed as upstream prints them, with what names a thing before the rest of it."""
    if isinstance(value, list):
        return [_named_first(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = [key for key in ("name", "manager", "time") if key in value]
    return {key: _named_first(value[key]) for key in (*names, *(key for key in value if key not in names))}

"""In which way a cluster runs a job: by Kubeflow Trainer, by JobSet alone, or by Indexed Jobs and a headless Service.

The way is chosen by what the cluster has, and said with its reason. What the chosen way cannot do is refused by name.
Pure: what the cluster has is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from dibs.train import compute_domain
from dibs.train.names import DEFAULT_MANAGER, pod_spec
from dibs.train.refusals import Refusals
from dibs.train.rendering import Rendered

Json = dict[str, Any]
Way = Literal["trainer", "jobset", "jobs"]

TRAINER_CRD: Final = "trainjobs.trainer.kubeflow.org"
JOBSET_CRD: Final = "jobsets.jobset.x-k8s.io"
# Fields of a pod that make it part of a gang of Kubernetes' own scheduler, as releases have called them.
GANG_FIELDS: Final = ("schedulingGroup", "workloadRef")
# Of a JobSet: what a single Job does as well.
_AS_JOBS: Final = frozenset(("replicatedJobs", "suspend", "network", "startupPolicy", "successPolicy"))


class Chosen(msgspec.Struct, frozen=True):
    way: Way
    reason: str


def choose(rendered: Rendered, crds: Mapping[str, Json], *, brought: bool = False) -> Chosen:
    """The way for a job. `crds`: the CustomResourceDefinitions of the cluster, by name. `brought`: its runtime is not
    one of the cluster's."""
    if JOBSET_CRD not in crds:
        return Chosen("jobs", f"the cluster has no {JOBSET_CRD}: Indexed Jobs and a headless Service stand in for it")
    if TRAINER_CRD not in crds:
        return Chosen("jobset", f"the cluster has JobSet, and no {TRAINER_CRD}")
    if any(one["kind"] == compute_domain.KIND for one in rendered.companions):
        return Chosen("jobset", "its ComputeDomain is made with it, which Kubeflow Trainer does not do: JobSet")
    if _claims(rendered) and not _takes_claims(crds[TRAINER_CRD]):
        reason = "the Kubeflow Trainer of this cluster loses claims (it has no resourceClaimsPerNode): JobSet does not"
        return Chosen("jobset", reason)
    if brought:
        reason = "its runtime is not one of the cluster's, which Kubeflow Trainer would ask for: JobSet does not"
        return Chosen("jobset", reason)
    return Chosen("trainer", "the cluster has Kubeflow Trainer and JobSet")


def check(chosen: Chosen, rendered: Rendered, gang_served: bool, found: Refusals) -> None:
    """Refuse what the way, or the cluster, cannot do."""
    for index, replicated in enumerate(rendered.jobset["spec"]["replicatedJobs"]):
        path = f"spec.replicatedJobs[{index}]"
        for field in GANG_FIELDS:
            if field in pod_spec(replicated) and not gang_served:
                text = "the cluster serves no PodGroup of scheduling.k8s.io: each pod would be scheduled alone"
                remedy = "switch on the feature GenericWorkload of the cluster, or take the gang out of the runtime"
                found.invalid(f"{path}.template.spec.template.spec.{field}", field, text, remedy)
        if chosen.way == "jobs" and replicated.get("dependsOn"):
            names = [one["name"] for one in replicated["dependsOn"]]
            text = "the order of replicated jobs needs JobSet, which the cluster does not have"
            found.invalid(f"{path}.dependsOn", names, text, "install JobSet, or use a runtime without initialisers")
    if chosen.way == "jobs":
        _check_jobs(rendered.jobset["spec"], found)
    if chosen.way != "trainer":
        _check_without_trainer(rendered, found)


def _check_jobs(spec: Json, found: Refusals) -> None:
    """What JobSet alone does. Several Jobs would not end together."""
    for field in sorted(set(spec) - _AS_JOBS):
        if spec[field] not in (None, [], {}, "", False, {"maxRestarts": 0}):
            text = "this needs JobSet, which the cluster does not have"
            found.invalid(f"spec.{field}", spec[field], text, "install JobSet, or take it out of the runtime")
    jobs = [one["name"] for one in spec["replicatedJobs"] for _ in range(one.get("replicas", 1))]
    if len(jobs) > 1:
        text = "several Jobs succeed and fail as one only with JobSet, which the cluster does not have"
        found.invalid("spec.replicatedJobs", jobs, text, "install JobSet, or use a runtime with one job")


def _check_without_trainer(rendered: Rendered, found: Refusals) -> None:
    """What the controller of TrainJobs does, and JobSet and Jobs do not."""
    wanted, spec = rendered.job["spec"], rendered.jobset["spec"]
    if (manager := wanted.get("managedBy", DEFAULT_MANAGER)) != DEFAULT_MANAGER:
        text = "it manages TrainJobs, and this job is not submitted as one here"
        found.invalid("spec.managedBy", manager, text, "leave it out")
    policy = spec.get("failurePolicy", {})
    again = policy.get("maxRestarts") or policy.get("rules")
    later = [one["name"] for one in spec["replicatedJobs"] if one.get("dependsOn")]
    if spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder":
        later = [one["name"] for one in spec["replicatedJobs"][1:]]
    if (limit := wanted.get("activeDeadlineSeconds")) is not None and (again or later):
        # Each Job has a clock of its own, which begins when that Job does.
        text = "only Kubeflow Trainer has a deadline over several stages or restarts"
        found.invalid("spec.activeDeadlineSeconds", limit, text, "leave it out, or use a runtime without them")


def _claims(rendered: Rendered) -> bool:
    return any(pod_spec(one).get("resourceClaims") for one in rendered.jobset["spec"]["replicatedJobs"])


def _takes_claims(crd: Json) -> bool:
    """Whether the TrainJob of the cluster knows claims per node: by its schema, not by a version."""
    for version in crd["spec"]["versions"]:
        found: Any = version.get("schema", {}).get("openAPIV3Schema", {})
        for key in ("spec", "trainer", "resourceClaimsPerNode"):
            found = found.get("properties", {}).get(key) if isinstance(found, dict) else None
            if found is None:
                break
        else:
            return True
    return False

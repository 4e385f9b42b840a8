"""Where dibs may differ from the released controllers on random TrainJobs: which lines, for which jobs, and why.

`tests/cluster/test_train_differential.py` holds every difference to this list. A line must be of the form, and its job
must be one that the reason is about: what is allowed for one job is a failure for another. The SD numbers are those of
docs/silent-drops.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from dibs.train.names import ANCESTOR

Json = dict[str, Any]

_DEVICES = ("nvidia.com/gpu", "google.com/tpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb")
_POD = r"jobset\.pod\[\d+\]\.containers\[\d+\]"
_JOB = r"spec\.runtimePatches\[\d+\]\.trainingRuntimeSpec\.template\.spec\.replicatedJobs\[\d+\]"
_REFUSED = r"(refused|other words): "


class Allowance(NamedTuple):
    reason: str
    line: str
    about: Callable[[Json], bool]


def unnamed(case: Json, outcome: Json, lines: list[str]) -> list[str]:
    """The differences of a job that nothing explains."""
    if "events" in outcome and outcome["jobset"] is None:
        # Accepted, and then only an Event: dibs refuses such a job (SD-37).
        refused = [line for line in lines if line.startswith("refused: ")]
        return [] if refused else [f"there is no JobSet, and dibs would make one: {outcome['events'][:1]}"]
    return [line for line in lines if not any(re.match(one.line, line) and one.about(case) for one in ALLOWANCES)]


def _jobs(case: Json) -> list[Json]:
    found: list[Json] = case["runtime"]["spec"]["template"]["spec"]["replicatedJobs"]
    return found


def _nodes(case: Json) -> list[Json]:
    """The node containers of the runtime."""
    pods = [one["template"]["spec"]["template"]["spec"] for one in _jobs(case)]
    return [one for pod in pods for one in pod["containers"] if one["name"] == "node"]


def _trainer(case: Json) -> Json:
    found: Json = case["trainjob"]["spec"].get("trainer", {})
    return found


def _policy(case: Json) -> Json | None:
    found: Json | None = case["runtime"]["spec"].get("mlPolicy")
    return found


def _patches(case: Json) -> list[Json]:
    return [
        one
        for patch in case["trainjob"]["spec"].get("runtimePatches", [])
        for one in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    ]


def _names_devices(case: Json) -> bool:
    """Whether devices are asked for as extended resources."""
    said = [_trainer(case).get("resourcesPerNode", {}), *(one.get("resources", {}) for one in _nodes(case))]
    return any(key in one.get(part, {}) for one in said for part in ("limits", "requests") for key in _DEVICES)


def _has_devices(case: Json) -> bool:
    return _names_devices(case) or _has_claims(case)


def _has_claims(case: Json) -> bool:
    return any(one.get("resources", {}).get("claims") for one in _nodes(case))


def _without_trainer(case: Json) -> bool:
    return "trainer" not in case["trainjob"]["spec"]


def _subdomain(case: Json) -> bool:
    return "network" in case["runtime"]["spec"]["template"]["spec"]


def _unnamed_ports(case: Json) -> bool:
    return any("name" not in port for one in _nodes(case) for port in one.get("ports", []))


def _mpi(case: Json) -> bool:
    return "mpi" in (_policy(case) or {})


def _patch_of_nothing(case: Json) -> bool:
    """A patch for a job or a container that the runtime does not have."""
    known = {
        one["name"]: {
            container["name"]
            for part in ("initContainers", "containers")
            for container in one["template"]["spec"]["template"]["spec"].get(part, [])
        }
        for one in _jobs(case)
    }
    for one in _patches(case):
        containers = one["template"]["spec"]["template"]["spec"].get("containers", [])
        if one["name"] not in known or any(item["name"] not in known[one["name"]] for item in containers):
            return True
    return False


def _volumes_patched(case: Json) -> bool:
    return any(one["template"]["spec"]["template"]["spec"].get("volumes") for one in _patches(case))


def _number_below_one(case: Json) -> bool:
    return _trainer(case).get("numNodes") == 0 or _trainer(case).get("numProcPerNode") == 0


def _several_limits(case: Json) -> bool:
    """Amounts of the runtime and of the job that only make sense apart."""
    return bool(_trainer(case).get("resourcesPerNode")) and any(one.get("resources") for one in _nodes(case))


def _widgets(case: Json) -> bool:
    said = [_trainer(case).get("resourcesPerNode", {}), *(one.get("resources", {}) for one in _nodes(case))]
    return any("example.com/widget" in one.get("limits", {}) for one in said)


def _has_trainer_step(case: Json) -> bool:
    labels = [one["template"].get("metadata", {}).get("labels", {}) for one in _jobs(case)]
    return any(one.get(ANCESTOR) == "trainer" for one in labels)


ALLOWANCES = (
    Allowance(
        "SD-37: a number of processes that the policy cannot deliver is refused",
        rf"{_REFUSED}spec\.trainer\.numProcPerNode: Invalid value: \d+: a (jax|plain) runtime starts one process",
        lambda case: not {"torch", "mpi", "xgboost"} & set(_policy(case) or {}),
    ),
    Allowance(
        "SD-30: an explicit number of processes counts for XGBoost too",
        rf'{_POD}\.env\[\d+\]\.value: "\d+" -> "\d+"$',
        lambda case: "xgboost" in (_policy(case) or {}) and "numProcPerNode" in _trainer(case),
    ),
    Allowance(
        "SD-52: a pod group policy on a cluster without its CRD is refused",
        rf"{_REFUSED}spec\.podGroupPolicy\.coscheduling: .*podgroups\.scheduling\.x-k8s\.io",
        lambda case: "podGroupPolicy" in case["runtime"]["spec"],
    ),
    Allowance(
        "SD-30, SD-31, SD-32: the number of processes is written out, from the devices after the merge",
        rf'{_POD}\.env\[\d+\]\.value: "(auto|\d+)" -> "\d+"$',
        lambda case: _has_devices(case) or _several_limits(case),
    ),
    Allowance(
        "SD-33: a job without spec.trainer gets the rendezvous environment as well",
        rf"{_POD}\.(env|ports): ",
        _without_trainer,
    ),
    Allowance("SD-34: the address is the one that the pods have", rf"{_POD}\.env\[\d+\]\.value: \"j\d+-", _subdomain),
    Allowance("SD-53: unnamed ports are kept, and the rendezvous port is added", rf"{_POD}\.ports: ", _unnamed_ports),
    Allowance(
        "SD-26: the claims of the runtime's container stay where the job sets resourcesPerNode",
        rf"{_POD}\.resources(\.claims)?: ",
        lambda case: _has_claims(case) and "resourcesPerNode" in _trainer(case),
    ),
    Allowance(
        "a runtime without mlPolicy: resourcesPerNode and the environment of the job are applied there too",
        rf"{_POD}\.(resources|env|image|command|args)",
        lambda case: _policy(case) is None,
    ),
    Allowance(
        "SD-50: an MPI job has one launcher, and as many nodes as any field says",
        r"(jobset\.spec\.replicatedJobs|others\[\d+\]\.data\.hostfile|jobset\.pod\[\d+\])",
        _mpi,
    ),
    Allowance(
        "SD-49: a patch for a job or a container that the runtime does not have is refused",
        rf"{_REFUSED}{_JOB}(\.template\.spec\.template\.spec\.(init)?[cC]ontainers\[\d+\])?\.name: Invalid value: ",
        _patch_of_nothing,
    ),
    Allowance(
        "SD-36: devices that are asked for twice are refused",
        rf"{_REFUSED}spec\.replicatedJobs\[\d+\]\..*\.resources: Invalid value: \[.*\"claim ",
        lambda case: _has_claims(case) and _names_devices(case),
    ),
    Allowance(
        "SD-28: a volume that is patched with another source gets that one instead of both",
        r"jobset\.pod\[\d+\]\.volumes\[\d+\]\.(emptyDir|configMap|secret): .* -> none$",
        _volumes_patched,
    ),
    Allowance(
        "SD-37: a number below one makes no job",
        rf"{_REFUSED}spec\.(trainer\.num(Nodes|ProcPerNode)|mlPolicy).*must be greater than or equal to 1",
        _number_below_one,
    ),
    Allowance(
        "SD-32: a resource that is not known to be an accelerator is asked about, not guessed by its name",
        rf"{_REFUSED}spec\.trainer\.numProcPerNode: Required value: the number of processes cannot be derived",
        _widgets,
    ),
    Allowance(
        "SD-37: a merge that makes an invalid pod is refused at admission",
        rf"{_REFUSED}spec\.replicatedJobs\[\d+\]\..*\.resources\.requests\[",
        _several_limits,
    ),
)

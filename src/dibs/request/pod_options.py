"""The options that only a Kubernetes cluster understands, each with its type: `kubernetes: {node_selector: {…}}`.

`options` checks them with the rest of a request, `kube.render` puts them into a pod, and OpenShell's driver config is
translated to them. There is no option for devices, cpu or memory: the request says those, so nothing can contradict it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_type_hints

import msgspec

from dibs.errors import InvalidRequest, Problem, quoted

BLOCK = "kubernetes"


class Toleration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    key: str = ""
    operator: Literal["", "Exists", "Equal"] = ""
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class PodOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What only a cluster understands. `devices`: the form of a device request, not how many."""

    devices: Literal["auto", "extended", "claim"] = "auto"
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    affinity: dict[str, Any] | None = None
    priority_class: str = ""
    service_account: str = ""
    runtime_class: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    run_as_non_root: bool = False


def option_problems(block: Any) -> list[Problem]:
    """Everything that is wrong with a block of options."""
    types = get_type_hints(PodOptions)
    known = f"the options are {', '.join(types)}"
    if not isinstance(block, Mapping):
        return [_problem(BLOCK, block, "must be a mapping", "write it as kubernetes: {node_selector: {zone: a}}")]
    problems = []
    for key, value in block.items():
        if key not in types:
            problems.append(_problem(f"{BLOCK}.{key}", value, "there is no such option", known))
            continue
        try:
            msgspec.convert(value, types[key])
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at ")
            where = path.strip("`").removeprefix("$")
            problems.append(_problem(f"{BLOCK}.{key}{where}", value, _in_lower_case(reason), "correct its value"))
    return problems


def read_options(block: Mapping[str, Any]) -> PodOptions:
    """The options of a request, or InvalidRequest with every problem."""
    problems = option_problems(block)
    if problems:
        raise InvalidRequest(problems)
    return msgspec.convert(dict(block), PodOptions)


def _in_lower_case(text: str) -> str:
    return text[:1].lower() + text[1:]


def _problem(field: str, value: Any, reason: str, remedy: str) -> Problem:
    return Problem("KUBERNETES_OPTION_INVALID", field, quoted(value)[1:-1], reason, remedy)

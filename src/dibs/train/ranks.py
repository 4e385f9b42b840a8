"""A rendered job, rank by rank: what each pod of the JobSet is called, runs, and needs.

`dibs train explain` prints it, and a backend without a cluster starts it. A rank is one pod; its variables that
Kubernetes would fill in from the pod are filled in here. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.train.accelerators import of_container
from dibs.train.facts import Facts
from dibs.train.names import COMPLETION_INDEX, NODE, ancestor, pod_spec
from dibs.train.rendering import Rendered

Json = dict[str, Any]


class Rank(msgspec.Struct, frozen=True, omit_defaults=True):
    """`host`: the name under which the others find it. `step`: trainer, an initialiser, or "" for anything else.

    `container`: what runs, as in the JobSet; `claims`: what the pod claims; `devices`: accelerators of the container.
    """

    name: str
    host: str
    job: str
    step: str
    index: int
    container: Json
    env: dict[str, str]
    devices: int = 0
    claims: tuple[Json, ...] = ()
    unresolved: tuple[str, ...] = ()  # variables that only a cluster can fill in


def ranks_of(rendered: Rendered, facts: Facts | None = None) -> list[Rank]:
    """All ranks, in the order of the JobSet."""
    name = rendered.job["metadata"]["name"]
    subdomain = rendered.jobset["spec"]["network"].get("subdomain") or name
    found: list[Rank] = []
    for replicated in rendered.jobset["spec"]["replicatedJobs"]:
        step, pod = ancestor(replicated), pod_spec(replicated)
        container = _main(pod, step)
        devices = of_container(container, pod, facts or Facts()).count
        for replica in range(replicated.get("replicas", 1)):
            for index in range(replicated["template"]["spec"]["parallelism"]):
                own = f"{name}-{replicated['name']}-{replica}-{index}"
                env, unresolved = _environment(container, index)
                found.append(
                    Rank(
                        own, f"{own}.{subdomain}", replicated["name"], step, index, container, env, devices,
                        tuple(pod.get("resourceClaims", [])), unresolved,
                    )
                )  # fmt: skip
    return found


def _main(pod: Json, step: str) -> Json:
    wanted = NODE if step in ("", "trainer") else step
    found: Json = next((one for one in pod["containers"] if one["name"] == wanted), pod["containers"][0])
    return found


def _environment(container: Json, index: int) -> tuple[dict[str, str], tuple[str, ...]]:
    env: dict[str, str] = {}
    unresolved: list[str] = []
    for one in container.get("env", []):
        if "valueFrom" not in one:
            env[one["name"]] = one.get("value", "")
        elif one["valueFrom"].get("fieldRef", {}).get("fieldPath") == COMPLETION_INDEX:
            env[one["name"]] = str(index)
        else:
            unresolved.append(one["name"])
    return env, tuple(unresolved)

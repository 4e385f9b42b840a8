"""How many processes a node runs: from the job's own number, else from its effective devices, else from its CPUs.

`rendering` asks, after everything was merged. The answer is always a number that can be written down, with the reason
for it; where it cannot be known (a claim of unknown size, alternatives of different size) it is asked for, not guessed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.claims.fielderrors import REQUIRED
from dibs.quantity import NANO, Quantity
from dibs.train.accelerators import Devices, of_container
from dibs.train.facts import Facts
from dibs.train.refusals import Refusals

Json = dict[str, Any]

FIELD = "spec.trainer.numProcPerNode"


class Processes(msgspec.Struct, frozen=True):
    """`per_node`: the number. `reason`: why that number. `devices`: accelerators per node that were counted."""

    per_node: int
    reason: str
    devices: int = 0


def per_node(
    explicit: int | None, container: Json, pod: Json, facts: Facts, found: Refusals, *, by_cpu: bool
) -> Processes:
    """The number for one node. `by_cpu`: without devices one process per CPU (torchrun), else one process."""
    devices = of_container(container, pod, facts)
    if explicit is not None:
        if explicit < 1:
            found.invalid(
                FIELD, explicit, "must be greater than or equal to 1", "leave it out, or ask for at least one"
            )
        return Processes(explicit, f"{FIELD} says {explicit}", devices.count)
    if devices.unknown and (not devices.count or _unsized(devices)):
        named = "; ".join(devices.unknown)
        found.add(
            FIELD, REQUIRED, None, f"the number of processes cannot be derived from the devices: {named}",
            f"set {FIELD}, or say what these are (a DeviceClass, a ResourceClaimTemplate)",
        )  # fmt: skip
        return Processes(1, "not known", devices.count)
    if devices.count:
        return Processes(devices.count, f"one process per device: {', '.join(devices.sources)}", devices.count)
    cpus = cpus_of(container) if by_cpu else 0
    if cpus > 1:
        return Processes(cpus, f"no device is asked for: one process per CPU, {cpus}")
    return Processes(1, "no device is asked for" + (": one process" if not by_cpu else ", and at most one CPU"))


def _unsized(devices: Devices) -> bool:
    """Whether something of unknown size could add to the number; an unknown resource beside known devices does not."""
    return any(not one.startswith("resource ") for one in devices.unknown)


def cpus_of(container: Json) -> int:
    """Whole CPUs, rounded up: what is requested, else the limit."""
    resources = container.get("resources", {})
    for amounts in (resources.get("requests", {}), resources.get("limits", {})):
        if "cpu" in amounts and (nanos := Quantity.parse(amounts["cpu"]).nanos) > 0:
            return -(-nanos // NANO)
    return 0

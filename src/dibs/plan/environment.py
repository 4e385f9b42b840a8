"""The environment of a workload: one value per variable, from what was leased.

CDI specs of several devices may set the same variable; engines let the last one win. Here equal values are one value,
lists of devices are joined, and anything else is refused. What dibs itself says about the lease comes last and wins:
it is computed from the ledger, not from a spec that cannot know its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dibs.devices.model import Device
from dibs.errors import Problem, quoted

NONE_VISIBLE = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


def device_environment(devices: Sequence[Device], problems: list[Problem]) -> dict[str, str]:
    """What the devices' CDI edits set, merged. Conflicts go into `problems`."""
    merged: dict[str, str] = {}
    said_by: dict[str, str] = {}
    seen_specs: set[str] = set()
    for device in devices:
        if device.cdi is None:
            continue
        lines = list(device.cdi.edits.env or ())
        if device.cdi.spec not in seen_specs:
            lines = [*(device.cdi.spec_edits.env or ()), *lines]
            seen_specs.add(device.cdi.spec)
        for line in lines:
            name, _, value = line.partition("=")
            if name not in merged or merged[name] == value:
                merged[name] = value
                said_by.setdefault(name, device.id)
            elif name.endswith("_DEVICES"):
                known = merged[name].split(",")
                merged[name] = ",".join([*known, *(item for item in value.split(",") if item not in known)])
            elif name not in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
                both = f"{said_by[name]} says {quoted(merged[name])}, {device.id} says {quoted(value)}"
                reason = f"{both}; one of them would be lost"
                remedy = "lease the devices apart, or make their CDI specs agree"
                problems.append(Problem("ENV_CONFLICT", f"env.{name}", value, reason, remedy))
    return merged


def lease_environment(
    devices: Sequence[Device],
    *,
    sandbox_id: str,
    simulated: bool,
    memory: Mapping[str, int] | None = None,
    delegated: int = 0,
) -> dict[str, str]:
    """What dibs says about the lease. Without devices it says that there are none, so that no stack takes all.

    `memory`: how much of a device's memory the lease has, where that is not all of it. `delegated`: how many devices a
    scheduler will choose; which ones is then said by the driver on the node, and must not be overruled here.
    """
    if delegated:
        return {"DIBS_SANDBOX": sandbox_id, "DIBS_GPU_COUNT": str(delegated)}
    env = {"DIBS_SANDBOX": sandbox_id, "DIBS_GPU_COUNT": str(len(devices))}
    by_vendor: dict[str, list[str]] = {}
    for number, device in enumerate(devices):
        by_vendor.setdefault(device.vendor, []).append(device.uuid or str(number))
    env |= NONE_VISIBLE
    if "nvidia" in by_vendor:
        env["CUDA_VISIBLE_DEVICES"] = env["NVIDIA_VISIBLE_DEVICES"] = ",".join(by_vendor["nvidia"])
        if any(d.cdi is not None and d.cdi.cdi_name.endswith("=all") for d in devices):
            # A host that only gives all its cards at once (WSL2): they have no names to list here.
            env["NVIDIA_VISIBLE_DEVICES"] = "all"
            del env["CUDA_VISIBLE_DEVICES"]
    if "amd" in by_vendor:
        # ROCm counts the cards that it can open, so the leased ones are 0, 1, … inside.
        env["ROCR_VISIBLE_DEVICES"] = ",".join(str(number) for number in range(len(by_vendor["amd"])))
    if "intel" in by_vendor:
        env["ZE_AFFINITY_MASK"] = ",".join(str(number) for number in range(len(by_vendor["intel"])))
    if devices:
        env["DIBS_GPUS"] = ",".join(device.id for device in devices)
        env["DIBS_GPU_UUIDS"] = ",".join(device.uuid for device in devices)
        amounts = [(memory or {}).get(device.id, device.memory or 0) for device in devices]
        env["DIBS_GPU_MEMORY"] = ",".join(str(amount) for amount in amounts)
        env["DIBS_GPU_MODELS"] = ",".join(device.model for device in devices)
    if simulated:
        env["DIBS_SIMULATED"] = "1"
    return env

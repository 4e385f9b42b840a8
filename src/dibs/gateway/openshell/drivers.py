"""`driver_config`: what a request says to one of OpenShell's drivers. Every block is checked. Pure.

Called by `requests`. A block for a driver that does not get the sandbox is accepted and reported as not applicable; an
unknown driver, and a key that a driver does not have, are refused with the known ones. The blocks of `docker`, `podman`
and `kubernetes` become options of the backends of that name; there is no backend for `vm`, whose keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from dibs.errors import Problem, quoted
from dibs.request.model import Request
from dibs.request.options import check_options

ENGINES = ("docker", "podman")
CLUSTER = "kubernetes"
SERVED = (*ENGINES, CLUSTER)  # the drivers that are backends of the same name here
DRIVERS = (*SERVED, "vm")
_QUANTITIES = {"": "quantity"}  # any key
_RESOURCES = {"requests": _QUANTITIES, "limits": _QUANTITIES}
_TOLERATION = {"key": "text", "operator": "text", "value": "text", "effect": "text", "toleration_seconds": "number"}
_MOUNT = {"name": "text", "mount_path": "text", "sub_path": "text", "read_only": "flag"}
_CLAIM = {"claim_name": "text", "read_only": "flag"}
# The keys of each driver: a mapping has keys of its own (the key "" stands for any), a list what each item is.
SHAPES: dict[str, dict[str, Any]] = {
    "docker": {"cdi_devices": ["text"], "mounts": ["any"]},
    "podman": {"cdi_devices": ["text"], "mounts": ["any"]},
    "vm": {"gpu_device_ids": ["text"]},
    "kubernetes": {
        "pod": {
            "node_selector": {"": "text"},
            "tolerations": [_TOLERATION],
            "runtime_class_name": "text",
            "priority_class_name": "text",
        },
        "containers": {"agent": {"resources": _RESOURCES, "volume_mounts": [_MOUNT]}},
        "volumes": [{"name": "text", "persistent_volume_claim": _CLAIM}],
    },
}
# Our option of a cluster → the key in `kubernetes.pod`.
POD_KEYS = {
    "node_selector": "node_selector",
    "tolerations": "tolerations",
    "runtime_class": "runtime_class_name",
    "priority_class": "priority_class_name",
}
_KINDS: dict[str, tuple[type, ...]] = {"text": (str,), "number": (int,), "flag": (bool,), "quantity": (str, int, float)}


def check_shape(blocks: Mapping[str, Any], field: str) -> list[Problem]:
    """What is wrong with the words of all blocks, whatever else is asked for."""
    problems: list[Problem] = []
    for driver, block in blocks.items():
        where = f"{field}.{driver}"
        if driver not in SHAPES:
            known = f"the known ones are {', '.join(DRIVERS)}"
            problems.append(_problem("UNKNOWN_DRIVER", where, block, "there is no such driver", known))
        elif not isinstance(block, Mapping):
            problems.append(_problem("DRIVER_CONFIG_INVALID", where, block, "must be an object"))
        else:
            problems += _compare(block, SHAPES[driver], where)
    return problems


def _compare(value: Any, shape: Any, field: str) -> list[Problem]:
    if isinstance(shape, dict):
        if not isinstance(value, Mapping):
            return [_problem("DRIVER_CONFIG_INVALID", field, value, "must be an object")]
        problems: list[Problem] = []
        for key, inner in value.items():
            if key not in shape and "" not in shape:
                known = f"the known ones are {', '.join(shape)}"
                problems.append(_problem("UNKNOWN_FIELD", f"{field}.{key}", inner, "there is no such key", known))
            else:
                problems += _compare(inner, shape.get(key, shape.get("")), f"{field}.{key}")
        return problems
    if isinstance(shape, list):
        if not isinstance(value, list) or not value:
            return [_problem("DRIVER_CONFIG_INVALID", field, value, "must be a list with something in it")]
        return [one for place, item in enumerate(value) for one in _compare(item, shape[0], f"{field}[{place}]")]
    if shape == "any":
        return []
    if not isinstance(value, _KINDS[shape]) or (isinstance(value, bool) and shape != "flag") or value == "":
        return [_problem("DRIVER_CONFIG_INVALID", field, value, f"must be a {shape}")]
    return []


def check_devices(blocks: Mapping[str, Any], field: str, request: Request) -> list[Problem]:
    """Exact devices: only with a request for GPUs, none twice, as many as were asked for. For well-formed blocks."""
    problems: list[Problem] = []
    for driver in ENGINES:
        block = blocks.get(driver)
        if isinstance(block, Mapping) and "cdi_devices" in block:
            found = check_options(driver, {driver: {"cdi_devices": block["cdi_devices"]}}, request)
            problems += [Problem(p.code, f"{field}.{p.field}", p.value, p.reason, p.remedy) for p in found]
    return problems


def not_offered(blocks: Mapping[str, Any], field: str, served: Collection[str]) -> list[Problem]:
    """Keys that are known and that nothing here can act on. `served`: the drivers that may get the sandbox."""
    problems: list[Problem] = []
    for driver in ENGINES:
        block = blocks.get(driver)
        if driver in served and isinstance(block, Mapping) and "mounts" in block:
            reason = "a client gets no folder of the host over this API"
            remedy = "copy files in with exec, or use dibs' own API, where mounts.allow names what is shared"
            problems.append(_problem("MOUNTS_NOT_OFFERED", f"{field}.{driver}.mounts", block["mounts"], reason, remedy))
    if CLUSTER in served:
        reason = "a client gets no volume of the cluster over this API"
        remedy = "leave it out; an administrator mounts volumes in the base template of the cluster"
        for path in ("volumes", "containers.agent.volume_mounts"):
            value = _within(blocks.get(CLUSTER), *path.split("."))
            if value is not None:
                problems.append(_problem("VOLUMES_NOT_OFFERED", f"{field}.kubernetes.{path}", value, reason, remedy))
    block = blocks.get("vm")
    if isinstance(block, Mapping):
        reason = "there is no VM backend here"
        remedy = "leave the block out; resource_requirements.gpu works without it"
        for key, value in block.items():
            problems.append(_problem("VM_NOT_OFFERED", f"{field}.vm.{key}", value, reason, remedy))
        if "gpu_device_ids" in block and isinstance(block["gpu_device_ids"], list):
            problems += _vm_devices(block["gpu_device_ids"], f"{field}.vm.gpu_device_ids")
    return problems


def _vm_devices(ids: list[Any], field: str) -> list[Problem]:
    if len(ids) != len({str(one) for one in ids}):
        return [_problem("DRIVER_CONFIG_INVALID", field, ids, "a device is named twice", "name each device once")]
    if len(ids) > 1:
        return [_problem("DRIVER_CONFIG_INVALID", field, ids, "a VM takes one GPU at most", "name one")]
    return []


def kubernetes_resources(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """What the block for Kubernetes says about the container's resources: {limits, requests}, possibly of odd types."""
    found = _within(blocks.get(CLUSTER), "containers", "agent", "resources")
    return dict(found) if isinstance(found, Mapping) else {}


def kubernetes_options(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """The block for Kubernetes as options of the cluster backend. What is empty asks for nothing."""
    pod = _within(blocks.get(CLUSTER), "pod")
    if not isinstance(pod, Mapping):
        return {}
    found = {ours: pod[theirs] for ours, theirs in POD_KEYS.items() if pod.get(theirs)}
    if isinstance(found.get("tolerations"), list):
        found["tolerations"] = [_camel(one) for one in found["tolerations"]]
    return found


def option_field(ours: str) -> str:
    """How a client calls an option: `kubernetes.runtime_class` is `kubernetes.pod.runtime_class_name`."""
    key = re.match(r"kubernetes\.([a-z_]+)", ours)
    if key is None or key[1] not in POD_KEYS:
        return ours
    rest = ours[key.end() :].replace("tolerationSeconds", "toleration_seconds")
    return f"kubernetes.pod.{POD_KEYS[key[1]]}{rest}"


def _camel(toleration: Any) -> Any:
    if not isinstance(toleration, Mapping):
        return toleration
    return {"tolerationSeconds" if key == "toleration_seconds" else key: one for key, one in toleration.items()}


def _within(value: Any, *keys: str) -> Any:
    """What stands under a path of keys; None where there is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _problem(code: str, field: str, value: Any, reason: str, remedy: str = "") -> Problem:
    return Problem(code, field, quoted(value)[1:-1], reason, remedy)

"""The request as a DRA claim (`resource.k8s.io/v1`): the canonical form of its device part.

Used wherever a claim is shown or handed over: receipts, `explain -o yaml`, Kubernetes. Built as plain data, so that
asking for a GPU costs no import of the claims model. The selectors say in CEL exactly what `plan.selectors` checks.
"""

from __future__ import annotations

from typing import Any

from dibs.request.gpu import model_pattern, quantity_text
from dibs.request.model import ALL, GpuSelector, Request

API_VERSION = "resource.k8s.io/v1"
CLASS_ANY = "gpu"
CLASS_OR_PART = "gpu-or-part"
CLASS_OF = {"nvidia": "gpu.nvidia.com", "amd": "gpu.amd.com", "intel": "gpu.intel.com"}


def claim_of(request: Request, name: str) -> dict[str, Any] | None:
    """A ResourceClaim for the devices of a request; None if it asks for none."""
    if not request.wants_devices:
        return None
    if request.claim is not None:
        metadata = {"name": name}
        return {"apiVersion": API_VERSION, "kind": "ResourceClaim", "metadata": metadata, "spec": request.claim}
    requests = [_selector(selector, index, request.where) for index, selector in enumerate(request.gpus)]
    requests += [_exact(device, index) for index, device in enumerate(request.devices)]
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests}},
    }


def _selector(selector: GpuSelector, index: int, where: tuple[str, ...]) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": CLASS_OF.get(selector.vendor or "", CLASS_ANY)}
    expressions = []
    if selector.profile or (selector.memory and selector.memory.high is not None):
        # An upper bound on memory, or a profile, admits a part of a card too.
        exactly["deviceClassName"] = CLASS_OR_PART
        if selector.vendor:
            expressions.append(f'device.driver == "{CLASS_OF[selector.vendor]}"')
    if selector.models:
        pattern = "|".join(f"({model_pattern(model)})" for model in selector.models)
        # has() rather than .?productName.orValue(""): an API server cannot bound the cost of what follows the latter.
        name = "device.attributes[device.driver].productName"
        expressions.append(f'has({name}) && {name}.lowerAscii().matches("{pattern}")')
    if selector.profile:
        name = "device.attributes[device.driver].profile"
        expressions.append(f'has({name}) && {name} == "{selector.profile}"')
    if selector.memory and selector.memory.low is not None:
        expressions.append(_memory(">=", selector.memory.low))
    if selector.memory and selector.memory.high is not None:
        expressions.append(_memory("<=", selector.memory.high))
    expressions += where
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    if selector.count == ALL:
        exactly["allocationMode"] = "All"
    else:
        exactly["allocationMode"] = "ExactCount"
        exactly["count"] = selector.count
    return {"name": "gpu" if index == 0 else f"gpu-{index + 1}", "exactly": exactly}


def _memory(operator: str, amount: int) -> str:
    memory = "device.capacity[device.driver].memory"
    return f'has({memory}) && {memory}.compareTo(quantity("{quantity_text(amount)}")) {operator} 0'


def _exact(device: str, index: int) -> dict[str, Any]:
    names = ('device.attributes["dibs"].?cdiName', "device.attributes[device.driver].?uuid")
    expression = " || ".join(f'{name}.orValue("") == "{device}"' for name in names)
    exactly = {"deviceClassName": CLASS_OR_PART, "selectors": [{"cel": {"expression": expression}}]}
    return {"name": f"device-{index}", "exactly": {**exactly, "allocationMode": "ExactCount", "count": 1}}

"""Whether a device fits a selector of a short form, and if not, why and by how much. Pure.

Used by `quick` and `devices`. The checks are equivalent to the CEL selectors that `request.claim` writes for
Kubernetes. Whether a device is held is a question for `device_state`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from dibs.devices.model import Device
from dibs.quantity import human_bytes
from dibs.request.gpu import model_pattern
from dibs.request.model import GpuSelector

GPU_TYPES = frozenset({"gpu", "mig", "all"})


@lru_cache(maxsize=512)
def _pattern(model: str) -> re.Pattern[str]:
    return re.compile(model_pattern(model))


def is_gpu(device: Device) -> bool:
    return device.attributes.get("type", "gpu") in GPU_TYPES


def misfit(selector: GpuSelector, device: Device) -> tuple[str, float]:
    """Why a device does not fit, and how far it is from fitting (below 1: only its memory). ("", 0) if it fits."""
    if not is_gpu(device):
        return f"not a GPU but {device.attributes['type']}", 9.0
    if selector.vendor and device.vendor != selector.vendor:
        return f"made by {device.vendor}, not {selector.vendor}", 5.0
    product = str(device.attributes.get("productName", device.model)).lower()
    if selector.models and not any(_pattern(model).search(product) for model in selector.models):
        wanted = " or ".join(selector.models)
        return (f"{device.model} is not {wanted}" if device.model else f"its model is unknown, not {wanted}"), 3.0
    if selector.profile and device.attributes.get("profile") != selector.profile:
        has = device.attributes.get("profile") or "a whole card"
        return f"{has} is not {selector.profile}", 2.5
    memory = selector.memory
    if memory is None and selector.profile:
        return "", 0.0
    if memory is None:
        return ("", 0.0) if device.parent is None else (_part(device), 2.0)
    if device.memory is None:
        return f"its memory is unknown, {memory.text} was asked", 4.0
    has = human_bytes(device.memory)
    if memory.low is not None and device.memory < memory.low:
        return f"{has} < {_bound(memory.text, low=True)}", 1 - device.memory / memory.low
    if memory.high is not None and device.memory > memory.high:
        return f"{has} > {_bound(memory.text, low=False)}", min(1.0, device.memory / memory.high - 1)
    if device.parent is not None and memory.high is None and not selector.profile:
        # Who says how much is the most takes a part of a card too; who does not, means whole cards.
        return _part(device), 2.0
    return "", 0.0


def _part(device: Device) -> str:
    size = -(-(device.memory or 0) // 2**30)
    return f"a part; to get parts, ask by memory: ..{size}GB"


def _bound(text: str, *, low: bool) -> str:
    lower, dots, upper = text.partition("..")
    return (lower if low else upper) if dots else text


def first_fitting(selector: GpuSelector, devices: Iterable[Device], count: int) -> list[Device]:
    """The first devices that fit, `count` of them if there are so many."""
    found: list[Device] = []
    for device in devices:
        if not misfit(selector, device)[0]:
            found.append(device)
            if len(found) == count:
                break
    return found

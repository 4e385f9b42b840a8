"""Whether a device fits a wish, and which free devices a request gets.

Called by `planner`. The checks here mean the same as the CEL selectors that `request.claim` writes. Devices are tried
in inventory order, first fit; with several wishes a device moves to another wish when that is what it takes to please
all of them (augmenting paths), so the answer does not depend on the order of the wishes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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


def misfit(wish: GpuSelector, device: Device) -> tuple[str, float]:
    """Why a device does not fit, and how far it is from fitting (below 1: only its memory). ("", 0) if it fits."""
    if not is_gpu(device):
        return f"not a GPU but {device.attributes['type']}", 9.0
    if wish.vendor and device.vendor != wish.vendor:
        return f"made by {device.vendor}, not {wish.vendor}", 5.0
    product = str(device.attributes.get("productName", device.model)).lower()
    if wish.models and not any(_pattern(model).search(product) for model in wish.models):
        wanted = " or ".join(wish.models)
        return (f"{device.model} is not {wanted}" if device.model else f"its model is unknown, not {wanted}"), 3.0
    if wish.profile and device.attributes.get("profile") != wish.profile:
        has = device.attributes.get("profile") or "a whole card"
        return f"{has} is not {wish.profile}", 2.5
    memory = wish.memory
    if memory is None and wish.profile:
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
    if device.parent is not None and memory.high is None and not wish.profile:
        # Who says how much is the most takes a part of a card too; who does not, means whole cards.
        return _part(device), 2.0
    return "", 0.0


def _part(device: Device) -> str:
    size = -(-(device.memory or 0) // 2**30)
    return f"a part; to get parts, ask by memory: ..{size}GB"


def _bound(text: str, *, low: bool) -> str:
    lower, dots, upper = text.partition("..")
    return (lower if low else upper) if dots else text


def assign(wants: Sequence[int], candidates: Sequence[Sequence[Device]]) -> list[list[Device]] | None:
    """Give wish i `wants[i]` of `candidates[i]`, no unit twice. None if that cannot be.

    Whole devices that share no unit are a matching problem, solved exactly. Where devices overlap (a card and its
    parts), they are tried one after the other, as the DRA allocator does; if that takes too long, a chosen device
    gives way to one that overlaps it if it can move elsewhere.
    """
    if _overlap(candidates):
        found = _first_fit(wants, candidates)
        if found is not None:
            return found
    slots = [(wish, number) for wish, want in enumerate(wants) for number in range(want)]
    holder: dict[str, int] = {}  # device id -> slot
    taken: dict[str, str] = {}  # unit -> device id
    devices: dict[str, Device] = {device.id: device for wish in candidates for device in wish}

    def in_the_way(device: Device) -> set[str]:
        return {taken[unit] for unit in device.booked_units if unit in taken}

    def give(device: Device, slot: int) -> None:
        holder[device.id] = slot
        taken.update(dict.fromkeys(device.booked_units, device.id))

    def take_back(device: Device) -> None:
        del holder[device.id]
        for unit in device.booked_units:
            del taken[unit]

    def place(slot: int, seen: set[str]) -> bool:
        wish = slots[slot][0]
        for device in candidates[wish]:
            if not in_the_way(device):
                give(device, slot)
                return True
        for device in candidates[wish]:
            blockers = in_the_way(device)
            blocker = next(iter(blockers))
            other = holder[blocker]
            if len(blockers) > 1 or blocker in seen or (slots[other][0] == wish and blocker == device.id):
                continue
            seen.add(blocker)
            take_back(devices[blocker])
            give(device, slot)
            if place(other, seen):
                return True
            take_back(device)
            give(devices[blocker], other)
        return False

    for slot in range(len(slots)):
        if not place(slot, set()):
            return None
    chosen: list[list[Device]] = [[] for _ in wants]
    for device in devices.values():  # inventory order within each wish
        if device.id in holder:
            chosen[slots[holder[device.id]][0]].append(device)
    return chosen


_PATIENCE = 20_000  # steps of the search below; more is a knot that no person has tied on purpose


def _overlap(candidates: Sequence[Sequence[Device]]) -> bool:
    seen: dict[str, str] = {}
    return any(
        seen.setdefault(unit, device.id) != device.id
        for devices in candidates
        for device in devices
        for unit in device.booked_units
    )


def _first_fit(wants: Sequence[int], candidates: Sequence[Sequence[Device]]) -> list[list[Device]] | None:
    """The first choice in inventory order, wish by wish, that works for all; None if none was found in time."""
    taken: set[str] = set()
    chosen: list[list[Device]] = [[] for _ in wants]
    steps = 0

    def search(wish: int, start: int) -> bool:
        nonlocal steps
        while wish < len(wants) and len(chosen[wish]) == wants[wish]:
            wish, start = wish + 1, 0
        if wish == len(wants):
            return True
        missing = wants[wish] - len(chosen[wish])
        for position in range(start, len(candidates[wish]) - missing + 1):
            steps += 1
            if steps > _PATIENCE:
                return False
            device = candidates[wish][position]
            if taken.isdisjoint(device.booked_units):
                chosen[wish].append(device)
                taken.update(device.booked_units)
                if search(wish, position + 1):
                    return True
                chosen[wish].pop()
                taken.difference_update(device.booked_units)
        return False

    return chosen if search(0, 0) else None

"""Worlds as plain data, and decisions as plain data: what `answers.json` is written in.

The file was recorded once, from random worlds, with a planner that had a search of its own. It holds the words and the
devices that people got from it; a later way to a device has to give the same. Left out were answers that could not be
booked: `all` gave a card and its parts at once.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.devices.model import ExternalUse, Inventory
from dibs.devices.simulated import Group, devices_of
from dibs.devices.simulated import World as Simulated
from dibs.ledger.rows import Holder, LeaseId, Taint, unit_key
from dibs.plan.decision import DevicePlan, Refusal, SharedUse, World
from dibs.plan.explanation import Fate, SelectorExplanation
from dibs.request import Request, parse_request
from dibs.sandbox import SandboxId

NOW = 1_000.0
OTHER = ExternalUse(4711, "bob", "python")
GIVEN = (Fate.CHOSEN, Fate.TAKEN)


def holder(number: int) -> Holder:
    name = f"train-{number}"
    return Holder(
        LeaseId(f"ls-{number}"), SandboxId(f"sb-{number}"), name, "anna", NOW - 60.0 * (number + 1), "attached"
    )


def world_of(case: dict[str, Any]) -> World:
    groups = tuple(Group(model, count, parts) for model, count, parts in case["groups"])
    broken = {int(card): reason for card, reason in case.get("broken", {}).items()}
    devices = list(devices_of(Simulated(groups, broken), "box"))
    for number in case.get("busy", ()):
        devices[number] = msgspec.structs.replace(devices[number], used_by=(OTHER,))
    for number in case.get("loose", ()):
        devices[number] = msgspec.structs.replace(devices[number], attachment=None, unattachable="its node is gone")
    holders: dict[str, Holder] = {}
    leased: dict[str, Holder] = {}
    for one, number in enumerate(case.get("held", ())):
        for unit in devices[number].booked_units:
            holders.setdefault(unit_key(unit, simulated=True), holder(one))
        leased[devices[number].id] = holder(one)
    shares = {devices[n].id: SharedUse({"memory": 1 << 30}, (holder(9),)) for n in case.get("shares", ())}
    taints = {devices[n].id: (Taint("maintenance", "fan", effect, "carl"),) for n, effect in case.get("taints", ())}
    return World(
        inventory=Inventory(tuple(devices), simulated=True),
        holders=holders,
        ahead=tuple(parse_request({"gpu": text}) for text in case.get("ahead", ())),
        now=NOW,
        leased=leased,
        shares=shares,
        taints=taints,
        node="box",
    )


def request_of(case: dict[str, Any]) -> Request:
    return parse_request(case["request"])


def answer_of(decision: DevicePlan | Refusal, world: World) -> dict[str, Any]:
    """Everything that a person is told, and the devices, by their numbers."""
    numbers: dict[str, int] = {device.id: number for number, device in enumerate(world.inventory.devices)}
    told: dict[str, Any] = {
        "selectors": [_told(selector, numbers, len(decision.selectors) > 1) for selector in decision.selectors]
    }
    if isinstance(decision, DevicePlan):
        return told | {"devices": [numbers[device.id] for device in decision.devices]}
    problems = [[p.code, p.field, p.value, p.reason, p.remedy] for p in decision.problems]
    return told | {
        "problems": problems, "error": decision.error, "waitable": decision.waitable, "waits_for": decision.waits_for,
    }  # fmt: skip


def _told(selector: SelectorExplanation, numbers: dict[str, int], several: bool) -> dict[str, Any]:
    """Devices with the same fate and reason together. Of several selectors: only that it was given."""
    groups: dict[str, list[int]] = {}
    for verdict in selector.verdicts:
        fate = "given" if several and verdict.fate in GIVEN else verdict.fate.value
        key = f"{fate}|{verdict.reason}|{verdict.miss:.4f}"
        groups.setdefault(key, []).append(numbers[verdict.device])
    return {"selector": selector.selector, "wanted": selector.wanted, "field": selector.field, "verdicts": groups}

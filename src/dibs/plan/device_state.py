"""The state of a device: free, or the one thing that keeps it from being given. Judged here and nowhere else. Pure.

`devices` uses it to decide, `workloads.world` for the tables of `dibs gpus` and of a gateway. The longest-lasting
reason wins: a broken card that is held counts as broken, because it will not become free when its holder ends. The
holder is still shown.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dibs.devices.model import Device
from dibs.ledger.rows import Holder, unit_key
from dibs.plan.decision import World
from dibs.plan.explanation import Fate, Verdict
from dibs.request.durations import show_duration

_FATES = {
    "unhealthy": Fate.UNHEALTHY,
    "tainted": Fate.TAINTED,
    "unusable": Fate.CANNOT,
    "held": Fate.BUSY,
    "shared": Fate.BUSY,
    "external": Fate.EXTERNAL,
}


class DeviceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device and who has it, for tables."""

    device: Device
    state: str  # free, held, shared, external, unhealthy, tainted, unusable
    holder: Holder | None = None
    note: str = ""


class Judge:
    """Judges the devices of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cut = _cut_cards(world.holders)

    def standing(self, device: Device) -> tuple[str, tuple[Holder, ...]]:
        """How a device stands, and who has it or shares of it."""
        world = self._world
        holder = self._holder(device)
        shared = world.shares.get(device.id) if holder is None else None
        holders = (holder,) if holder is not None else shared.holders if shared is not None else ()
        if not device.health.ok:
            state = "unhealthy"
        elif any(taint.effect != "None" for taint in world.taints.get(device.id, ())):
            state = "tainted"
        elif device.cdi is None:
            state = "unusable"
        elif holder is not None:
            state = "held"
        elif shared is not None:
            state = "shared"
        else:
            state = "external" if device.used_by else "free"
        return state, holders

    def verdict(self, device: Device, *, allow_busy: bool, kept_for: str) -> Verdict:
        """Whether a device that fits can be had. `kept_for`: why it is kept for a request in front, if it is."""
        state, holders = self.standing(device)
        if state == "free" or (state == "external" and allow_busy):
            return Verdict(device.id, Fate.QUEUED, kept_for) if kept_for else Verdict(device.id, Fate.FREE)
        now = self._world.now
        if state == "unhealthy":
            reason = device.health.reason
        elif state == "tainted":
            against = [taint for taint in self._world.taints[device.id] if taint.effect != "None"]
            reason = f"tainted {', '.join(map(str, against))} by {against[0].username}"
        elif state == "unusable":
            reason = device.unattachable or "it cannot be attached"
        elif state == "held":
            reason = held_by(holders[0], now)
        elif state == "shared":
            reason = "shares of it are " + ", ".join(held_by(holder, now) for holder in holders)
        else:
            reason = used_outside(device)
        return Verdict(device.id, _FATES[state], reason)

    def shown(self, device: Device) -> DeviceState:
        """For a table."""
        state, holders = self.standing(device)
        taints = ", ".join(map(str, self._world.taints.get(device.id, ())))
        notes = {
            "unhealthy": device.health.reason,
            "unusable": device.unattachable,
            "shared": ", ".join(f"{one.sandbox_name} ({one.username})" for one in holders),
            "external": ", ".join(map(str, device.used_by)),
        }
        return DeviceState(device, state, holders[0] if holders else None, notes.get(state, taints))

    def _holder(self, device: Device) -> Holder | None:
        """Who has the device, or a part of it, or the whole of which it is a part.

        The units say it all, unless a card was cut or joined while it was leased: then its booked unit is the uncut
        card (or parts that are no more), and is recognised by its name.
        """
        holders = self._world.holders
        keys = [unit_key(unit, simulated=device.simulated) for unit in device.booked_units]
        if device.parent is not None:
            keys.append(unit_key(device.parent, simulated=device.simulated))
        elif device.units:
            keys.append(unit_key(device.id, simulated=device.simulated))
        found = next((holders[key] for key in keys if key in holders), None)
        if found is None and device.parent is None and not device.units and self._cut:
            found = self._cut.get(unit_key(device.id, simulated=device.simulated))
        return found


def _cut_cards(holders: Mapping[str, Holder]) -> dict[str, Holder]:
    """The cards of which parts are held, by key, each with one of the holders."""
    found: dict[str, Holder] = {}
    for key, holder in holders.items():
        card, mark, _ = key.partition("#")
        if mark:
            found.setdefault(card, holder)
    return found


def held_by(holder: Holder, now: float) -> str:
    since = show_duration(now - holder.since)
    return f"held by {holder.sandbox_name} ({holder.username}) for {since}"


def used_outside(device: Device) -> str:
    return f"used outside dibs by {', '.join(map(str, device.used_by[:3]))}"

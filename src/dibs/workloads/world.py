"""The devices of a host with their holders: inventory and ledger combined, for plans and for tables.

Used by `service`, `booking` and `admission`. Read-only, except that a broken device adds one event to its holder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dibs.backends.installed import find
from dibs.backends.port import Handle
from dibs.devices.model import Device, ExternalUse, Inventory, SourceError
from dibs.errors import BackendUnavailable, Problem
from dibs.home import Home
from dibs.ledger.rows import Holder, Ticket
from dibs.ledger.store import Ledger
from dibs.plan.decision import SharedUse, World
from dibs.plan.device_state import DeviceState, Judge
from dibs.process import ProcessName, absent, name_of, node_name
from dibs.workloads.identity import Identity
from dibs.workloads.queue import in_front, request_of
from dibs.workloads.reconcile import handle_of, room_or_later
from dibs.workloads.registry import Registry

HIDDEN_HOLDER = "a sandbox"  # the name that a tenant sees for another tenant's sandbox


def look_around(home: Home, ledger: Ledger, registry: Registry) -> Inventory:
    """The devices of this host, now, and what containers that dibs did not start have of them."""
    from dibs.devices.inventory import look

    ours = started_by_dibs(ledger)
    found = _with_containers(look(home, started_by_dibs=ours), registry, ledger, ours)
    found = _without_renamed(ledger, _with_unknown(ledger, found))
    _tell_of_health(ledger, found)
    return found


def _without_renamed(ledger: Ledger, inventory: Inventory) -> Inventory:
    """Devices that are held under another name: their CDI spec was rewritten meanwhile. They are not offered."""
    if inventory.simulated:
        return inventory
    held = ledger.held_units()
    if not any(unit.startswith(("node:", "uuid:")) for unit in held):
        return inventory
    from dibs.devices.marks import marks_of

    devices = []
    for device in inventory.devices:
        taken = [mark for mark in marks_of(device) if mark in held]
        if taken and held.isdisjoint(device.booked_units):
            reason = _held_as(ledger, taken[0])
            device = msgspec.structs.replace(device, attachment=None, unattachable=reason)  # noqa: PLW2901
        devices.append(device)
    return msgspec.structs.replace(inventory, devices=tuple(devices))


def _held_as(ledger: Ledger, mark: str) -> str:
    what = mark.replace("node:", "its node ").replace("uuid:", "the card with the UUID ")
    for lease in ledger.leases():
        for device in lease.devices:
            if mark in device.marks:
                return f"{what} is held as {device.id}: its CDI spec was changed while a sandbox has it"
    return f"{what} is held under another name"


def _with_unknown(ledger: Ledger, inventory: Inventory) -> Inventory:
    """What lives and could not be entered in the ledger: no device is given away while it does, and this says why."""
    if not ledger.unknown():
        return inventory
    from dibs.workloads.adoption import problems

    errors = [
        SourceError(
            "ledger", f"sandbox {error.problems[0].value}: {error.problems[0].reason}", error.problems[0].remedy
        )
        for error in problems(ledger)
    ]
    return msgspec.structs.replace(inventory, errors=(*inventory.errors, *errors))


def _with_containers(
    inventory: Inventory, registry: Registry, ledger: Ledger, ours: Callable[[int], bool]
) -> Inventory:
    """Mark the devices that a container has which is no live sandbox of this ledger, whatever its labels say.

    An engine that does not answer is an error that is shown; its containers are then those that can be seen to run.
    So are those of an engine that answers and has forgotten them.
    """
    engines = registry.shared_engines()
    if not engines or not inventory.devices:
        return inventory
    from dibs.backends.engines.external import ExternalHolder, held
    from dibs.backends.engines.process_scan import running
    from dibs.devices.simulated import identity

    holders: list[ExternalHolder] = []
    silent: dict[str, Problem] = {}
    for engine in engines:
        try:
            holders += engine.external_holders(lambda: _own_containers(ledger))
        except BackendUnavailable as error:
            silent[engine.name] = error.problems[0]
    errors = inventory.errors
    told = {holder.container for holder in holders}
    seen, complete = running(ours, None if silent else told | _own_containers(ledger))
    # What was started or has ended meanwhile is in the ledger by now, or gone.
    own = _own_containers(ledger) if seen else set()
    holders += [one for one in seen if one.container not in told | own and name_of(one.pid) is not None]
    if silent:
        known = "known by what runs only" if complete else "not known"
        errors += tuple(
            SourceError(name, f"the containers that have devices are {known}: {problem.reason}", problem.remedy)
            for name, problem in silent.items()
        )
    world = identity(registry.home) if inventory.simulated else ""
    uses = {
        device: ExternalUse(holder.pid, holder.engine or "no engine tells of it", holder.phrase)
        for device, holder in held(holders, inventory.devices, world).items()
    }
    devices = tuple(
        msgspec.structs.replace(device, used_by=(*device.used_by, uses[device.id])) if device.id in uses else device
        for device in inventory.devices
    )
    return msgspec.structs.replace(inventory, devices=devices, errors=errors)


def taken_meanwhile(
    registry: Registry, ledger: Ledger, devices: Sequence[Device], who: Identity, own: Handle, *, simulated: bool
) -> list[Problem]:
    """Devices that a container has taken since they were planned: a person may start one at any time.

    `delivery` asks at the last moment. What was known to be used when it was planned was asked for all the same.
    `own`: the workload they were planned for. It has them by now, and the ledger may not know its processes yet.
    """
    planned = tuple(device for device in devices if not device.used_by)
    if not planned:
        return []
    now = _with_containers(Inventory(planned, simulated=simulated), registry, ledger, started_by_dibs(ledger, own))
    found = []
    for device in veiled_inventory(now, who).devices:
        if device.used_by:
            reason = f"{', '.join(map(str, device.used_by))} has taken it since it was booked"
            found.append(Problem("DEVICES_BUSY", "device", device.id, reason, "try again, or stop what uses it"))
    return found


def _tell_of_health(ledger: Ledger, inventory: Inventory) -> None:
    broken: dict[str, str] = {device.id: device.health.reason for device in inventory.devices if not device.health.ok}
    if not broken:
        return
    for lease in ledger.leases():
        for device in lease.devices:
            if device.simulated != inventory.simulated or device.id not in broken:
                continue
            detail = f"{device.id}: {broken[device.id]}"
            known = ledger.events(sandbox_id=lease.sandbox_id)
            if not any(event.kind == "lease.unhealthy" and event.detail == detail for event in known):
                with room_or_later(), ledger.writing():
                    ledger.note("lease.unhealthy", sandbox_id=lease.sandbox_id, lease_id=lease.id, detail=detail)


def _own_containers(ledger: Ledger) -> set[str]:
    """The ids of the containers of live sandboxes. Labels prove nothing: they are copied, and outlive leases."""
    handles = (handle_of(row) for row in ledger.sandboxes(live_only=True) if row.created)
    return {handle.data["container"] for handle in handles if handle.data.get("container")}


def started_by_dibs(ledger: Ledger, being_made: Handle | None = None) -> Callable[[int], bool]:
    """Whether a process runs in one of our sandboxes: it is in the pid namespace of one. Looked up when first asked.

    `being_made`: one more of ours, which the ledger does not know yet."""
    mine: set[int] | None = None

    def ours() -> set[int]:
        found = set()
        handles = [handle_of(row) for row in ledger.sandboxes(live_only=True)]
        for handle in handles if being_made is None else (*handles, being_made):
            init = _first_process(handle)
            if init is not None and not absent(init):
                try:
                    found.add(os.stat(f"/proc/{init.pid}/ns/pid").st_ino)
                except OSError:
                    continue  # it ended between the two looks, so nothing of it uses a card
        return found

    def started(pid: int) -> bool:
        nonlocal mine
        if mine is None:
            mine = ours()
        try:
            return os.stat(f"/proc/{pid}/ns/pid").st_ino in mine
        except OSError:
            return False  # cannot be told: counted as another's, the card is then not given away

    return started


def _first_process(handle: Handle) -> ProcessName | None:
    if handle.init is not None:
        return handle.init
    found = find(handle.backend)
    return found.first_process(handle) if found is not None and found.first_process is not None else None


def world_of(
    home: Home,
    ledger: Ledger,
    inventory: Inventory,
    who: Identity,
    *,
    ahead: str | None,
    held_back: Callable[[Ticket], bool] | None = None,
) -> World:
    """What a plan depends on. `ahead`: our own ticket; who came before it is served first, apart from those that are
    `held_back`."""
    whole, shares = _leased(ledger, who, simulated=inventory.simulated)
    names = {holder.lease_id: holder for holder in whole.values()}
    return World(
        inventory=veiled_inventory(inventory, who),
        holders={unit: names.get(holder.lease_id, _veiled(holder, who)) for unit, holder in ledger.holders().items()},
        ahead=tuple(request_of(ticket.request) for ticket in in_front(ledger.tickets(), ahead, held_back)),
        now=time.time(),
        leased=whole,
        shares=shares,
        taints=ledger.taints(),
        node=node_name(),
        classes=_classes(home),
    )


def veiled_inventory(inventory: Inventory, who: Identity) -> Inventory:
    """A tenant is told that a card is used outside of dibs, and not by whom: names and pids of the host are not its."""
    if who.sees_all or not any(device.used_by for device in inventory.devices):
        return inventory
    outside = (ExternalUse(0, "", "something outside of dibs"),)
    devices = tuple(
        msgspec.structs.replace(device, used_by=outside) if device.used_by else device for device in inventory.devices
    )
    return msgspec.structs.replace(inventory, devices=devices)


def _veiled(holder: Holder, who: Identity) -> Holder:
    if who.sees(holder.tenant):
        return holder
    return msgspec.structs.replace(holder, sandbox_name=HIDDEN_HOLDER, username="another tenant", tenant="")


def _leased(ledger: Ledger, who: Identity, *, simulated: bool) -> tuple[dict[str, Holder], dict[str, SharedUse]]:
    """Who has which device whole, and who has shares of which."""
    whole: dict[str, Holder] = {}
    shares: dict[str, SharedUse] = {}
    for lease in ledger.leases():
        holder = _veiled(
            Holder(
                lease.id, lease.sandbox_id, lease.sandbox_name, lease.username, lease.created_at, lease.state,
                lease.tenant,
            ),
            who,
        )  # fmt: skip
        for device in lease.devices:
            if device.simulated != simulated:
                continue
            if device.share is None:
                whole[device.id] = holder
                continue
            before = shares.get(device.id, SharedUse({}, ()))
            sums = dict(before.consumed)
            for name, amount in device.share.consumed.items():
                sums[name] = sums.get(name, 0) + amount
            shares[device.id] = SharedUse(sums, (*before.holders, holder))
    return whole, shares


def _classes(home: Home) -> Callable[[], Sequence[Any]]:
    def read() -> Sequence[Any]:
        from dibs.devices.classes import classes_of

        return classes_of(home)

    return read


def states_of(world: World) -> list[DeviceState]:
    """Every device, with its state."""
    judge = Judge(world)
    return [judge.shown(device) for device in world.inventory.devices]

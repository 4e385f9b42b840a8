"""Rows of the ledger and devices of the host → the types of the API. What is not copied here never leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dibs.devices import model
from dibs.ledger import rows
from dibs.plan.device_state import DeviceState
from dibs.sandbox import Sandbox
from dibs.wire import devices as wd
from dibs.wire import sandboxes as ws
from dibs.workloads.admission import waiting_for
from dibs.workloads.identity import Identity
from dibs.workloads.queue import request_of
from dibs.workloads.service import Workloads


def sandbox_view(row: Sandbox, leases: Iterable[rows.Lease], waiting: ws.Waiting | None = None) -> ws.Sandbox:
    spec, result = row.spec, row.exit
    return ws.Sandbox(
        id=row.id,
        name=row.name,
        state=row.state.value,
        backend=row.backend,
        user=row.username,
        uid=row.uid,
        tenant=row.tenant,
        request=spec.resources.short(),
        spec=msgspec.to_builtins(spec),
        command=spec.command,
        labels=row.labels,
        devices=tuple(device.id for lease in leases for device in lease.devices),
        created_at=row.created_at,
        simulated=row.simulated,
        started_at=row.started_at,
        ended_at=row.ended_at,
        expires_at=row.expires_at,
        exit=ws.Exit(result.code, result.reason, result.signal, result.detail, result.at) if result else None,
        reason=row.reason,
        waiting=waiting,
    )


def one_sandbox(workloads: Workloads, row: Sandbox) -> ws.Sandbox:
    """With its devices, and what it waits for."""
    waiting: ws.Waiting | None = None
    if row.state == "queued":
        found = waiting_for(workloads, row)
        waiting = ws.Waiting(found["place"], found["length"], found["waits_for"]) if found else None
    elif row.waits_for:  # with the scheduler of a cluster, which tells no place
        waiting = ws.Waiting(0, 0, row.waits_for)
    return sandbox_view(row, workloads.ledger.leases(sandbox_id=row.id, live_only=False), waiting)


def sandbox_views(workloads: Workloads, found: Sequence[Sandbox]) -> tuple[ws.Sandbox, ...]:
    """Many, with one look at the leases."""
    by_sandbox: dict[str, list[rows.Lease]] = {}
    live_only = all(row.live for row in found)
    if found:
        for lease in workloads.ledger.leases(live_only=live_only):
            by_sandbox.setdefault(lease.sandbox_id, []).append(lease)
    return tuple(sandbox_view(row, by_sandbox.get(row.id, ())) for row in found)


def event_view(event: rows.Event) -> ws.Event:
    return ws.Event(event.seq, event.at, event.kind, event.sandbox_id, event.lease_id, event.detail)


def lease_view(lease: rows.Lease) -> wd.Lease:
    return wd.Lease(
        id=lease.id,
        sandbox_id=lease.sandbox_id,
        sandbox=lease.sandbox_name,
        user=lease.username,
        state=lease.state,
        devices=tuple(
            wd.LeasedDevice(
                device.id,
                device.model,
                device.uuid,
                device.index,
                device.memory,
                device.simulated,
                device.share.consumed if device.share else None,
                device.units,
            )
            for device in lease.devices
        ),
        created_at=lease.created_at,
        changed_at=lease.changed_at,
        tenant=lease.tenant,
        backend=lease.backend,
        domain=lease.domain,
        kind=lease.kind,
        claim=lease.claim,
        node=lease.node,
    )


def ticket_view(ticket: rows.Ticket, place: int) -> wd.Ticket:
    asked: dict[str, Any] = request_of(ticket.request).short()
    return wd.Ticket(
        ticket.id, place, ticket.username, asked, ticket.created_at, ticket.sandbox_id or "", ticket.tenant
    )


def device_view(state: DeviceState, who: Identity) -> wd.Device:
    """A tenant is not told which processes of the host use a device."""
    device = state.device
    local = who.sees_all
    external = state.state == "external"
    return wd.Device(
        id=device.id,
        driver=device.driver,
        pool=device.pool,
        name=device.name,
        vendor=device.vendor,
        state=state.state,  # type: ignore[arg-type]  # one of the known words
        health=wd.Health(device.health.ok, device.health.reason),
        simulated=device.simulated,
        model=device.model,
        uuid=device.uuid,
        cdi_name=device.cdi.cdi_name if device.cdi else "",
        index=device.index,
        memory=device.memory,
        capacity=device.capacity,
        attributes=_attributes(device.attributes),
        aliases=device.aliases,
        parent=device.parent,
        shareable=device.shareable,
        source=device.source,
        note=state.note if local or not external else "used by processes outside of dibs",
        holder=_holder(state.holder, who),
        used_by=tuple(wd.ExternalUse(use.pid, use.user, use.command) for use in device.used_by) if local else (),
    )


def _attributes(found: Mapping[str, model.Attribute]) -> dict[str, wd.Attribute]:
    result: dict[str, wd.Attribute] = {}
    for name, value in found.items():
        if isinstance(value, bool):
            result[name] = wd.Attribute(boolean=value)
        elif isinstance(value, int):
            result[name] = wd.Attribute(integer=value)
        elif isinstance(value, model.Version):
            result[name] = wd.Attribute(version=value.text)
        else:
            result[name] = wd.Attribute(string=value)
    return result


def _holder(holder: rows.Holder | None, who: Identity) -> wd.Holder | None:
    """Of another tenant's only that it is one; `world` has veiled the names already."""
    if holder is None:
        return None
    if not who.sees(holder.tenant) or (not who.sees_all and holder.username == "another tenant"):
        return wd.Holder(holder.sandbox_name, holder.username, holder.since, state=holder.state)
    return wd.Holder(
        holder.sandbox_name, holder.username, holder.since, holder.sandbox_id, holder.lease_id, holder.tenant,
        holder.state,
    )  # fmt: skip

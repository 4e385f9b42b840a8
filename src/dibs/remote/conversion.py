"""Between the words of the native API and the values that `cli` and `sdk` work with, both ways.

What a gateway does not say (handles, folders, process names) is empty here; a client has no use for it.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from dibs.cdi.spec import ContainerEdits
from dibs.devices import model
from dibs.ledger import rows
from dibs.plan.device_state import DeviceState
from dibs.process import ProcessName
from dibs.request import parse_request
from dibs.request.fields import FIELDS, Field
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Exit, ExitReason, Parts, Sandbox, SandboxId, SandboxState
from dibs.wire import devices as wd
from dibs.wire import sandboxes as ws

_NOBODY = ProcessName("", "", 0, 0, 0)  # processes of a gateway's host mean nothing here


def mapping_of(spec: SandboxSpec, *, here: bool) -> dict[str, Any]:
    """A sandbox as a request file says it. `here`: the gateway is on this machine, so our folder is the default."""
    mapping: dict[str, Any] = dict(spec.resources.short())
    for field in FIELDS:
        if field.kind not in ("resource", "options"):
            value = getattr(spec, field.attribute)
            if value != getattr(_DEFAULT, field.attribute):
                mapping[field.name] = _written(field, value)
    mapping |= spec.options
    if here and not spec.workdir and spec.root == "host" and not spec.image:
        mapping["workdir"] = os.getcwd()
    return mapping


_DEFAULT = SandboxSpec()


def _written(field: Field, value: Any) -> Any:
    """A value as it is written in a request."""
    if field.kind in ("mounts", "publish", "volumes"):
        return [str(one) for one in value]
    return list(value) if isinstance(value, tuple) else value


def sandbox_of(found: ws.Sandbox) -> Sandbox:
    end = found.exit
    return Sandbox(
        id=SandboxId(found.id),
        name=found.name,
        backend=found.backend,
        state=SandboxState(found.state),
        uid=found.uid,
        username=found.user,
        parts=Parts(
            spec=msgspec.convert(found.spec, SandboxSpec),
            exit=Exit(end.code, ExitReason(end.reason), end.signal, end.detail, end.at) if end is not None else None,
        ),
        created_at=found.created_at,
        reason=found.reason,
        simulated=found.simulated,
        started_at=found.started_at,
        ended_at=found.ended_at,
        tenant=found.tenant,
        labels=found.labels,
        expires_at=found.expires_at,
    )


def lease_row(found: wd.Lease) -> rows.Lease:
    devices = tuple(
        rows.LeasedDevice(
            device.id,
            device.model,
            device.uuid,
            device.index,
            device.memory,
            device.units,
            simulated=device.simulated,
            share=rows.Share("", device.share) if device.share is not None else None,
        )
        for device in found.devices
    )
    return rows.Lease(
        id=rows.LeaseId(found.id),
        sandbox_id=SandboxId(found.sandbox_id),
        state=found.state,
        devices=devices,
        created_at=found.created_at,
        changed_at=found.changed_at,
        sandbox_name=found.sandbox,
        username=found.user,
        tenant=found.tenant,
        backend=found.backend,
        domain=found.domain,
        kind=found.kind,
        claim=found.claim,
        node=found.node,
    )


def ticket_row(found: wd.Ticket) -> rows.Ticket:
    request = msgspec.json.encode(parse_request(found.request))
    return rows.Ticket(
        seq=found.place,
        id=found.ticket,
        username=found.user,
        owner=_NOBODY,
        request=request,
        created_at=found.since,
        sandbox_id=found.sandbox_id or None,
        tenant=found.tenant,
    )


def event_row(found: ws.Event) -> rows.Event:
    return rows.Event(found.seq, found.at, found.kind, found.sandbox_id, found.lease_id, found.detail)


def inventory_of(found: wd.Devices) -> tuple[model.Inventory, list[DeviceState]]:
    states = [_device_state(device) for device in found.devices]
    errors = tuple(model.SourceError(error.source, error.reason, error.remedy) for error in found.errors)
    return model.Inventory(tuple(state.device for state in states), errors, found.simulated), states


def device_of(found: wd.Device) -> model.Device:
    return _device_state(found).device


def _device_state(found: wd.Device) -> DeviceState:
    device = model.Device(
        driver=found.driver,
        pool=found.pool,
        name=found.name,
        vendor=found.vendor,
        model=found.model,
        uuid=found.uuid,
        index=found.index,
        attributes={name: _attribute(value) for name, value in found.attributes.items()},
        capacity=found.capacity,
        parent=model.DeviceId(found.parent) if found.parent is not None else None,
        health=model.Health(found.health.ok, found.health.reason),
        aliases=found.aliases,
        attachment=model.CdiAttachment(found.cdi_name, ContainerEdits()) if found.cdi_name else None,
        used_by=tuple(model.ExternalUse(use.pid, use.user, use.command) for use in found.used_by),
        simulated=found.simulated,
        shareable=found.shareable,
        source=found.source,
    )
    holder = None
    if found.holder is not None:
        one = found.holder
        holder = rows.Holder(
            rows.LeaseId(one.lease_id), SandboxId(one.sandbox_id), one.sandbox, one.user, one.since, one.state,
            one.tenant,
        )  # fmt: skip
    return DeviceState(device, found.state, holder, found.note)


def _attribute(found: wd.Attribute) -> model.Attribute:
    if found.version is not None:
        return model.Version(found.version)
    if found.boolean is not None:
        return found.boolean
    if found.integer is not None:
        return found.integer
    return found.string or ""

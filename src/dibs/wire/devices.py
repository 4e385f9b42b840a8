"""Devices, leases, the queue: what is there and who has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

DeviceState = Literal["free", "held", "shared", "external", "unhealthy", "tainted", "unusable"]
LeaseState = Literal["reserved", "attached", "draining", "free"]


class Attribute(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attribute in Kubernetes' form: exactly one of these is set."""

    string: str | None = None
    version: str | None = None
    integer: int | None = msgspec.field(name="int", default=None)
    boolean: bool | None = msgspec.field(name="bool", default=None)


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    ok: bool
    reason: str = ""


class Holder(msgspec.Struct, frozen=True):
    """Who has a device. Of another tenant only that there is one."""

    sandbox: str
    user: str
    since: float
    sandbox_id: str = ""
    lease_id: str = ""
    tenant: str = ""
    state: LeaseState = "attached"


class ExternalUse(msgspec.Struct, frozen=True):
    """A process that uses a device and was not started by dibs."""

    pid: int
    user: str
    command: str


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One card, or one part of a card."""

    id: str
    driver: str
    pool: str
    name: str
    vendor: str
    state: DeviceState
    health: Health
    simulated: bool
    model: str = ""
    uuid: str = ""
    cdi_name: str = ""
    index: int | None = None
    memory: int | None = None
    capacity: dict[str, int] = {}
    attributes: dict[str, Attribute] = {}
    aliases: tuple[str, ...] = ()
    parent: str | None = None
    shareable: bool = False
    source: str = ""
    note: str = ""
    holder: Holder | None = None
    used_by: tuple[ExternalUse, ...] = ()


class SourceError(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source of devices that cannot be read."""

    source: str
    reason: str
    remedy: str = ""


class Devices(msgspec.Struct, frozen=True):
    devices: tuple[Device, ...]
    errors: tuple[SourceError, ...]
    simulated: bool


class LeasedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device as it was when it was leased. `share`: how much of it, in billionths; none: all of it."""

    id: str
    model: str = ""
    uuid: str = ""
    index: int | None = None
    memory: int | None = None
    simulated: bool = False
    share: dict[str, int] | None = None
    units: tuple[str, ...] = ()


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    sandbox_id: str
    sandbox: str
    user: str
    state: LeaseState
    devices: tuple[LeasedDevice, ...]
    created_at: float
    changed_at: float
    tenant: str = ""
    backend: str = ""
    domain: str = ""  # the cluster that has the authority over its devices; empty: the gateway's host
    kind: Literal["booked", "delegated", "bound"] = "booked"
    claim: str = ""
    node: str = ""


class Leases(msgspec.Struct, frozen=True):
    leases: tuple[Lease, ...]


class Ticket(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place in the queue."""

    ticket: str
    place: int
    user: str
    request: dict[str, Any]
    since: float
    sandbox_id: str = ""
    tenant: str = ""


class Queue(msgspec.Struct, frozen=True):
    """Those who wait, first come first. `length` counts all of them, also those that are not shown."""

    tickets: tuple[Ticket, ...]
    length: int


_WORD = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?){0,5}"
_TAINT = rf"^({_DOMAIN}/)?{_WORD}(={_WORD})?(:(NoSchedule|NoExecute|None))?$(?!\n)"


class TaintRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`maintenance`, `maintenance=fan` or `maintenance=fan:NoExecute`."""

    taint: Annotated[str, Meta(min_length=1, max_length=300, pattern=_TAINT)]


class TaintsGone(msgspec.Struct, frozen=True):
    removed: int

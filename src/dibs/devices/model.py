"""What a device is, for every source that finds one and all code that leases one.

Sources (`cdi_source`, `nvml`, `pci`, `simulated`) make `Device`s, `inventory` joins them, `plan` chooses among them,
`ledger` books their *units*. A device is named as in Kubernetes' DRA: driver/pool/name. It must not know where it came
from beyond its `source`, nor who holds it.

Units are what makes double booking impossible: each is an atomic piece of hardware, and two devices that share one
exclude each other. A whole card that cannot be cut has one unit, itself. A card cut in seven has seven; the card as a
whole has all of them, a partition has some.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from dibs.cdi.spec import ContainerEdits

DeviceId = NewType("DeviceId", str)
UnitId = NewType("UnitId", str)


_UUID_PREFIX = len("GPU-") + 4  # fewer digits of a UUID are a typing error rather than a name


class Version(msgspec.Struct, frozen=True, tag="version"):
    """A semver attribute, apart from a string that merely looks like one."""

    text: str


Attribute = bool | int | str | Version


class ExternalUse(msgspec.Struct, frozen=True):
    """A process that uses the card and that dibs did not start. Without a pid: one that is not to be told about."""

    pid: int
    user: str
    command: str

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid}, {self.user})" if self.pid else self.command


class Health(msgspec.Struct, frozen=True):
    """`ok`, or broken with the reason in the words of the source that found out."""

    ok: bool = True
    reason: str = ""


class CdiAttachment(msgspec.Struct, frozen=True):
    """On a host: the CDI name of a device and the edits that it stands for. The backend or its engine applies them.

    `spec_edits` are those of the whole CDI spec, applied once however many of its devices are leased; `spec` names it.
    """

    cdi_name: str
    edits: ContainerEdits
    spec: str = ""
    spec_edits: ContainerEdits = ContainerEdits()

    def __str__(self) -> str:
        return self.cdi_name


class ClaimAttachment(msgspec.Struct, frozen=True):
    """On a cluster: the ResourceClaim that the device was allocated to. A DRA driver on its node attaches it."""

    claim: str
    request: str = ""

    def __str__(self) -> str:
        return f"claim {self.claim}" + (f", request {self.request}" if self.request else "")


class ExtendedResourceAttachment(msgspec.Struct, frozen=True):
    """On a cluster: the extended resource that was asked for. A device plugin on its node chooses and attaches it."""

    resource: str

    def __str__(self) -> str:
        return f"extended resource {self.resource}"


DelegatedAttachment = ClaimAttachment | ExtendedResourceAttachment
Attachment = CdiAttachment | DelegatedAttachment


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One card, or one partition of a card."""

    driver: str
    pool: str
    name: str
    vendor: str
    model: str = ""
    uuid: str = ""
    index: int | None = None
    attributes: dict[str, Attribute] = {}
    capacity: dict[str, int] = {}
    units: tuple[UnitId, ...] = ()
    parent: DeviceId | None = None
    health: Health = Health()
    aliases: tuple[str, ...] = ()
    attachment: Attachment | None = None
    unattachable: str = ""  # why there is no attachment; empty if there is one
    used_by: tuple[ExternalUse, ...] = ()
    simulated: bool = False
    shareable: bool = False  # claims may take parts of its memory, beside each other
    source: str = ""
    marks: tuple[str, ...] = ()  # what it is by its hardware, and no other device is: see `marks`

    @property
    def id(self) -> DeviceId:
        return DeviceId(f"{self.driver}/{self.pool}/{self.name}")

    @property
    def cdi(self) -> CdiAttachment | None:
        """How it is attached on this host; None if it cannot be, or if a cluster attaches it."""
        return self.attachment if isinstance(self.attachment, CdiAttachment) else None

    @property
    def memory(self) -> int | None:
        return self.capacity.get("memory")

    @property
    def booked_units(self) -> tuple[UnitId, ...]:
        """The units that a lease of this device takes; the device itself where it cannot be cut."""
        return self.units or (UnitId(self.id),)


class SourceError(msgspec.Struct, frozen=True):
    """A source that could not be read. It is shown; it never reads as "no devices"."""

    source: str
    reason: str
    remedy: str = ""


class Inventory(msgspec.Struct, frozen=True):
    """All devices of this host, at one look, and what could not be looked at."""

    devices: tuple[Device, ...]
    errors: tuple[SourceError, ...] = ()
    simulated: bool = False

    def find(self, name: str) -> tuple[Device, ...]:
        """The devices that answer to a name: id, CDI name, UUID, index, or the beginning of a UUID.

        More than one means that the name is ambiguous.
        """
        exact = tuple(d for d in self.devices if name in (d.id, d.name, d.uuid) or name in d.aliases)
        if exact or not name.upper().startswith(("GPU-", "MIG-")) or len(name) < _UUID_PREFIX:
            return exact
        return tuple(d for d in self.devices if d.uuid.lower().startswith(name.lower()))

"""What the ledger holds, as values. Made by `ledger.store`; the layers above use these, never SQL rows."""

from __future__ import annotations

from typing import Any, Literal, NewType, TypeVar
from zlib import crc32

import msgspec

from dibs.errors import not_utf8
from dibs.process import ProcessName
from dibs.sandbox import DAMAGE, SandboxId, damaged, decoder

CLUSTER = "cluster:"  # how the name of a domain begins that is no host
LeaseId = NewType("LeaseId", str)

LeaseState = Literal["reserved", "attached", "draining", "free"]


class Share(msgspec.Struct, frozen=True):
    """A part of a device's capacity, beside others'. Amounts are in billionths, as the allocator counts."""

    id: str
    consumed: dict[str, int]


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a device should not be given away: by a person, or by its health."""

    key: str
    value: str = ""
    effect: Literal["None", "NoSchedule", "NoExecute"] = "NoSchedule"
    username: str = ""
    since: float = 0.0

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class LeasedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device as it was when it was leased, so that a lease reads the same when the device is gone."""

    id: str
    model: str = ""
    uuid: str = ""
    index: int | None = None
    memory: int | None = None
    units: tuple[str, ...] = ()
    simulated: bool = False
    share: Share | None = None  # None: the whole device, for this lease alone
    marks: tuple[str, ...] = ()  # its hardware, whatever it is called; booked like units


class Booked(msgspec.Struct, frozen=True, tag="booked"):
    """An allocation that this ledger has decided: these devices, from the moment of the booking."""

    devices: tuple[LeasedDevice, ...]


class Delegated(msgspec.Struct, frozen=True, tag="delegated"):
    """An allocation that a scheduler decides: what it was asked for, as the request says it."""

    claim: str


class Bound(msgspec.Struct, frozen=True, tag="bound"):
    """A delegated allocation that the scheduler has decided: these devices of this node."""

    claim: str
    node: str
    devices: tuple[LeasedDevice, ...]


Allocation = Booked | Delegated | Bound


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a sandbox holds. `domain`: the cluster that has the authority over its devices; empty: this host."""

    id: LeaseId
    sandbox_id: SandboxId
    state: LeaseState
    devices: tuple[LeasedDevice, ...]
    created_at: float
    changed_at: float
    sandbox_name: str = ""
    username: str = ""
    tenant: str = ""
    backend: str = ""
    domain: str = ""
    kind: Literal["booked", "delegated", "bound"] = "booked"
    claim: str = ""
    node: str = ""

    @property
    def allocation(self) -> Allocation:
        if self.kind == "booked":
            return Booked(self.devices)
        return Delegated(self.claim) if self.kind == "delegated" else Bound(self.claim, self.node, self.devices)


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who has a unit of hardware, and since when."""

    lease_id: LeaseId
    sandbox_id: SandboxId
    sandbox_name: str
    username: str
    since: float
    state: LeaseState
    tenant: str = ""


class Ticket(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place in the queue. With `sandbox_id` it is that of a queued sandbox, which outlives its owner.

    `deadline` and `called_at` are seconds of CLOCK_BOOTTIME in the boot `boot`: a clock that does not jump. `wake` is
    the FIFO on which its owner listens. `called_at`: since when the owner has been called and has not answered. `kept`:
    seconds that the place is kept once its owner is gone: a client of the host service comes back after a restart.
    """

    seq: int
    id: str
    username: str
    owner: ProcessName
    request: bytes
    created_at: float
    sandbox_id: str | None = None
    tenant: str = ""
    uid: int = -1
    boot: str = ""
    deadline: float | None = None
    wake: str = ""
    called_at: float | None = None
    kept: float = 0.0

    def remaining(self, boot: str, now: float) -> float | None:
        """Seconds until the deadline, at `now` in the boot `boot`; None if that is not known."""
        return self.deadline - now if self.deadline is not None and self.boot == boot else None

    def silent_for(self, now: float) -> float:
        """Seconds since its owner was called without an answer."""
        return 0.0 if self.called_at is None else now - self.called_at


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: int
    at: float
    kind: str
    sandbox_id: str | None = None
    lease_id: str | None = None
    detail: str = ""


T = TypeVar("T")


def decoded(kind: type[T], data: bytes | str, what: str) -> T:
    """A value that is kept as JSON. `what` names it, should it be damaged."""
    try:
        return decoder(kind).decode(data)
    except DAMAGE as error:
        raise damaged(what, error) from error


def sealed(text: str) -> str:
    """A text with its checksum behind it. By what it says processes are proved gone, and then devices are freed: a
    flipped bit must not turn one process into another."""
    return f"{text} {crc32(text.encode()):08x}"


def unsealed(text: str, what: str) -> str:
    """The text alone. One that an older dibs wrote has no checksum."""
    if not text or text[-1] == "}":
        return text
    bare, _, check = text.rpartition(" ")
    if not bare or check != f"{crc32(bare.encode()):08x}":
        raise damaged(what, "its checksum is wrong")
    return bare


def encode(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise not_utf8(error) from error


def unit_key(unit: str, *, simulated: bool) -> str:
    """A unit as the index sees it. Simulated hardware has keys of its own: it never stands in the way of real ones."""
    return f"simulated:{unit}" if simulated else unit

"""The sandbox: one type for the ledger, the use cases, the gateway and its client, the command line and the SDK.

    queued → creating → running ⇄ paused → stopping → exited
       └────────┴──────────┴──────────┴────────→ failed

An immutable value; only `ledger.sandboxes` changes the stored row. The larger parts come from the ledger as JSON
(`Parts`) and are decoded on first access, because most readers need none of them.
"""

from __future__ import annotations

import enum
from functools import cached_property
from typing import Any, Literal, NewType, TypeVar

import msgspec

from dibs.errors import StateError
from dibs.process import ProcessName, absent
from dibs.receipt import Receipt, ReceiptSummary
from dibs.request.sandbox_spec import SandboxSpec

SandboxId = NewType("SandboxId", str)


class SandboxState(enum.StrEnum):
    QUEUED = "queued"
    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    EXITED = "exited"
    FAILED = "failed"


class Step(enum.StrEnum):
    """How far a delivery has come."""

    BOOKED = "booked"
    CREATED = "created"
    PLACED = "placed"
    PROVED = "proved"
    STARTED = "started"


class ExitReason(enum.StrEnum):
    EXITED = "exited"
    SIGNALLED = "signalled"
    STOPPED = "stopped"
    EXPIRED = "expired"
    OUT_OF_MEMORY = "out-of-memory"
    CLIENT_GONE = "client-gone"
    LOST = "lost"  # killed from outside
    NOT_STARTED = "not-started"
    NETWORK_LOST = "network-lost"  # the helper of its private network was killed


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a command ended. `code` is what a shell would show: 128 + n for a signal."""

    code: int
    reason: ExitReason = ExitReason.EXITED
    signal: int | None = None
    detail: str = ""
    at: float = 0.0  # seconds since the epoch


class Handle(msgspec.Struct, frozen=True):
    """A created workload. `keeper` owns it (shim, engine); `init` is its first process, if it is one of this host."""

    backend: str
    sandbox_id: str
    folder: str
    keeper: ProcessName | None = None
    init: ProcessName | None = None
    data: dict[str, str] = {}


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a gateway needs to make an accepted sandbox, values included. In the ledger until its command runs."""

    spec: SandboxSpec = SandboxSpec()
    base_env: dict[str, str] = {}
    remote: bool = False  # came with a token: no folder of the host is shared


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The larger parts of a sandbox: each a value, or the JSON of one, as the ledger has it."""

    spec: SandboxSpec | str
    handle: Handle | str | None = None
    receipt: Receipt | str | None = None
    exit: Exit | str | None = None
    pending: Pending | str | None = None


class Sandbox(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One sandbox, alive or ended.

    `labels` may change later, the spec keeps what was asked. `annotations` are what a facade keeps of its own.
    `origin` is "" for a dibs process of its own, "gateway" for what a gateway has accepted: that is taken over when the
    gateway dies. `owner` is the process that delivers it; None at a remote client, where it would mean nothing.

    `step`: how far its delivery has come. `fence` counts who has delivered it: one that was taken over by another
    process is refused by its older number. `waits_for` is what a scheduler says while it has not placed it. `group`:
    the id that the members of a group share, each with its `rank`.
    """

    id: SandboxId
    name: str
    backend: str
    state: SandboxState
    uid: int
    username: str
    parts: Parts
    created_at: float
    owner: ProcessName | None = None
    folder: str = ""
    reason: str | None = None
    simulated: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    tenant: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    origin: Literal["", "gateway"] = ""
    expires_at: float | None = None
    domain: str = ""  # the cluster whose scheduler chooses its devices; "": this host
    step: Step = Step.BOOKED
    fence: int = 0
    waits_for: str = ""
    group: str = ""
    rank: int = 0

    @cached_property
    def spec(self) -> SandboxSpec:
        """What was asked; values of variables are hidden."""
        return _read(self.parts.spec, SandboxSpec, f"request of {self.id}")

    @cached_property
    def handle(self) -> Handle | None:
        """What names it on its backend; None before it is created."""
        found = self.parts.handle
        return None if found is None else _read(found, Handle, f"handle of {self.id}")

    @cached_property
    def receipt(self) -> Receipt | None:
        found = self.parts.receipt
        return None if found is None else _read(found, Receipt, f"receipt of {self.id}")

    @cached_property
    def receipt_summary(self) -> ReceiptSummary | None:
        """For lists: it decodes no more of a receipt than they show."""
        found = self.parts.receipt
        if isinstance(found, Receipt):
            return msgspec.convert(found, ReceiptSummary, from_attributes=True)
        return None if found is None else _read(found, ReceiptSummary, f"receipt of {self.id}")

    @cached_property
    def exit(self) -> Exit | None:
        found = self.parts.exit
        return None if found is None else _read(found, Exit, f"exit status of {self.id}")

    @cached_property
    def pending(self) -> Pending | None:
        """The request with all its values, as long as a gateway still has to deliver it."""
        found = self.parts.pending
        return None if found is None else _read(found, Pending, f"accepted request of {self.id}")

    @property
    def created(self) -> bool:
        """Whether it has a handle. Unlike `handle`, it decodes nothing; so do the next two."""
        return self.parts.handle is not None

    @property
    def proved(self) -> bool:
        """Whether it has a receipt."""
        return self.parts.receipt is not None

    @property
    def accepted(self) -> bool:
        """Whether a gateway still has to deliver it."""
        return self.parts.pending is not None

    @property
    def withdrawn(self) -> bool:
        """Whether it was removed before it was proved, and its delivery is being undone."""
        return self.state is SandboxState.STOPPING and self.step in (Step.BOOKED, Step.CREATED, Step.PLACED)

    def decoded(self) -> Sandbox:
        """The same with every part decoded, for comparing."""
        parts = Parts(
            spec=self.spec, handle=self.handle, receipt=self.receipt, exit=self.exit, pending=self.pending
        )  # fmt: skip
        return msgspec.structs.replace(self, parts=parts)

    @property
    def live(self) -> bool:
        return self.ended_at is None

    @property
    def ready(self) -> bool:
        """Its command has been let go, and it takes further ones. (Attached alone is not enough.)"""
        return self.state is SandboxState.RUNNING and not self.accepted

    @property
    def orphaned(self) -> bool:
        """Whether the process that delivers it is proved gone."""
        return self.owner is not None and absent(self.owner)


T = TypeVar("T")
# What reading a value raises that is not what was written.
DAMAGE = (msgspec.DecodeError, ValueError, TypeError, AttributeError, LookupError)
_DECODERS: dict[object, msgspec.json.Decoder[Any]] = {}


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type. Making one takes as long as loading a module: it is made when something is first read."""
    found = _DECODERS.get(kind)
    if found is None:
        found = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return found


def damaged(what: str, reason: object) -> StateError:
    """Something in the ledger that cannot be believed. Nothing is decided on it."""
    return StateError(
        f"the ledger is damaged: {what}: {reason}", field="ledger", code="LEDGER_CORRUPT",
        remedy="move the file away (`dibs doctor` says how); a new one is made, and what lives is entered in it",
    )  # fmt: skip


def _read(value: T | str, kind: type[T], what: str) -> T:
    if not isinstance(value, str):
        return value
    try:
        return decoder(kind).decode(value)
    except DAMAGE as error:
        raise damaged(what, error) from error

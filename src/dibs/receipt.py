"""The receipt of a delivery, as it is kept and shown: what was asked, planned, rendered and observed, field by field.

Types only. `workloads.receipt` writes receipts, the ledger keeps them, the edges show them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dibs.errors import Problem

Outcome = Literal["delivered", "delegated", "refused", "mismatch", "not observed"]


class NodeFact(msgspec.Struct, frozen=True, order=True):
    """A device node: where, of which kind, with which numbers."""

    path: str
    kind: str  # "c" or "b"
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.path} {self.kind} {self.major}:{self.minor}"


class ReceiptLine(msgspec.Struct, frozen=True):
    field: str
    asked: str
    planned: str
    rendered: str
    observed: str
    outcome: Outcome
    origin: str = ""  # before start, after start, or engine: see `backends.port.Observation`


class Facts(msgspec.Struct, frozen=True):
    """An expectation or an observation as it is kept: values that may be secret are not."""

    nodes: tuple[NodeFact, ...] = ()
    env: dict[str, str] = {}
    mounts: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    isolation: dict[str, str] = {}
    process: dict[str, str] = {}
    origin: dict[str, str] = {}


class ReceiptDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    model: str
    uuid: str
    cdi_name: str
    nodes: tuple[str, ...]
    memory: int | None = None
    share: dict[str, str] = {}  # what of its capacity the sandbox has, where that is not all of it
    used_outside: tuple[str, ...] = ()
    attached_as: str = ""  # the claim or extended resource on a cluster; on a host it is `cdi_name`


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The proof of one delivery."""

    sandbox: str
    name: str
    backend: str
    at: float
    verdict: Literal["delivered", "mismatch", "not observed", "not started"]
    simulated: bool
    asked: dict[str, Any]
    devices: tuple[ReceiptDevice, ...]
    lines: tuple[ReceiptLine, ...]
    rendered: dict[str, Any]
    observed: Facts
    expected: Facts
    claim: dict[str, Any] | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What a person wants at a prompt; all of it fills screens."""
        devices = ", ".join(device.id.rpartition("/")[2] for device in self.devices) or "no devices"
        return f"<Receipt {self.name or self.sandbox} on {self.backend}: {self.verdict}, {devices}>"


class SummaryDevice(msgspec.Struct, frozen=True):
    id: str
    model: str
    uuid: str


class SummaryLine(msgspec.Struct, frozen=True):
    field: str
    observed: str


class ReceiptSummary(msgspec.Struct, frozen=True):
    """What a list shows of a receipt: the rest is not decoded."""

    verdict: str
    devices: tuple[SummaryDevice, ...]
    lines: tuple[SummaryLine, ...]

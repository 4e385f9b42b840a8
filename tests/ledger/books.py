"""What the tests of the ledger book: sandboxes and devices that exist nowhere else."""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.ledger.rows import LeasedDevice
from dibs.ledger.store import Ledger, new_id
from dibs.process import myself
from dibs.receipt import Facts, Receipt
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Handle, Parts, Pending, Sandbox, SandboxId, SandboxState

SECRET = Pending(SandboxSpec(env={"SECRET": "1"}))
RECEIPT = Receipt(
    sandbox="sb-1", name="n", backend="fake", at=1.0, verdict="delivered", simulated=False, asked={}, devices=(),
    lines=(), rendered={}, observed=Facts(), expected=Facts(),
)  # fmt: skip


def handle(name: str = "") -> Handle:
    return Handle("fake", name, "/nowhere")


def sandbox(name: str = "", *, spec: SandboxSpec | None = None, pending: Pending | None = None, **more: Any) -> Sandbox:
    sandbox_id = new_id("sb")
    row = Sandbox(
        id=SandboxId(sandbox_id),
        name=name or sandbox_id,
        backend="fake",
        state=SandboxState.CREATING,
        uid=0,
        username="anna",
        owner=myself(),
        parts=Parts(spec=spec or SandboxSpec(), pending=pending),
        folder="/nowhere",
        created_at=1.0,
    )
    return msgspec.structs.replace(row, **more)


def device(name: str, *units: str, simulated: bool = False) -> LeasedDevice:
    return LeasedDevice(name, units=units or (name,), simulated=simulated)


def book(
    ledger: Ledger, *devices: LeasedDevice, name: str = "", pending: Pending | None = None, **more: Any
) -> Sandbox:
    row = sandbox(name, pending=pending, **more)
    with ledger.writing():
        ledger.add_sandbox(row)
        ledger.reserve(row.id, devices)
    return row

"""What the tests of the ledger book: sandboxes and devices that exist nowhere else."""

from __future__ import annotations

import msgspec

from dibs.ledger.rows import LeasedDevice, SandboxId, SandboxRow
from dibs.ledger.store import Ledger, new_id
from dibs.process import myself


def sandbox(name: str = "", **more: object) -> SandboxRow:
    sandbox_id = new_id("sb")
    row = SandboxRow(
        id=SandboxId(sandbox_id),
        name=name or sandbox_id,
        backend="fake",
        state="creating",
        uid=0,
        username="anna",
        owner=myself(),
        spec=b"{}",
        folder="/nowhere",
        created_at=1.0,
    )
    return msgspec.structs.replace(row, **more)


def device(name: str, *units: str, simulated: bool = False) -> LeasedDevice:
    return LeasedDevice(name, units=units or (name,), simulated=simulated)


def book(ledger: Ledger, *devices: LeasedDevice, name: str = "", **more: object) -> SandboxRow:
    row = sandbox(name, **more)
    with ledger.writing():
        ledger.add_sandbox(row)
        ledger.reserve(row.id, devices)
    return row

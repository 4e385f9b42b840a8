"""The ranks of a job as they are now: what the job knows of them, and what the ledger says of their sandboxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dibs.backends.port import Exit
from dibs.ledger.rows import Lease
from dibs.sandbox import Sandbox
from dibs.workloads.jobs.model import RankPhase, RankStatus


def rank_statuses(
    ranks: Sequence[RankStatus], rows: Iterable[Sandbox], leases: Iterable[Lease]
) -> tuple[RankStatus, ...]:
    """The same ranks, with what their sandboxes say. A rank that has none keeps what was known of it."""
    found = list(ranks)
    devices: dict[str, list[str]] = {}
    for lease in leases:
        devices.setdefault(lease.sandbox_id, []).extend(device.id for device in lease.devices)
    for row in rows:
        ended = row.exit
        found[row.rank] = msgspec.structs.replace(
            found[row.rank],
            phase=_phase(row, ended),
            sandbox_id=row.id,
            exit_code=None if ended is None else ended.code,
            reason=row.reason or "",
            devices=tuple(devices.get(row.id, ())) or found[row.rank].devices,
            started_at=row.started_at,
            ended_at=row.ended_at,
        )
    return tuple(found)


def _phase(row: Sandbox, ended: Exit | None) -> RankPhase:
    if row.live:
        return "Running" if row.state in ("running", "paused", "stopping") else "Creating"
    if ended is not None and ended.code == 0 and ended.reason == "exited":
        return "Succeeded"
    if ended is not None and ended.reason == "stopped":
        return "Stopped"
    return "Failed"

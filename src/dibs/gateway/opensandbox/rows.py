"""Finding the one sandbox that a request is about, and removing it: the few steps that several routes share.

They run in a thread of the gateway's pool, on its `Workloads`, as seen by the caller. Another tenant's sandbox, a
deleted one and one that never was are the same: not there, in the same words.
"""

from __future__ import annotations

import msgspec

from dibs.errors import Conflict, NotFound
from dibs.gateway.opensandbox import types, views
from dibs.sandbox import Sandbox
from dibs.workloads.admission import waiting_for
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads


class Found(msgspec.Struct, frozen=True):
    """A sandbox, and what it waits for if it does."""

    row: Sandbox
    message: str = ""


def find(workloads: Workloads, identity: Identity, sandbox_id: str) -> tuple[Workloads, Sandbox]:
    """By its id, and nothing else: names and beginnings of ids are for people."""
    mine, row = _own(workloads, identity, sandbox_id)
    if views.DELETED in row.annotations:
        raise _unknown(sandbox_id)
    return mine, row


def _own(workloads: Workloads, identity: Identity, sandbox_id: str) -> tuple[Workloads, Sandbox]:
    mine = workloads.seen_by(identity)
    try:
        row = mine.sandbox(sandbox_id)
    except (NotFound, Conflict):  # Conflict: several begin so, which is more than a stranger should learn
        raise _unknown(sandbox_id) from None
    if row.id != sandbox_id:
        raise _unknown(sandbox_id)
    return mine, row


def _unknown(sandbox_id: str) -> NotFound:
    return NotFound("there is no such sandbox", field="sandbox", value=sandbox_id)


def look(workloads: Workloads, identity: Identity, sandbox_id: str) -> Found:
    mine, row = find(workloads, identity, sandbox_id)
    return Found(row, message_of(mine, row))


def message_of(mine: Workloads, row: Sandbox) -> str:
    """What a sandbox that is not there yet waits for, as of now."""
    if row.state == "creating":
        return row.waits_for or "is being created"  # of a cluster: what its scheduler or the node says
    if row.state != "queued":
        return ""
    news = waiting_for(mine, row)
    if not news:
        return "is being created"  # its turn has come since it was read
    return f"number {news['place']} of {news['length']} in the queue, waiting for: {news['waits_for']}"


def show(workloads: Workloads, identity: Identity, sandbox_id: str) -> types.Sandbox:
    mine, row = find(workloads, identity, sandbox_id)
    return shown(mine, row)


def shown(mine: Workloads, row: Sandbox) -> types.Sandbox:
    leases = mine.ledger.leases(sandbox_id=row.id) if not row.proved and row.live else []
    return views.sandbox(row, [device for lease in leases for device in lease.devices], message_of(mine, row))


def remove(workloads: Workloads, identity: Identity, sandbox_id: str) -> None:
    """End it and hide it. Of several who do so at once all succeed. Raises Conflict while it is being created."""
    mine, row = _own(workloads, identity, sandbox_id)
    if views.DELETED in row.annotations:
        return
    try:
        row = mine.remove(row.id)
    except Conflict as error:
        if error.code not in ("WRONG_STATE", "CONFLICT"):
            raise
        row = mine.sandbox(row.id)  # it has changed meanwhile: it is being ended, or was just made
        if row.live:
            raise Conflict(
                "the sandbox changes just now", field="sandbox", value=row.id, code="STILL_CREATING", remedy="try again"
            ) from error
    with mine.ledger.writing():
        mine.ledger.set_annotations(row.id, {**mine.sandbox(row.id).annotations, views.DELETED: "true"})

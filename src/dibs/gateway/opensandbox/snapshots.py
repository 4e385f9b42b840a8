"""Snapshots: images made of sandboxes, where the backend can make one; where it cannot, a 409 with its reason.

Making one may take minutes: the request is answered when it is sure that it can be done, and the image is made in a
thread of the pool. If the gateway is killed meanwhile, the next one makes it, on the next look at it. A
snapshot belongs to the tenant of its sandbox and outlives it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post
from msgspec import UNSET

from dibs.backends.port import TakesSnapshots, must
from dibs.errors import Conflict, DibsError, InvalidRequest, Unsupported
from dibs.gateway.auth import require
from dibs.gateway.opensandbox import listing, rows, types
from dibs.gateway.opensandbox.answers import answer, part
from dibs.gateway.opensandbox.requests import decode_object
from dibs.gateway.state import Gateway
from dibs.ledger.snapshots import SnapshotRow, Snapshots
from dibs.process import myself
from dibs.sandbox import SandboxId
from dibs.workloads.identity import Identity
from dibs.workloads.images import REPOSITORY
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

Asked = Request[Any, Any, Any]
_LOG = logging.getLogger("dibs.gateway")
_STATES = {"creating": "Creating", "ready": "Ready", "failed": "Failed"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_making: set[asyncio.Task[None]] = set()  # a task without a reference may be collected while it runs


def _identity(request: Asked, scope: str) -> Identity:
    return msgspec.structs.replace(require(request, scope), remote=True)


def _gateway(request: Asked) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


def _tenant(mine: Workloads) -> str | None:
    return None if mine.identity.sees_all else mine.identity.tenant


def view(row: SnapshotRow) -> types.Snapshot:
    return types.Snapshot(
        id=row.id,
        sandbox_id=row.sandbox_id,
        name=row.name or UNSET,
        status=types.SnapshotStatus(_STATES[row.state], message=row.reason or UNSET),
        created_at=types.moment(row.created_at),
    )


def source(mine: Workloads, snapshot_id: str) -> tuple[str, str]:
    """Backend and image of a snapshot, to make a sandbox of it."""
    row = Snapshots(mine.ledger).find(snapshot_id, tenant=_tenant(mine))
    if row.state != "ready":
        said = f"the snapshot is {row.state}" + (f": {row.reason}" if row.reason else "")
        raise Conflict(said, field="snapshotId", value=snapshot_id, code="SNAPSHOT_NOT_READY", remedy="wait for it")
    return row.backend, row.image


@post("/sandboxes/{sandbox_id:str}/snapshots", status_code=202)
async def create_snapshot(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    gateway, identity = _gateway(request), _identity(request, "sandboxes:write")
    body = await request.body()
    asked = decode_object(body) if body.strip() else {}
    name = asked.pop("name", None) or ""
    if asked:
        key = next(iter(asked))
        raise InvalidRequest(
            "there is no such field", field=key, value=str(asked[key]), code="UNKNOWN_FIELD", remedy="name is known"
        )
    if not isinstance(name, str) or (name and _NAME.fullmatch(name) is None):
        reason = "a name is up to 63 letters, digits, dots, - and _"
        raise InvalidRequest(reason, field="name", value=str(name), code="NAME_INVALID")

    def begin(workloads: Workloads) -> SnapshotRow:
        mine, row = rows.find(workloads, identity, sandbox_id)
        if row.state not in ("running", "paused"):
            raise Conflict(f"the sandbox is {row.state}", field="sandbox", value=row.id, code="WRONG_STATE")
        if not isinstance(mine.backend_of(row), TakesSnapshots):
            raise Unsupported(
                f"the {row.backend} backend keeps no images", field="sandbox", value=row.id,
                code="SNAPSHOT_UNSUPPORTED", remedy="copy the files out, or use an engine: dibs.backend=docker",
            )  # fmt: skip
        return Snapshots(mine.ledger).add(
            row.id, tenant=row.tenant, name=name, backend=row.backend, repository=REPOSITORY, owner=myself()
        )

    snapshot = await gateway.pool.call(begin)
    _begin(gateway, snapshot)
    return answer(view(snapshot), 202)


def _begin(gateway: Gateway, snapshot: SnapshotRow, *, again: bool = False) -> None:
    task = asyncio.get_running_loop().create_task(_make(gateway, snapshot, again=again))
    _making.add(task)
    task.add_done_callback(_making.discard)


async def _take_over(gateway: Gateway, found: Iterable[SnapshotRow]) -> None:
    """Go on with those whose gateway was killed."""
    for row in found:
        if row.abandoned and await gateway.pool.call(partial(_adopt, row)):
            _begin(gateway, row, again=True)


def _adopt(row: SnapshotRow, workloads: Workloads) -> bool:
    return Snapshots(workloads.ledger).adopt(row, myself())


async def _make(gateway: Gateway, snapshot: SnapshotRow, *, again: bool) -> None:
    def work(workloads: Workloads) -> None:
        books = Snapshots(workloads.ledger)
        try:
            row = workloads.ledger.sandbox(SandboxId(snapshot.sandbox_id))
            if row.state not in ("running", "paused"):
                books.failed(snapshot.id, "the sandbox ended before its snapshot was made")
                return
            backend = workloads.backend_of(row)
            if again:
                must(backend, TakesSnapshots).remove_snapshot(snapshot.image)  # it may be incomplete
            must(backend, TakesSnapshots).snapshot(handle_of(row), snapshot.image)
        except DibsError as error:
            books.failed(snapshot.id, str(error))
            return
        books.ready(snapshot.id)

    try:
        await gateway.pool.call_long(work)
    except Exception:  # noqa: BLE001 - nothing awaits this task; the trace is in the log, the end in the ledger
        _LOG.exception("snapshot not made", extra={"snapshot": snapshot.id})
        await gateway.pool.call(lambda workloads: Snapshots(workloads.ledger).failed(snapshot.id, "it was not made"))


@get("/snapshots")
async def list_snapshots(request: Asked) -> Response[bytes]:
    identity = _identity(request, "sandboxes:read")
    pairs = [(str(name), str(value)) for name, value in request.query_params.multi_items()]
    wanted = {state.strip().lower() for name, state in pairs if name == "state"}
    only = {name: value for name, value in pairs if name in ("sandboxId", "name")}
    query = listing.read_query(pairs, known=("sandboxId", "name", "state"))

    def work(workloads: Workloads) -> list[SnapshotRow]:
        mine = workloads.seen_by(identity)
        return [
            row
            for row in _all(mine, only.get("sandboxId"))
            if only.get("name", row.name) == row.name and (not wanted or row.state in wanted)
        ]

    found = await _gateway(request).pool.call(work)
    await _take_over(_gateway(request), found)
    part = found[query.offset : query.offset + query.page_size]
    return answer(types.Snapshots([view(row) for row in part], types.paged(query.page, query.page_size, len(found))))


def _all(mine: Workloads, sandbox_id: str | None) -> list[SnapshotRow]:
    books = Snapshots(mine.ledger)
    found: list[SnapshotRow] = []
    while True:
        part, total = books.list(tenant=_tenant(mine), sandbox_id=sandbox_id, offset=len(found), limit=500)
        found += part
        if not part or len(found) >= total:
            return found


@get("/snapshots/{snapshot_id:str}")
async def get_snapshot(request: Asked) -> Response[bytes]:
    snapshot_id = part(request, "snapshot_id")
    identity = _identity(request, "sandboxes:read")

    def work(workloads: Workloads) -> SnapshotRow:
        mine = workloads.seen_by(identity)
        return Snapshots(mine.ledger).find(snapshot_id, tenant=_tenant(mine))

    found = await _gateway(request).pool.call(work)
    await _take_over(_gateway(request), [found])
    return answer(view(found))


@delete("/snapshots/{snapshot_id:str}", status_code=204)
async def delete_snapshot(request: Asked) -> None:
    snapshot_id = part(request, "snapshot_id")
    identity = _identity(request, "sandboxes:write")

    def work(workloads: Workloads) -> None:
        mine = workloads.seen_by(identity)
        books = Snapshots(mine.ledger)
        row = books.find(snapshot_id, tenant=_tenant(mine))
        if row.state == "creating":
            if not (row.abandoned and books.adopt(row, myself())):
                raise Conflict("the snapshot is being made", field="snapshot", value=row.id, code="WRONG_STATE")
            books.failed(row.id, "it is removed before it was made")  # should that fail, it can be tried again
        must(mine.registry.get(row.backend), TakesSnapshots).remove_snapshot(row.image)
        books.forget(row.id)  # only when the image is gone

    await _gateway(request).pool.call_long(work)


HANDLERS = [create_snapshot, list_snapshots, get_snapshot, delete_snapshot]

"""Stop and start. A stop ends the processes and gives the devices back; a start books anew, and may be refused.

On an engine the files are kept: a snapshot is made of the ended container, and the next one of that. `local` has its
files in memory and keeps none; the sandbox says so in the condition `FilesKept`. Values of variables are read from
the running sandbox when it is stopped, and are kept until it is started or deleted, no longer.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from dibs.backends.port import TakesSnapshots, must
from dibs.errors import Busy, Conflict, DibsError, NotFound, StateError
from dibs.gateway.logs import log
from dibs.gateway.opensandbox.views import DELETED
from dibs.gateway.openshell import schema, views
from dibs.gateway.openshell.calls import WRITE, Call, Method, Place
from dibs.ledger.snapshots import Snapshots
from dibs.process import myself
from dibs.sandbox import Sandbox
from dibs.workloads.admission import Admitted, Asking
from dibs.workloads.images import REPOSITORY
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

FILES = "openshell.files"
SNAPSHOT = "openshell.snapshots"  # those that it was started from, newest first; removed with the sandbox


class Stopped(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a start needs. `snapshot`: the id of the one that has the files."""

    env: dict[str, str] = {}
    snapshot: str = ""
    image: str = ""


_STOPPED = msgspec.json.Decoder(Stopped)


async def stop(call: Call, request: Any) -> Any:
    place = await call.place(request.workspace_scope)
    found = await call.gateway.pool.call_long(_stop, place, request.name)
    call.gateway.dispatcher.nudge()  # a waiter may be served with what is free now
    return schema.message("SandboxResponse")(sandbox=found)


def _stop(workloads: Workloads, place: Place, name: str) -> Any:
    from dibs.gateway.openshell.sandboxes import find, shown

    mine = workloads.seen_by(place.who)
    row = find(mine, name)
    if views.phase_of(row) == "STOPPED":
        return shown(mine, row, place.name)
    if not row.ready:
        raise Conflict(
            "sandbox is not ready", field="name", value=name, code="WRONG_STATE", remedy=f"it is {row.state}"
        )
    env = _environment(mine, row)
    _annotate(mine, row.id, {views.STOPPED: msgspec.json.encode(Stopped(env=env)).decode()})
    row = mine.stop(row.id)
    if isinstance(mine.backend_of(row), TakesSnapshots):
        kept = _snapshot(mine, row)
        _annotate(mine, row.id, {views.STOPPED: msgspec.json.encode(Stopped(env, kept[0], kept[1])).decode()})
    return shown(mine, mine.ledger.sandbox(row.id), place.name)


def _environment(mine: Workloads, row: Sandbox) -> dict[str, str]:
    """The values of the variables that were asked for, from the process that has them."""
    names = row.spec.env
    if not names:
        return {}
    seen = mine.backend_of(row).observe(handle_of(row)).env
    missing = sorted(name for name in names if name not in seen)
    if missing:
        raise StateError(
            f"the variables {', '.join(missing)} cannot be read from the sandbox, and a start would need them",
            field="name", value=row.name, code="ENVIRONMENT_UNREADABLE", remedy="delete it, and create another",
        )  # fmt: skip
    return {name: seen[name] for name in names}


def _snapshot(mine: Workloads, row: Sandbox) -> tuple[str, str]:
    books = Snapshots(mine.ledger)
    made = books.add(row.id, tenant=row.tenant, name="", backend=row.backend, repository=REPOSITORY, owner=myself())
    try:
        must(mine.backend_of(row), TakesSnapshots).snapshot(handle_of(row), made.image)
    except DibsError as error:
        books.failed(made.id, str(error))
        raise
    books.ready(made.id)
    return made.id, made.image


def _annotate(mine: Workloads, sandbox_id: str, more: dict[str, str]) -> None:
    with mine.ledger.writing():
        row = mine.ledger.sandbox(sandbox_id)
        mine.ledger.set_annotations(row.id, {**row.annotations, **more})


async def start(call: Call, request: Any) -> Any:
    from dibs.gateway.openshell.sandboxes import find, holders, shown

    place = await call.place(request.workspace_scope)
    gateway = call.gateway
    before: list[Sandbox] = []

    def look(workloads: Workloads) -> Any:
        mine = workloads.seen_by(place.who)
        row = find(mine, request.name)
        return shown(mine, row, place.name) if row.live else None

    running = await gateway.pool.call(look)
    if running is not None:
        return schema.message("SandboxResponse")(sandbox=running)

    def read(workloads: Workloads) -> Asking:
        mine = workloads.seen_by(place.who)
        row = find(mine, request.name)
        before[:] = [row]
        return _asking(mine, row)

    def show(asking: Asking, admitted: Admitted) -> Any:
        hide(asking.workloads, before[0])
        return views.sandbox(admitted.row, place.name, admitted.devices)

    try:
        made = await gateway.desk.take(read, show)
    except Busy:
        call.facts.update(await gateway.pool.call(holders, place.who))
        raise

    def tidy(workloads: Workloads) -> None:
        with contextlib.suppress(DibsError):  # what is left of an ended container holds nothing; it is found later
            workloads.seen_by(place.who).remove(before[0].id)

    await gateway.pool.call_long(tidy)
    return schema.message("SandboxResponse")(sandbox=made)


def _asking(mine: Workloads, row: Sandbox) -> Asking:
    spec = row.spec
    if views.STOPPED not in row.annotations:
        if spec.env:
            raise Conflict(
                "it ended by itself, and the values of its variables were not kept", field="name", value=row.name,
                code="NOT_STOPPED", remedy="delete it, and create another",
            )  # fmt: skip
        kept = Stopped()
    else:
        kept = _STOPPED.decode(row.annotations[views.STOPPED])
    changes: dict[str, Any] = {"env": kept.env, "name": row.name, "labels": row.labels, "backend": row.backend}
    if kept.image:
        changes["image"] = kept.image
    annotations = {key: value for key, value in row.annotations.items() if key not in (views.STOPPED, SNAPSHOT)}
    annotations[views.ID] = views.sandbox_id(row)
    annotations[views.RESTARTS] = str(int(row.annotations.get(views.RESTARTS, "0")) + 1)
    annotations[FILES] = "kept" if kept.image else "lost"
    snapshots = [one for one in (kept.snapshot, *row.annotations.get(SNAPSHOT, "").split(",")) if one]
    if snapshots:
        annotations[SNAPSHOT] = ",".join(snapshots)
    return Asking(workloads=mine, spec=msgspec.structs.replace(spec, **changes), annotations=annotations)


def hide(mine: Workloads, row: Sandbox) -> None:
    """Take what is this API's off a sandbox: it is not shown any more, and no value of a variable stays."""
    rest = {key: value for key, value in row.annotations.items() if not key.startswith("openshell.")}
    with mine.ledger.writing():
        mine.ledger.set_annotations(row.id, {**rest, DELETED: "true"})


def forget(mine: Workloads, row: Sandbox) -> None:
    """After a deletion: hide it, and remove the snapshots that had its files."""
    kept = _STOPPED.decode(row.annotations[views.STOPPED]).snapshot if views.STOPPED in row.annotations else ""
    hide(mine, row)
    books = Snapshots(mine.ledger)
    for snapshot in [one for one in (kept, *row.annotations.get(SNAPSHOT, "").split(",")) if one]:
        try:
            found = books.find(snapshot)
            must(mine.registry.get(found.backend), TakesSnapshots).remove_snapshot(found.image)
            books.forget(found.id)
        except NotFound:
            continue
        except DibsError as error:
            log.warning("a snapshot is left: %s", error, extra={"data": {"snapshot": snapshot}})


METHODS = (
    Method("StopSandbox", "StopSandboxRequest", "SandboxResponse", stop, WRITE),
    Method("StartSandbox", "StartSandboxRequest", "SandboxResponse", start, WRITE),
)

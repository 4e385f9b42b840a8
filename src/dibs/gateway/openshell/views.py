"""A row of the ledger → OpenShell's `Sandbox`: phase, conditions with the true reason, and what was delivered.

The SDK shows conditions but no annotations, so the receipt is in both: as annotations under `dibs.`, and in the
condition `Delivered`, with the way to the whole of it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import msgspec

from dibs.gateway.opensandbox import states
from dibs.gateway.opensandbox.views import extensions
from dibs.gateway.openshell import schema
from dibs.ledger.rows import LeasedDevice
from dibs.request.model import family
from dibs.sandbox import Sandbox

# The annotations of a row that are this API's own.
KEPT = "openshell.kept"  # it is shown until it is deleted, also when it has ended
SPEC = "openshell.spec"  # as it was asked for, without values of variables
ID = "openshell.id"  # the id that it had before it was stopped and started again
NOTES = "openshell.notes"  # what was not applicable, and the drivers that have a block
THEIRS = "openshell.annotations"  # the client's own
TEMPLATE = "openshell.template"
SERVICES = "openshell.services"
STOPPED = "openshell.stopped"  # what a start needs: only there while it is stopped
RESTARTS = "openshell.restarts"
_TEXTS = msgspec.json.Decoder(dict[str, str])
_PHASES = {"queued": "PROVISIONING", "creating": "PROVISIONING", "paused": "UNKNOWN", "stopping": "STOPPING"}


class Notes(msgspec.Struct, frozen=True):
    """What was asked for and does not apply: always, and unless the sandbox is on that driver."""

    unused: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()


_NOTES = msgspec.json.Decoder(Notes)


def sandbox_id(row: Sandbox) -> str:
    return row.annotations.get(ID, row.id)


def sandbox(row: Sandbox, workspace: str, devices: Iterable[LeasedDevice] = (), waits: str = "") -> Any:
    """`waits`: what one waits for that is in the queue, or with a cluster's scheduler."""
    found = schema.message("Sandbox")()
    meta = found.metadata
    meta.id, meta.name, meta.workspace = sandbox_id(row), row.name, workspace
    meta.labels.update(row.labels)
    meta.resource_version = int((row.ended_at or row.started_at or row.created_at) * 1000)
    stamp(meta.created_time, row.created_at)
    if THEIRS in row.annotations:
        meta.annotations.update(_TEXTS.decode(row.annotations[THEIRS]))
    given = extensions(row, devices)
    meta.annotations.update(given)
    if SPEC in row.annotations:
        found.spec.ParseFromString(base64.b64decode(row.annotations[SPEC]))
    if TEMPLATE in row.annotations:
        name, _, version = row.annotations[TEMPLATE].partition("@")
        found.created_from_workload_template.name = name
        found.created_from_workload_template.resource_version = version
    _status(found.status, row, given, waits)
    return found


def phase_of(row: Sandbox) -> str:
    if row.state == "running":
        return "READY" if row.ready else "STARTING" if ID in row.annotations else "PROVISIONING"
    if row.state == "exited":
        if STOPPED in row.annotations:
            return "STOPPED"
        ended = row.exit
        return "COMPLETED" if ended is not None and ended.code == 0 else "ERROR"
    if row.state == "failed":
        return "ERROR"
    return "STARTING" if row.state == "creating" and ID in row.annotations else _PHASES[row.state]


def _status(status: Any, row: Sandbox, given: dict[str, str], waits: str) -> None:
    phase = phase_of(row)
    status.phase = schema.number(f"SANDBOX_PHASE_{phase}")
    status.restart_count = int(row.annotations.get(RESTARTS, "0"))
    if row.started_at is not None:
        stamp(status.main_process_started_time, row.started_at)
    ended = row.exit
    if ended is not None:
        status.exit_code = ended.code
    at = row.ended_at or row.started_at or row.created_at
    reason, words = _why(row, phase, waits)
    _condition(status, "Ready", phase == "READY", reason, words, at)
    if row.proved or row.live:
        verdict = given["dibs.receipt"]
        words = f"{verdict} on {row.backend}: {_devices(given)}; `dibs receipt {row.id}` has the receipt"
        words += f", and so has GET /api/v1/sandboxes/{row.id}/receipt"
        _condition(status, "Delivered", verdict == "delivered", verdict.title().replace(" ", ""), words, at)
    notes = _NOTES.decode(row.annotations[NOTES]) if NOTES in row.annotations else Notes()
    unused = [
        *notes.unused,
        *(f"driver_config.{name}: it runs on {row.backend}" for name in notes.blocks if name != family(row.backend)),
    ]
    if unused:
        _condition(status, "NotApplicable", True, "NotApplicable", "; ".join(unused), row.created_at)
    if int(row.annotations.get(RESTARTS, "0")) and "openshell.files" in row.annotations:
        kept = row.annotations["openshell.files"] == "kept"
        words = "files from before the stop are there" if kept else f"{row.backend} keeps no files over a stop"
        _condition(status, "FilesKept", kept, "Kept" if kept else "NotKept", words, row.created_at)


def _why(row: Sandbox, phase: str, waits: str) -> tuple[str, str]:
    """A word for programs and a sentence for people."""
    if phase == "READY":
        return "Ready", "it takes commands"
    if row.state == "queued":
        return "Queued", waits or "waits for devices"
    if row.state == "creating" and row.waits_for:
        return "Pending", waits or row.waits_for  # of a cluster: what its scheduler or the node says
    if row.state in ("creating", "running"):
        return "Creating", "is being created"
    if phase == "STOPPED":
        return "Stopped", "it was stopped; StartSandbox books its devices anew"
    if row.live:
        return row.state.title(), f"it is {row.state}"
    return states.reason_of(row).title().replace("_", ""), states.ended_how(row)


def _devices(given: dict[str, str]) -> str:
    pairs = zip(given["dibs.devices"].split(","), given["dibs.models"].split(","), strict=True)
    return ", ".join(f"{device} {model}".strip() for device, model in pairs if device) or "no devices"


def _condition(status: Any, kind: str, true: bool, reason: str, message: str, at: float) -> None:
    found = status.conditions.add(type=kind, status="True" if true else "False", reason=reason, message=message)
    stamp(found.transition_time, at)


def stamp(timestamp: Any, at: float) -> None:
    timestamp.FromNanoseconds(int(at * 1e9))

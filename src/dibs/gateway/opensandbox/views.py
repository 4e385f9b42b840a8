"""A row of the ledger → a sandbox as OpenSandbox's clients see it, its receipt's short form in `extensions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET

from dibs.gateway.opensandbox import states, types
from dibs.ledger.rows import LeasedDevice
from dibs.receipt import SummaryDevice
from dibs.sandbox import Sandbox

DELETED = "opensandbox.deleted"  # the annotation of a sandbox that was deleted: gone for these clients


_TEXTS = msgspec.json.Decoder(dict[str, str])
_WORDS = msgspec.json.Decoder(list[str])
_LIMITS = ("cpu", "memory", "pids")


def sandbox(row: Sandbox, booked: Iterable[LeasedDevice] = (), message: str = "") -> types.Sandbox:
    """`booked`: its devices, for as long as it has no receipt. `message`: what it waits for, if it does."""
    notes = row.annotations
    spec = row.spec
    words = notes.get("opensandbox.entrypoint")
    image = notes.get("opensandbox.image") or ("" if "opensandbox.snapshotId" in notes else spec.image or spec.root)
    architecture = notes.get("opensandbox.platform")
    return types.Sandbox(
        id=row.id,
        status=status(row, message),
        created_at=types.moment(row.created_at),
        entrypoint=_WORDS.decode(words) if words else list(spec.command),
        image=types.Image(image) if image else UNSET,
        snapshot_id=notes.get("opensandbox.snapshotId", UNSET),
        platform=types.Platform("linux", architecture) if architecture else UNSET,
        metadata=row.labels or UNSET,
        extensions=extensions(row, booked),
        expires_at=types.moment(row.expires_at) if row.expires_at is not None else UNSET,
    )


def status(row: Sandbox, message: str = "") -> types.Status:
    if not message:
        message = states.ended_how(row) if not row.live else _running(row)
    return types.Status(
        state=states.OF_OURS[row.state],
        reason=states.reason_of(row),
        message=message or UNSET,
        last_transition_at=types.moment(row.ended_at or row.started_at or row.created_at),
    )


def _running(row: Sandbox) -> str:
    if row.state == "creating":
        return "is being created"
    receipt = row.receipt_summary
    if receipt is None:
        return ""
    given = ", ".join(f"{device.id} {device.model}".strip() for device in receipt.devices) or "no devices"
    return f"{receipt.verdict} on {row.backend}: {given}"


def extensions(row: Sandbox, booked: Iterable[LeasedDevice] = ()) -> dict[str, str]:
    """What was asked for under `dibs.`, and over it what was delivered."""
    asked = row.annotations.get("opensandbox.extensions")
    found = _TEXTS.decode(asked) if asked else {}
    found |= {
        "dibs.backend": row.backend,
        "dibs.name": row.name,
        "dibs.simulated": "true" if row.simulated else "false",
    }
    receipt = row.receipt_summary
    if receipt is not None:
        limits = {line.field: line.observed for line in receipt.lines if line.field in _LIMITS}
        return found | _short(receipt.verdict, receipt.devices) | _limits(limits)
    return found | _short("pending" if row.live else "none", booked)


def _short(verdict: str, devices: Iterable[SummaryDevice | LeasedDevice]) -> dict[str, str]:
    devices = list(devices)
    return {
        "dibs.receipt": verdict,
        "dibs.devices": ",".join(device.id for device in devices),
        "dibs.models": ",".join(device.model for device in devices),
        "dibs.uuids": ",".join(device.uuid for device in devices),
    }


def _limits(limits: Mapping[str, str]) -> dict[str, str]:
    return {"dibs.limits": ",".join(f"{name}={limits[name]}" for name in _LIMITS if name in limits)} if limits else {}

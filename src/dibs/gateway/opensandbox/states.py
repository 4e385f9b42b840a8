"""Our states → OpenSandbox's, with the live reason: what it waits for, how it ended.

`views` shows it in every answer; `endpoints` in the errors that its clients poll on.
"""

from __future__ import annotations

from dibs.gateway.opensandbox.types import State
from dibs.sandbox import ExitReason, Sandbox

OF_OURS: dict[str, State] = {
    "queued": "Pending",
    "creating": "Pending",
    "running": "Running",
    "paused": "Paused",
    "stopping": "Stopping",
    "exited": "Terminated",
    "failed": "Failed",
}


def ours(states: list[str]) -> tuple[str, ...]:
    """The states of ours that any of theirs means, however it is written. A word that means none finds none."""
    wanted = {state.strip().lower() for state in states}
    return tuple(name for name, state in OF_OURS.items() if state.lower() in wanted)


def reason_of(row: Sandbox) -> str:
    """A word for programs, as in status.reason."""
    if row.exit is not None:
        return row.exit.reason.upper().replace("-", "_")
    return row.state.upper()


def ended_how(row: Sandbox) -> str:
    """Why a sandbox is no more, in a sentence."""
    if row.exit is None:
        return row.reason or "it is gone"
    if row.reason and row.state == "failed":
        return row.reason
    said = row.exit.detail or ("its entrypoint ended" if row.exit.reason is ExitReason.EXITED else row.exit.reason)
    return f"{said} (exit code {row.exit.code})"

"""What an engine says about a container, as a status.

Pure: `backend` gives it the engine's document and what dibs itself has noted beside it. An engine knows that a
container ended and with which code; only dibs knows that it asked for that end, and why.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from dibs.backends.port import Exit, ExitReason, Phase, Status

PHASES = {
    "created": Phase.HELD,
    "configured": Phase.HELD,
    "initialized": Phase.HELD,
    "running": Phase.RUNNING,
    "restarting": Phase.RUNNING,
    "paused": Phase.PAUSED,
    "stopping": Phase.RUNNING,
    "stopped": Phase.EXITED,
    "exited": Phase.EXITED,
    "dead": Phase.EXITED,
}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")
_SLACK = 0.05  # seconds; clocks of log lines and files are not the same, arbitrary


def seconds(text: str) -> float:
    """A time as engines write it, in seconds since the epoch; 0 for none."""
    match = _TIME.match(text)
    if match is None or text.startswith("0001-"):
        return 0.0
    zone = "+00:00" if match[3] == "Z" else match[3]
    whole = dt.datetime.fromisoformat(match[1] + zone).timestamp()
    return whole + (float(match[2]) if match[2] else 0.0)


def status_of(state: dict[str, Any], ending: tuple[ExitReason, float] | None) -> Status:
    """`state`: the engine's; `ending`: why dibs asked for the end, and when."""
    word = str(state.get("Status", "")).lower()
    phase = PHASES.get(word, Phase.UNKNOWN)
    if phase is Phase.UNKNOWN:
        return Status(phase, detail=f"the engine says that it is {word or 'in no state'}")
    if phase is not Phase.EXITED:
        return Status(phase)
    return Status(phase, exit_of(state, ending))


def exit_of(state: dict[str, Any], ending: tuple[ExitReason, float] | None) -> Exit:
    code = int(state.get("ExitCode") or 0)
    at = seconds(str(state.get("FinishedAt") or ""))
    signal = code - 128 if 128 < code <= 128 + 64 else None
    if ending is not None and ending[1] <= at + _SLACK:
        return Exit(code, ending[0], signal if code != 0 else None, at=at)
    if state.get("OOMKilled") and code != 0:
        return Exit(code, ExitReason.OUT_OF_MEMORY, signal, "the memory limit was reached", at)
    if signal is not None:
        return Exit(code, ExitReason.SIGNALLED, signal, at=at)
    return Exit(code, ExitReason.EXITED, at=at)


def logged(payload: bytes) -> tuple[float, bytes]:
    """A line of a log with a time stamp in front."""
    stamp, _, data = payload.partition(b" ")
    return seconds(stamp.decode("ascii", errors="replace")), data

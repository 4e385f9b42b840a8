"""Times as Kubernetes writes them, and ages as `kubectl` prints them. Pure."""

from __future__ import annotations

import datetime as dt
import time

_FORM = "%Y-%m-%dT%H:%M:%SZ"


def stamp(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime(_FORM)


def age(value: str | None) -> str:
    """How long ago a time was."""
    if not value:
        return "<unknown>"
    then = dt.datetime.strptime(value, _FORM).replace(tzinfo=dt.UTC).timestamp()
    seconds = max(0, int(time.time() - then))
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 600:
        minutes, rest = divmod(seconds, 60)
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if seconds < 3 * 3600:
        return f"{seconds // 60}m"
    if seconds < 48 * 3600:
        return f"{seconds // 3600}h"
    return f"{seconds // 86400}d"

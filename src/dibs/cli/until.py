"""How long sandboxes will still live: the column UNTIL of every table that shows them or what they hold."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dibs.sandbox import Sandbox
    from dibs.workloads.service import Workloads


def until(row: Sandbox, now: float) -> str:
    """How long it will live; empty if nothing ends it."""
    from dibs.request.durations import show_duration

    if row.expires_at is None or row.ended_at is not None:
        return ""
    return show_duration(row.expires_at - now) if row.expires_at > now else "now"


def ends_of(service: Workloads, output: str) -> dict[str, str]:
    """How long each live sandbox that has a TTL will still live, by its id. For tables of what they hold."""
    if output in ("json", "yaml"):
        return {}
    now = time.time()
    return {row.id: left for row in service.sandboxes() if (left := until(row, now))}

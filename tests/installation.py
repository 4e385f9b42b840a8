"""Whether ordinary users can run the installation that is tested: what acts for users can only be tried then."""

from __future__ import annotations

import sys

from dibs.gateway import host


def private() -> str:
    """Why other users cannot run it; nothing if they can."""
    closed = host.unreadable_for_others([sys.executable, host.__file__])
    return f"ordinary users cannot get to this installation: {closed[0]} is closed to them" if closed else ""

"""What a check finds out, and what it is given to look at.

Checks return findings and never raise for what they were made to find; `examine` runs them, `cli` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from dibs.cdi.cache import Cache
from dibs.devices.host import HOST, Roots
from dibs.devices.model import Inventory
from dibs.home import Home

Verdict = Literal["ok", "warn", "fail", "skip"]


class Finding(msgspec.Struct, frozen=True):
    """One verdict: what was looked at, why it matters in one sentence, and the command that fixes it."""

    id: str
    verdict: Verdict
    title: str
    why: str = ""
    fix: str = ""


class Scene(msgspec.Struct, frozen=True):
    """The host as the checks see it. Looked at once, so that all checks judge the same moment."""

    home: Home
    roots: Roots
    inventory: Inventory  # of the real devices, whether or not a world is simulated
    specs: Cache

    @property
    def is_real(self) -> bool:
        """Whether this is the running host, where things can be tried, and not a tree of files."""
        return self.roots == HOST


Check = Callable[[Scene], Iterable[Finding]]

"""What a test needs of the machine and of whoever runs it: where it is missing, the test is skipped and says so."""

from __future__ import annotations

from typing import Literal

import pytest

from dibs.backends.local.cgroups import can_limit

LIMITS: tuple[Literal["cpu", "memory", "pids"], ...] = ("cpu", "memory", "pids")


def limits(backend: str = "local") -> None:
    """Limits of `local` need control groups that can be written; engines have their own."""
    for name in LIMITS if backend == "local" else ():
        capability = can_limit(name)
        if not capability.ok:
            pytest.skip(f"the {name} limit cannot be enforced here: {capability.reason}")

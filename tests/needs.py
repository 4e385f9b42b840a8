"""What a test needs of the machine and its user. If it is missing, the test is skipped with the reason."""

from __future__ import annotations

import os
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


def shared_network() -> None:
    """Ranks of a gateway's job share a private network; on `local` an ordinary user cannot make one."""
    if os.getuid():
        pytest.skip("an ordinary user's sandboxes cannot share a private network")

"""How the conformance suite makes a backend, and in what that one differs from the others.

A module that imports the suite has a tuple `FACTORIES`; every test runs once for each of them. A difference is a named
line: what the suite then does not ask of the backend, and why. Optional protocols and fields that a backend declares as
refused need none: what it does not have is not asked of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends.declaration import Declaration
from dibs.backends.port import Backend

DIFFERENCES = {
    "shell": "no programs of a Linux system are in its workloads, only true, false, echo, cat, sleep and env",
    "descriptor": "its sessions have no descriptor to wait on",
    "held": "a workload can be looked at only after its command has started",
    "work": "the working folder is not shared with the host",
    "granted": "devices are not handed to it one by one: it has a scheduler, or takes none",
    "kill": "a grace of 0 does not kill at once",
    "streams": "its log does not tell stdout from stderr",
    "isolation": "a workload has no network of its own",
}


class Factory(msgspec.Struct, frozen=True, kw_only=True):
    """How to make a backend, and its differences: name → reason.

    make         makes one whose files are below the given folder
    declaration  what the backend says of itself; the suite holds both together
    missing      why it cannot be had here, "" if it can; starts what it needs
    fields       what every workload there needs, such as an image
    only         the tests that it runs; None: all
    """

    name: str
    make: Callable[[Path], Backend]
    declaration: Declaration
    differences: dict[str, str] = {}
    missing: Callable[[], str] = lambda: ""
    fields: dict[str, Any] = {}
    only: frozenset[str] | None = None

    def runs(self, test: str) -> bool:
        return self.only is None or test in self.only

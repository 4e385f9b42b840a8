"""The backends that the suite runs against, and in what they differ.

A difference is a named line: what the suite then does not ask of the backend, and why. Whoever adds a backend adds a
factory; whoever removes a difference runs more tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from dibs.backends.fake import FakeBackend
from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Backend
from dibs.home import Home


class Factory(msgspec.Struct, frozen=True):
    """How to make a backend, and its differences: name → reason."""

    name: str
    make: Callable[[Path], Backend]
    differences: dict[str, str] = {}


def _local(folder: Path) -> Backend:
    return LocalBackend(Home(state=folder / "home", config=folder / "home" / "config").make())


FACTORIES = (
    Factory(
        "fake",
        lambda _: FakeBackend(),
        {
            "shell": "nothing really runs: only its small programs are there",
            "descriptor": "a session in memory has no descriptor to wait on",
        },
    ),
    Factory("local", _local),
)

DIFFERENCES = frozenset(("shell", "descriptor"))

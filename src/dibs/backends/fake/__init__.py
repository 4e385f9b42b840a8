"""A backend that runs nothing, for the tests of everything above a backend, here and in users' own projects.

Its names are loaded when they are asked for: every command looks at the declaration beside them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dibs.backends.fake.backend import FakeBackend
    from dibs.backends.fake.processes import PROGRAMS, FakeProcess, Program
    from dibs.backends.fake.sandboxes import FakeSession
    from dibs.backends.fake.world import EPOCH

__all__ = ["EPOCH", "PROGRAMS", "FakeBackend", "FakeProcess", "FakeSession", "Program"]

_MODULES = {
    "FakeBackend": "backend", "PROGRAMS": "processes", "FakeProcess": "processes", "Program": "processes",
    "FakeSession": "sandboxes", "EPOCH": "world",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

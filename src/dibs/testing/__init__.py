"""For authors of backends, and for tests of programs that use dibs. Nothing that serves a request imports this.

    conformance     the suite that every backend passes: `from dibs.testing.conformance import *`
    plugin          its pytest plugin: `pytest_plugins = ["dibs.testing.plugin"]`
    Factory         how the suite makes a backend, and in what that backend differs
    FakeBackend     a backend in memory with a clock of its own (`now`, `advance`)
    FakeCluster     a simulated cluster with a scheduler that delays, refuses and moves
    simulate        GPUs that are not there: a world for a home (`parse_world`)

Only `plugin` and `conformance` need pytest. docs/backends.md shows how a backend is written and tested.
"""

from dibs.backends.fake import EPOCH, PROGRAMS, FakeBackend, FakeProcess, FakeSession, Program
from dibs.backends.fake.cluster import FakeCluster
from dibs.backends.fake.scheduled import FakeClusterBackend
from dibs.devices.simulated import parse_world, simulate
from dibs.testing.factory import DIFFERENCES, Factory

__all__ = [
    "DIFFERENCES",
    "EPOCH",
    "PROGRAMS",
    "Factory",
    "FakeBackend",
    "FakeCluster",
    "FakeClusterBackend",
    "FakeProcess",
    "FakeSession",
    "Program",
    "parse_world",
    "simulate",
]

"""A backend that runs nothing, for the tests of everything above a backend, here and in users' own projects."""

from dibs.backends.fake.backend import FakeBackend
from dibs.backends.fake.processes import PROGRAMS, FakeProcess, Program
from dibs.backends.fake.sandboxes import FakeSession
from dibs.backends.fake.world import EPOCH

__all__ = ["EPOCH", "PROGRAMS", "FakeBackend", "FakeProcess", "FakeSession", "Program"]

"""Fixtures for real sandboxes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from tests.local.bench import Bench

from dibs.backends.port import Limits


@pytest.fixture
def make_folder() -> Iterator[Callable[[], Path]]:
    made = []

    def make() -> Path:
        folder = tempfile.TemporaryDirectory(prefix="dibs-local-")
        made.append(folder)
        return Path(folder.name)

    yield make
    for folder in made:
        folder.cleanup()


@pytest.fixture(params=[False, True], ids=["spawned", "forked"])
def bench(request: pytest.FixtureRequest, make_folder: Callable[[], Path]) -> Iterator[Bench]:
    """Both ways in which shims and helpers come to be: an interpreter for each, or a fork of one that waits."""
    one = Bench(make_folder(), long_lived=request.param)
    capability = one.backend.available()
    if not capability.ok:
        pytest.skip(f"no bubblewrap here: {capability.reason}")
    yield one
    one.close()


@pytest.fixture
def limits(bench: Bench) -> type[Limits]:
    """For tests that set limits: skips where none can be enforced."""
    names: tuple[Literal["cpu", "memory", "pids"], ...] = ("cpu", "memory", "pids")
    for name in names:
        capability = bench.backend.can_limit(name)
        if not capability.ok:
            pytest.skip(f"the {name} limit cannot be enforced here: {capability.reason}")
    return Limits

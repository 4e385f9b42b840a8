"""One real control plane per worker, started when the first test wants it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.running import CannotRun, RunningCluster
from tests.cluster.world import World


@pytest.fixture(scope="session")
def running() -> Iterator[RunningCluster]:
    try:
        found = RunningCluster()
    except CannotRun as reason:
        pytest.skip(f"no Kubernetes: {reason}")
    yield found
    found.stop()


@pytest.fixture
def world(running: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The cluster, empty, with `KUBECONFIG` naming it."""
    monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig()))
    found = World(running)
    yield found
    found.clear()

"""The test clusters, as fixtures: started when the first test of a worker wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster import shared
from tests.cluster.place import Place
from tests.cluster.running import RunningCluster
from tests.cluster.world import World


@pytest.fixture(scope="session")
def running() -> RunningCluster:
    """A control plane without nodes."""
    found = shared.cluster()
    if isinstance(found, str):
        pytest.skip(f"no Kubernetes: {found}")
    return found


@pytest.fixture
def world(running: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The control plane, empty, with `KUBECONFIG` naming it."""
    monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig()))
    found = World(running)
    yield found
    found.clear()


@pytest.fixture(scope="session")
def nodes() -> RunningCluster:
    """A control plane with two real nodes."""
    found = shared.nodes()
    if isinstance(found, str):
        pytest.skip(f"no Kubernetes nodes: {found}")
    return found


@pytest.fixture
def place(nodes: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A namespace of its own on the real nodes, with `KUBECONFIG` naming the cluster."""
    monkeypatch.setenv("KUBECONFIG", str(nodes.kubeconfig()))
    found = Place(nodes)
    yield found
    found.clear()

"""A Sandbox or BatchSandbox whose controller has not got to it: its CRD is there, and nothing makes pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster import kinds
from tests.cluster.binaries import CannotBuild
from tests.cluster.test_kubernetes_placement import create, settings
from tests.cluster.world import World

from dibs.backends.kubernetes.backend import KubernetesBackend
from dibs.backends.port import ExitReason, Phase
from dibs.kube import objects as core
from dibs.kube.render import Kind


@pytest.fixture(params=["Sandbox", "BatchSandbox"])
def idle(request: pytest.FixtureRequest, world: World) -> Iterator[KubernetesBackend]:
    kind: Kind = request.param
    try:
        with kinds.defined(world.running, kind):
            found = KubernetesBackend("kubernetes", settings(world, kind=kind))
            yield found
            world.cluster.delete_all(found.workloads, "default")
            found.close()
    except CannotBuild as reason:
        pytest.skip(f"no CRD of {kind}: {reason}")


def test_one_whose_pod_is_still_to_come_takes_input_and_can_be_stopped(world: World, idle: KubernetesBackend) -> None:
    world.node()
    handle = create(idle, interactive=True)
    assert idle.status(handle).phase is Phase.HELD
    session = idle.attach(handle)
    session.send(b"early")
    session.close()
    idle.stop(handle, 0)
    found = idle.status(handle)
    assert (found.phase, found.exit and found.exit.reason) == (Phase.EXITED, ExitReason.NOT_STARTED)
    idle.delete(handle)
    assert not world.cluster.items(idle.workloads, core.Pod, "default")

"""Many clients on two real nodes while API server and scheduler are killed: all accounted for, nothing left over."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.churn import Churn, Size, left
from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place
from tests.gateway.conftest import RunningGateway

from dibs.home import Home
from dibs.kube import client as kube
from dibs.workloads.service import Workloads

pytestmark = pytest.mark.stress

SIZE = (
    Size(sandboxes=200, clients=20, kills=6) if os.environ.get("DIBS_SOAK") else Size(sandboxes=16, clients=6, kills=2)
)
KILLED = ("kube-apiserver", "kube-scheduler")


@pytest.fixture
def cards(place: Place, tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Eight simulated cards on two nodes."""
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    place.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": {"selectors": [selector]}})
    drivers = [NodeProcess(place, node, tmp_path).start() for node in place.running.nodes]
    yield drivers
    place.empty()
    for one in drivers:
        place.until(lambda: not one.records(), "all claims are given back", one.said)  # noqa: B023
        one.clear()
    place.cluster.delete(kube.CLASSES, NVIDIA)


@pytest.fixture
def gateway(place: Place, cards: list[NodeProcess], home: Home, tmp_path: Path) -> Iterator[RunningGateway]:
    settings = f"""
backends = ["kubernetes"]
[kubernetes]
kubeconfig = "{place.running.kubeconfig()}"
namespace = "{place.namespace}"
"""
    running = RunningGateway(home, tmp_path, settings=settings).start()
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log, running.log[-6000:]


def test_nothing_is_lost_or_left_while_the_control_plane_is_killed(
    gateway: RunningGateway, place: Place, cards: list[NodeProcess], home: Home
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    churn = Churn(gateway, place, SIZE, seed)
    dice = random.Random(seed)

    def kill_in_turns() -> None:
        for number in range(SIZE.kills):
            churn.reached((number + 1) / (SIZE.kills + 1))
            name = KILLED[number % len(KILLED)]
            place.running.command(f"stop {name}")
            time.sleep(dice.uniform(0.5, 4.0))
            place.running.command(f"start {name}")

    began = time.monotonic()
    churn.run(kill_in_turns)
    took = time.monotonic() - began
    print(f"\nseed {seed}: {dict(churn.ends)} in {took:.0f} s, at most {churn.most_held} cards held at once")
    print(f"asked again while the cluster was away: {dict(churn.asked_again)}")
    assert churn.faults == []
    assert churn.ended == SIZE.sandboxes

    # The books of the gateway and the cluster agree, on what is left and on its cards.
    place.until(lambda: len(place.pods()) == len(churn.kept), "only what was kept is left", lambda: str(left(place)))
    with _books(home) as service:
        place.until(lambda: len(service.leases()) == len(churn.kept), "its leases are left", lambda: str(left(place)))
        assert {one.id for one in service.sandboxes()} == set(churn.kept)
        assert service.queue() == []
        booked = {
            one.sandbox_id: {f"{one.node}:{device.id.rpartition('/')[2]}" for device in one.devices}
            for one in service.leases()
        }
    assert {one["metadata"]["name"] for one in place.pods()} == set(churn.kept)
    assert {name: set(map(_booked, cards)) for name, cards in churn.held().items()} == booked

    churn.delete_kept()
    assert churn.faults == []
    place.until(lambda: not left(place), "nothing is left in the cluster", lambda: str(left(place)))
    with _books(home) as service:
        assert (service.leases(), service.sandboxes()) == ([], [])
    for one in cards:
        place.until(lambda: not one.records() and not one.specs(), "no claim is prepared", one.said)  # noqa: B023


@contextmanager
def _books(home: Home) -> Iterator[Workloads]:
    """The ledger of the gateway, from beside it."""
    with Workloads(home) as service:
        yield service
        getattr(service.registry.get("kubernetes"), "close")()  # noqa: B009 - not of the port


def _booked(card: str) -> str:
    """`node-a:/dev/simgpu0` as a lease names it."""
    node, _, path = card.partition(":")
    return f"{node}:{path.replace('/dev/simgpu', 'gpu-')}"

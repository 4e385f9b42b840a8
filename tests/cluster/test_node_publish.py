"""The slices of `dibs node` at a real API server: made, kept as they should be, and never taken for gone too early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.world import World

from dibs.devices.simulated import parse_world
from dibs.errors import Conflict
from dibs.home import Home
from dibs.kube import client as kube
from dibs.node.devices import Looked, Source
from dibs.node.publish import Published, Publisher


def looked(world: str, **more: Any) -> Looked:
    source = Source(
        "fake-1", Home(state=Path("/nonexistent"), config=Path("/nonexistent")), world=parse_world(world, **more)
    )
    return source.look()


def slices(world: World) -> list[dict[str, Any]]:
    return world.cluster.items(kube.SLICES, dict[str, Any])


def generations(world: World) -> set[int]:
    return {one["spec"]["pool"]["generation"] for one in slices(world)}


@pytest.fixture
def publisher(world: World) -> Publisher:
    world.node()
    return Publisher(world.cluster, "fake-1")


def test_what_is_published_once_is_written_once(publisher: Publisher, world: World) -> None:
    four = looked("H100:4").slices
    assert publisher.publish(four) == Published(written=1)
    assert publisher.publish(four) == Published()
    assert Publisher(world.cluster, "fake-1").publish(four) == Published(), "a new process finds them as they are"
    [owner] = slices(world)[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", "fake-1", True)


def test_all_slices_of_a_pool_change_together_and_those_too_many_go(publisher: Publisher, world: World) -> None:
    assert publisher.publish(looked("H100:200").slices).written == 2
    assert generations(world) == {1}
    assert publisher.publish(looked("H100:200", unhealthy="199=gone").slices).written > 1
    assert generations(world) == {2}
    assert publisher.publish(looked("H100:4").slices).deleted > 0
    assert generations(world) == {3}
    assert publisher.publish(()) == Published(deleted=1)
    assert slices(world) == []


def test_cards_and_their_parts_are_published_with_counters(publisher: Publisher, world: World) -> None:
    publisher.publish(looked("H100:2", partitions=7).slices)
    devices = [device for one in slices(world) for device in one["spec"].get("devices", ())]
    assert len(devices) == 16
    assert all(device["consumesCounters"] for device in devices)


def test_foreign_changes_and_deletions_are_reverted(publisher: Publisher, world: World) -> None:
    two = looked("H100:2").slices
    publisher.publish(two)
    name = slices(world)[0]["metadata"]["name"]
    patch = [{"op": "remove", "path": "/spec/devices/1"}]
    world.cluster.patch(kube.SLICES, name, patch, kind="json")
    assert publisher.publish(two).written == 1
    assert len(slices(world)[0]["spec"]["devices"]) == 2
    world.cluster.delete(kube.SLICES, name)
    assert publisher.publish(two).written == 1


def test_a_source_that_cannot_be_read_takes_no_device_away(publisher: Publisher, world: World) -> None:
    publisher.publish(looked("H100:2").slices)
    done = publisher.publish((), certain=False)
    assert done.kept == "gpu.nvidia.com: gpu-0, gpu-1"
    assert len(slices(world)) == 1
    assert publisher.publish(looked("H100:3").slices, certain=False).written == 1, "what is new is published"


def test_slices_of_another_driver_are_left_alone(publisher: Publisher, world: World) -> None:
    world.slice([{"name": "theirs"}])
    publisher.publish(looked("H100:2").slices)
    assert publisher.withdraw() == 1
    assert [one["spec"]["driver"] for one in slices(world)] == ["gpu.example.com"]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "fake-1", "pool": pool, "devices": [{"name": "gpu-0"}]}
    world.cluster.create(kube.SLICES, {"metadata": {"name": "vendor"}, "spec": spec})
    with pytest.raises(Conflict, match="another DRA driver publishes under this name"):
        publisher.publish(looked("H100:2").slices)

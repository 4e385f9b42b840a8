"""OpenShell's SDK, unmodified, on a real cluster whose GPUs are offered through DRA alone: what it gets, what it is
told while the scheduler has not placed its sandbox, and what is refused before anything is created."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openshell._proto import openshell_pb2 as pb
from tests.cluster import images, served, shared
from tests.cluster.place import Place as Namespace
from tests.cluster.running import RunningCluster
from tests.openshell.conftest import Place, begin
from tests.openshell.test_calls import condition, ready, refused
from tests.openshell.test_sdk import live_with_a_token

from dibs.home import Home


@pytest.fixture(scope="session")
def nodes() -> RunningCluster:
    """The name says that all tests with real nodes run in one worker."""
    found = shared.nodes()
    if isinstance(found, str):
        pytest.skip(f"no Kubernetes nodes: {found}")
    return found


@pytest.fixture(scope="module")
def served_namespace(
    nodes: RunningCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, Namespace]]:
    folder = tmp_path_factory.mktemp("openshell-kubernetes")
    home = Home(state=folder / "home", config=folder / "home/config").make()
    with served.namespace_with_cards(nodes, folder, 2) as (namespace, _):
        for place in begin(home, folder, "kubernetes", images.BUSYBOX, served.settings(namespace)):
            yield place, namespace


@pytest.fixture
def place(served_namespace: tuple[Place, Namespace]) -> Iterator[Place]:
    found, namespace = served_namespace
    yield found
    found.clear()
    namespace.until(lambda: not namespace.pods(), "nothing is left of it")
    assert found.held() == 0


@pytest.mark.skipif(not os.environ.get("DIBS_SOAK"), reason="a dozen pods take half a minute: with DIBS_SOAK=1")
def test_a_whole_life_with_a_token(place: Place, tmp_path: Path) -> None:
    live_with_a_token(place, tmp_path)


def test_sd_18_sd_20_cards_come_through_dra_and_who_waits_is_told_the_schedulers_reason(place: Place) -> None:
    client = place.client()
    name = ready(client, place.spec(2), "first")
    assert client.exec(name, ["sh", "-c", "ls /dev | grep -c simgpu"], workspace="default").stdout == "2\n"
    delivered = condition(client.get(name, workspace="default"), "Delivered")
    assert delivered.status == "True"
    assert "gpu.nvidia.com/node-a" in delivered.message
    waiting = client.create(workspace="default", spec=place.spec(1), name="second")
    assert waiting.phase == pb.SANDBOX_PHASE_PROVISIONING
    # The scheduler's own words, and soon after them what dibs finds on the nodes.
    told: Any = place.gateway.until(lambda: pending(client.get("second", workspace="default"), "| dibs"))
    assert told.phase == pb.SANDBOX_PHASE_PROVISIONING
    assert condition(told, "Ready").status == "False"
    assert "cannot allocate all claims" in condition(told, "Ready").message
    client.delete("first", workspace="default")
    client.wait_ready("second", workspace="default")


def pending(found: Any, words: str = "cannot allocate") -> Any:
    return found if words in condition(found, "Ready").message else None


def test_one_that_waits_for_the_scheduler_can_be_deleted(place: Place) -> None:
    client = place.client()
    ready(client, place.spec(2), "first")
    client.create(workspace="default", spec=place.spec(1), name="second")
    place.gateway.until(lambda: pending(client.get("second", workspace="default")))
    assert client.delete("second", workspace="default").outcome.name == "COMPLETED"
    client.wait_deleted("second", workspace="default")


@pytest.mark.parametrize(
    ("limits", "block", "field"),
    [
        ({"nvidia.com/gpu": 4}, {}, "spec.template.resources.limits.nvidia.com/gpu"),
        (
            {}, {"containers": {"agent": {"resources": {"limits": {"nvidia.com/gpu": "4"}}}}},
            "spec.template.driver_config.kubernetes.containers.agent.resources.limits.nvidia.com/gpu",
        ),
    ],
)  # fmt: skip
def test_sd_16_what_two_places_say_differently_is_refused_before_anything_is_created(
    place: Place, served_namespace: tuple[Place, Namespace], limits: Any, block: Any, field: str
) -> None:
    spec = place.spec(1, resources={"limits": limits}, driver_config={"kubernetes": block})
    with refused("INVALID_ARGUMENT", "CONFLICT") as caught:
        place.client().create(workspace="default", spec=spec)
    assert field in [one.field for one in caught.error.field_violations]
    assert served_namespace[1].pods() == []


@pytest.mark.parametrize(
    ("gpus", "pod", "code"),
    [
        (9, {}, "CLUSTER_DEVICE_NO_MATCH"),
        (1, {"node_selector": {"kubernetes.io/hostname": "node-z"}}, "CLUSTER_NODE_NOT_SELECTED"),
    ],
)
def test_what_no_node_can_deliver_is_refused_before_anything_is_created(
    place: Place, served_namespace: tuple[Place, Namespace], gpus: int, pod: Any, code: str
) -> None:
    spec = place.spec(gpus, driver_config={"kubernetes": {"pod": pod}})
    with refused("FAILED_PRECONDITION", code) as caught:
        place.client().create(workspace="default", spec=spec)
    assert [one.field for one in caught.error.field_violations] == ["spec.resource_requirements.gpu"]
    assert served_namespace[1].pods() == []

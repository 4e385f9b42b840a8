"""What OpenSandbox's clients see of a cluster: the scheduler's words while a sandbox waits, and refusals by name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from opensandbox.exceptions import SandboxApiException, SandboxReadyTimeoutException
from opensandbox.sync.sandbox import SandboxSync
from tests.opensandbox.conftest import ClusterPlace, Place, clear

from dibs.kube import client as kube
from dibs.kube import objects as core


@pytest.fixture
def place(cluster_place: ClusterPlace) -> Iterator[Place]:
    yield cluster_place.gateway
    clear(cluster_place.gateway)


@pytest.fixture
def plugin(cluster_place: ClusterPlace) -> Iterator[None]:
    """node-a offers its cards by a device plugin, in place of DRA."""
    cluster_place.driver.stop()
    cluster_place.driver.start("--device-plugin", "nvidia.com/gpu")
    space = cluster_place.namespace
    space.until(lambda: offered(cluster_place) == "8", "the cards are offered", cluster_place.driver.said)
    yield
    clear(cluster_place.gateway)
    space.until(lambda: not space.pods(), "all pods have given their cards back")
    pods = cluster_place.driver.node.folder / "kubelet/pods"
    space.until(lambda: not any(pods.iterdir()), "the kubelet has forgotten them")
    cluster_place.driver.stop()
    cluster_place.driver.start()
    space.until(lambda: offered(cluster_place) in ("", "0"), "the plugin is gone", cluster_place.driver.said)


def offered(place: ClusterPlace) -> str:
    node = place.namespace.cluster.get(kube.NODES, "node-a", core.Node)
    return node.status.allocatable.get("nvidia.com/gpu", "")


def create(place: Place, **more: Any) -> SandboxSync:
    given: dict[str, Any] = {
        "entrypoint": ["sleep", "1000"], "timeout": timedelta(minutes=10), "extensions": {"dibs.backend": "kubernetes"},
        "resource": {}, **more,
    }  # fmt: skip
    return SandboxSync.create(place.image, connection_config=place.sync(), **given)


def test_sd_08_the_schedulers_reason_reaches_the_client_while_it_waits(
    place: Place, cluster_place: ClusterPlace, plugin: None
) -> None:
    first = create(place, resource={"gpu": "7"}, ready_timeout=timedelta(minutes=2))
    with pytest.raises(SandboxReadyTimeoutException) as late:
        create(place, resource={"gpu": "2"}, ready_timeout=timedelta(seconds=30))
    second = place.made(resourceLimits={"gpu": "2"})
    where = f"/v1/sandboxes/{second}"

    def message() -> str:
        told: str = place.ask("GET", where).data["status"].get("message", "")
        return told if "Insufficient" in told and "wanted" in told else ""  # ours follow theirs after a moment

    for text in (str(late.value), place.gateway.until(message)):
        assert "Insufficient nvidia.com/gpu" in text  # the scheduler's own words
        assert "2 nvidia.com/gpu wanted" in text  # and ours
    first.kill()
    first.close()
    place.gateway.until(lambda: place.state(second) == "Running")
    place.remove(second)
    space = cluster_place.namespace
    space.until(lambda: not space.pods(), "nothing is left of either")


@pytest.mark.parametrize(
    ("resource", "status", "code"),
    [
        ({"gpu": "all"}, 400, "COUNT_NEEDED"),
        ({"gpu": "0"}, 400, "GPU_COUNT_INVALID"),
        ({"gpu": "0.5"}, 400, "GPU_COUNT_INVALID"),
        ({"gpu": "half"}, 400, None),
        ({"gpu": ""}, 400, None),
        ({"gpu": "9"}, 409, "CLUSTER_DEVICE_NO_MATCH"),
        ({"gpu": "B200:1"}, 409, "CLUSTER_DEVICE_NO_MATCH"),
        ({"example.com/gpu": "1"}, 400, "UNKNOWN_RESOURCE"),
        ({"disk": "1Gi"}, 400, None),
        ({"cpu": "1000"}, 409, "CLUSTER_RESOURCE_SHORT"),
    ],
)
def test_what_cannot_be_delivered_is_refused_before_anything_is_created(
    place: Place, cluster_place: ClusterPlace, resource: dict[str, str], status: int, code: str | None
) -> None:
    with pytest.raises(SandboxApiException) as refused:
        create(place, resource=resource)
    assert refused.value.status_code == status
    assert refused.value.error is not None
    assert refused.value.error.code == (code or refused.value.error.code)
    assert cluster_place.namespace.pods() == []
    assert place.held() == 0


def test_sd_02_a_pod_has_the_resource_by_its_full_name_and_nothing_that_was_not_asked_for(
    place: Place, cluster_place: ClusterPlace, plugin: None
) -> None:
    sandbox = create(place, resource={"gpu": "2", "cpu": "500m", "memory": "64Mi"}, ready_timeout=timedelta(minutes=2))
    (pod,) = cluster_place.namespace.pods()
    (container,) = pod["spec"]["containers"]
    wanted = {"cpu": "500m", "memory": "64Mi", "nvidia.com/gpu": "2"}
    assert container["resources"] == {"limits": wanted, "requests": wanted}
    assert "runtimeClassName" not in pod["spec"]
    assert "resourceClaims" not in pod["spec"]
    assert sandbox.commands.run("ls /dev | grep -c simgpu").text == "2"
    sandbox.kill()
    sandbox.close()

"""The same request, the same receipt, on real nodes: devices by DRA and by device plugin, in the container of a pod."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.images import BUSYBOX
from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place

from dibs.backends.kubernetes.pods import SandboxPod
from dibs.backends.port import Exit, Output
from dibs.home import Home
from dibs.kube import client as kube
from dibs.kube import objects as core
from dibs.kube.channels import Channels
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.settings import ClusterSettings, Settings
from dibs.workloads.reconcile import handle_of
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads


@pytest.fixture
def service(place: Place, home: Home) -> Iterator[Workloads]:
    cluster = ClusterSettings(kubeconfig=str(place.running.kubeconfig()), namespace=place.namespace, pending=60.0)
    with Workloads(home, registry=Registry(home, Settings(clusters={"kubernetes": cluster}))) as found:
        yield found
        for row in found.sandboxes(all=True):
            found.remove(row.id)
        getattr(found.registry.get("kubernetes"), "close")()  # noqa: B009 - not of the port


@pytest.fixture
def classes(place: Place) -> Iterator[None]:
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    place.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": {"selectors": [selector]}})
    yield
    place.cluster.delete(kube.CLASSES, NVIDIA)


@pytest.fixture
def driver(place: Place, classes: None, tmp_path: Path) -> Iterator[NodeProcess]:
    """A cluster that only has DRA: four simulated cards on node-a."""
    found = NodeProcess(place, "node-a", tmp_path)
    found.start()
    yield found
    place.empty()
    place.until(lambda: not found.records(), "all claims are given back", found.said)
    found.clear()


def spec(**fields: object) -> SandboxSpec:
    return parse_spec({"backend": "kubernetes", "image": BUSYBOX, "command": ["sleep", "1000"], **fields})


def test_claimed_devices_are_in_the_container_and_in_the_receipt(
    driver: NodeProcess, place: Place, service: Workloads
) -> None:
    row = service.create(spec(gpu=2, cpu="500m", memory="64Mi"))
    receipt = service.receipt(row.id)
    assert receipt.verdict == "delivered"
    assert receipt.rendered["form"] == "claim"
    names = sorted(one.id.rpartition("/")[2] for one in receipt.devices)
    assert len(names) == 2
    assert sorted(node.path for node in receipt.observed.nodes) == [
        f"/dev/{name.replace('gpu-', 'simgpu')}" for name in names
    ]
    assert receipt.observed.limits == {"cpu_millis": 500, "memory_bytes": 64 << 20}
    (lease,) = service.leases()
    assert (lease.node, len(lease.devices)) == ("node-a", 2)
    without = service.receipt(service.create(spec()).id)
    assert without.observed.nodes == ()
    for one in service.sandboxes():
        service.remove(one.id)
    place.until(lambda: not place.cluster.items(kube.CLAIMS, core.Pod, place.namespace), "its claim is gone")
    assert not place.cluster.items(kube.TEMPLATES, core.Pod, place.namespace)
    assert service.leases() == []


def test_a_device_is_given_again_as_soon_as_its_pod_has_ended(
    driver: NodeProcess, place: Place, service: Workloads
) -> None:
    """Four cards, each sandbox takes all of them as soon as the scheduler lets it: the ledger keeps up."""
    for _ in range(3):
        row = service.create(spec(gpu=4, command=["true"]))
        assert service.receipt(row.id).verdict in ("delivered", "not observed")
    for one in service.sandboxes(all=True):
        service.remove(one.id)
    place.until(lambda: not place.cluster.items(kube.PODS, core.Pod, place.namespace), "its pods are gone")
    assert service.leases() == []


def test_a_device_plugin_gives_what_the_kubelet_names(place: Place, service: Workloads, tmp_path: Path) -> None:
    plugin = NodeProcess(place, "node-a", tmp_path)
    plugin.start("--device-plugin", "nvidia.com/gpu")
    place.until(lambda: _offered(place) == "4", "four cards are offered", plugin.said)
    try:
        row = service.create(spec(gpu=1))
        receipt = service.receipt(row.id)
        assert (receipt.verdict, receipt.rendered["form"]) == ("delivered", "extended resource")
        (device,) = receipt.devices
        assert device.id.startswith("cluster:kubernetes/node-a/node-a/nvidia.com/gpu/")
        assert len(receipt.observed.nodes) == 1
    finally:
        for one in service.sandboxes(all=True):
            service.remove(one.id)
        plugin.stop()
        place.empty()
        plugin.clear()


@pytest.mark.parametrize("after", ["", "; cat"], ids=["has-ended", "runs-on"])
def test_what_a_command_says_before_it_can_be_attached_to_is_not_lost(
    after: str, place: Place, service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = service.registry.get("kubernetes")
    attach = backend.open_attach

    def late(pod: SandboxPod) -> Channels:
        """The line is there only after the command has spoken."""
        name = pod.metadata.name
        place.exec(name, "touch", "/tmp/go")
        if after:
            place.until(lambda: "said" in place.logs(name), "it has spoken")
        else:
            place.phase(name, "Succeeded")
        return attach(pod)  # type: ignore[no-any-return]

    monkeypatch.setattr(backend, "open_attach", late)
    script = "until [ -e /tmp/go ]; do sleep 0.1; done; echo said" + after
    row = service.create(spec(command=["sh", "-c", script], interactive=True))
    session = backend.attach(handle_of(row))
    session.end_of_input()
    pieces: list[Output | Exit] = []

    def ended() -> bool:
        pieces.extend(session.receive(0.1))
        return bool(pieces) and isinstance(pieces[-1], Exit)

    place.until(ended, "it ends")
    session.close()
    assert b"".join(one.data for one in pieces if isinstance(one, Output)) == b"said\n"


def _offered(place: Place) -> str:
    node = place.cluster.get(kube.NODES, "node-a", core.Node)
    return node.status.allocatable.get("nvidia.com/gpu", "")

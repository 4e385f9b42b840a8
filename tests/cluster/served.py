"""A namespace of the test cluster for a gateway: node-a has simulated GPUs, offered through DRA alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place
from tests.cluster.running import RunningCluster

from dibs.kube import client as kube


@contextmanager
def namespace_with_cards(running: RunningCluster, folder: Path, count: int) -> Iterator[tuple[Place, NodeProcess]]:
    """The driver of the devices ends with it: other tests start one of their own on the same node."""
    namespace = Place(running)
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    namespace.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": {"selectors": [selector]}})
    driver = NodeProcess(namespace, "node-a", folder, world=str(count))
    driver.start()
    try:
        yield namespace, driver
        namespace.empty()
        namespace.until(lambda: not driver.records(), "all claims are given back", driver.said)
    finally:
        driver.clear()
        namespace.cluster.delete(kube.CLASSES, NVIDIA)
        namespace.clear()


def settings(namespace: Place) -> str:
    """Of a gateway whose sandboxes are pods in it."""
    return (
        'backends = ["kubernetes"]\n[kubernetes]\npending = "2m"\n'
        f'kubeconfig = "{namespace.running.kubeconfig()}"\nnamespace = "{namespace.namespace}"\n'
    )

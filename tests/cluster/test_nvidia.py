"""NVIDIA's own device plugin in CDI mode, and its DRA driver, on a real node with simulated cards, deliver to our pods.

Their builds take minutes: they are run with DIBS_SOAK, or where the programs were built before
(`python -m tests.cluster.controllers nvidia-device-plugin nvidia-dra nvidia-cdi-hook`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import nvidia_driver
from tests.cluster.binaries import CannotBuild
from tests.cluster.controllers import HELM, NVIDIA_CDI_HOOK, NVIDIA_DEVICE_PLUGIN, NVIDIA_DRA, Controller, installed
from tests.cluster.helm import Helm
from tests.cluster.place import Place
from tests.cluster.test_kubernetes_delivery import service as service  # noqa: PLC0414 - a fixture
from tests.cluster.test_kubernetes_delivery import spec
from tests.cluster.world import World
from tests.docs.pages import ROOT

from dibs.kube import client as kube
from dibs.kube import objects as core
from dibs.workloads.service import Workloads

NODE = "node-a"


def program(one: Controller) -> Path:
    try:
        return installed(one).program
    except CannotBuild as reason:
        pytest.skip(str(reason))


@pytest.fixture
def plugin(place: Place, tmp_path: Path) -> Iterator[str]:
    """The plugin with what deploy/helm/nvidia-device-plugin.yaml says: CDI names through the kubelet, by index."""
    words, hook = program(NVIDIA_DEVICE_PLUGIN), program(NVIDIA_CDI_HOOK)
    try:
        root = nvidia_driver.install(tmp_path / "driver", words)
    except nvidia_driver.CannotSimulate as reason:
        pytest.skip(str(reason))
    local = tmp_path / "nvidia-cdi-hook"  # /tmp is the same on the nodes
    local.write_bytes(hook.read_bytes())
    local.chmod(0o755)
    node = place.running.nodes[NODE]
    process = node.popen(
        str(words), "--device-list-strategy=cdi-cri", "--device-id-strategy=index", f"--nvidia-driver-root={root}",
        f"--driver-root-ctr-path={root}", f"--nvidia-cdi-hook-path={local}", "--gds-enabled=false",
        "--mofed-enabled=false", "--gdrcopy-enabled=false", log="nvidia-device-plugin",
    )  # fmt: skip

    def offered() -> bool:
        assert process.poll() is None, node.log("nvidia-device-plugin")
        found = place.cluster.get(kube.NODES, NODE, core.Node).status.allocatable
        return found.get("nvidia.com/gpu") == str(nvidia_driver.CARDS)

    place.until(offered, "its cards are offered", lambda: node.log("nvidia-device-plugin"))
    yield NODE
    place.empty()
    process.terminate()
    process.wait()
    for file in (node.folder / "run-cdi").glob("*nvidia*"):
        file.unlink()
    place.until(
        lambda: place.cluster.get(kube.NODES, NODE, core.Node).status.allocatable.get("nvidia.com/gpu", "0") == "0",
        "its cards are no longer offered",
    )


PROFILES = ROOT / "deploy" / "helm"
PLUGIN_SETTINGS = {
    "DEVICE_LIST_STRATEGY": "cdi-cri",
    "DEVICE_ID_STRATEGY": "index",
    "NVIDIA_DRIVER_ROOT": "/",
    "NVIDIA_CDI_HOOK_PATH": "/usr/bin/nvidia-cdi-hook",
}


@pytest.mark.parametrize(
    ("one", "chart", "values"),
    [
        (NVIDIA_DEVICE_PLUGIN, "nvidia-device-plugin", "nvidia-device-plugin.yaml"),
        (NVIDIA_DRA, "dra-driver-nvidia-gpu", "nvidia-dra-driver.yaml"),
    ],
    ids=["device-plugin", "dra-driver"],
)
def test_the_profiles_are_understood_by_nvidias_own_charts(
    one: Controller, chart: str, values: str, world: World, tmp_path: Path
) -> None:
    program(one)
    helm = Helm(program(HELM), world.running, "kube-system", tmp_path)
    folder = installed(one).module / "helm" / chart
    wanted = yaml.safe_load((PROFILES / values).read_text())
    known = yaml.safe_load((folder / "values.yaml").read_text())
    assert set(wanted) <= set(known)  # a value that it does not know would be dropped without a word
    found = helm.rendered(wanted, chart=folder)
    daemons = next(one for one in found if one["kind"] == "DaemonSet" and "mps" not in one["metadata"]["name"])
    env = {
        item["name"]: item.get("value") for c in daemons["spec"]["template"]["spec"]["containers"] for item in c["env"]
    }
    assert env["NVIDIA_DRIVER_ROOT"] == "/"
    if one is NVIDIA_DEVICE_PLUGIN:
        assert PLUGIN_SETTINGS.items() <= env.items()
    done = subprocess.run(
        [str(world.running.binaries / "kubectl"), f"--kubeconfig={world.running.kubeconfig()}", "create",
         "--dry-run=server", "--validate=strict", "-f", "-"],
        input=yaml.safe_dump_all(found), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_nvidias_device_plugin_delivers_a_card_by_cdi_without_a_runtime_class(
    plugin: str, place: Place, service: Workloads
) -> None:
    made = service.create(spec(gpu=1))
    receipt = service.receipt(made.id)
    assert (receipt.verdict, receipt.rendered["form"]) == ("delivered", "extended resource")
    pod = place.get(made.id)
    assert "runtimeClassName" not in pod["spec"]
    seen = place.exec(made.id, "sh", "-c", "ls /dev | grep '^nvidia[0-9]'").split()
    assert len(seen) == 1
    assert [node.path for node in receipt.observed.nodes if node.path.rpartition("/")[2] in seen]
    without = service.create(spec())
    done = subprocess.run(
        [str(place.running.binaries / "kubectl"), f"--kubeconfig={place.running.kubeconfig()}", "exec", "-n",
         place.namespace, without.id, "--", "sh", "-c", "ls /dev | grep nvidia"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")


@pytest.fixture
def dra(place: Place, tmp_path: Path) -> Iterator[str]:
    """NVIDIA's DRA driver on the node, with its DeviceClass as its chart has it."""
    words, hook = program(NVIDIA_DRA), program(NVIDIA_CDI_HOOK)
    try:
        root = nvidia_driver.install(tmp_path / "driver", words)
    except nvidia_driver.CannotSimulate as reason:
        pytest.skip(str(reason))
    local = tmp_path / "nvidia-cdi-hook"  # /tmp is the same on the nodes
    local.write_bytes(hook.read_bytes())
    local.chmod(0o755)
    node = place.running.nodes[NODE]
    expression = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    selectors = [{"cel": {"expression": expression}}]
    place.cluster.create(kube.CLASSES, {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": selectors}})
    process = node.popen(
        str(words), f"--kubeconfig={place.running.kubeconfig()}", f"--node-name={NODE}", "--namespace=default",
        f"--nvidia-driver-root={root}", f"--container-driver-root={root}", f"--nvidia-cdi-hook-path={local}",
        "--image-name=none", "--cdi-root=/run/cdi", "--healthcheck-port=-1",
        env={"POD_NAME": "none", "POD_UID": "none"}, log="nvidia-dra",
    )  # fmt: skip

    def offered() -> bool:
        assert process.poll() is None, node.log("nvidia-dra")[-3000:]
        slices = place.cluster.items(kube.SLICES, dict[str, Any], fields="spec.driver=gpu.nvidia.com")
        return sum(len(one["spec"].get("devices", ())) for one in slices) == nvidia_driver.CARDS

    try:
        place.until(offered, "its cards are offered", lambda: node.log("nvidia-dra")[-3000:])
        yield NODE
        place.empty()
    finally:
        process.kill()
        process.wait()
        place.cluster.delete_all(kube.SLICES)
        place.cluster.delete(kube.CLASSES, "gpu.nvidia.com")
        for file in (node.folder / "run-cdi").glob("*nvidia*"):
            file.unlink()


def test_nvidias_dra_driver_delivers_exactly_the_claimed_card(dra: str, place: Place, service: Workloads) -> None:
    made = service.create(spec(gpu="H100:1"))
    receipt = service.receipt(made.id)
    assert (receipt.verdict, receipt.rendered["form"]) == ("delivered", "claim")
    (device,) = receipt.devices
    pod = place.get(made.id)
    assert "runtimeClassName" not in pod["spec"]
    seen = place.exec(made.id, "sh", "-c", "ls /dev | grep '^nvidia[0-9]'").split()
    assert seen == [device.id.rpartition("/")[2].replace("gpu-", "nvidia")]

"""`dibs doctor --cluster` on a real API server: each thing that is wrong is found, with its fix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.world import World, device

from dibs.doctor import cluster_drivers
from dibs.doctor.cluster import examine_cluster
from dibs.doctor.finding import Finding
from dibs.kube import client as kube
from dibs.kube.inventory import ClusterInventory

DIBS = str(Path(sys.executable).parent / "dibs")


def found(world: World, user: str = "admin") -> dict[str, Finding]:
    with world.running.client(user) as cluster:
        return {one.id: one for one in examine_cluster(cluster)}


def verdicts(world: World) -> dict[str, str]:
    return {name: one.verdict for name, one in found(world).items()}


def test_a_cluster_in_order_has_nothing_to_fix(world: World) -> None:
    world.node()
    world.device_class()
    world.slice([device("gpu-0")])
    assert set(verdicts(world).values()) == {"ok"}


def test_an_empty_cluster_is_told_what_is_missing(world: World) -> None:
    assert verdicts(world)["cluster-nodes"] == "fail"
    assert verdicts(world)["cluster-devices"] == "fail"


def test_a_card_that_is_offered_twice_is_found(world: World) -> None:
    world.node(nvidia_com__gpu="1")
    slice_ = {
        "metadata": {"name": "nvidia"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "fake-1",
            "pool": {"name": "fake-1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }
    world.cluster.create(kube.SLICES, slice_)
    answer = found(world)
    assert answer["cluster-twice"].verdict == "fail"
    assert "fake-1 (nvidia.com/gpu and gpu.nvidia.com)" in answer["cluster-twice"].title
    assert answer["cluster-classes"].verdict == "fail"


def test_incomplete_pools_and_tainted_devices_are_found(world: World) -> None:
    world.node()
    world.device_class()
    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    world.slice([device("gpu-0", taints=[taint])], count=2)
    assert verdicts(world)["cluster-pools"] == "fail"
    assert verdicts(world)["cluster-taints"] == "warn"


def test_a_card_of_two_drivers_is_found_by_its_pci_address(world: World) -> None:
    world.node()
    address = {"resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"}}
    for driver in ("gpu.nvidia.com", "gpu.example.com"):
        pool = {"name": driver, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": "fake-1", "pool": pool, "devices": [{"name": "x", "attributes": address}]}
        world.cluster.create(kube.SLICES, {"metadata": {"name": driver}, "spec": spec})
    answer = found(world)["cluster-drivers"]
    assert answer.verdict == "fail"
    assert "fake-1: 0000:1b:00.0 (gpu.example.com and gpu.nvidia.com)" in answer.title


def test_old_kubelets_and_runtimes_without_cdi_are_found(world: World) -> None:
    world.node()
    info = {
        "kubeletVersion": "v1.33.2", "containerRuntimeVersion": "containerd://1.7.24", "machineID": "",
        "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "", "kubeProxyVersion": "",
        "operatingSystem": "linux", "architecture": "amd64",
    }  # fmt: skip
    world.cluster.patch(kube.NODES, "fake-1", {"status": {"nodeInfo": info}}, part="status")
    answer = found(world)
    assert answer["cluster-kubelets"].verdict == "fail"
    assert "fake-1 (v1.33.2)" in answer["cluster-kubelets"].title
    assert answer["cluster-cdi"].verdict == "warn"
    assert "enable_cdi = true" in answer["cluster-cdi"].fix
    info["containerRuntimeVersion"] = "containerd://1.6.20"
    world.cluster.patch(kube.NODES, "fake-1", {"status": {"nodeInfo": info}}, part="status")
    assert verdicts(world)["cluster-cdi"] == "fail"


@pytest.mark.parametrize(("strategy", "verdict"), [("cdi-cri", "ok"), ("envvar,cdi-annotations", "ok"), (None, "warn")])
def test_a_device_plugin_that_does_not_use_cdi_is_found(world: World, strategy: str | None, verdict: str) -> None:
    env = [{"name": "DEVICE_LIST_STRATEGY", "value": strategy}] if strategy else []
    container = {"name": "plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.19.1", "env": env}
    labels = {"app": "plugin"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    body = {"metadata": {"name": "plugin"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    world.cluster.create(cluster_drivers.DAEMON_SETS, body, "default")
    try:
        answer = found(world)["cluster-plugin-mode"]
    finally:
        world.cluster.delete(cluster_drivers.DAEMON_SETS, "plugin", "default")
    assert answer.verdict == verdict
    assert verdict == "ok" or "default/plugin (envvar)" in answer.title


def test_a_user_who_may_only_look_is_told_what_running_needs(world: World) -> None:
    answer = found(world, "stranger")["cluster-rights"]
    assert answer.verdict == "warn"
    assert "create pods/exec" in answer.title
    assert "kubectl create role dibs-create-pods --verb=create --resource=pods -n default" in answer.fix


def test_missing_rights_are_found_with_the_role_to_add(world: World) -> None:
    world.node()
    answer = found(world, "stranger")
    assert answer["cluster-access"].verdict == "fail"
    assert "kubectl create clusterrole dibs-read --verb=get,list,watch --resource=" in answer["cluster-access"].fix
    assert "resourceslices.resource.k8s.io" in answer["cluster-access"].fix
    assert answer["cluster-access"].fix.endswith("--user=stranger")


def test_what_may_not_be_read_is_never_called_in_order(world: World) -> None:
    world.node(nvidia_com__gpu="2")
    answer = found(world, "stranger")
    skipped = {"nodes", "kubelets", "devices", "twice", "drivers", "pools", "classes", "taints", "plugin-mode"}
    assert {name: answer[f"cluster-{name}"].verdict for name in skipped} == dict.fromkeys(skipped, "skip")
    assert "nodes and resourceslices may not be read" in answer["cluster-twice"].title


def test_the_command_prints_it_and_fails_where_a_check_failed(world: World) -> None:
    done = subprocess.run([DIBS, "doctor", "--cluster", "-o", "json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert {one["id"] for one in data["findings"]} >= {"cluster-version", "cluster-devices"}


def test_a_version_that_has_features_switched_off_is_told_the_gates() -> None:
    old = ClusterInventory(cluster="old", version=kube.Version(1, 34, "v1.34.1"))
    assert "DRAConsumableCapacity=true" in cluster_drivers.features(old).fix
    new = ClusterInventory(cluster="new", version=kube.Version(1, 36, "v1.36.0"))
    assert cluster_drivers.features(new).verdict == "ok"

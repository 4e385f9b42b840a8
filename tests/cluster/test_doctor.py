"""`dibs doctor --cluster` on a real API server: each thing that is wrong is found, with its fix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cluster.world import World, device

from dibs.doctor.cluster import examine_cluster
from dibs.doctor.finding import Finding
from dibs.kube import client as kube

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


def test_missing_rights_are_found_with_the_role_to_add(world: World) -> None:
    world.node()
    answer = found(world, "stranger")
    assert answer["cluster-access"].verdict == "fail"
    assert "resourceslices.resource.k8s.io" in answer["cluster-access"].fix


def test_the_command_prints_it_and_fails_where_a_check_failed(world: World) -> None:
    done = subprocess.run([DIBS, "doctor", "--cluster", "-o", "json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert {one["id"] for one in data["findings"]} >= {"cluster-version", "cluster-devices"}

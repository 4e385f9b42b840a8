"""Real torchrun and real JAX on the nodes of the cluster, from the objects that run without one (tests/jobs)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import images
from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place
from tests.cluster.running import RunningCluster
from tests.engines.installing import CannotInstall
from tests.jobs import frameworks
from tests.jobs.frameworks import IMAGE, training
from tests.jobs.test_frameworks import EXAMPLES

from dibs.kube import client as kube
from dibs.workloads.cluster_jobs import objects
from dibs.workloads.cluster_jobs.service import ClusterJob, ClusterJobs

Json = dict[str, Any]
_PATIENCE = 600.0  # a framework takes its time to load on a busy machine
ON_NODE = Path("/var/lib/kubelet/frameworks")
# The devices of a rank are told as dibs tells them without a cluster.
SEES = 'export DIBS_GPUS=$(cd /dev; echo simgpu* | tr " " ","); exec "$@"'


@pytest.fixture(scope="module")
def programs(nodes: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The frameworks and the examples on node-a, and an image with links to them on every node."""
    try:
        root = frameworks.install()
    except CannotInstall as error:
        pytest.skip(f"PyTorch and JAX cannot be had here: {error}")
    place = nodes.nodes["node-a"].folder / "kubelet" / ON_NODE.name
    work = tmp_path_factory.mktemp("frameworks")
    place.mkdir()
    try:
        linked = subprocess.run(["cp", "-al", f"{root}/usr", f"{place}/usr"], capture_output=True, check=False)
        if linked.returncode:
            pytest.skip(f"the frameworks in {root} cannot be linked into {place}: another file system")
        shutil.copytree(EXAMPLES, place / "examples")
        images.write(work / "image.tar", frameworks.skeleton_tar(frameworks.skeleton(work / "skeleton")), IMAGE)
        nodes.command(f"load {work / 'image.tar'}")
        yield
    finally:
        shutil.rmtree(place)


@pytest.fixture
def cards(place: Place, tmp_path: Path) -> Iterator[NodeProcess]:
    """Four cards on node-a, asked for as everywhere: a class stands behind the extended resource."""
    spec = {
        "selectors": [{"cel": {"expression": f"device.driver == '{NVIDIA}'"}}],
        "extendedResourceName": "nvidia.com/gpu",
    }
    place.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": spec})
    found = NodeProcess(place, "node-a", tmp_path).start()
    yield found
    for resource in (objects.JOBS, objects.CONFIG_MAPS, objects.SERVICES):
        place.cluster.delete_all(resource, place.namespace)
    place.empty()
    place.until(lambda: not found.records(), "all claims are given back", found.said)
    found.clear()
    place.cluster.delete(kube.CLASSES, NVIDIA)


def run(place: Place, policy: str, command: list[str], env: dict[str, str]) -> tuple[ClusterJob, str]:
    words = ["sh", "-c", SEES, "sh", *command]
    what = training(ON_NODE, policy, words, env, pod={"restartPolicy": "Never"})
    jobs = ClusterJobs(place.cluster, place.namespace)
    jobs.submit(what.job, what.runtime)
    place.until(lambda: bool(place.pods()), "there are pods")
    devices: dict[str, tuple[str, ...]] = {}

    def over() -> bool:
        shown = jobs.show("demo")
        devices.update({rank.name: rank.devices for rank in shown.ranks if rank.devices})
        return shown.state in ("Complete", "Failed")

    place.until(over, "it ends", lambda: str(jobs.show("demo")), patience=_PATIENCE)
    shown = jobs.show("demo")
    said = "".join(place.logs(rank.pod) for rank in shown.ranks)
    assert shown.state == "Complete", said
    assert len({one for some in devices.values() for one in some}) == 4
    for rank in shown.ranks:
        own = ",".join(sorted(one.rpartition("/")[2].replace("gpu-", "simgpu") for one in devices[rank.name]))
        mine = [line for line in place.logs(rank.pod).splitlines() if "devices" in line]
        assert mine
        assert all(line.endswith(f"devices {own}") for line in mine), said
    return shown, said


def test_torchrun_on_two_ranks_with_two_processes_each(place: Place, programs: None, cards: NodeProcess) -> None:
    env = {**frameworks.TORCH_ENV, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
    _, said = run(place, "torch", ["torchrun", "/programs/torch_allreduce.py"], env)
    for rank in range(4):
        assert f"rank {rank} of 4: all-reduce gives 6," in said
        assert f"rank {rank}: y = 3.00 x + 1.00" in said


def test_jax_on_two_ranks(place: Place, programs: None, cards: NodeProcess) -> None:
    env = {"PYTHONPATH": frameworks.JAX_PATH, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
    _, said = run(place, "jax", ["python3", "/programs/jax_gather.py"], env)
    for rank in range(2):
        assert f"rank {rank} of 2: gather gives 1," in said
        assert f"rank {rank}: y = 3.00 x + 1.00" in said

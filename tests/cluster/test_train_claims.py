"""KEP-2782 end to end: training jobs with device claims on real nodes, beside the released JobSet and Kubeflow Trainer.

The cards are simulated, and `dibs node` gives them to a real kubelet; everything else is real. What a rank sees is read
from the output of its container.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import trainer
from tests.cluster.binaries import CannotBuild
from tests.cluster.images import BUSYBOX
from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place
from tests.cluster.running import RunningCluster
from tests.cluster.trainer import Controllers
from tests.cluster.world import request
from tests.train.jobs import job, patch, replicated, runtime

from dibs.kube import client as kube
from dibs.kube import objects as core
from dibs.train.objects import read_runtime
from dibs.train.refusals import TrainRefused
from dibs.workloads.cluster_jobs import objects
from dibs.workloads.cluster_jobs.ranks import ClusterRank
from dibs.workloads.cluster_jobs.service import ClusterJob, ClusterJobs
from dibs.workloads.cluster_jobs.source import RUNTIME_RESOURCES

Json = dict[str, Any]

# What a rank sees: its devices and its number of processes.
LOOK = "cd /dev; echo $(ls -d simgpu* 2>/dev/null) nproc=$PET_NPROC_PER_NODE"
SHOW = ["sh", "-c", f"{LOOK}; sleep 2147483647"]
RUNTIMES = RUNTIME_RESOURCES["ClusterTrainingRuntime"]


@pytest.fixture(scope="module")
def controllers(nodes: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controllers]:
    """The released ones, on the cluster with nodes; gone after this file."""
    try:
        with trainer.started(nodes.folder, tmp_path_factory.mktemp("controllers")) as found:
            yield found
    except CannotBuild as reason:
        pytest.skip(str(reason))


@pytest.fixture
def cards(place: Place, controllers: Controllers, tmp_path: Path) -> Iterator[NodeProcess]:
    """Two A100 and two H100 on node-a, with a class for all of them."""
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    place.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": {"selectors": [selector]}})
    found = NodeProcess(place, "node-a", tmp_path, world="A100-80GB:2,H100:2").start()
    place.template("one", request(device_class=NVIDIA))
    place.template("a100", request("gpu", _is("A100"), device_class=NVIDIA))
    place.template("h100", request("gpu", _is("H100"), device_class=NVIDIA))
    place.template("two", request(device_class=NVIDIA, count=2))
    yield found
    place.until(lambda: not place.cluster.items(kube.CLAIMS, core.Pod, place.namespace), "all claims are gone")
    place.until(lambda: not found.records(), "all claims are given back", found.said)
    found.clear()
    place.cluster.delete(kube.CLASSES, NVIDIA)


@pytest.fixture
def jobs(place: Place, cards: NodeProcess) -> Iterator[ClusterJobs]:
    yield ClusterJobs(place.cluster, place.namespace)
    for resource in (objects.TRAIN_JOBS, objects.JOB_SETS, objects.JOBS, objects.CONFIG_MAPS):
        place.cluster.delete_all(resource, place.namespace)
    place.cluster.delete_all(RUNTIMES)
    place.empty()


def _is(model: str) -> str:
    return f"device.attributes['{NVIDIA}'].productName.contains('{model}')"


def torch(nodes: int = 2, claims: list[Json] | None = None) -> Json:
    pod: Json = {"terminationGracePeriodSeconds": 1}
    used: Json = {}
    if claims:
        pod["resourceClaims"] = claims
        used = {"resources": {"claims": [{"name": one["name"]} for one in claims]}}
    one = replicated(pod=pod, image=BUSYBOX, command=SHOW, **used)
    return runtime(one, policy={"numNodes": nodes, "torch": {}})


def running(place: Place, jobs: ClusterJobs, name: str = "demo") -> ClusterJob:
    place.until(lambda: jobs.show(name).state == "Running", f"{name} runs", lambda: str(jobs.show(name)))
    return jobs.show(name)


def seen(place: Place, rank: ClusterRank) -> tuple[set[str], str]:
    """The devices in a rank's container, and its number of processes."""
    place.until(lambda: "nproc=" in place.logs(rank.pod), f"{rank.name} has looked")
    *devices, processes = place.logs(rank.pod).split()
    return set(devices), processes.removeprefix("nproc=")


def given(rank: ClusterRank) -> set[str]:
    return {one.rpartition("/")[2].replace("gpu-", "simgpu") for one in rank.devices}


def model(cards: NodeProcess, rank: ClusterRank) -> set[str]:
    devices: Any = cards.devices()
    return {devices[one.rpartition("/")[2]]["attributes"]["productName"]["string"] for one in rank.devices}


def test_a_template_gives_every_rank_a_claim_and_devices_of_its_own(place: Place, jobs: ClusterJobs) -> None:
    said = jobs.submit(
        job(trainer={"resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": "two"}]}),
        read_runtime(torch()),
    )
    assert said.way == "jobset"  # the released Trainer has no claims per node: it would lose them
    assert "loses claims" in said.reason
    ranks = running(place, jobs).ranks
    assert len(ranks) == 2
    for rank in ranks:
        assert seen(place, rank) == (given(rank), "2")
    assert len(given(ranks[0]) | given(ranks[1])) == 4


def test_a_claim_of_the_same_name_replaces_that_of_the_runtime(
    place: Place, jobs: ClusterJobs, cards: NodeProcess
) -> None:
    """The runtime says A100, the job says H100: no rank gets both, and none an A100."""
    place.cluster.create(RUNTIMES, torch(claims=[{"name": "gpu", "resourceClaimTemplateName": "a100"}]))
    jobs.submit(job(trainer={"resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": "h100"}]}))
    for rank in running(place, jobs).ranks:
        assert seen(place, rank) == (given(rank), "1")
        assert model(cards, rank) == {"NVIDIA H100 80GB HBM3"}


def test_a_prewired_runtime_gives_its_claims_to_a_plain_job_also_where_it_sets_resources(
    place: Place, jobs: ClusterJobs, cards: NodeProcess
) -> None:
    place.cluster.create(RUNTIMES, torch(nodes=1, claims=[{"name": "gpu", "resourceClaimTemplateName": "a100"}]))
    jobs.submit(job())
    jobs.submit(job("limited", trainer={"resourcesPerNode": {"limits": {"memory": "64Mi"}}}))
    for name in ("demo", "limited"):
        (rank,) = running(place, jobs, name).ranks
        assert seen(place, rank) == (given(rank), "1")
        assert model(cards, rank) == {"NVIDIA A100-SXM4-80GB"}


def test_the_released_trainer_loses_the_claim_that_dibs_keeps(
    place: Place, jobs: ClusterJobs, controllers: Controllers
) -> None:
    """What the test before this one is worth: the same job, given to Kubeflow Trainer itself."""
    place.cluster.create(RUNTIMES, torch(nodes=1, claims=[{"name": "gpu", "resourceClaimTemplateName": "a100"}]))
    place.cluster.create(
        objects.TRAIN_JOBS, job("lost", trainer={"resourcesPerNode": {"limits": {"memory": "64Mi"}}}), place.namespace
    )
    (rank,) = running(place, jobs, "lost").ranks
    assert len(rank.devices) == 1  # the pod holds it
    assert seen(place, rank)[0] == set()  # and its container does not have it


def test_a_claim_by_name_is_shared_by_all_ranks(place: Place, jobs: ClusterJobs) -> None:
    spec = {"devices": {"requests": [request(device_class=NVIDIA)]}}
    place.cluster.create(kube.CLAIMS, {"metadata": {"name": "shared"}, "spec": spec}, place.namespace)
    jobs.submit(job(), read_runtime(torch(claims=[{"name": "gpu", "resourceClaimName": "shared"}])))
    ranks = running(place, jobs).ranks
    assert len(ranks) == 2
    assert {rank.devices for rank in ranks} == {ranks[0].devices}
    for rank in ranks:
        assert seen(place, rank) == (given(rank), "1")
    jobs.remove("demo")
    place.until(lambda: not place.pods(), "its pods are gone")
    place.cluster.delete(kube.CLAIMS, "shared", place.namespace)


def test_a_reference_to_no_claim_is_refused_and_nothing_is_created(place: Place, jobs: ClusterJobs) -> None:
    dangling = patch({"containers": [{"name": "node", "resources": {"claims": [{"name": "nic"}]}}]})
    wired = read_runtime(torch(claims=[{"name": "gpu", "resourceClaimTemplateName": "one"}]))
    with pytest.raises(TrainRefused) as refused:
        jobs.submit(job(patches=[dangling]), wired)
    assert 'references resourceClaim "nic" which is not defined' in str(refused.value)
    with pytest.raises(TrainRefused) as refused:
        jobs.submit(
            job(trainer={"resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": "absent"}]}), wired
        )
    assert "absent" in str(refused.value)
    for resource in (objects.JOB_SETS, objects.JOBS, objects.TRAIN_JOBS, kube.PODS):
        assert place.cluster.items(resource, dict[str, Any], place.namespace) == []


def test_a_claim_that_cannot_be_scheduled_is_explained_for_the_rank_that_waits(
    place: Place, jobs: ClusterJobs, cards: NodeProcess
) -> None:
    """Three H100 are asked for, one per rank, and two are there."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "h100"}]
    jobs.submit(job(trainer={"resourceClaimsPerNode": claims}), read_runtime(torch(nodes=3)))

    def decided() -> bool:
        ranks = jobs.show("demo").ranks
        return sum(rank.phase == "Running" for rank in ranks) == 2 and any(rank.words for rank in ranks)

    place.until(decided, "two run, and the scheduler has tried the third", lambda: str(jobs.show("demo")))
    shown = jobs.show("demo")
    assert shown.state == "Pending"
    (waits,) = [rank for rank in shown.ranks if rank.phase == "Pending"]
    assert any("cannot allocate all claims" in text for text in waits.words)
    codes = {reason.code for reason in waits.reasons}
    assert "DEVICE_IN_USE" in codes
    assert all(not rank.reasons for rank in shown.ranks if rank is not waits)
    # As soon as a card is free, it is that rank's.
    cards.simulate("A100-80GB:2,H100:3")
    place.until(lambda: jobs.show("demo").state == "Running", "the third rank runs", lambda: str(jobs.show("demo")))

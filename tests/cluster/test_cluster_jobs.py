"""Training jobs on a real API server and scheduler: the chosen way, what is refused, ranks that wait, the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from tests.cluster import control_plane
from tests.cluster.control_plane import ControlPlane
from tests.cluster.running import RunningCluster
from tests.cluster.test_train_webhook import CRDS
from tests.cluster.world import DRIVER, World
from tests.train.jobs import exactly, job, replicated, runtime

from dibs.cli.schema import schema_of
from dibs.errors import DibsError, NotFound, Unsupported
from dibs.kube import client as kube
from dibs.kube.client import Cluster, Resource
from dibs.kube.config import find_cluster
from dibs.train import compute_domain
from dibs.train.facts import COMPUTE_DOMAIN_CRD
from dibs.train.job_annotations import COMPUTE_DOMAIN, WAIT
from dibs.train.objects import read_runtime
from dibs.train.refusals import TrainRefused
from dibs.workloads.cluster_jobs import objects
from dibs.workloads.cluster_jobs.service import ClusterJobs

Json = dict[str, Any]


def plain(**more: Any) -> Json:
    return read_runtime(runtime(replicated(**more), policy={"numNodes": 2}))


def gpu(name: str) -> Json:
    return {"name": name}


@pytest.fixture
def jobs(world: World) -> Iterator[ClusterJobs]:
    yield ClusterJobs(world.cluster, world.namespace)
    for resource in (objects.JOBS, objects.CONFIG_MAPS, objects.SERVICES):
        world.cluster.delete_all(resource, world.namespace, labels=objects.JOB)


def claimed(world: World, devices: int) -> None:
    world.node()
    world.device_class()
    world.slice([gpu(f"gpu-{number}") for number in range(devices)])
    world.template("one-gpu", exactly(device_class=DRIVER))


CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]


def test_without_jobset_a_job_becomes_indexed_jobs_and_a_service_and_each_rank_has_its_device(
    world: World, jobs: ClusterJobs
) -> None:
    claimed(world, 2)
    done = jobs.submit(job(trainer={"resourceClaimsPerNode": CLAIMS}), plain())
    assert done.way == "jobs"
    assert "jobsets.jobset.x-k8s.io" in done.reason
    assert done.created == ("ConfigMap demo-runtime-snapshot", "Service demo", "Job demo-node-0")
    world.until(lambda: all(rank.devices for rank in jobs.show("demo").ranks), "both ranks have a device")
    shown = jobs.show("demo")
    assert [rank.name for rank in shown.ranks] == ["demo-node-0-0", "demo-node-0-1"]
    assert sorted(rank.devices for rank in shown.ranks) == [
        (f"{DRIVER}/fake-1/gpu-0",),
        (f"{DRIVER}/fake-1/gpu-1",),
    ]
    pod = world.cluster.get(kube.PODS, shown.ranks[0].pod, dict[str, Any], world.namespace)
    assert pod["spec"]["hostname"] == "demo-node-0-0"
    assert pod["spec"]["subdomain"] == "demo"


def test_sd_38_a_claim_that_cannot_be_scheduled_is_in_the_status_of_its_rank(world: World, jobs: ClusterJobs) -> None:
    """One device for two ranks: one runs, the other says why not, in the scheduler's words and in ours."""
    claimed(world, 1)
    jobs.submit(job(trainer={"resourceClaimsPerNode": CLAIMS}), plain())
    world.until(lambda: any(rank.words for rank in jobs.show("demo").ranks), "the scheduler has tried both")
    world.until(lambda: any(rank.devices for rank in jobs.show("demo").ranks), "one rank has the device")
    shown = jobs.show("demo")
    assert shown.state == "Pending"
    [has] = [rank for rank in shown.ranks if rank.devices]
    [waits] = [rank for rank in shown.ranks if not rank.devices]
    assert has.devices == (f"{DRIVER}/fake-1/gpu-0",)
    assert waits.phase == "Pending"
    assert "DEVICE_IN_USE" in [reason.code for reason in waits.reasons]
    assert any("cannot allocate all claims" in text for text in waits.words)


def test_what_is_printed_as_json_is_as_its_schema_says(world: World, jobs: ClusterJobs) -> None:
    claimed(world, 1)
    done = jobs.submit(job(trainer={"resourceClaimsPerNode": CLAIMS}), plain())
    world.until(lambda: any(rank.words for rank in jobs.show("demo").ranks), "the scheduler has tried")
    for name, value in (("train cluster submit", done), ("train cluster show", jobs.show("demo"))):
        jsonschema_rs.validate(schema_of(name), msgspec.to_builtins(value))


def test_a_template_that_is_missing_is_refused_before_anything_is_created(world: World, jobs: ClusterJobs) -> None:
    with pytest.raises(TrainRefused) as refused:
        jobs.submit(job(trainer={"resourceClaimsPerNode": CLAIMS}), plain())
    assert "one-gpu" in str(refused.value)
    assert world.cluster.items(objects.JOBS, dict[str, Any], world.namespace) == []
    assert world.cluster.items(objects.CONFIG_MAPS, dict[str, Any], world.namespace, labels=objects.JOB) == []


def test_a_template_that_is_removed_later_is_the_reason_why_its_ranks_wait(world: World, jobs: ClusterJobs) -> None:
    claimed(world, 2)
    jobs.submit(job(suspend=True, trainer={"resourceClaimsPerNode": CLAIMS}), plain())
    world.cluster.delete(kube.TEMPLATES, "one-gpu", world.namespace)
    jobs.suspend("demo", suspended=False)

    def told() -> bool:
        return all("TEMPLATE_MISSING" in [one.code for one in rank.reasons] for rank in jobs.show("demo").ranks)

    world.until(told, "each rank says what is missing")
    shown = jobs.show("demo")
    assert shown.state == "Pending"
    assert all("one-gpu" in rank.reasons[0].text and not rank.devices for rank in shown.ranks)
    # As soon as it is there again, the job goes on.
    world.template("one-gpu", exactly(device_class=DRIVER))
    world.until(lambda: all(rank.devices for rank in jobs.show("demo").ranks), "both ranks have a device")


def test_a_deadline_ends_a_job_also_without_kubeflow_trainer(world: World, jobs: ClusterJobs) -> None:
    jobs.submit(job(activeDeadlineSeconds=1), plain())
    world.until(lambda: jobs.show("demo").state == "Failed", "its deadline ends it")
    assert "deadline" in jobs.show("demo").message


def test_how_long_a_job_waits_is_refused_as_the_schedulers_to_say(world: World, jobs: ClusterJobs) -> None:
    wanted = job()
    wanted["metadata"]["annotations"] = {WAIT: "10m"}
    with pytest.raises(Unsupported) as refused:
        jobs.submit(wanted, plain())
    assert refused.value.code == "WAIT_UNSUPPORTED"
    assert world.cluster.items(objects.JOBS, dict[str, Any], world.namespace) == []


def test_a_name_that_is_taken_is_refused_and_the_other_job_stays(world: World, jobs: ClusterJobs) -> None:
    jobs.submit(job(), plain())
    with pytest.raises(DibsError):
        jobs.submit(job(), plain())
    assert len(world.cluster.items(objects.JOBS, dict[str, Any], world.namespace)) == 1


def test_what_is_removed_takes_everything_with_it(world: World, jobs: ClusterJobs) -> None:
    jobs.submit(job(), plain())
    jobs.remove("demo")

    def gone() -> bool:
        kinds = (objects.JOBS, objects.SERVICES, objects.CONFIG_MAPS)
        found = [one for kind in kinds for one in world.cluster.items(kind, dict[str, Any], world.namespace)]
        return not [one for one in found if objects.JOB in one["metadata"].get("labels", {})]

    world.until(gone, "the garbage collector has removed the rest")
    with pytest.raises(NotFound):
        jobs.show("demo")


def test_initialisers_need_jobset_and_are_refused_by_name(world: World, jobs: ClusterJobs) -> None:
    first = replicated("dataset-initializer", "dataset-initializer")
    second = {**replicated(), "dependsOn": [{"name": "dataset-initializer", "status": "Complete"}]}
    made = read_runtime(runtime(first, second, policy={"numNodes": 1}))
    with pytest.raises(TrainRefused) as refused:
        jobs.submit(job(), made)
    assert "dependsOn" in str(refused.value)
    assert "JobSet" in str(refused.value)


def test_a_trainer_that_loses_claims_is_passed_by_and_one_that_keeps_them_is_used(world: World) -> None:
    from dibs.train.facts import Facts
    from dibs.train.objects import read_job
    from dibs.train.rendering import render
    from dibs.workloads.cluster_jobs.strategies import choose

    spec = exactly(device_class=DRIVER)
    template = {"spec": {"spec": {"devices": {"requests": [spec]}}}}
    facts = Facts(templates={"one-gpu": template})
    with_claims = render(read_job(job(trainer={"resourceClaimsPerNode": CLAIMS})), plain(), facts)
    without = render(read_job(job()), plain(), facts)
    old = {one["metadata"]["name"]: one for one in CRDS} | {"jobsets.jobset.x-k8s.io": {}}
    claims = {"properties": {"trainer": {"properties": {"resourceClaimsPerNode": {"type": "array"}}}}}
    version = {"name": "v1alpha1", "schema": {"openAPIV3Schema": {"properties": {"spec": claims}}}}
    new = {**old, "trainjobs.trainer.kubeflow.org": {"spec": {"versions": [version]}}}
    assert choose(without, old).way == "trainer"
    assert choose(with_claims, old).way == "jobset"
    assert "loses claims" in choose(with_claims, old).reason
    assert choose(with_claims, new).way == "trainer"
    # Claims that an annotation names go to Kubeflow Trainer as the field that it reads.
    noted = job()
    noted["metadata"]["annotations"] = {"train.dibs/claims": "gpu=one-gpu", "train.dibs/backend": "kubernetes"}
    by_note = render(read_job(noted), plain(), facts)
    [sent] = objects.created(by_note, "trainer")
    assert sent["spec"]["trainer"]["resourceClaimsPerNode"] == CLAIMS
    assert sent["metadata"]["annotations"] == {}
    assert choose(without, new, brought=True).way == "jobset"


def test_a_compute_domain_is_made_before_the_pods_and_goes_with_the_job(world: World, jobs: ClusterJobs) -> None:
    """NVIDIA's driver is not here: its CRD is, and the pods wait for the template that it would make."""
    asking = job()
    asking["metadata"]["annotations"] = {COMPUTE_DOMAIN: "imex"}
    with pytest.raises(TrainRefused) as refused:
        jobs.submit(asking, plain())
    assert COMPUTE_DOMAIN_CRD in str(refused.value)
    group, version = compute_domain.API_VERSION.split("/")
    names = {"plural": "computedomains", "singular": "computedomain", "kind": compute_domain.KIND}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": versions}
    world.cluster.create(kube.CUSTOM_RESOURCES, {"metadata": {"name": COMPUTE_DOMAIN_CRD}, "spec": spec})
    domains = Resource(compute_domain.API_VERSION, "computedomains", compute_domain.KIND)
    try:

        def served() -> bool:
            try:
                return world.cluster.items(domains, dict[str, Any], world.namespace) == []
            except NotFound:
                return False

        world.until(served, "the kind is served")
        done = jobs.submit(asking, plain())
        assert done.created.index("ComputeDomain demo-imex") < done.created.index("Job demo-node-0")
        [domain] = world.cluster.items(domains, dict[str, Any], world.namespace)
        assert domain["spec"]["numNodes"] == 2
        world.until(lambda: any(rank.pod for rank in jobs.show("demo").ranks), "there are pods")
        pod = world.cluster.get(kube.PODS, jobs.show("demo").ranks[0].pod, dict[str, Any], world.namespace)
        assert pod["spec"]["resourceClaims"] == [{"name": "imex", "resourceClaimTemplateName": "demo-imex"}]
        jobs.remove("demo")
        world.until(lambda: not world.cluster.items(domains, dict[str, Any], world.namespace), "it has gone")
    finally:
        world.cluster.delete(kube.CUSTOM_RESOURCES, COMPUTE_DOMAIN_CRD)


def test_sd_52_a_pod_group_without_its_crd_is_refused_on_a_real_cluster(world: World, jobs: ClusterJobs) -> None:
    made = read_runtime(runtime(policy={"numNodes": 2}, podGroupPolicy={"coscheduling": {}}))
    with pytest.raises(TrainRefused) as refused:
        jobs.submit(job(), made)
    assert "podgroups.scheduling.x-k8s.io" in str(refused.value)


@pytest.fixture
def without_gangs(running: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A second control plane, on which the gates of gang scheduling are off."""
    monkeypatch.setattr(control_plane, "GATES", control_plane.GATES.replace("=true", "=false"))
    folder = tmp_path / "plane"
    folder.mkdir()
    plane = ControlPlane(running.binaries, folder)
    plane.start()
    try:
        monkeypatch.setenv("KUBECONFIG", str(folder / "admin.kubeconfig"))
        with Cluster(find_cluster()) as cluster:
            yield cluster
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_sd_54_a_gang_on_a_cluster_whose_gates_are_off_is_refused(without_gangs: Cluster) -> None:
    """The API server takes the pod and drops the field; the pod would be scheduled alone."""
    jobs = ClusterJobs(without_gangs, "default")
    gang = plain(pod={"schedulingGroup": {"podGroupName": "demo"}})
    with pytest.raises(TrainRefused) as refused:
        jobs.submit(job(), gang)
    assert "schedulingGroup" in str(refused.value)
    assert without_gangs.items(objects.JOBS, dict[str, Any], "default") == []

"""The unmodified Kubeflow SDK at a gateway that has a real cluster behind it: nodes, kubelets, simulated cards.

Without Kubeflow Trainer a job becomes Indexed Jobs; beside the released controllers, if they are built here, a TrainJob
of the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import shared as clusters
from tests.cluster import trainer
from tests.cluster.binaries import CannotBuild
from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place as Namespace
from tests.engines import python_image
from tests.kubeflow.conftest import API, CORE, Place, begin
from tests.train.jobs import patch, replicated, runtime

from dibs.home import Home
from dibs.kube import client as kube
from dibs.workloads.cluster_jobs import objects
from dibs.workloads.cluster_jobs.source import RUNTIME_RESOURCES

whole = pytest.mark.skipif(not os.environ.get("DIBS_SOAK"), reason="pods take seconds to start and to end: DIBS_SOAK=1")
Json = dict[str, Any]
Sdk = Callable[..., Any]

LIFE = """
def train(word):
    import os
    cards = sorted(one for one in os.listdir("/dev") if one.startswith("simgpu"))
    print(f"{word}: {len(cards)} cards", flush=True)

out["runtimes"] = [one.name for one in client.list_runtimes()]
trainer = CustomTrainer(
    func=train, func_args={"word": "hello"}, image=IMAGE, num_nodes=2, resources_per_node={"gpu": 2}
)
name = client.train(runtime=RUNTIME, trainer=trainer)
job = client.wait_for_job_status(name, polling_interval=1, timeout=120)
out["status"] = job.status
out["steps"] = sorted([step.name, step.status, step.device, step.device_count] for step in job.steps)
out["logs"] = [list(client.get_job_logs(name, step=step)) for step in ("node-0", "node-1")]
out["followed"] = list(client.get_job_logs(name, follow=True))
out["events"] = sorted({event.reason for event in client.get_job_events(name)})
out["listed"] = name in [one.name for one in client.list_jobs()]
out["name"] = name
client.delete_job(name)
out["gone"] = name not in [one.name for one in client.list_jobs()]
"""


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    running = clusters.nodes()
    if isinstance(running, str):
        pytest.skip(f"no Kubernetes nodes: {running}")
    running.command(f"load {python_image.archive()}")
    found = Namespace(running)
    yield found
    found.clear()


@pytest.fixture(scope="module")
def cards(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Four cards on node-a; a class stands behind the extended resource."""
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    spec = {"selectors": [selector], "extendedResourceName": "nvidia.com/gpu"}
    namespace.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": spec})
    found = NodeProcess(namespace, "node-a", tmp_path_factory.mktemp("cards")).start()
    yield
    namespace.empty()
    namespace.until(lambda: not found.records(), "all claims are given back", found.said)
    found.clear()
    namespace.cluster.delete(kube.CLASSES, NVIDIA)


@pytest.fixture(scope="module")
def cluster(namespace: Namespace, cards: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A gateway that has no other backend than the cluster; the namespace is a tenant's."""
    folder = tmp_path_factory.mktemp("kubeflow-cluster")
    home = Home(state=folder / "home", config=folder / "home" / "config").make()
    settings = (
        'backends = ["kubernetes"]\n[kubernetes]\njobs = true\nnamespace = "default"\n'
        f'kubeconfig = "{namespace.running.kubeconfig()}"\n'
    )
    for found in begin(home, folder, python_image.REFERENCE, settings):
        found.tokens[namespace.namespace] = found.gateway.make_token("flow-cora", "--tenant", namespace.namespace)
        yield found


def lived(found: Json, way: str, space: Namespace) -> None:
    assert found["status"] == "Complete"
    assert [step[:2] for step in found["steps"]] == [["node-0", "Succeeded"], ["node-1", "Succeeded"]]
    assert all(step[2:] == ["gpu", "2"] for step in found["steps"])
    assert found["logs"] == [["hello: 2 cards"], ["hello: 2 cards"]]
    assert found["followed"] == ["hello: 2 cards"]
    assert {"Scheduled", "Started"} <= set(found["events"])
    assert found["listed"]
    assert found["gone"]
    assert space.pods() == [], way


def test_a_job_lives_on_a_cluster_without_kubeflow_trainer(cluster: Place, namespace: Namespace, sdk: Sdk) -> None:
    code = f"IMAGE = {cluster.image!r}\nRUNTIME = 'plain'\n{LIFE}"
    found = sdk(code, tenant=namespace.namespace, where=cluster)
    assert {"torch-distributed", "jax-distributed", "mpi-distributed", "plain"} <= set(found["runtimes"])
    lived(found, "jobs", namespace)
    for resource in (objects.JOBS, objects.CONFIG_MAPS, objects.SERVICES):
        owned = namespace.cluster.items(resource, dict[str, Any], namespace.namespace, labels=objects.JOB)
        assert owned == []


@whole
def test_a_job_lives_on_a_cluster_with_kubeflow_trainer(
    cluster: Place, namespace: Namespace, sdk: Sdk, tmp_path: Path
) -> None:
    made = runtime(replicated(image=cluster.image), policy={"numNodes": 1})
    made["metadata"] = {"name": "of-the-cluster", "labels": {"trainer.kubeflow.org/framework": "plain"}}
    kind = RUNTIME_RESOURCES["ClusterTrainingRuntime"]
    try:
        with trainer.started(namespace.running.folder, tmp_path):
            namespace.cluster.create(kind, made)
            code = f"IMAGE = {cluster.image!r}\nRUNTIME = 'of-the-cluster'\n{LIFE}"
            found = sdk(code, tenant=namespace.namespace, where=cluster)
            assert "of-the-cluster" in found["runtimes"]
            lived(found, "trainer", namespace)
            namespace.cluster.delete(kind, "of-the-cluster")
    except CannotBuild as reason:
        pytest.skip(str(reason))


def job(name: str, **more: Any) -> Json:
    trainer_part = {"image": python_image.REFERENCE, "command": ["sleep", "600"], **more.pop("trainer", {})}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, **more.pop("metadata", {})},
        "spec": {"runtimeRef": {"name": "plain"}, "trainer": trainer_part, **more},
    }


@whole
def test_a_job_is_looked_at_suspended_resumed_and_removed(cluster: Place, namespace: Namespace) -> None:
    tenant = namespace.namespace
    path = f"{API}/namespaces/{tenant}/trainjobs"
    limits = {"limits": {"nvidia.com/gpu": 3}}
    made = cluster.ask("POST", path, job("long", trainer={"numNodes": 2, "resourcesPerNode": limits}), tenant=tenant)
    assert made.status == 201, made.data
    assert made.data["status"]["dibs"]["way"] == "jobs"
    assert cluster.ask("POST", path, job("long"), tenant=tenant).data["reason"] == "AlreadyExists"

    def status() -> Json:
        found: Json = cluster.ask("GET", f"{path}/long", tenant=tenant).data["status"]["dibs"]
        return found

    # Four cards for two ranks of three: one runs with its own, the other says why not.
    def decided() -> bool:
        ranks = status()["ranks"]
        return any(one["phase"] == "Running" and len(one.get("devices", ())) == 3 for one in ranks) and any(
            "reasons" in one for one in ranks
        )

    namespace.until(decided, "one rank runs and the other waits", lambda: str(status()))
    [waits] = [one for one in status()["ranks"] if one["phase"] == "Pending"]
    assert any(one["code"] and one["text"] for one in waits["reasons"])
    assert cluster.ask("GET", path, tenant="team-a").status == 403  # another tenant's namespace
    assert cluster.ask("GET", f"{API}/namespaces/team-a/trainjobs", tenant="team-a").data["items"] == []
    form = {"headers": {"Content-Type": "application/merge-patch+json"}}
    refused = cluster.ask("PATCH", f"{path}/long", {"spec": {"trainer": {"numNodes": 3}}}, tenant=tenant, **form)
    assert refused.status == 409
    assert "only spec.suspend" in refused.data["message"]
    done = cluster.ask("PATCH", f"{path}/long", {"spec": {"suspend": True}}, tenant=tenant, **form)
    assert done.status == 200, done.data
    namespace.until(lambda: not namespace.pods(), "its pods are gone")
    assert [one["type"] for one in cluster.ask("GET", f"{path}/long", tenant=tenant).data["status"]["conditions"]] == [
        "Suspended"
    ]
    cluster.ask("PATCH", f"{path}/long", {"spec": {"suspend": False}}, tenant=tenant, **form)
    namespace.until(lambda: any(one["phase"] == "Running" for one in status()["ranks"]), "it runs again")
    assert cluster.ask("DELETE", f"{path}/long", tenant=tenant).status == 200
    assert namespace.pods() == []  # it is answered when they are gone


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"metadata": {"annotations": {"train.dibs/wait": "10m"}}}, "a cluster's scheduler decides how long"),
        ({"runtimeRef": {"name": "absent"}}, "absent"),
        (
            {"runtimePatches": [patch({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]})]},
            "may not give this to a pod",
        ),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_have_is_refused_before_anything_is_created(
    more: Json, words: str, cluster: Place, namespace: Namespace
) -> None:
    tenant = namespace.namespace
    answer = cluster.ask("POST", f"{API}/namespaces/{tenant}/trainjobs", job("bad", **more), tenant=tenant)
    assert 400 <= answer.status < 500
    assert words in answer.data["message"], answer.data
    assert namespace.cluster.items(objects.CONFIG_MAPS, dict[str, Any], tenant, labels=objects.JOB) == []
    assert cluster.ask("GET", f"{CORE}/namespaces/{tenant}/pods", tenant=tenant).data["items"] == []

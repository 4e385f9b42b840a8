"""The `kubernetes` backend on a real control plane: what it creates, what it says while something waits, what it
refuses, and that nothing is left. There is no kubelet here: the tests say what it would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.world import DRIVER, World, device

from dibs.backends.kubernetes.backend import KubernetesBackend
from dibs.backends.port import Handle, Phase, Placement, Workload
from dibs.errors import CommandFailed, DibsError, InvalidRequest, NoMatch, NotFound
from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube import objects as core
from dibs.kube.client import Cluster
from dibs.request.parse import parse_request
from dibs.settings import ClusterSettings

CLASS = "gpu.nvidia.com"


@pytest.fixture
def backend(world: World) -> Iterator[KubernetesBackend]:
    found = KubernetesBackend("kubernetes", settings(world))
    yield found
    found.close()


def settings(world: World, **more: Any) -> ClusterSettings:
    return ClusterSettings(kubeconfig=str(world.running.kubeconfig()), namespace="default", **more)


def workload(name: str = "box", **fields: Any) -> Workload:
    resources: dict[str, Any] = {key: fields.pop(key) for key in ("gpu", "where", "claim") if key in fields}
    request = parse_request(resources) if resources else None
    return Workload(
        id=name, name=name, command=("sleep", "1000"), env={"A": "b"}, workdir="/", image="example.com/none:1",
        delegated=request, **fields,
    )  # fmt: skip


def create(backend: KubernetesBackend, name: str = "box", **fields: Any) -> Handle:
    made = workload(name, **fields)
    return backend.create(made, backend.render(made, Path("/none")), Path("/none"))


def cards(world: World, count: int = 2, **more: Any) -> None:
    """A node with devices of a driver, and nothing else."""
    world.node()
    world.device_class(CLASS, f"device.driver == '{DRIVER}'")
    world.slice([device(f"gpu-{number}", **more) for number in range(count)])


def plays_kubelet(world: World, name: str, state: dict[str, Any], **status: Any) -> None:
    """Say of a bound pod what its kubelet would."""
    phase = "Running" if "running" in state else "Failed"
    container = {"name": "main", "image": "x", "imageID": "x", "restartCount": 0, "state": state, **status}
    container["ready"] = "running" in state
    body = {"status": {"phase": phase, "containerStatuses": [container]}}
    world.cluster.patch(kube.PODS, name, body, "default", "status")


RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
KILLED = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2026-01-01T00:00:01Z"}}


def settled(world: World, backend: KubernetesBackend, handle: Handle, *words: str) -> Placement:
    """What is said of it, once it says these words."""
    found: list[Placement] = []

    def says() -> bool:
        found[:] = [backend.placement(handle)]
        return all(word in found[0].reason for word in words)

    world.until(says, f"{words} in what is said; the last was {found}")
    return found[0]


def left(world: World) -> dict[str, int]:
    return {
        one.plural: len(world.cluster.items(one, core.Pod, "default"))
        for one in (kube.PODS, kube.TEMPLATES, kube.CLAIMS)
    }


# -- its life


def test_it_is_held_by_a_gate_until_it_is_handed_over(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    handle = create(backend, gpu=2)
    pod = world.cluster.get(kube.PODS, "box", dict[str, Any], "default")
    assert pod["spec"]["schedulingGates"] == [{"name": "dibs.dev/start"}]
    assert backend.status(handle).phase is Phase.HELD
    assert backend.placement(handle).state == "pending"
    assert world.bound("box") == "fake-1"


def test_a_claim_is_followed_until_its_devices_are_known(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    handle = create(backend, gpu=2)
    backend.placement(handle)
    world.bound("box")
    assert backend.placement(handle).state == "pending"
    plays_kubelet(world, "box", RUNNING)
    world.until(lambda: backend.placement(handle).state == "bound", "it is bound")
    found = backend.placement(handle)
    assert (found.node, sorted(one.id for one in found.devices)) == (
        "fake-1", [f"{DRIVER}/fake-1/gpu-0", f"{DRIVER}/fake-1/gpu-1"],
    )  # fmt: skip
    assert {(one.model, one.memory) for one in found.devices} == {("SIM-H100", 80 << 30)}
    plays_kubelet(world, "box", KILLED)
    backend.stop(handle, 0)
    backend.delete(handle)
    world.until(lambda: set(left(world).values()) == {0}, f"nothing is left: {left(world)}")


def test_one_that_is_scheduled_at_once_asks_the_api_server_for_nothing_that_explains_waiting(
    world: World, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.backends.kubernetes.placement._PATIENT", 60.0)
    cards(world)
    made = workload(gpu=1)
    realisation = backend.render(made, Path("/none"))
    asked: list[str] = []
    read = Cluster._read

    def noted(cluster: Cluster, path: str, what: str) -> bytes:
        asked.append(what)
        return read(cluster, path, what)

    monkeypatch.setattr(Cluster, "_read", noted)
    handle = backend.create(made, realisation, Path("/none"))
    backend.placement(handle)
    settled(world, backend, handle, "bound to fake-1")
    plays_kubelet(world, "box", RUNNING)
    world.until(lambda: backend.placement(handle).state == "bound", "it is bound")
    listed = {one for one in asked if one.startswith("list ") and "pods in default" not in one}
    assert listed == {"list resourceslices"}  # of its node, for what is known of its devices


def test_what_runs_is_not_read_to_place_one_and_what_was_just_made_or_ended_is_not_read_again(
    world: World, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(world)
    asked: list[str] = []
    request = Cluster._request

    def noted(cluster: Cluster, line: Any, method: str, path: str, *rest: Any) -> Any:
        if cluster is backend.cluster():  # and not the watch
            what = path.partition("?")[0].rpartition("/")[2]
            asked.append(f"{method} {what}")
        return request(cluster, line, method, path, *rest)

    monkeypatch.setattr(Cluster, "_request", noted)
    handle = create(backend, gpu=1)
    assert backend.placement(handle).reason == "handed to the scheduler"
    assert asked == [
        "GET version", "GET nodes", "GET resourceslices", "GET deviceclasses", "GET devicetaintrules",
        "POST resourceclaimtemplates", "POST pods", "PATCH box-devices", "PATCH box",
    ]  # fmt: skip
    world.bound("box")
    plays_kubelet(world, "box", KILLED)
    asked.clear()
    backend.delete(handle)
    assert asked == ["GET box", "DELETE box", "PATCH box"]
    assert left(world)["pods"] == 0


def test_devices_of_a_plugin_are_those_that_the_kubelet_names(world: World, backend: KubernetesBackend) -> None:
    world.node(nvidia_com__gpu="2")
    handle = create(backend, gpu=2)
    (container,) = world.cluster.get(kube.PODS, "box", dict[str, Any], "default")["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    backend.placement(handle)
    world.bound("box")
    given = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": one, "health": "Healthy"} for one in "ab"]}]
    plays_kubelet(world, "box", RUNNING, allocatedResourcesStatus=given)
    world.until(lambda: backend.placement(handle).state == "bound", "it is bound")
    names = [one.id for one in backend.placement(handle).devices]
    assert names == ["fake-1/nvidia.com/gpu/a", "fake-1/nvidia.com/gpu/b"]


def test_a_device_that_the_kubelet_does_not_name_gets_no_name(world: World, backend: KubernetesBackend) -> None:
    world.node(nvidia_com__gpu="2")
    handle = create(backend, gpu=2)
    backend.placement(handle)
    world.bound("box")
    given = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "a", "health": "Healthy"}]}]
    plays_kubelet(world, "box", RUNNING, allocatedResourcesStatus=given)
    world.until(lambda: backend.placement(handle).state == "bound", "it is bound")
    found = backend.placement(handle)
    assert [one.id for one in found.devices] == ["fake-1/nvidia.com/gpu/a"]
    assert found.unreported == ("nvidia.com/gpu",)


def test_a_command_that_cannot_be_executed_is_told_as_such(world: World, backend: KubernetesBackend) -> None:
    world.node()
    handle = create(backend)
    backend.placement(handle)
    world.bound("box")
    message = 'exec: "sleep": executable file not found in $PATH'
    plays_kubelet(world, "box", {"terminated": {"exitCode": 128, "reason": "StartError", "message": message}})

    def told() -> CommandFailed | None:
        try:
            backend.placement(handle)
        except CommandFailed as failed:
            return failed
        return None

    world.until(lambda: told() is not None, "it is told")
    failed = told()
    assert failed is not None
    assert (failed.code, message in str(failed)) == ("COMMAND_NOT_FOUND", True)


def test_creating_it_again_finds_it_and_another_of_its_name_is_left_alone(
    world: World, backend: KubernetesBackend
) -> None:
    cards(world)
    first, second = create(backend, gpu=1), create(backend, gpu=1)
    assert first == second
    world.pod("taken")
    with pytest.raises(errors.Exists):
        create(backend, "taken", gpu=1)
    assert left(world)["resourceclaimtemplates"] == 1, "that of the first"
    backend.discard(Handle("kubernetes", "taken", ""))
    assert world.cluster.get(kube.PODS, "taken", core.Pod, "default").metadata.name == "taken"


def test_what_was_begun_is_discarded_by_its_name(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    create(backend, gpu=1)
    assert left(world)["resourceclaimtemplates"] == 1
    backend.discard(Handle("kubernetes", "box", ""))
    backend.discard(Handle("kubernetes", "box", ""))
    world.until(lambda: set(left(world).values()) == {0}, f"nothing is left: {left(world)}")
    with pytest.raises(NotFound):
        backend.placement(Handle("kubernetes", "box", ""))


class Killed(BaseException):
    """Stands for kill -9: nothing of ours runs after it."""


def test_the_template_is_there_before_the_pod_and_goes_with_it(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    writes: list[str] = []
    real = Cluster.create

    def create_(cluster: Cluster, resource: kube.Resource, *args: Any, **more: Any) -> Any:
        writes.append(resource.plural)
        return real(cluster, resource, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "create", create_)
        handle = create(backend, gpu=1)
    assert writes == ["resourceclaimtemplates", "pods"]
    (template,) = world.cluster.items(kube.TEMPLATES, core.Pod, "default")
    raw = world.cluster.get(kube.TEMPLATES, template.metadata.name, dict[str, Any], "default")
    assert [one["uid"] for one in raw["metadata"]["ownerReferences"]] == [handle.data["uid"]]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("again", [True, False], ids=["made again", "discarded"])
def test_killed_after_any_write_of_a_creation(
    world: World, backend: KubernetesBackend, number: int, again: bool
) -> None:
    cards(world)
    left_over = [number]

    def deadly(real: Any) -> Any:
        def write(*args: Any, **more: Any) -> Any:
            found = real(*args, **more)
            left_over[0] -= 1
            if not left_over[0]:
                raise Killed
            return found

        return write

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        for verb in ("create", "patch", "delete"):
            patch.setattr(Cluster, verb, deadly(getattr(Cluster, verb)))
        create(backend, gpu=1)
    handle = create(backend, gpu=1) if again else Handle("kubernetes", "box", "")
    if again:
        raw = world.cluster.get(kube.TEMPLATES, "box-devices", dict[str, Any], "default")
        assert [one["uid"] for one in raw["metadata"]["ownerReferences"]] == [handle.data["uid"]]
    backend.discard(handle)
    world.until(lambda: set(left(world).values()) == {0}, f"nothing is left: {left(world)}")


def test_a_template_of_an_earlier_pod_is_made_anew(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    made = workload(gpu=1)
    body = backend.render(made, Path("/none")).order["template"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "box", "uid": "00000000-0000-0000-0000-000000000000"}
    owned = {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}
    earlier = world.cluster.create(kube.TEMPLATES, owned, "default")
    handle = create(backend, gpu=1)
    raw = world.cluster.get(kube.TEMPLATES, body["metadata"]["name"], dict[str, Any], "default")
    assert raw["metadata"]["uid"] != earlier["metadata"]["uid"], "Kubernetes is about to delete that one"
    assert [one["uid"] for one in raw["metadata"]["ownerReferences"]] == [handle.data["uid"]]


def test_a_template_that_is_refused_leaves_nothing(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    made = workload(gpu=1)
    realisation = backend.render(made, Path("/none"))
    realisation.order["template"]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = -1
    with pytest.raises(errors.Rejected):
        backend.create(made, realisation, Path("/none"))
    assert set(left(world).values()) == {0}


# -- what is said while it waits


def test_the_words_of_the_scheduler_stand_beside_ours(world: World, backend: KubernetesBackend) -> None:
    world.node(nvidia_com__gpu="2")
    world.pod("other", limits={"nvidia.com/gpu": "2"})
    world.bound("other")
    handle = create(backend, gpu=1)
    found = settled(world, backend, handle, "Insufficient nvidia.com/gpu", "| dibs: ")
    assert "0/1 nodes are available: 1 Insufficient nvidia.com/gpu." in found.reason
    assert found.reason.endswith("| dibs: 1 nvidia.com/gpu wanted; the node has 2, 0 of it left")


def test_one_sentence_of_the_scheduler_has_many_reasons(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    first = create(backend, "first", gpu=2)
    backend.placement(first)
    world.bound("first")
    handle = create(backend, "second", gpu=1)
    found = settled(world, backend, handle, "cannot allocate all claims", "in use")
    assert "first" in found.reason


def test_it_goes_on_when_there_is_room_and_through_a_dead_api_server(world: World, backend: KubernetesBackend) -> None:
    world.node(nvidia_com__gpu="1")
    world.pod("other", limits={"nvidia.com/gpu": "1"})
    world.bound("other")
    handle = create(backend, gpu=1)
    settled(world, backend, handle, "Insufficient nvidia.com/gpu")
    world.running.command("stop kube-apiserver")
    with pytest.raises(DibsError) as away:
        backend.status(handle)
    assert away.value.code == "CLUSTER_UNREACHABLE"
    world.running.command("start kube-apiserver")
    world.until(lambda: _answers(world), "the API server is back")
    world.cluster.delete(kube.PODS, "other", "default", grace=0)
    assert world.bound("box") == "fake-1"
    plays_kubelet(world, "box", RUNNING)
    world.until(lambda: backend.placement(handle).state == "bound", "it is bound")


def _answers(world: World) -> bool:
    try:
        world.cluster.version()
        return bool(world.cluster.items(kube.NODES, core.Pod))
    except DibsError:
        return False


# -- what is refused before anything is created


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        ({"gpu": "B200:1"}, "CLUSTER_DEVICE_NO_MATCH", "none matches its selectors"),
        ({"gpu": 3}, "CLUSTER_DEVICE_NO_MATCH", "wants 3 devices"),
        ({"gpu": "200GB..:1"}, "CLUSTER_DEVICE_NO_MATCH", "none matches its selectors"),
    ],
    ids=["a model that is not there", "more than there are", "more memory than any has"],
)
def test_what_can_never_fit_is_refused_with_the_nearest_miss(
    world: World, backend: KubernetesBackend, request_: dict[str, Any], code: str, words: str
) -> None:
    cards(world)
    with pytest.raises(NoMatch) as refused:
        create(backend, **request_)
    assert "fake-1" in str(refused.value)
    assert set(left(world).values()) == {0}
    assert refused.value.code == code
    assert words in str(refused.value)
    typed = str(request_["gpu"])
    assert {(one.field, one.value) for one in refused.value.problems} == {("gpu", typed)}


def test_a_cluster_that_adds_nodes_is_not_judged(world: World) -> None:
    world.device_class(CLASS)
    elastic = KubernetesBackend("kubernetes", settings(world, preflight=False))
    try:
        assert create(elastic, gpu=8).sandbox_id == "box"
        elastic.discard(Handle("kubernetes", "box", ""))
    finally:
        elastic.close()


def test_a_kind_that_is_not_installed_is_said(world: World) -> None:
    for kind in ("Sandbox", "BatchSandbox"):
        found = KubernetesBackend("kubernetes", settings(world, kind=kind))
        able = found.available()
        found.close()
        assert (able.ok, able.code) == (False, "KIND_NOT_INSTALLED")
        assert "kind = Pod" in able.remedy


def test_a_base_template_is_merged_and_what_disagrees_is_refused(world: World, tmp_path: Path) -> None:
    cards(world)
    file = tmp_path / "pod.yaml"
    file.write_text(
        "metadata: {annotations: {team: red}}\n"
        "spec:\n  priority: 0\n  tolerations: [{key: gpu, operator: Exists}]\n"
        "  containers: [{name: main, resources: {limits: {cpu: 1}}}, {name: sidecar, image: example.com/none:1}]\n"
    )
    found = KubernetesBackend("kubernetes", settings(world, template=str(file)))
    try:
        create(found, gpu=1)
        pod = world.cluster.get(kube.PODS, "box", dict[str, Any], "default")
        assert [one["name"] for one in pod["spec"]["containers"]] == ["main", "sidecar"]
        assert pod["metadata"]["annotations"]["team"] == "red"
        assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]
        found.discard(Handle("kubernetes", "box", ""))
        file.write_text(
            "spec: {restartPolicy: Always, containers: [{name: main, resources: {limits: {a.com/gpu: 1}}}]}"
        )
        found.close()
        found = KubernetesBackend("kubernetes", settings(world, template=str(file)))
        with pytest.raises(InvalidRequest) as refused:
            create(found, gpu=1)
        assert [(one.code, one.value) for one in refused.value.problems] == [
            ("TEMPLATE_CONFLICT", "Never"), ("TEMPLATE_DEVICES", "1"),
        ]  # fmt: skip
        assert "Always" in str(refused.value)
    finally:
        found.close()


def test_a_namespace_that_is_terminating_is_said(world: World) -> None:
    body = {"metadata": {"name": "going", "finalizers": ["example.com/stay"]}}
    world.cluster.create(kube.NAMESPACES, body)
    world.cluster.delete(kube.NAMESPACES, "going")
    found = KubernetesBackend(
        "kubernetes", ClusterSettings(kubeconfig=str(world.running.kubeconfig()), namespace="going", preflight=False)
    )
    try:
        with pytest.raises(errors.Terminating):
            create(found)
    finally:
        found.close()
        world.cluster.patch(kube.NAMESPACES, "going", {"metadata": {"finalizers": None}})

"""The same sandbox as a Sandbox of the released agent-sandbox and as a BatchSandbox: on real nodes, and on a control
plane where the tests say what a kubelet would. That of a plain Pod is in `test_kubernetes_delivery`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import kinds
from tests.cluster.binaries import CannotBuild
from tests.cluster.images import BUSYBOX
from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place
from tests.cluster.running import RunningCluster
from tests.cluster.test_kubernetes_placement import KILLED, RUNNING, cards, create, left, plays_kubelet, settings
from tests.cluster.world import World

from dibs.backends.kubernetes.backend import KubernetesBackend
from dibs.backends.port import Exec, Exit, ExitReason, Handle, Output, Phase
from dibs.errors import NoMatch, NotFound
from dibs.home import Home
from dibs.kube import client as kube
from dibs.kube import objects as core
from dibs.kube.render import FINALIZER, GATE, RELEASED, Kind
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.settings import ClusterSettings, Settings
from dibs.workloads.reconcile import handle_of
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

OWNERS: tuple[Kind, ...] = ("Sandbox", "BatchSandbox")


@pytest.fixture(scope="module", params=OWNERS)
def on_nodes(request: pytest.FixtureRequest, nodes: RunningCluster) -> Kind:
    kind: Kind = request.param
    try:
        kinds.keep(nodes, kind)
    except CannotBuild as reason:
        pytest.skip(f"no controller of {kind}: {reason}")
    return kind


@pytest.fixture(scope="module", params=OWNERS)
def on_plane(request: pytest.FixtureRequest, running: RunningCluster, tmp_path_factory: Any) -> Iterator[Kind]:
    """Taken away again: other tests of this cluster have none of them."""
    kind: Kind = request.param
    try:
        with kinds.installed(running, kind, tmp_path_factory.mktemp("kind")):
            yield kind
    except CannotBuild as reason:
        pytest.skip(f"no controller of {kind}: {reason}")


# -- on real nodes


@pytest.fixture
def cluster(place: Place, on_nodes: Kind) -> ClusterSettings:
    return ClusterSettings(
        kubeconfig=str(place.running.kubeconfig()), namespace=place.namespace, pending=60.0, kind=on_nodes
    )


@pytest.fixture
def service(cluster: ClusterSettings, home: Home) -> Iterator[Workloads]:
    with Workloads(home, registry=Registry(home, Settings(clusters={"kubernetes": cluster}))) as found:
        yield found
        for row in found.sandboxes(all=True):
            found.remove(row.id)
        getattr(found.registry.get("kubernetes"), "close")()  # noqa: B009 - not of the port


@pytest.fixture
def driver(place: Place, tmp_path: Path) -> Iterator[NodeProcess]:
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    place.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": {"selectors": [selector]}})
    found = NodeProcess(place, "node-a", tmp_path)
    yield found
    place.empty()
    place.until(lambda: not found.records(), "all claims are given back", found.said)
    found.clear()
    place.cluster.delete(kube.CLASSES, NVIDIA)


def spec(**fields: object) -> SandboxSpec:
    return parse_spec({"backend": "kubernetes", "image": BUSYBOX, "command": ["sleep", "1000"], **fields})


def there(place: Place, kind: Kind) -> dict[str, int]:
    """How many objects of a sandbox there are."""
    found = {
        one.plural: len(place.cluster.items(one, core.Pod, place.namespace))
        for one in (kube.PODS, kube.CLAIMS, kube.TEMPLATES, kinds.SERVED[kind])
    }
    return {name: count for name, count in found.items() if count}


def rendered_pod(rendered: dict[str, Any]) -> dict[str, Any]:
    body = rendered["workload"]["spec"]
    found: dict[str, Any] = (body.get("podTemplate") or body["template"])["spec"]
    return found


@pytest.mark.parametrize("form", ["claim", "extended resource"] if os.environ.get("DIBS_SOAK") else ["claim"])
def test_a_count_is_delivered_as_every_kind_of_workload(
    on_nodes: Kind, form: str, driver: NodeProcess, place: Place, service: Workloads
) -> None:
    driver.start(*(() if form == "claim" else ("--device-plugin", "nvidia.com/gpu")))
    if form != "claim":
        place.until(lambda: _offered(place) == "4", "four cards are offered", driver.said)
    row = service.create(spec(gpu=2, cpu="500m", memory="64Mi"))
    receipt = service.receipt(row.id)
    assert (receipt.verdict, receipt.rendered["form"]) == ("delivered", form)
    assert receipt.rendered["workload"]["kind"] == on_nodes
    pod = rendered_pod(receipt.rendered)
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "500m", "memory": "64Mi", **({} if form == "claim" else {"nvidia.com/gpu": "2"})}
    assert "runtimeClassName" not in pod
    assert receipt.observed.limits == {"cpu_millis": 500, "memory_bytes": 64 << 20}
    (lease,) = service.leases()
    assert (lease.node, len(lease.devices)) == ("node-a", 2)
    names = sorted(one.id.rpartition("/")[2] for one in receipt.devices)
    seen = sorted(node.path for node in receipt.observed.nodes)
    assert len(seen) == 2
    if form == "claim":
        assert seen == [f"/dev/{name.replace('gpu-', 'simgpu')}" for name in names]
    session = service.exec(row.id, Exec(command=("sh", "-c", "ls /dev | grep -c simgpu; exit 3")))
    pieces: list[Output | Exit] = []
    while not (pieces and isinstance(pieces[-1], Exit)):
        pieces += session.receive(60)
    session.close()
    assert b"".join(one.data for one in pieces if isinstance(one, Output)) == b"2\n"
    assert isinstance(pieces[-1], Exit)
    assert pieces[-1].code == 3
    without = service.receipt(service.create(spec()).id)
    assert without.observed.nodes == ()
    for one in service.sandboxes():
        service.remove(one.id)
    place.until(lambda: not there(place, on_nodes), "nothing is left", lambda: str(there(place, on_nodes)))
    assert service.leases() == []


def test_an_ended_command_is_not_run_again(on_nodes: Kind, place: Place, service: Workloads) -> None:
    row = service.create(spec(command=["sh", "-c", "echo said; exit 7"]))
    ended = service.wait(row.id).exit
    assert ended is not None
    assert (ended.code, ended.reason) == (7, ExitReason.EXITED)
    records = service.registry.get("kubernetes").logs(handle_of(row))
    assert b"".join(one.data for one in records) == b"said\n"
    assert there(place, on_nodes)["pods"] == 1
    service.remove(row.id)
    place.until(lambda: not there(place, on_nodes), "nothing is left", lambda: str(there(place, on_nodes)))


def _offered(place: Place) -> str:
    node = place.cluster.get(kube.NODES, "node-a", core.Node)
    return node.status.allocatable.get("nvidia.com/gpu", "")


# -- what its controller does, on a control plane


@pytest.fixture
def backend(world: World, on_plane: Kind) -> Iterator[KubernetesBackend]:
    found = KubernetesBackend("kubernetes", settings(world, kind=on_plane))
    yield found
    world.cluster.delete_all(found.workloads, "default")
    found.close()


def made(world: World, backend: KubernetesBackend, handle: Handle) -> str:
    """The name of its pod, once its controller has made one."""
    world.until(lambda: backend.pod(handle) is not None, "its controller has made a pod")
    pod = backend.pod(handle)
    assert pod is not None
    return pod.metadata.name


def test_it_is_held_whichever_controller_creates_the_pod(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    assert backend.available().ok
    handle = create(backend, gpu=2)
    assert backend.status(handle).phase is Phase.HELD
    name = made(world, backend, handle)
    pod = world.cluster.get(kube.PODS, name, dict[str, Any], "default")
    assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
    assert pod["metadata"]["ownerReferences"][0]["kind"] == backend.kind
    assert backend.status(handle).phase is Phase.HELD
    assert backend.placement(handle).state == "pending"
    assert world.bound(name) == "fake-1"
    owner = world.cluster.get(backend.workloads, "box", core.Pod, "default")
    assert owner.metadata.annotations[RELEASED] == pod["metadata"]["uid"]
    assert FINALIZER in world.cluster.get(kube.PODS, name, dict[str, Any], "default")["metadata"]["finalizers"]


def test_what_was_begun_is_discarded_with_its_owner(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    handle = create(backend, gpu=1)
    made(world, backend, handle)
    backend.discard(Handle("kubernetes", "box", ""))
    backend.discard(Handle("kubernetes", "box", ""))
    world.until(lambda: set(left(world).values()) == {0}, f"nothing is left: {left(world)}")
    assert not world.cluster.items(backend.workloads, core.Pod, "default")
    with pytest.raises(NotFound):
        backend.placement(handle)


def test_creating_it_again_finds_it(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    assert create(backend, gpu=1) == create(backend, gpu=1)
    assert len(world.cluster.items(backend.workloads, core.Pod, "default")) == 1


def test_a_pod_that_is_made_again_is_never_run(world: World, backend: KubernetesBackend) -> None:
    """Its own pod is removed by force, finalizer and all: the controller makes another one, which stays held."""
    cards(world)
    handle = create(backend, gpu=1)
    name = made(world, backend, handle)
    backend.placement(handle)
    world.bound(name)
    plays_kubelet(world, name, RUNNING)
    world.until(lambda: backend.placement(handle).state == "bound", "it is bound")
    first = world.cluster.get(kube.PODS, name, core.Pod, "default").metadata.uid
    world.cluster.patch(kube.PODS, name, {"metadata": {"finalizers": None}}, "default")
    world.cluster.delete(kube.PODS, name, "default", grace=0)

    def again() -> bool:
        pods = [one for one in world.cluster.items(kube.PODS, core.Pod, "default") if one.metadata.uid != first]
        return bool(pods)

    world.until(again, "its controller has made another pod")
    found = backend.status(handle)
    assert (found.phase, found.exit and found.exit.reason) == (Phase.EXITED, ExitReason.LOST)
    assert backend.survey([handle])["box"].phase is Phase.EXITED
    with pytest.raises(NotFound):
        backend.placement(handle)
    other = world.cluster.get(kube.PODS, name, dict[str, Any], "default")
    assert other["spec"]["schedulingGates"] == [{"name": GATE}]
    backend.delete(handle)
    world.until(lambda: set(left(world).values()) == {0}, f"nothing is left: {left(world)}")


def test_stopping_ends_the_pod_and_removing_takes_the_owner(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    handle = create(backend, gpu=1)
    name = made(world, backend, handle)
    backend.placement(handle)
    world.bound(name)
    plays_kubelet(world, name, RUNNING)
    world.until(lambda: backend.status(handle).phase is Phase.RUNNING, "it runs")
    plays_kubelet(world, name, KILLED)
    backend.stop(handle, 0)
    assert backend.status(handle).phase is Phase.EXITED
    backend.delete(handle)
    world.until(lambda: set(left(world).values()) == {0}, f"nothing is left: {left(world)}")
    assert not world.cluster.items(backend.workloads, core.Pod, "default")


def test_what_can_never_fit_is_refused_before_the_owner_is_made(world: World, backend: KubernetesBackend) -> None:
    cards(world)
    with pytest.raises(NoMatch):
        create(backend, gpu="B200:1")
    assert not world.cluster.items(backend.workloads, core.Pod, "default")

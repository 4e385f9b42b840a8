"""dibs on a real cluster (`tests.cluster`) beside kubectl, in the same run.

On a control plane with 500 made-up nodes of eight cards: an explanation, against reading the slices once; what a
watched sandbox costs in memory. On two real nodes, as root: from the request to a running container, against
`kubectl apply` of the very same pod, and how often the API server is asked for one sandbox.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import command, in_turns, median, processor_time, row, shown, title
from dibs.backends.kubernetes.pods import MANAGED, SandboxPod
from dibs.backends.port import Workload
from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.kube import client as kube
from dibs.kube.client import Cluster
from dibs.kube.informer import Follower
from dibs.request.parse import parse_request
from dibs.request.spec import parse_spec
from dibs.sandbox import Sandbox
from dibs.settings import ClusterSettings, Settings
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

NODES, CARDS = 500, 8
WATCHED = (500, 5000)
EXPLAINED, CREATED = 9, 12  # rounds
CLASS = "gpu.nvidia.com"
_PATIENCE = 120.0
_WRITERS = 8

# How much memory a process needs for the pods that it follows, beyond what it needs to follow none.
_FOLLOW = """
import sys
from bench.kubernetes import follow, resident
from dibs.kube.config import find_cluster
config = find_cluster(kubeconfig=sys.argv[1])
follow(config, "bench.dibs.dev/none=none").close()
before = resident()
follower = follow(config, sys.argv[2])
print(len(follower.snapshot()), resident() - before)
follower.close()
"""


def kubernetes() -> None:
    from tests.cluster import shared

    title("kubernetes: an explanation and its memory, without nodes")
    plane = shared.cluster()
    if isinstance(plane, str):
        print(f"  no cluster: {plane}")
    else:
        with home_of(plane) as home:
            _fill(plane)
            _explain(plane, home)
            _memory(plane)
    title("kubernetes: from the request to a running container, on a real node")
    nodes = shared.nodes()
    if isinstance(nodes, str):
        print(f"  no nodes: {nodes}")
    else:
        _running(nodes)
    shared.stop_all()


@contextmanager
def home_of(running: Any, namespace: str = "default") -> Iterator[Home]:
    """A home whose only backend is the cluster."""
    with tempfile.TemporaryDirectory(prefix="dibs-bench-") as folder:
        home = Home(state=Path(folder), config=Path(folder) / "config").make()
        home.config.mkdir(exist_ok=True)
        cluster = f'[kubernetes]\nkubeconfig = "{running.kubeconfig()}"\nnamespace = "{namespace}"\n'
        (home.config / "config.toml").write_text(f'backends = ["kubernetes"]\n{cluster}')
        yield home


# -- an explanation


def _fill(running: Any) -> None:
    mine = threading.local()

    def make(number: int) -> None:
        cluster = _own(running, mine)
        name = f"gpu-node-{number:03}"
        cluster.create(kube.NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}})
        room = {"cpu": "96", "memory": "1Ti", "pods": "110"}
        ready = [{"type": "Ready", "status": "True", "reason": "Bench", "message": ""}]
        status = {"capacity": room, "allocatable": room, "conditions": ready}
        cluster.patch(kube.NODES, name, {"status": status}, part="status")
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [_card(number, index) for index in range(CARDS)]
        spec = {"driver": CLASS, "nodeName": name, "pool": pool, "devices": devices}
        cluster.create(kube.SLICES, {"metadata": {"name": f"{name}-{CLASS}"}, "spec": spec})

    _device_class(running.client())
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(make, range(NODES)))


def _own(running: Any, mine: threading.local) -> Cluster:
    """The client of this thread."""
    if not hasattr(mine, "cluster"):
        mine.cluster = running.client()
    found: Cluster = mine.cluster
    return found


def _card(node: int, index: int) -> dict[str, Any]:
    """What NVIDIA's DRA driver publishes of a card."""
    return {
        "name": f"gpu-{index}",
        "attributes": {
            "uuid": {"string": f"GPU-{node:08x}-{index:04x}-4000-8000-000000000000"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Hopper"},
            "type": {"string": "gpu"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "580.65.6"},
            "cudaDriverVersion": {"version": "13.0.0"},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index:02x}"},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
    }


def _device_class(cluster: Cluster) -> None:
    selector = {"cel": {"expression": f"device.driver == '{CLASS}'"}}
    cluster.create(kube.CLASSES, {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}})


def _explain(running: Any, home: Home) -> None:
    dibs = [
        sys.executable,
        "-m",
        "dibs",
        "explain",
        "--gpu",
        "H100:2",
        "--image",
        "x:1",
        "--workdir",
        "/",
        "--",
        "true",
    ]
    kubectl = [str(running.binaries / "kubectl"), f"--kubeconfig={running.kubeconfig()}"]
    jobs = {
        "dibs": command(dibs, env={**os.environ, "DIBS_HOME": str(home.state)}),
        "kubectl": command([*kubectl, "get", "resourceslices", "-o", "json"]),
    }
    for clock, name in ((time.perf_counter, "by the clock"), (processor_time, "processor time")):
        times = in_turns(jobs, EXPLAINED, clock=clock)
        row(
            f"dibs explain on {NODES} × {CARDS} cards, {name}", shown(median(times["dibs"])),
            f"{median(times['dibs']) / median(times['kubectl']):.2f} ×", "goal ≤ 1 ×",
        )  # fmt: skip
        row(f"  kubectl get resourceslices -o json, {name}", shown(median(times["kubectl"])))


# -- memory


def follow(config: Any, labels: str) -> Follower[SandboxPod]:
    """The watch that a gateway has."""
    found = Follower(lambda: Cluster(config), kube.PODS, SandboxPod, "default", labels, lambda pod: pod.sandbox).start()
    if not found.wait_current(_PATIENCE):
        sys.exit(f"bench: the pods cannot be followed: {found.trouble}")
    return found


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _memory(running: Any) -> None:
    with home_of(running) as home, Workloads(home) as service:
        body = _rendered(service, gpu=2)
    mine = threading.local()

    def make(number: int) -> None:
        cluster = _own(running, mine)
        text = json.dumps(body).replace("bench-name", f"bench-{number}")
        cluster.create(kube.PODS, json.loads(text), "default")

    made = 0
    for count in WATCHED:
        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(make, range(made, count)))
        made = count
        told = subprocess.run(
            [sys.executable, "-c", _FOLLOW, str(running.kubeconfig()), MANAGED],
            check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1],
        ).stdout.split()  # fmt: skip
        if int(told[0]) != count:
            sys.exit(f"bench: {told[0]} pods are followed, of {count}")
        row(f"memory per watched sandbox, of {count:,}", f"{int(told[1]) / count / 1024:.1f} KiB")


def _rendered(service: Workloads, **request: Any) -> dict[str, Any]:
    """The pod that a request becomes."""
    backend: Any = service.registry.get("kubernetes")
    workload = Workload(
        id="bench-name", name="bench-name", command=("sleep", "1000"), env={}, workdir="/", image="example.com/none:1",
        delegated=parse_request(request) if request else None,
    )  # fmt: skip
    found: dict[str, Any] = backend.render(workload, Path("/none")).order["workload"]
    return found


# -- a running container


def _running(running: Any) -> None:
    from tests.cluster.images import BUSYBOX
    from tests.cluster.node_driver import NodeProcess
    from tests.cluster.place import Place

    place = Place(running)
    _device_class(place.cluster)
    with tempfile.TemporaryDirectory() as folder, home_of(running, place.namespace) as home:
        driver = NodeProcess(place, "node-a", Path(folder))
        simulate(driver.home, parse_world("64", model="H100"))
        driver.start()
        settings = ClusterSettings(kubeconfig=str(running.kubeconfig()), namespace=place.namespace)
        registry = Registry(home, Settings(clusters={"kubernetes": settings}), long_lived=True)
        seen = Seen(running.client().config, place.namespace)
        try:
            with Workloads(home, registry=registry) as service:
                for gpu in (0, 1):
                    _beside_kubectl(running, place, service, home, seen, BUSYBOX, gpu)
        finally:
            seen.follower.close()
            place.empty()
            place.until(lambda: not driver.records(), "all claims are given back", driver.said)
            driver.clear()
            place.cluster.delete(kube.CLASSES, CLASS)
            place.clear()


class Seen:
    """When the containers of a namespace began to run, by one watch: neither side is asked."""

    def __init__(self, config: Any, namespace: str) -> None:
        self._at: dict[str, float] = {}  # by uid
        self._told_of: set[str] = set()
        self.follower: Follower[SandboxPod] = Follower(
            lambda: Cluster(config), kube.PODS, SandboxPod, namespace, "", lambda pod: pod.metadata.name
        )
        self.follower.listen(self._told)
        self.follower.start()
        if not self.follower.wait_current(_PATIENCE):
            sys.exit("bench: the pods cannot be followed")

    def _told(self, name: str) -> None:
        pod = self.follower.get(name)
        if pod is not None and pod.runs and pod.metadata.uid not in self._told_of:
            self._told_of.add(pod.metadata.uid)
            self._at[pod.metadata.uid] = time.perf_counter()

    def next(self) -> float:
        """Since when the next pod runs. Each is told once."""
        end = time.perf_counter() + _PATIENCE
        while not self._at:
            if time.perf_counter() > end:
                sys.exit("bench: no container runs")
            time.sleep(0.005)
        return self._at.popitem()[1]


class Sides:
    """The same pod, begun in three ways. Each gives the moment from which it runs, and how to end it."""

    def __init__(self, running: Any, place: Any, service: Workloads, home: Home, request: dict[str, Any]) -> None:
        self.place, self.service = place, service
        self.spec = parse_spec(request)
        self._env = {**os.environ, "DIBS_HOME": str(home.state)}
        flags = ["--gpu", str(request["gpu"])] if "gpu" in request else []
        self._dibs = [
            sys.executable, "-m", "dibs", "run", "-d", *flags, "--backend", "kubernetes", "--image", request["image"],
            "--", *request["command"],
        ]  # fmt: skip
        self._kubectl = [
            str(running.binaries / "kubectl"), f"--kubeconfig={running.kubeconfig()}", "-n", place.namespace, "apply",
            "-f", "-",
        ]  # fmt: skip
        self.objects: list[dict[str, Any]] = []

    def in_service(self) -> Callable[[], object]:
        made = self.service.create(self.spec)
        return lambda: self.service.remove(made.id, 0.0)

    def by_command(self) -> Callable[[], object]:
        done = subprocess.run(self._dibs, env=self._env, text=True, capture_output=True, check=True)
        return lambda: self.service.remove(done.stdout.split()[0], 0.0)

    def by_kubectl(self) -> Callable[[], object]:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": self.objects})
        subprocess.run(self._kubectl, input=text, text=True, capture_output=True, check=True)
        return self._delete

    def _delete(self) -> None:
        for one in self.objects:
            resource = kube.PODS if one["kind"] == "Pod" else kube.TEMPLATES
            # Not by force: what is deleted so still has its card for a while, and the next one waits for it.
            grace = 1 if resource is kube.PODS else None
            self.place.cluster.delete(resource, one["metadata"]["name"], self.place.namespace, grace=grace)
        self.place.until(lambda: not self.place.pods(), "it is gone")


def _beside_kubectl(running: Any, place: Any, service: Workloads, home: Home, seen: Seen, image: str, gpu: int) -> None:
    request = {"backend": "kubernetes", "image": image, "command": ["sleep", "1000"], **({"gpu": gpu} if gpu else {})}
    sides = Sides(running, place, service, home, request)
    with counted() as sent:
        sandbox = service.create(sides.spec)
        started = sent()
        sides.objects = _as_it_is(place, sandbox)
        looked = sent()
        service.remove(sandbox.id, 0.0)
        ended = sent() - looked
    seen.next()
    ways = {"service": sides.in_service, "command": sides.by_command, "kubectl": sides.by_kubectl}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(CREATED + 1):
        for name, begin in ways.items():
            place.until(lambda: not place.pods(), "the one before is gone")
            began = time.perf_counter()
            end = begin()
            ran = seen.next()
            end()
            if number:
                times[name].append(ran - began)
    of = f"with {gpu} card" if gpu else "without a card"
    for name, said in (("service", "dibs, a process that lives long"), ("command", "dibs run -d")):
        ratio = median(times[name]) / median(times["kubectl"])
        row(f"{said}, {of}", shown(median(times[name])), f"{ratio:.2f} ×", "goal ≤ 1.15 ×")
    row("  kubectl apply of the same pod", shown(median(times["kubectl"])))
    row(f"requests per sandbox, {of}", f"{started} + {ended}", "", "until it is delivered + for its end")


def _as_it_is(place: Any, sandbox: Sandbox) -> list[dict[str, Any]]:
    """The pod of a sandbox, and its claim's template, as anyone would write them: without what the server added."""
    pod = place.cluster.get(kube.PODS, sandbox.id, dict[str, Any], place.namespace)
    spec = {key: value for key, value in pod["spec"].items() if key not in ("nodeName", "schedulingGates")}
    found: list[dict[str, Any]] = []
    for claim in spec.get("resourceClaims", ()):
        template = claim["resourceClaimTemplateName"]
        wanted = place.cluster.get(kube.TEMPLATES, template, dict[str, Any], place.namespace)["spec"]
        claim["resourceClaimTemplateName"] = "by-kubectl"
        api = {"apiVersion": kube.TEMPLATES.api, "kind": kube.TEMPLATES.kind}
        found.append({**api, "metadata": {"name": "by-kubectl"}, "spec": wanted})
    return [*found, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "by-kubectl"}, "spec": spec}]


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """How many requests this process has sent to API servers, watches and streams included."""
    plain, streams = Cluster._request, Cluster.channels
    sent = 0

    def counting(real: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal sent
            sent += 1
            return real(*given, **more)

        return call

    Cluster._request, Cluster.channels = counting(plain), counting(streams)  # type: ignore[method-assign]
    try:
        yield lambda: sent
    finally:
        Cluster._request, Cluster.channels = plain, streams  # type: ignore[method-assign]

"""kill -9 of a gateway after each of its writes to a real cluster: its successor finishes what was accepted, once, and
nothing is left of what was being removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import kinds
from tests.cluster.binaries import CannotBuild
from tests.cluster.images import BUSYBOX
from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place
from tests.workloads.test_delegated import Hands

from dibs.home import Home
from dibs.kube import client as kube
from dibs.kube import objects as core
from dibs.kube.render import Kind
from dibs.settings import ClusterSettings, Settings
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

pytestmark = pytest.mark.stress

# Of a pod: its template, itself, its template's owner, its release; the reason of its end, its deletion, its
# finalizer, and so on until the process comes to its own end. The other kinds write more.
_FEW = (2, 6)
KILLS: tuple[tuple[Kind, int], ...] = (
    tuple((kind, number) for kind, most in (("Pod", 9), ("Sandbox", 13)) for number in range(1, most + 1))  # type: ignore[misc]
    if os.environ.get("DIBS_SOAK")
    else tuple(("Pod", number) for number in _FEW)
)

SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
from dibs.home import Home
from dibs.kube.client import Cluster
from dibs.request import parse_spec
from dibs.settings import ClusterSettings, Settings
from dibs.workloads.admission import Asking, admit_all
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads
home, kubeconfig, namespace, kind, image, last = sys.argv[1:]
left, one_at_a_time = [int(last)], threading.Lock()
def deadly(real):
    def write(*args, **kwargs):
        with one_at_a_time:
            found = real(*args, **kwargs)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return found
    return write
for verb in ("create", "patch", "delete"):
    setattr(Cluster, verb, deadly(getattr(Cluster, verb)))
settings = Settings(clusters={"kubernetes": ClusterSettings(kubeconfig=kubeconfig, namespace=namespace, kind=kind)})
place = Home(state=Path(home), config=Path(home) / "config").make()
def made():
    return Workloads(place, registry=Registry(place, settings, long_lived=True))
hands = Dispatcher(made, workers=1)
with made() as service:
    spec = parse_spec(
        {"gpu": 2, "name": "one", "backend": "kubernetes", "image": image, "command": ["sleep", "1000"], "grace": "1s"}
    )
    hands.start()
    hands.submit(admit_all([Asking(workloads=service, spec=spec)])[0])
    while service.sandbox("one").state != "running":
        assert service.sandbox("one").live, service.sandbox("one").reason
        time.sleep(0.05)
    service.remove("one")
    os._exit(7)
"""


@pytest.fixture
def driver(place: Place, tmp_path: Path) -> Iterator[NodeProcess]:
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    place.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": {"selectors": [selector]}})
    found = NodeProcess(place, "node-a", tmp_path).start()
    yield found
    place.empty()
    place.until(lambda: not found.records(), "all claims are given back", found.said)
    found.clear()
    place.cluster.delete(kube.CLASSES, NVIDIA)


def there(place: Place, kind: Kind) -> dict[str, int]:
    resources = [kube.PODS, kube.CLAIMS, kube.TEMPLATES, *([kinds.SERVED[kind]] if kind != "Pod" else [])]
    counts = {one.plural: len(place.cluster.items(one, core.Pod, place.namespace)) for one in resources}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(("kind", "number"), KILLS)
def test_a_successor_finishes_what_a_killed_gateway_had_begun(
    kind: Kind, number: int, driver: NodeProcess, place: Place, tmp_path: Path
) -> None:
    if kind != "Pod":
        try:
            kinds.keep(place.running, kind)
        except CannotBuild as reason:
            pytest.skip(f"no controller of {kind}: {reason}")
    state, kubeconfig = tmp_path / "gateway", str(place.running.kubeconfig())
    words = [sys.executable, "-c", SCRIPT, str(state), kubeconfig, place.namespace, kind, BUSYBOX, str(number)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode in (-9, 7), done.stderr
    home = Home(state=state, config=state / "config").make()
    cluster = ClusterSettings(kubeconfig=kubeconfig, namespace=place.namespace, kind=kind)
    settings = Settings(clusters={"kubernetes": cluster})
    hands = Hands(lambda: Workloads(home, registry=Registry(home, settings, long_lived=True)))
    service = hands.workloads
    try:

        def settled() -> bool:
            hands.now += 16.0
            hands.take_over()
            hands.drive()
            return all(one.state == "running" for one in service.sandboxes())

        place.until(settled, "nothing is in between", lambda: str(service.sandboxes()))
        for row in service.sandboxes():
            assert service.receipt(row.id).verdict == "delivered"
            (lease,) = service.leases()
            assert len(lease.devices) == 2
            assert len(place.pods()) == 1
        for row in service.sandboxes(all=True):
            service.remove(row.id)
        place.until(lambda: not there(place, kind), "nothing is left", lambda: str(there(place, kind)))
        assert service.leases() == []
        assert service.queue() == []
    finally:
        for backend in (service.registry.get("kubernetes"),):
            getattr(backend, "close")()  # noqa: B009 - not of the port
        service.close()

"""What is told of a sandbox that a cluster refuses, holds up or ends: quotas, webhooks, images, drivers, deadlines,
memory, evictions, nodes that are gone. Verbatim, and nothing is left."""

from __future__ import annotations

import base64
import http.server
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cluster.images import BUSYBOX
from tests.cluster.node_driver import NodeProcess
from tests.cluster.place import Place
from tests.cluster.test_kubernetes_delivery import classes as classes  # noqa: PLC0414 - a fixture
from tests.cluster.test_kubernetes_delivery import driver as driver  # noqa: PLC0414 - a fixture
from tests.cluster.test_kubernetes_delivery import service as service  # noqa: PLC0414 - a fixture
from tests.cluster.test_kubernetes_delivery import spec
from tests.cluster.test_kubernetes_placement import (
    RUNNING,
    cards,
    create,
    left,
    plays_kubelet,
    settings,
    settled,
    workload,
)
from tests.cluster.test_kubernetes_placement import backend as backend  # noqa: PLC0414 - a fixture
from tests.cluster.world import World

from dibs.backends.kubernetes.backend import KubernetesBackend
from dibs.backends.port import ExitReason, Phase
from dibs.errors import BackendUnavailable, NoMatch, QuotaExceeded, Timeout
from dibs.home import Home
from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube import objects as core
from dibs.request.spec import parse_spec
from dibs.settings import ClusterSettings, Settings
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

HOOKS = kube.Resource(
    "admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False
)


# -- refused by the cluster


def test_a_quota_is_told_in_the_words_of_the_cluster_and_nothing_is_left(
    world: World, backend: KubernetesBackend
) -> None:
    cards(world)
    world.cluster.create(kube.QUOTAS, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}, "default")
    world.until(
        lambda: world.cluster.get(kube.QUOTAS, "few", dict[str, Any], "default").get("status"), "it is in force"
    )
    with pytest.raises(QuotaExceeded) as refused:
        create(backend, gpu=1)
    assert refused.value.code == "CLUSTER_QUOTA_EXCEEDED"
    assert "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0" in str(refused.value)
    assert set(left(world).values()) == {0}


class Deny(http.server.BaseHTTPRequestHandler):
    """Denies whatever it is asked."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = {"message": "no cards on Fridays"}
        answer = {"uid": asked["request"]["uid"], "allowed": False, "status": status}
        body = json.dumps({"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def webhook(world: World, folder: Path) -> Iterator[http.server.HTTPServer]:
    """An admission webhook for pods that denies all."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = folder / "tls.crt", folder / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = http.server.HTTPServer(("127.0.0.1", 0), Deny)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook = {
        "name": "deny.example.com",
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.server_port}/",
            "caBundle": base64.b64encode(cert.read_bytes()).decode(),
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
    }
    world.cluster.create(HOOKS, {"metadata": {"name": "deny"}, "webhooks": [hook]})
    try:
        yield server
    finally:
        world.cluster.delete(HOOKS, "deny")
        server.shutdown()
        server.server_close()


def test_a_webhook_that_denies_or_is_away_is_told_with_its_words_and_nothing_is_left(
    world: World, backend: KubernetesBackend, tmp_path: Path
) -> None:
    cards(world)

    def answer(code: str) -> errors.Rejected | BackendUnavailable | None:
        try:
            backend.discard(create(backend, gpu=1))
        except (errors.Rejected, BackendUnavailable) as error:
            return error if error.code == code else None
        return None

    def told(code: str) -> str:
        found: list[Any] = []

        def there() -> bool:  # the API server learns of a webhook in its own time
            found[:] = [answer(code)]
            return found[0] is not None

        world.until(there, f"{code}; the last answer was {found}")
        return str(found[0])

    with webhook(world, tmp_path) as server:
        assert "no cards on Fridays" in told("ADMISSION_DENIED")
        assert set(left(world).values()) == {0}
        server.shutdown()
        server.server_close()
        assert "failed calling webhook" in told("CLUSTER_UNREACHABLE")
        assert set(left(world).values()) == {0}


# -- held up


def test_an_error_of_the_scheduler_is_told_as_it_says_it(world: World) -> None:
    cards(world)
    found = KubernetesBackend("kubernetes", settings(world, preflight=False))
    try:
        handle = create(found, gpu=1, where=["device.attributes['gpu.example.com'].nosuch == 'a'"])
        told = settled(world, found, handle, 'running "DynamicResources" filter plugin', "| dibs: ")
        assert "no such key: nosuch" in told.reason.partition("| dibs: ")[0]
        assert "nosuch" in told.reason.partition("| dibs: ")[2]
        found.discard(handle)
    finally:
        found.close()


def test_a_template_that_was_removed_is_told_although_the_scheduler_says_nothing(
    world: World, backend: KubernetesBackend
) -> None:
    cards(world)
    world.running.command("stop kube-controller-manager")  # or it has made the claim by then
    try:
        handle = create(backend, gpu=1)
        world.cluster.delete(kube.TEMPLATES, "box-devices", "default")
        backend.placement(handle)
    finally:
        world.running.command("start kube-controller-manager")
    told = settled(world, backend, handle, "ResourceClaimTemplate box-devices, which is not in default")
    assert told.state == "pending"


def test_a_deadline_ends_it_with_the_last_explanation_and_nothing_is_left(world: World, home: Home) -> None:
    cards(world)
    world.template("two", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}})
    world.pod("holder", template="two")
    world.bound("holder")
    asked = parse_spec({"backend": "kubernetes", "image": "example.com/none:1", "command": ["true"], "gpu": 1})
    registry = Registry(home, Settings(clusters={"kubernetes": settings(world, pending=4.0)}))
    with Workloads(home, registry=registry) as workloads:
        with pytest.raises(Timeout) as late:
            workloads.create(asked)
        assert late.value.code == "WAIT_TIMEOUT"
        assert "1 cannot allocate all claims" in str(late.value)
        assert "of pod default/holder" in str(late.value)
        assert workloads.leases() == []
        getattr(workloads.registry.get("kubernetes"), "close")()  # noqa: B009 - not of the port
    names = [one.metadata.name for one in world.cluster.items(kube.PODS, core.Pod, "default")]
    assert names == ["holder"]
    assert left(world) == {"pods": 1, "resourceclaimtemplates": 1, "resourceclaims": 1}


@pytest.mark.parametrize(
    ("image", "words", "code"),
    [
        ("localhost/nosuch:1", "ErrImageNeverPull", "WAIT_TIMEOUT"),
        ("localhost/NoSuch:1", "InvalidImageName", "PLACEMENT_REFUSED"),
    ],
    ids=["not there", "no name"],
)
def test_an_image_that_cannot_be_had_is_told_in_the_kubelets_words(
    image: str, words: str, code: str, place: Place, home: Home
) -> None:
    cluster = ClusterSettings(kubeconfig=str(place.running.kubeconfig()), namespace=place.namespace, pending=6.0)
    with Workloads(home, registry=Registry(home, Settings(clusters={"kubernetes": cluster}))) as workloads:
        with pytest.raises((Timeout, NoMatch)) as failed:
            workloads.create(spec(image=image, kubernetes={"image_pull_policy": "Never"}))
        assert (failed.value.code, words in str(failed.value)) == (code, True), failed.value
        assert workloads.leases() == []
        getattr(workloads.registry.get("kubernetes"), "close")()  # noqa: B009 - not of the port
    place.until(lambda: not place.pods(), "nothing is left")


def test_a_driver_that_is_away_is_told_while_it_waits_and_it_goes_on(
    driver: NodeProcess, place: Place, service: Workloads
) -> None:
    found: Any = service.registry.get("kubernetes")
    driver.stop()
    made = msgspec.structs.replace(workload(gpu=1), image=BUSYBOX)
    handle = found.create(made, found.render(made, Path("/none")), Path("/none"))
    told = [""]

    def says(words: str) -> bool:
        told[0] = found.placement(handle).reason
        return words in told[0]

    try:
        place.until(lambda: says("FailedPrepareDynamicResources: "), "it is told", lambda: told[0])
        assert "gpu.nvidia.com" in told[0]  # is not registered, or cannot be reached: as the kubelet finds it
        driver.start()
        place.until(lambda: found.placement(handle).state == "bound", "it runs", lambda: told[0])
    finally:
        found.discard(handle)


# -- ended


def test_a_command_that_takes_more_memory_than_it_has_is_told_as_such(place: Place, service: Workloads) -> None:
    command = ["sh", "-c", "sleep 1; exec tail /dev/zero"]
    ended = service.wait(service.create(spec(command=command, memory="32Mi")).id).exit
    assert ended is not None
    assert (ended.code, ended.reason) == (137, ExitReason.OUT_OF_MEMORY)


def test_an_eviction_is_told_in_the_words_of_the_cluster(place: Place, service: Workloads) -> None:
    row = service.create(spec(grace="1s"))
    eviction = kube.Resource("v1", f"pods/{row.id}/eviction", "Eviction")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": row.id}}
    place.cluster.create(eviction, body, place.namespace)
    ended = service.wait(row.id).exit
    assert ended is not None
    assert (ended.reason, ended.detail) == (ExitReason.LOST, "Eviction API: evicting")
    service.remove(row.id)
    place.until(lambda: not place.pods(), "nothing is left")


def test_one_whose_node_is_gone_is_lost_and_not_called_running(world: World, backend: KubernetesBackend) -> None:
    world.node()
    handle = create(backend)
    backend.placement(handle)
    world.bound("box")
    plays_kubelet(world, "box", RUNNING)
    world.until(lambda: backend.status(handle).phase is Phase.RUNNING, "it runs")
    # What the garbage collector of pods does, a minute or so after a node is gone.
    message = "PodGC: node no longer exists"
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": message}
    status = {"phase": "Failed", "conditions": [condition]}
    world.cluster.patch(kube.PODS, "box", {"status": status}, "default", "status", kind="strategic-merge")
    world.cluster.delete(kube.PODS, "box", "default", grace=0)
    found = backend.status(handle)
    assert (found.phase, found.exit and found.exit.reason) == (Phase.EXITED, ExitReason.LOST)
    assert found.exit is not None
    assert found.exit.detail == message
    backend.delete(handle)
    world.until(lambda: set(left(world).values()) == {0}, f"nothing is left: {left(world)}")

"""What the backend does with bad answers of an API server: the real one where it can be made to give them, else one in
between that replaces a few answers and forwards the rest. Nothing is lost or made twice, and what is said helps."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.test_kubernetes_placement import CLASS, cards, create, left, settings
from tests.cluster.world import World

from dibs.backends.kubernetes.backend import KubernetesBackend
from dibs.errors import BackendUnavailable, InvalidRequest, Unsupported
from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube.client import Cluster
from dibs.kube.config import find_cluster
from dibs.kube.render import KINDS
from dibs.settings import ClusterSettings

Answer = tuple[int, dict[str, str], dict[str, Any]]
CUT: Answer = (0, {}, {})  # no answer: the line is closed
Rule = Callable[[str, str], Answer | None]


class Between:
    """Forwards to the real API server. `rule` may answer in its place; `after` once the real one has done it."""

    def __init__(self, world: World, folder: Path) -> None:
        self.rule: Rule = lambda method, path: None
        self.after: Rule = lambda method, path: None
        self.asked: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path))
                answer = CUT if "watch=true" in self.path else outer.rule(self.command, self.path)
                if answer is None:
                    with world.running.client() as real:
                        form = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
                        told = real._request(real._line(), self.command, self.path, body or None, form)
                        answer = told.status, {}, json.loads(told.read())
                    answer = outer.after(self.command, self.path) or answer
                status, headers, data = answer
                if not status:
                    self.close_connection = True
                    return
                text = json.dumps(data).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _do  # noqa: N815 - http.server's names

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.kubeconfig = folder / "between.kubeconfig"
        self.kubeconfig.write_text(kubeconfig(self.url))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def kubeconfig(server: str, **user: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "between",
            "contexts": [{"name": "between", "context": {"cluster": "between", "user": "between"}}],
            "clusters": [{"name": "between", "cluster": {"server": server}}],
            "users": [{"name": "between", "user": user}],
        }
    )


@pytest.fixture
def between(world: World, tmp_path: Path) -> Iterator[Between]:
    found = Between(world, tmp_path)
    yield found
    found.close()


@contextlib.contextmanager
def backend_of(path: Path, **more: Any) -> Iterator[KubernetesBackend]:
    found = KubernetesBackend("kubernetes", ClusterSettings(kubeconfig=str(path), namespace="default", **more))
    yield found
    found.close()


def makes_a_pod(method: str, path: str) -> bool:
    return method == "POST" and "/pods?" in path


def test_a_server_that_asks_for_patience_gets_one_pod(world: World, between: Between) -> None:
    world.node()
    busy = [(429, {"Retry-After": "0"}, {"kind": "Status", "code": 429, "reason": "TooManyRequests"})] * 2
    between.rule = lambda method, path: busy.pop() if busy and makes_a_pod(method, path) else None
    with backend_of(between.kubeconfig) as backend:
        handle = create(backend)
        assert sum(makes_a_pod(*one) for one in between.asked) == 3
        assert left(world)["pods"] == 1
        backend.discard(handle)
    assert set(left(world).values()) == {0}


def test_one_that_stays_busy_is_told_as_that_and_nothing_is_left(world: World, between: Between) -> None:
    cards(world)
    busy = (429, {"Retry-After": "0"}, {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "slow"})
    between.rule = lambda method, path: busy if makes_a_pod(method, path) else None
    with backend_of(between.kubeconfig) as backend, pytest.raises(errors.Overloaded) as refused:
        create(backend, gpu=1)
    assert refused.value.retryable
    assert "try again later" in refused.value.problems[0].remedy
    assert set(left(world).values()) == {0}


@pytest.mark.parametrize("said", [CUT, (500, {}, {"kind": "Status", "code": 500}), (504, {}, {})])
def test_an_order_whose_answer_is_lost_is_neither_left_nor_repeated(
    world: World, between: Between, said: Answer
) -> None:
    cards(world)
    between.after = lambda method, path: said if makes_a_pod(method, path) else None
    with backend_of(between.kubeconfig) as backend, pytest.raises(BackendUnavailable) as refused:
        create(backend, gpu=1)
    assert refused.value.retryable
    assert sum(makes_a_pod(*one) for one in between.asked) == 1
    world.until(lambda: set(left(world).values()) == {0}, f"nothing is left: {left(world)}")


def test_without_a_watch_it_is_followed_by_asking(world: World, between: Between) -> None:
    """Every watch dies here, as it begins."""
    cards(world)
    with backend_of(between.kubeconfig) as backend:
        handle = create(backend, gpu=1)
        assert backend.placement(handle).state == "pending"
        backend.await_change(handle, 0.2)
        assert world.bound("box") == "fake-1"
        world.until(lambda: "bound to fake-1" in backend.placement(handle).reason, "it is seen to be bound")


def test_one_that_others_change_at_the_same_time_is_handed_over_all_the_same(world: World) -> None:
    cards(world)
    with backend_of(world.running.kubeconfig()) as backend:
        handle = create(backend, gpu=1)
        world.cluster.patch(kube.PODS, "box", {"metadata": {"annotations": {"example.com/a": "b"}}}, "default")
        assert backend.placement(handle).state == "pending"
        assert world.bound("box") == "fake-1"
        pod = world.cluster.get(kube.PODS, "box", dict[str, Any], "default")
        assert pod["metadata"]["annotations"]["example.com/a"] == "b"


def test_one_that_does_not_answer_is_named(world: World, between: Between) -> None:
    over = threading.Event()

    def silent(method: str, path: str) -> None:
        over.wait(30)

    between.rule = silent
    with Cluster(find_cluster(kubeconfig=str(between.kubeconfig)), timeout=0.2) as slow:
        with pytest.raises(errors.Unreachable) as refused:
            slow.items(kube.NODES, dict)
        over.set()
    assert between.url in str(refused.value)
    assert refused.value.retryable


def test_expired_credentials_are_told_as_that(world: World, tmp_path: Path) -> None:
    real = json.loads(json.dumps(_yaml(world.running.kubeconfig())))
    real["users"][0]["user"] = {"token": "expired"}
    file = tmp_path / "expired.kubeconfig"
    file.write_text(json.dumps(real))
    with backend_of(file) as backend:
        able = backend.available()
        assert (able.ok, able.code) == (False, "CLUSTER_UNAUTHORIZED")
        assert "log in again" in able.remedy
        with pytest.raises(errors.Unauthorized) as refused:
            create(backend)
        assert not refused.value.retryable


def _yaml(path: Path) -> Any:
    import yaml

    return yaml.safe_load(path.read_text())


def test_a_forbidden_verb_is_named_with_the_role_to_add(world: World) -> None:
    world.node()
    with backend_of(world.running.kubeconfig("stranger")) as backend, pytest.raises(errors.Forbidden) as refused:
        create(backend)
    assert "stranger may not create pods in namespace default" in str(refused.value)
    assert "kubectl create role dibs-create-pods --verb=create --resource=pods -n default" in str(refused.value)
    assert left(world)["pods"] == 0


def test_an_old_cluster_has_extended_resources_only_until_it_is_upgraded(world: World, between: Between) -> None:
    world.node(nvidia_com__gpu="2")
    world.device_class(CLASS)

    def old(method: str, path: str) -> Answer | None:
        if path == "/version":
            return 200, {}, {"major": "1", "minor": "33", "gitVersion": "v1.33.5"}
        if "/apis/resource.k8s.io/" in path:
            return 404, {}, {"kind": "Status", "code": 404, "reason": "NotFound"}
        return None

    between.rule = old
    with backend_of(between.kubeconfig) as backend:
        assert backend.available().ok
        with pytest.raises((Unsupported, InvalidRequest)) as refused:
            create(backend, gpu="H100:1")
        assert refused.value.code == "CLUSTER_TOO_OLD"
        handle = create(backend, gpu=1)
        pod = world.cluster.get(kube.PODS, "box", dict[str, Any], "default")
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert not any("resource.k8s.io" in path for method, path in between.asked if method == "GET")
        backend.discard(handle)
        between.rule = lambda method, path: None
        assert backend.version().has_dra


def test_a_kind_that_is_served_in_another_version_only_is_not_taken_for_it(world: World) -> None:
    kind = KINDS["BatchSandbox"][0]
    name = f"{kind.plural}.{kind.group}"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind, "listKind": f"{kind.kind}List"}
    versions = [{"name": "v9", "served": True, "storage": True, "schema": schema}]
    spec = {"group": kind.group, "scope": "Namespaced", "names": names, "versions": versions}
    world.cluster.create(kube.CUSTOM_RESOURCES, {"metadata": {"name": name}, "spec": spec})
    try:
        with contextlib.closing(KubernetesBackend("kubernetes", settings(world, kind="BatchSandbox"))) as backend:
            world.until(lambda: "only as v9" in backend.available().reason, "the version is served")
            assert backend.available().code == "KIND_NOT_INSTALLED"
            with pytest.raises(Unsupported):
                create(backend)
    finally:
        world.cluster.delete(kube.CUSTOM_RESOURCES, name)

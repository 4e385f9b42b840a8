"""One gateway for all tests of OpenSandbox's clients, with eight simulated GPUs, and a tenant's token for them.

Backends: `local` always; `docker` and `podman` where real engines can be started (see tests/engines), `kubernetes`
where a real cluster with nodes can (see tests/cluster), else skipped with the reason.

A whole life is driven by each client on each backend. `local` is gone through directly and through the server's proxy;
each engine one way round, and the other way round with DIBS_SOAK=1: how a client reaches the gateway is
no matter of where its sandboxes are made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opensandbox.config.connection_sync import ConnectionConfigSync
from tests.cluster import images as cluster_images
from tests.cluster import served as served_cluster
from tests.cluster import shared as clusters
from tests.cluster.node_driver import NodeProcess
from tests.cluster.place import Place as Namespace
from tests.engines import images
from tests.gateway import served
from tests.gateway.conftest import RunningGateway

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.kube import client as kube

PERSISTENT_VOLUMES = kube.Resource("v1", "persistentvolumes", "PersistentVolume", namespaced=False)
TENANTS = """
[tenants.team-a]
[tenants.team-b]
[tenants.small]
sandboxes = 1
gpus = 2
"""


class Place(msgspec.Struct):
    """Where a client's sandboxes are made: a gateway, one of its backends, an image there, a tenant's token."""

    gateway: RunningGateway
    backend: str
    image: str
    token: str
    other: str  # the token of another tenant
    small: str  # that of one with little

    @property
    def domain(self) -> str:
        return f"127.0.0.1:{self.gateway.port}"

    def environment(self, *, proxy: bool) -> dict[str, str]:
        """What the programs that live a whole life are told."""
        return {
            "PATH": os.environ["PATH"],
            "DIBS_TEST_DOMAIN": self.domain,
            "DIBS_TEST_KEY": self.token,
            "DIBS_TEST_IMAGE": self.image,
            "DIBS_TEST_BACKEND": self.backend,
            "DIBS_TEST_PROXY": "1" if proxy else "0",
        }

    def sync(self, *, proxy: bool = False, token: str = "") -> ConnectionConfigSync:
        return ConnectionConfigSync(
            domain=self.domain, api_key=token or self.token, use_server_proxy=proxy, disable_metrics=True,
            request_timeout=timedelta(seconds=60),
        )  # fmt: skip

    def ask(self, method: str, path: str, body: Any = None, *, token: str = "", **more: Any) -> Any:
        headers = {"OPEN-SANDBOX-API-KEY": token or self.token, **more.pop("headers", {})}
        return self.gateway.ask(method, path, body, token=None, headers=headers, **more)

    def create(self, **changes: Any) -> Any:
        body = {
            "image": {"uri": self.image},
            "entrypoint": ["tail", "-f", "/dev/null"],
            "timeout": 600,
            "resourceLimits": {},
            "extensions": {"dibs.backend": self.backend},
            **changes,
        }
        return self.ask("POST", "/v1/sandboxes", {key: value for key, value in body.items() if value is not None})

    def made(self, **changes: Any) -> str:
        answer = self.create(**changes)
        assert answer.status == 202, answer.body
        found: str = answer.data["id"]
        return found

    def remove(self, *ids: str) -> None:
        for one in ids:
            assert self.ask("DELETE", f"/v1/sandboxes/{one}").status == 204

    def held(self) -> int:
        return served.held(self.gateway.home)

    def state(self, sandbox_id: str) -> str:
        found: str = self.ask("GET", f"/v1/sandboxes/{sandbox_id}").data["status"]["state"]
        return found


def _place(home: Home, folder: Path, backend: str, image: str, settings: str) -> Iterator[Place]:
    env = {"SECRET_OF_THE_GATEWAY": "sesame", "PYTHONFAULTHANDLER": "1"}
    with served.gateway(home, folder, settings=settings + TENANTS, env=env) as gateway:
        yield Place(
            gateway=gateway,
            backend=backend,
            image=image,
            token=gateway.make_token("anna", "--tenant", "team-a"),
            other=gateway.make_token("bert", "--tenant", "team-b"),
            small=gateway.make_token("cleo", "--tenant", "small"),
        )


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("opensandbox")
    root = folder / "home"
    shared = folder / "shared"
    shared.mkdir()
    settings = f'[mounts]\nallow = ["{shared}"]\n'
    simulate(home := Home(state=root, config=root / "config").make(), parse_world("8", model="H100"))
    yield from _place(home, folder, "local", "host", settings)


def _engine_place(kind: str, folder: Path) -> Iterator[Place]:
    home, settings = served.engine(kind)
    simulate(home, parse_world("8", model="H100"))
    yield from _place(home, folder, kind, images.REFERENCE, settings)


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from _engine_place("docker", tmp_path_factory.mktemp("opensandbox-docker"))


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from _engine_place("podman", tmp_path_factory.mktemp("opensandbox-podman"))


class ClusterPlace(msgspec.Struct):
    """A namespace of a real cluster, whose node-a has eight simulated GPUs, and a gateway that serves it."""

    namespace: Namespace
    driver: NodeProcess
    gateway: Place

    @contextmanager
    def storage(self, claim: str) -> Iterator[None]:
        """A gibibyte of node-a for a claim of this name. There is no provisioner: a person makes it."""
        name = f"{self.namespace.namespace}-{claim}"
        where = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]}
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"/var/lib/dibs-volumes/{name}", "type": "DirectoryOrCreate"},
            "claimRef": {"namespace": self.namespace.namespace, "name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}},
        }
        cluster = self.namespace.cluster
        cluster.create(PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": spec})
        try:
            yield
        finally:
            cluster.delete_all(kube.VOLUME_CLAIMS, self.namespace.namespace)
            cluster.delete(PERSISTENT_VOLUMES, name)


@pytest.fixture(scope="module")
def cluster_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPlace]:
    running = clusters.nodes()
    if isinstance(running, str):
        pytest.skip(f"no Kubernetes nodes: {running}")
    folder = tmp_path_factory.mktemp("opensandbox-kubernetes")
    home = Home(state=folder / "home", config=folder / "home/config").make()
    with (
        served_cluster.namespace_with_cards(running, folder, 8) as (namespace, driver),
        contextmanager(_place)(
            home, folder, "kubernetes", cluster_images.BUSYBOX, served_cluster.settings(namespace)
        ) as place,
    ):
        yield ClusterPlace(namespace, driver, place)


@pytest.fixture
def kubernetes(cluster_place: ClusterPlace) -> Place:
    return cluster_place.gateway


# Who goes which way by default; async Python and the others go one way, sync Python the other.
_WAYS = {"docker": "direct", "podman": "server-proxy", "kubernetes": "direct"}
_OTHER = {"direct": "server-proxy", "server-proxy": "direct"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the second way on engines, and a cluster's pods, unless there is time for it."""
    if os.environ.get("DIBS_SOAK"):
        return
    left_out = [item for item in items if isinstance(item, pytest.Function) and _spared(item)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _spared(item: pytest.Function) -> bool:
    if "cluster_place" in item.fixturenames or "[kubernetes" in item.name:
        return True  # pods take seconds to start and to end: with DIBS_SOAK=1
    if not {"anywhere", "proxy"} <= set(item.fixturenames) or not hasattr(item, "callspec"):
        return False
    params = item.callspec.params
    way = _WAYS.get(str(params.get("anywhere")))
    if way is None:
        return False
    return bool(params["proxy"] != (_OTHER[way] if params.get("kind") == "sync" else way))


@pytest.fixture(params=["direct", "server-proxy"])
def proxy(request: pytest.FixtureRequest) -> bool:
    """Whether the client is told to send everything through the server."""
    return bool(request.param == "server-proxy")


@pytest.fixture
def place(local: Place) -> Iterator[Place]:
    """The place of a test. Whatever it does, nothing of it is left."""
    yield local
    clear(local)


@pytest.fixture(params=["local", "docker", "podman", "kubernetes"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[Place]:
    """As `place`, on every backend in turn."""
    found: Place = request.getfixturevalue(request.param)
    yield found
    clear(found)


def clear(place: Place) -> None:
    for token in (place.token, place.other, place.small):
        for item in place.ask("GET", "/v1/sandboxes?pageSize=200", token=token).data["items"]:
            place.ask("DELETE", f"/v1/sandboxes/{item['id']}", token=token)
    assert place.held() == 0

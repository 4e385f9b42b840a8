"""A gateway with OpenShell's service, as a process, and OpenShell's own SDK (the unmodified wheel) as its client.

Two simulated GPUs. Backends: `local` always; `docker` and `podman` where real engines can be started (see
tests/engines), else skipped with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # tests start processes while channels are open

from openshell._proto import openshell_pb2 as pb
from tests.engines import images
from tests.gateway import served
from tests.gateway.conftest import RunningGateway

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from openshell import SandboxClient

TENANTS = """
[tenants.team-a]
[tenants.team-b]
[tenants.small]
sandboxes = 1
"""


class Place(msgspec.Struct):
    """Where a client's sandboxes are made: a gateway, one of its backends, an image there, a tenant's token."""

    gateway: RunningGateway
    backend: str
    image: str
    token: str
    other: str  # the token of another tenant
    clients: list[SandboxClient] = []

    @property
    def endpoint(self) -> str:
        return (self.gateway.home.state / "openshell.address").read_text().strip().partition("://")[2]

    def client(self, token: str = "", **more: Any) -> SandboxClient:
        found = SandboxClient(self.endpoint, bearer_token=token or self.token, timeout=60, **more)
        self.clients.append(found)
        return found

    def spec(self, gpus: int | None = None, *, env: dict[str, str] | None = None, **template: Any) -> pb.SandboxSpec:
        """A request for this backend. `gpus` 0: "a GPU", without a count."""
        spec = pb.SandboxSpec(environment=env or {})
        spec.template.image = self.image
        spec.template.annotations["dibs.backend"] = self.backend
        if gpus is not None:
            spec.resource_requirements.gpu.SetInParent()
            if gpus:
                spec.resource_requirements.gpu.count = gpus
        for field, value in template.items():
            getattr(spec.template, field).update(value)
        return spec

    def held(self) -> int:
        return served.held(self.gateway.home)

    def clear(self) -> None:
        """Delete all sandboxes, and close the clients."""
        for token in (self.token, self.other):
            client = self.client(token)
            for one in client.list_all(workspace="default"):
                client.delete(one.name, workspace="default", allow_missing=True)
        while self.clients:
            self.clients.pop().close()


def begin(home: Home, folder: Path, backend: str, image: str, settings: str) -> Iterator[Place]:
    simulate(home, parse_world("2", model="H100"))
    with served.gateway(home, folder, "--openshell", "127.0.0.1:0", settings=settings + TENANTS) as gateway:
        yield Place(
            gateway=gateway,
            backend=backend,
            image=image,
            token=gateway.make_token("anna", "--tenant", "team-a"),
            other=gateway.make_token("bert", "--tenant", "team-b"),
        )


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from begin_on("local", tmp_path_factory.mktemp("openshell"))


def begin_on(kind: str, folder: Path, settings: str = "") -> Iterator[Place]:
    """A place on any backend."""
    if kind == "local":
        root = folder / "home"
        yield from begin(Home(state=root, config=root / "config").make(), folder, kind, "host", settings)
        return
    home, engine = served.engine(kind)
    yield from begin(home, folder, kind, images.REFERENCE, engine + settings)


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from begin_on("docker", tmp_path_factory.mktemp("openshell-docker"))


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from begin_on("podman", tmp_path_factory.mktemp("openshell-podman"))


@pytest.fixture
def place(local: Place) -> Iterator[Place]:
    """The place of a test. Whatever it does, nothing of it is left."""
    yield local
    local.clear()
    assert local.held() == 0


@pytest.fixture(params=["local", "docker", "podman"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[Place]:
    """As `place`, on every backend in turn."""
    found: Place = request.getfixturevalue(request.param)
    yield found
    found.clear()
    assert found.held() == 0

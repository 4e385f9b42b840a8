"""A gateway with OpenShell's service, as a process, and OpenShell's own SDK (the unmodified wheel) as its client.

Two simulated GPUs. Backends: `local` always; `docker` and `podman` where real engines can be started (see
tests/engines), else skipped with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # tests start processes while channels are open

from openshell._proto import openshell_pb2 as pb
from tests.engines import images, shared
from tests.gateway.conftest import RunningGateway, end_all

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.ledger.store import Ledger
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
        """How many leases and places in the queue there are, by the ledger itself."""
        with Ledger(self.gateway.home) as ledger:
            return len(ledger.leases()) + len(ledger.tickets())

    def clear(self) -> None:
        """Delete all sandboxes, and close the clients."""
        for token in (self.token, self.other):
            client = self.client(token)
            for one in client.list_all(workspace="default"):
                client.delete(one.name, workspace="default", allow_missing=True)
        while self.clients:
            self.clients.pop().close()


def begin(home: Home, folder: Path, backend: str, image: str, settings: str, *flags: str) -> Iterator[Place]:
    """A place, and its end: nothing is left, and nothing went wrong in the gateway."""
    simulate(home, parse_world("2", model="H100"))
    gateway = RunningGateway(home, folder, "--openshell", "127.0.0.1:0", *flags, settings=settings + TENANTS).start()
    try:
        yield Place(
            gateway=gateway,
            backend=backend,
            image=image,
            # An engine's home has had other gateways, and will have more: a name is taken once.
            token=gateway.make_token(f"anna-{uuid4().hex[:8]}", "--tenant", "team-a"),
            other=gateway.make_token(f"bert-{uuid4().hex[:8]}", "--tenant", "team-b"),
        )
    finally:
        code = gateway.stop()
        end_all(home)
    assert code == 0, gateway.log[-4000:]
    trouble = gateway.log.partition("Traceback")[2]
    assert not trouble, trouble[:8000]


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from begin_on("local", tmp_path_factory.mktemp("openshell"))


def begin_on(kind: str, folder: Path, settings: str = "") -> Iterator[Place]:
    """A place on any backend. For the tests of one file: an engine's home is that of all its tests, so no gateway may
    stay there."""
    if kind == "local":
        root = folder / "home"
        yield from begin(Home(state=root, config=root / "config").make(), folder, kind, "host", settings)
        return
    found = shared.engine(kind)
    if isinstance(found, str):
        pytest.skip(f"{kind} is not here: {found}")
    home = Home(state=found.home, config=found.home / "config").make()
    engine = f'backends = ["{kind}"]\n[{kind}]\nsocket = "{found.socket}"\n'
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

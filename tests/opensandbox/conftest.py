"""One gateway for all tests of OpenSandbox's clients, with eight simulated GPUs, and a tenant's token for them.

Backends: `local` always; `docker` and `podman` where real engines can be started (see tests/engines), else skipped with
the reason.

A whole life is driven by each client on each backend. `local` is gone through directly and through the server's proxy;
each engine one way round, and the other way round with DIBS_SOAK=1: how a client reaches the gateway is
no matter of where its sandboxes are made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opensandbox.config.connection_sync import ConnectionConfigSync
from tests.engines import images, shared
from tests.gateway.conftest import RunningGateway, end_all

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.ledger.store import Ledger

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
        """How many leases and places in the queue there are, by the ledger itself."""
        with Ledger(self.gateway.home) as ledger:
            return len(ledger.leases()) + len(ledger.tickets())

    def state(self, sandbox_id: str) -> str:
        found: str = self.ask("GET", f"/v1/sandboxes/{sandbox_id}").data["status"]["state"]
        return found


def _place(home: Home, folder: Path, backend: str, image: str, settings: str) -> Iterator[Place]:
    simulate(home, parse_world("8", model="H100"))
    gateway = RunningGateway(home, folder, settings=settings + TENANTS, env={"SECRET_OF_THE_GATEWAY": "sesame"}).start()
    try:
        yield Place(
            gateway=gateway,
            backend=backend,
            image=image,
            token=gateway.make_token("anna", "--tenant", "team-a"),
            other=gateway.make_token("bert", "--tenant", "team-b"),
            small=gateway.make_token("cleo", "--tenant", "small"),
        )
    finally:
        code = gateway.stop()
        end_all(home)
    assert code == 0, gateway.log[-4000:]
    trouble = gateway.log.partition("Traceback")[2]
    assert not trouble, trouble[:8000]


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("opensandbox")
    root = folder / "home"
    shared = folder / "shared"
    shared.mkdir()
    settings = f'[mounts]\nallow = ["{shared}"]\n'
    yield from _place(Home(state=root, config=root / "config").make(), folder, "local", "host", settings)


def _engine_place(kind: str, folder: Path) -> Iterator[Place]:
    found = shared.engine(kind)
    if isinstance(found, str):
        pytest.skip(f"{kind} is not here: {found}")
    home = Home(state=found.home, config=found.home / "config").make()
    settings = f'backends = ["{kind}"]\n[{kind}]\nsocket = "{found.socket}"\n'
    yield from _place(home, folder, kind, images.REFERENCE, settings)


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from _engine_place("docker", tmp_path_factory.mktemp("opensandbox-docker"))


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from _engine_place("podman", tmp_path_factory.mktemp("opensandbox-podman"))


# Who goes which way by default; async Python and the others go one way, sync Python the other.
_WAYS = {"docker": "direct", "podman": "server-proxy"}
_OTHER = {"direct": "server-proxy", "server-proxy": "direct"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the second way on engines, unless there is time for it."""
    if os.environ.get("DIBS_SOAK"):
        return
    left_out = [item for item in items if isinstance(item, pytest.Function) and _spared(item)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _spared(item: pytest.Function) -> bool:
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


@pytest.fixture(params=["local", "docker", "podman"])
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

"""A gateway as a process, the unmodified Kubeflow SDK and the real kubectl as its clients.

Eight simulated GPUs, two tenants. kubectl is the one of the test cluster; where that is not built, tests that need it
are skipped with the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.binaries import CannotBuild, binaries
from tests.engines import python_image, shared
from tests.gateway import served
from tests.gateway.conftest import Reply, RunningGateway

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home

API = "/kubeflow/apis/trainer.kubeflow.org/v1alpha1"
CORE = "/kubeflow/api/v1"
TENANTS = """
[tenants.team-a]
[tenants.team-b]
"""


class Place:
    """A gateway with one backend, an image with Python there, the tokens of an administrator and two tenants."""

    def __init__(self, gateway: RunningGateway, folder: Path, image: str) -> None:
        self.gateway = gateway
        self.folder = folder
        self.image = image
        self.tokens = {
            "team-a": gateway.make_token("flow-anna", "--tenant", "team-a"),
            "team-b": gateway.make_token("flow-bert", "--tenant", "team-b"),
            "": gateway.token,
        }

    def ask(self, method: str, path: str, body: Any = None, *, tenant: str = "team-a", **more: Any) -> Reply:
        return self.gateway.ask(method, path, body, token=self.tokens[tenant], **more)

    def kubeconfig(self, tenant: str = "team-a") -> Path:
        """As `dibs context export kubeflow` writes it."""
        path = self.folder / f"kubeconfig-{tenant or 'admin'}"
        token = self.folder / f"token-{tenant or 'admin'}"
        token.write_text(self.tokens[tenant])
        words = ["context", "export", "kubeflow", "--token-file", str(token), "--file", str(path)]
        subprocess.run([sys.executable, "-m", "dibs", *words], env=self.gateway.env, check=True, capture_output=True)
        return path


def begin(home: Home, folder: Path, image: str, settings: str) -> Iterator[Place]:
    """A place, and its end: nothing is left, and nothing went wrong in the gateway."""
    simulate(home, parse_world("8", model="H100"))
    with served.gateway(home, folder, settings=settings + TENANTS) as gateway:
        yield Place(gateway, folder, image)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("kubeflow")
    home = Home(state=folder / "home", config=folder / "home" / "config").make()
    settings = f'[gateway]\nloopback_open = true\n[images]\npython = "{python_image.root()}"\n'
    yield from begin(home, folder, "python", settings)


@pytest.fixture
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """For one test: the engine's home is that of all tests of the engine, so no gateway may stay there."""
    found = shared.engine("docker")
    if isinstance(found, str):
        pytest.skip(f"docker is not here: {found}")
    status, answer = found.api("POST", f"{found.prefix}/images/load", body=python_image.archive().read_bytes())
    assert status == 200, answer
    home = Home(state=found.home, config=found.home / "config").make()
    settings = f'backends = ["docker"]\n[docker]\nsocket = "{found.socket}"\n'
    yield from begin(home, tmp_path_factory.mktemp("kubeflow-docker"), python_image.REFERENCE, settings)


@pytest.fixture(params=["local", "docker"])
def anywhere(request: pytest.FixtureRequest) -> Place:
    """On every backend in turn."""
    found: Place = request.getfixturevalue("place" if request.param == "local" else request.param)
    return found


@pytest.fixture(scope="session")
def kubectl(place: Place) -> Callable[..., subprocess.CompletedProcess[str]]:
    """kubectl at the gateway, as an administrator of this host: over http it sends no token."""
    try:
        program = binaries() / "kubectl"
    except CannotBuild as reason:
        pytest.skip(f"there is no kubectl here: {reason}")
    config = place.kubeconfig("")

    def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(program), f"--kubeconfig={config}", f"--cache-dir={place.folder / 'cache'}", *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.fixture(scope="session")
def sdk(place: Place) -> Callable[..., Any]:
    """Run Python with the SDK; `client` is a TrainerClient of the tenant. What it puts into `out` comes back."""

    def run(code: str, tenant: str = "team-a", where: Place | None = None) -> Any:
        config = (where or place).kubeconfig(tenant)
        script = (where or place).folder / "sdk_script.py"
        head = "import json\nfrom kubeflow.trainer import *\nclient = TrainerClient()\nout = {}\n"
        script.write_text(f"{head}{code}\nprint('OUT', json.dumps(out))\n")
        env = {**(where or place).gateway.env, "KUBECONFIG": str(config)}
        words = [sys.executable, str(script)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(where or place).gateway.log[-3000:]}"
        return json.loads(done.stdout.rpartition("OUT ")[2])

    return run

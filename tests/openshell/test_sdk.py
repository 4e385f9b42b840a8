"""OpenShell's own SDK, unmodified, against dibs: a whole life on every backend, over every way to connect."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from tests.engines import python_image, shared
from tests.engines.running import Engine
from tests.openshell import wheels
from tests.openshell.conftest import Place

LIFE = Path(__file__).with_name("life.py")


def live(place: Place, config: Path, release: str = wheels.PINNED, *, admin: bool = False) -> list[str]:
    """The steps of a whole life that went well, by a program whose gateway is the active one of `config`."""
    python = wheels.python(release)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(config),
        "XDG_CONFIG_HOME": str(config),
        "DIBS_TEST_BACKEND": place.backend,
        "DIBS_TEST_IMAGE": with_python(place.backend) if place.backend in ("docker", "podman") else place.image,
        "DIBS_TEST_ADMIN": "yes" if admin else "no",
        "GRPC_VERBOSITY": "ERROR",
    }
    if place.backend == "local":
        env["DIBS_TEST_PATH"] = f"{python.parent}:/usr/bin:/bin"
    done = subprocess.run([python, LIFE], env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout.splitlines()


@cache
def with_python(kind: str) -> str:
    """An image in which the SDK can run functions."""
    found = shared.engine(kind)
    assert isinstance(found, Engine), found
    status, answer = found.api("POST", f"{found.prefix}/images/load", body=python_image.archive().read_bytes())
    assert status == 200, answer
    return python_image.REFERENCE


def activate(config: Path, **metadata: str) -> Path:
    """Make a gateway the active one, by the files that the SDK reads; the folder for what else it needs."""
    folder = config / "openshell" / "gateways" / "dibs"
    folder.mkdir(parents=True)
    (config / "openshell" / "active_gateway").write_text("dibs\n")
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder


def is_whole(steps: list[str], place: Place) -> None:
    assert "context manager" in steps
    assert ("the third is refused" in steps) == (place.backend != "kubernetes")
    assert ("exec_python" in steps) == (place.backend != "kubernetes")  # the image of the cluster has no Python
    assert "every public method was called" in steps


def live_with_a_token(place: Place, folder: Path) -> None:
    for release in wheels.releases():
        config = folder / release
        files = activate(config, gateway_endpoint=f"http://{place.endpoint}", auth_mode="oidc")
        (files / "oidc_token.json").write_text(json.dumps({"access_token": place.token}))
        is_whole(live(place, config, release), place)


def test_a_whole_life_with_a_token(anywhere: Place, tmp_path: Path) -> None:
    live_with_a_token(anywhere, tmp_path)


def test_health_needs_no_token_and_everything_else_does(place: Place) -> None:
    from openshell import SandboxClient

    with SandboxClient(place.endpoint) as client:
        assert client.health().version
        with pytest.raises(Exception, match="UNAUTHENTICATED") as caught:
            client.list_all(workspace="default")
    assert caught.value.error_info.reason == "TOKEN_MISSING"  # type: ignore[attr-defined]

"""The backends that the suite runs against, and in what they differ.

A difference is a named line: what the suite then does not ask of the backend, and why. Whoever adds a backend adds a
factory; whoever removes a difference runs more tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.engines import images, shared

from dibs.backends.fake import FakeBackend
from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Backend
from dibs.home import Home


class Factory(msgspec.Struct, frozen=True):
    """How to make a backend, and its differences: name → reason."""

    name: str
    make: Callable[[Path], Backend]
    differences: dict[str, str] = {}
    missing: Callable[[], str] = lambda: ""  # why it cannot be had here; starts what it needs
    fields: dict[str, Any] = {}  # what every workload there needs


def _local(folder: Path) -> Backend:
    return LocalBackend(Home(state=folder / "home", config=folder / "home" / "config").make())


def _engine(name: str, suite: str = "trixie") -> Factory:
    def missing() -> str:
        found = shared.engine(name, suite)
        return found if isinstance(found, str) else ""

    def make(folder: Path) -> Backend:
        found = shared.engine(name, suite)
        assert not isinstance(found, str)
        config = folder / "home" / "config"
        config.mkdir(parents=True)
        (config / "config.toml").write_text(f'[{name}]\nsocket = "{found.socket}"\n')
        home = Home(state=folder / "home", config=config).make()
        if name == "docker":
            from dibs.backends.engines.docker import DockerBackend

            return DockerBackend(home)
        from dibs.backends.engines.podman import PodmanBackend

        return PodmanBackend(home)

    differences = {
        "held": "an engine cannot show a container that does not run: it is looked at right after the start",
        "work": "its root is an image: the working folder is made in it, not shared with the host",
    }
    label = name if suite == "trixie" else f"{name}-{suite}"
    return Factory(label, make, differences, missing, {"image": images.REFERENCE})


FACTORIES = (
    Factory(
        "fake",
        lambda _: FakeBackend(),
        {
            "shell": "nothing really runs: only its small programs are there",
            "descriptor": "a session in memory has no descriptor to wait on",
        },
    ),
    Factory("local", _local),
    _engine("docker"),
    _engine("podman"),
)

DIFFERENCES = frozenset(("shell", "descriptor", "held", "work"))

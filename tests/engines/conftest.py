"""Tests against real engines, with simulated devices. They skip, with the reason, where there can be none."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import images, shared
from tests.engines.running import Engine

from dibs.backends.engines.backend import EngineBackend
from dibs.backends.engines.docker import DockerBackend
from dibs.backends.engines.podman import PodmanBackend
from dibs.backends.port import Exit, GrantedDevice, Handle, Realisation, Session, Workload
from dibs.devices.model import Device
from dibs.devices.simulated import off, parse_world, simulate
from dibs.home import Home

PATIENCE = 60.0
_numbers = itertools.count()


class Bench:
    """An engine, a backend on it, and everything that was made with them; nothing stays."""

    def __init__(self, engine: Engine, state: Path, tmp: Path) -> None:
        self.engine = engine
        self.tmp = tmp
        config = tmp / "config"
        config.mkdir(exist_ok=True)
        (config / "config.toml").write_text(f'[{engine.kind}]\nsocket = "{engine.socket}"\n')
        self.home = Home(state=state, config=config).make()
        self.backend = self.another()
        self.handles: list[Handle] = []
        self.sessions: list[Session] = []

    def another(self) -> EngineBackend:
        return (DockerBackend if self.engine.kind == "docker" else PodmanBackend)(self.home, str(self.engine.socket))

    def world(self, spec: str = "4", **more: Any) -> tuple[Device, ...]:
        return simulate(self.home, parse_world(spec, **more))

    def workload(self, *command: str, devices: tuple[Device, ...] = (), **fields: Any) -> Workload:
        name = f"e{os.getpid()}x{next(_numbers)}"
        granted = tuple(GrantedDevice(one.id, one.cdi, one.simulated) for one in devices if one.cdi)
        values = {"env": {"PATH": "/usr/bin:/bin"}, "workdir": "/", "image": images.REFERENCE, "network": "none"}
        return Workload(id=name, name=name, command=command, devices=granted, **{**values, **fields})

    def create(self, workload: Workload) -> tuple[Handle, Realisation]:
        folder = self.home.sandbox(workload.id)
        realisation = self.backend.render(workload, folder)
        handle = self.backend.create(workload, realisation, folder)
        self.handles.append(handle)
        return handle, realisation

    def start(self, *command: str, **fields: Any) -> Handle:
        handle, _ = self.create(self.workload(*command, **fields))
        self.backend.start(handle)
        return handle

    def said(self, *command: str, **fields: Any) -> str:
        """What a command says, to its end."""
        handle = self.start(*command, **fields)
        self.backend.wait(handle, PATIENCE)
        return b"".join(record.data for record in self.backend.logs(handle)).decode()

    def collect(self, session: Session) -> tuple[bytes, bytes, Exit]:
        self.sessions.append(session)
        out = {"stdout": b"", "stderr": b""}
        while True:
            pieces = session.receive(PATIENCE)
            assert pieces, f"nothing came for {PATIENCE} s after {out}"
            for piece in pieces:
                if isinstance(piece, Exit):
                    return out["stdout"], out["stderr"], piece
                out[piece.stream] += piece.data

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        if not self.engine.answers():
            self.engine.start()
        for handle in self.handles:
            self.backend.discard(handle)
        self.engine.remove_containers()
        off(self.home)
        self.backend.close()


def _engine(kind: str, **more: Any) -> Engine:
    found = shared.engine(kind, **more)
    if isinstance(found, str):
        pytest.skip(f"{kind} is not here: {found}")
    return found


@pytest.fixture(params=["docker", "podman"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """An engine that knows the simulated devices of the home by name."""
    engine = _engine(request.param)
    one = Bench(engine, engine.home, tmp_path)
    yield one
    one.close()
    for file in engine.etc_cdi.iterdir():
        file.unlink()


@pytest.fixture(params=["docker", "podman"])
def stranger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """An engine that does not read the home's specs."""
    one = Bench(_engine(request.param), tmp_path / "home", tmp_path)
    yield one
    one.close()


@pytest.fixture
def old_docker(tmp_path: Path) -> Iterator[Bench]:
    """A Docker with CDI switched off."""
    one = Bench(_engine("docker", cdi_on=False), tmp_path / "home", tmp_path)
    yield one
    one.close()


@pytest.fixture
def write_spec() -> Callable[..., None]:
    from dibs.cdi.cache import Cache
    from dibs.cdi.spec import Spec

    def write(folder: Path, spec: Spec) -> None:
        Cache([folder]).write_spec(spec, "test.json")

    return write

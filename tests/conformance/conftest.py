"""One suite, every backend."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.factories import DIFFERENCES, FACTORIES, Factory

from dibs.backends.port import Backend, Exec, Exit, Handle, Network, Phase, Session, Status, Workload

PATIENCE = 60.0
_numbers = itertools.count()


class Subject:
    """A backend under test, with what is needed to use it; it leaves nothing behind."""

    def __init__(self, factory: Factory, folder: Path) -> None:
        self.factory = factory
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir()
        self.backend: Backend = factory.make(folder)
        self.handles: list[Handle] = []
        self.sessions: list[Session] = []

    def needs(self, feature: str) -> None:
        """Skip, with the named reason, where the backend has not got it."""
        assert feature in DIFFERENCES, f"{feature} is no named difference"
        if feature in self.factory.differences:
            pytest.skip(f"{self.factory.name}: {self.factory.differences[feature]}")

    @property
    def alone(self) -> Network:
        """A network on which only its own servers are."""
        return "private" if "isolation" in self.factory.differences else "none"

    def workload(self, *command: str, **fields: Any) -> Workload:
        name = f"c{os.getpid()}x{next(_numbers)}"
        fields = {
            "env": {"PATH": "/usr/bin:/bin", "GREETING": "hello"},
            "workdir": str(self.work),
            **self.factory.fields,
            **fields,
        }
        return Workload(id=name, name=name, command=command, **fields)

    def create(self, *command: str, **fields: Any) -> Handle:
        workload = self.workload(*command, **fields)
        folder = self.folder / "home" / "sandboxes" / workload.id
        handle = self.backend.create(workload, self.backend.render(workload, folder), folder)
        self.handles.append(handle)
        return handle

    def seen(self, *command: str, **fields: Any) -> Handle:
        """Where it can be looked at: held before its command, or else running."""
        return self.create(*command, **fields) if self.backend.holds else self.start(*command, **fields)

    def start(self, *command: str, **fields: Any) -> Handle:
        handle = self.create(*command, **fields)
        self.backend.start(handle)
        return handle

    def ended(self, *command: str, **fields: Any) -> tuple[Handle, Status]:
        handle = self.start(*command, **fields)
        status = self.backend.wait(handle, PATIENCE)
        assert status.phase is Phase.EXITED
        return handle, status

    def say(self, handle: Handle, script: str) -> str:
        """What a shell in it says, to its end."""
        session = self.keep(self.backend.exec(handle, Exec(command=("sh", "-c", script))))
        out = b""
        while True:
            pieces = session.receive(PATIENCE)
            assert pieces, f"nothing came for {PATIENCE} s after {out!r}"
            for piece in pieces:
                if isinstance(piece, Exit):
                    return out.decode()
                out += piece.data

    def keep(self, session: Session) -> Session:
        self.sessions.append(session)
        return session

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        for handle in self.handles:
            self.backend.stop(handle, 0)
            self.backend.delete(handle)
            assert self.backend.status(handle).phase is Phase.ABSENT
        getattr(self.backend, "close", lambda: None)()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        chosen = [factory for factory in FACTORIES if factory.runs(metafunc.function.__name__)]
        metafunc.parametrize("subject", chosen, indirect=True, ids=[factory.name for factory in chosen])


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    missing = request.param.missing()
    if missing:
        pytest.skip(f"{request.param.name} is not here: {missing}")
    with tempfile.TemporaryDirectory(prefix="dibs-conformance-") as folder:
        one = Subject(request.param, Path(folder))
        capability = one.backend.available()
        if not capability.ok:
            pytest.skip(f"{one.factory.name} is not available here: {capability.reason}")
        yield one
        one.close()


@pytest.fixture
def collect() -> Callable[[Session], Any]:
    def to_the_end(session: Session) -> tuple[bytes, bytes, Exit]:
        out = {"stdout": b"", "stderr": b""}
        while True:
            pieces = session.receive(PATIENCE)
            assert pieces, f"nothing came for {PATIENCE} s after {out}"
            for piece in pieces:
                if isinstance(piece, Exit):
                    return out["stdout"], out["stderr"], piece
                out[piece.stream] += piece.data

    return to_the_end

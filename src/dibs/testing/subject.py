"""A backend under test, with what the tests of the suite need to use it. The fixture `subject` of `plugin`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs.backends.declaration import Outcome
from dibs.backends.port import Exec, Exit, Handle, Network, Phase, Session, Status, Workload
from dibs.testing.factory import DIFFERENCES, Factory

PATIENCE = 60.0
Collect = Callable[[Session], Any]  # a session to its end: stdout, stderr, exit
_numbers = itertools.count()


class Subject:
    """It leaves nothing behind."""

    def __init__(self, factory: Factory, folder: Path) -> None:
        self.factory = factory
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir()
        self.backend: Any = factory.make(folder)  # with or without the verbs of the optional protocols
        self.handles: list[Handle] = []
        self.sessions: list[Session] = []

    def needs(self, feature: str) -> None:
        """Skip, with the named reason, where the backend has not got it."""
        assert feature in DIFFERENCES, f"{feature} is no named difference"
        if feature in self.factory.differences:
            pytest.skip(f"{self.factory.name}: {self.factory.differences[feature]}")

    def delivers(self, field: str) -> None:
        """Skip where the backend declares that it refuses a field of a request."""
        cell = self.factory.declaration.column.get(field)
        if cell is None or cell.outcome is Outcome.REFUSED:
            pytest.skip(f"{self.factory.name} refuses {field}: {cell.how if cell is not None else 'not declared'}")

    def has(self, *protocols: type) -> None:
        """Skip where the backend does not have an optional protocol; that it is then refused is another test."""
        for protocol in protocols:
            if not isinstance(self.backend, protocol):
                pytest.skip(f"{self.factory.name} does not have {protocol.__name__}")

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
        handle: Handle = self.backend.create(workload, self.backend.render(workload, folder), folder)
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
        status: Status = self.backend.wait(handle, PATIENCE)
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


def to_the_end(session: Session) -> tuple[bytes, bytes, Exit]:
    out = {"stdout": b"", "stderr": b""}
    while True:
        pieces = session.receive(PATIENCE)
        assert pieces, f"nothing came for {PATIENCE} s after {out}"
        for piece in pieces:
            if isinstance(piece, Exit):
                return out["stdout"], out["stderr"], piece
            out[piece.stream] += piece.data

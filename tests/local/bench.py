"""A bench to run real sandboxes on: what a test makes is gone after it, with everything that belongs to it."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Exec, Exit, GrantedDevice, Handle, Output, Session, Status, Workload
from dibs.cdi.spec import ContainerEdits, DeviceNode
from dibs.devices.model import CdiAttachment, DeviceId
from dibs.errors import BackendUnavailable
from dibs.home import Home
from dibs.process import absent

PATIENCE = 60.0  # far longer than anything takes: only a hang gets here
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_numbers = itertools.count()


def simulated(number: int, **more: Any) -> GrantedDevice:
    """A simulated GPU: /dev/null under another name."""
    node = DeviceNode(path=f"/dev/simgpu{number}", host_path="/dev/null")
    return granted(f"sim{number}", ContainerEdits(device_nodes=(node,), **more))


def granted(name: str, edits: ContainerEdits, **more: Any) -> GrantedDevice:
    return GrantedDevice(
        DeviceId(f"sim/pool/{name}"), CdiAttachment(f"vendor.com/gpu={name}", edits, **more), simulated=True
    )


def text_until(session: Session, token: str) -> str:
    """Output until a word is in it; fails at the end of the process."""
    seen = ""
    while token not in seen:
        pieces = session.receive(PATIENCE)
        assert pieces, f"nothing came for {PATIENCE} s after {seen!r}"
        for piece in pieces:
            if isinstance(piece, Output):
                seen += piece.data.decode()
            else:
                assert token in seen, f"ended with {piece} after {seen!r}"
    return seen


def to_the_end(session: Session) -> tuple[str, str, Exit]:
    out = {"stdout": b"", "stderr": b""}
    while True:
        pieces = session.receive(PATIENCE)
        assert pieces, f"nothing came for {PATIENCE} s after {out}"
        for piece in pieces:
            if isinstance(piece, Exit):
                return out["stdout"].decode(), out["stderr"].decode(), piece
            out[piece.stream] += piece.data


PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def orphans_stay_unburied() -> Iterator[None]:
    """As on a host whose first process reaps no children (a container without an init): we take its place."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


class Bench:
    def __init__(self, folder: Path, *, long_lived: bool = False) -> None:
        self.home = Home(state=folder / "home", config=folder / "home" / "config").make()
        self.work = folder / "work"
        self.work.mkdir()
        self.backend = LocalBackend(self.home, long_lived=long_lived)
        self.handles: list[Handle] = []
        self.sessions: list[Session] = []

    def workload(self, *command: str, **fields: Any) -> Workload:
        number = f"t{os.getpid()}x{next(_numbers)}"
        fields = {"env": ENV, "workdir": str(self.work), "grace_seconds": 5.0, **fields}
        return Workload(id=number, name=number, command=command, **fields)

    def create(self, *command: str, **fields: Any) -> Handle:
        workload = self.workload(*command, **fields)
        folder = self.home.sandbox(workload.id)
        handle = self._create(workload, folder)
        self.handles.append(handle)
        return handle

    def _create(self, workload: Workload, folder: Path) -> Handle:
        """As `workloads.delivery` does: once more if the host's root has changed meanwhile, say by another test."""
        for _ in range(3):
            realisation = self.backend.render(workload, folder)
            try:
                return self.backend.create(workload, realisation, folder)
            except BackendUnavailable:
                if not self.backend.outdated(realisation):
                    raise
        return self.backend.create(workload, self.backend.render(workload, folder), folder)

    def start(self, *command: str, **fields: Any) -> Handle:
        handle = self.create(*command, **fields)
        self.backend.start(handle)
        return handle

    def run(self, *command: str, **fields: Any) -> tuple[Status, str, str]:
        handle = self.start(*command, **fields)
        status = self.backend.wait(handle, PATIENCE)
        return status, self.said(handle), self.said(handle, "stderr")

    def sh(self, script: str, **fields: Any) -> str:
        """What a script says; it must succeed."""
        status, out, err = self.run("sh", "-c", script, **fields)
        assert status.exit is not None
        assert status.exit.code == 0, (status, out, err)
        return out

    def attach(self, handle: Handle) -> Session:
        self.sessions.append(self.backend.attach(handle))
        return self.sessions[-1]

    def exec(self, handle: Handle, *command: str, **fields: Any) -> Session:
        self.sessions.append(self.backend.exec(handle, Exec(command=command, **fields)))
        return self.sessions[-1]

    def said(self, handle: Handle, stream: str = "stdout") -> str:
        return b"".join(r.data for r in self.backend.logs(handle) if r.stream == stream).decode()

    def ready(self, handle: Handle, token: str = "ready") -> None:
        """Wait until the log has a word."""
        seen = b""
        for record in self.backend.logs(handle, follow=True):
            seen += record.data
            if token.encode() in seen:
                return
        pytest.fail(f"the sandbox ended before it said {token!r}: {seen!r}")

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        for handle in self.handles:
            self.backend.stop(handle, 0)
            self.backend.delete(handle)
        for handle in self.handles:
            assert handle.keeper is not None
            assert handle.init is not None
            assert absent(handle.keeper)
            assert absent(handle.init)
            assert not any(Path(group).exists() for group in handle.data["groups"].split("\n") if group)
            assert not Path(handle.folder).exists()

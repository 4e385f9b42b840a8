"""What dibs costs beside the bare engine, in the same run: from the request to the first output, and a further command.

Real engines (`tests.engines`), simulated cards. Through dibs: the whole service in one long-lived process, with ledger,
plan, look and receipt. Bare: a tight client that sends the engine the very same container, and nothing else. The first
output goes to a pipe that both sides read, so that no engine's log is measured.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import median, row, shown, title
from dibs.backends.engines.backend import EngineBackend
from dibs.backends.engines.client import Client
from dibs.backends.port import Exec, Exit, Session
from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.request import parse_spec
from dibs.request.spec import SandboxSpec
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

CARDS = 64
ROUNDS = {1: 24, 16: 6}  # by how many at once
Job = Callable[[], tuple[float, Callable[[], object]]]
_COMMAND = ["sh", "-c", "echo up > /out/$0; exec sleep 1000"]


class Side:
    """One engine, with a service per thread on it, as a gateway has."""

    def __init__(self, engine: Any, image: str) -> None:
        self.engine = engine
        self.image = image
        self.home = Home(state=engine.home, config=engine.home / "config").make()
        self.home.config.mkdir(exist_ok=True)
        (self.home.config / "config.toml").write_text(f'[{engine.kind}]\nsocket = "{engine.socket}"\n')
        simulate(self.home, parse_world(str(CARDS), model="H100"))
        self.registry = Registry(self.home, long_lived=True)
        backend = self.registry.get(engine.kind)
        assert isinstance(backend, EngineBackend)
        self.client: Client = backend.client()
        self._mine = threading.local()
        self._numbers = itertools.count()
        self._out = engine.folder / "out"
        self._out.mkdir()
        self.body = self._learn()

    @property
    def service(self) -> Workloads:
        if not hasattr(self._mine, "service"):
            self._mine.service = Workloads(self.home, registry=self.registry)
        found: Workloads = self._mine.service
        return found

    def _learn(self) -> dict[str, Any]:
        """What dibs tells the engine, taken from the wire."""
        told: list[dict[str, Any]] = []
        real = self.client.answer

        def listening(method: str, path: str, **more: Any) -> Any:
            if path.startswith("/containers/create"):
                told.append(more["json"])
            return real(method, path, **more)

        self.client.answer = listening  # type: ignore[method-assign]
        self.through_dibs()[1]()
        del self.client.answer
        return told[0]

    # --- create → running → first output

    def through_dibs(self) -> tuple[float, Callable[[], object]]:
        """As a gateway does it. How long it took, and how to clean up afterwards."""
        pipe = self._pipe()
        spec = self._spec(pipe.name)
        began = time.perf_counter()
        made = self.service.create(spec)
        pipe.read_text()
        return time.perf_counter() - began, lambda: self.service.remove(made.id, 0.0)

    def in_the_foreground(self) -> tuple[float, Callable[[], object]]:
        """As `dibs run` does it: attached before the start, with a process that ends it when we go away."""
        pipe = self._pipe()
        spec = self._spec(pipe.name)
        began = time.perf_counter()
        made, session = self.service.launch(spec)
        pipe.read_text()
        took = time.perf_counter() - began
        session.close()
        return took, lambda: self.service.remove(made.id, 0.0)

    def _pipe(self) -> Path:
        path = self._out / str(next(self._numbers))
        os.mkfifo(path)
        return Path(path)

    def _spec(self, name: str) -> SandboxSpec:
        mapping = {"backend": self.engine.kind, "image": self.image, "gpu": 1, "grace": "0s"}
        return parse_spec({**mapping, "command": [*_COMMAND, name], "mounts": [f"{self._out}:/out:rw"]})

    def bare(self, *, attached: bool = False) -> tuple[float, Callable[[], object]]:
        docker = self.engine.kind == "docker"
        pipe = self._pipe()
        name = f"bare-{pipe.name}"
        body = {**self.body, "Cmd" if docker else "command": [*_COMMAND, pipe.name]}
        began = time.perf_counter()
        self.client.call(
            "POST", "/containers/create" + (f"?name={name}" if docker else ""),
            json=body if docker else {**body, "name": name},
        )  # fmt: skip
        line = self.client.hijack(f"/containers/{name}/attach?stream=1&stdout=1&stderr=1") if attached else None
        self.client.call("POST", f"/containers/{name}/start")
        pipe.read_text()
        took = time.perf_counter() - began
        if line is not None:
            line.close()
        return took, lambda: self.client.call("DELETE", f"/containers/{name}?force=true&v=true&timeout=0")

    # --- a further command

    def exec_through_dibs(self, sandbox: str) -> tuple[float, Callable[[], object]]:
        began = time.perf_counter()
        session = self.service.exec(sandbox, Exec(command=("echo", "up")))
        _last(session)
        return time.perf_counter() - began, session.close

    def bare_exec(self, sandbox: str) -> tuple[float, Callable[[], object]]:
        began = time.perf_counter()
        body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Cmd": ["echo", "up"]}
        made = self.client.call("POST", f"/containers/dibs-{sandbox}/exec", json=body)
        with self.client.hijack(f"/exec/{made['Id']}/start", json={"Detach": False, "Tty": False}) as sock:
            while sock.recv(4096):
                pass
        assert self.client.call("GET", f"/exec/{made['Id']}/json")["ExitCode"] == 0
        return time.perf_counter() - began, lambda: None


def _last(session: Session) -> None:
    while not any(isinstance(piece, Exit) for piece in session.receive(60)):
        pass


def _compare(what: str, jobs: dict[str, tuple[Job, str]], at_once: int) -> None:
    """Name → job and goal; the first is what the others are compared with."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with ThreadPoolExecutor(at_once) as pool:
        for number in range(ROUNDS[at_once] + 1):
            for name, (job, _) in jobs.items():
                found = list(pool.map(lambda _, job=job: job(), range(at_once)))
                list(pool.map(lambda one: one[1](), found))  # only now, or the last ones would pay for it
                if number:
                    times[name] += [took for took, _ in found]
    base = median(times[next(iter(jobs))])
    for name, (_, goal) in jobs.items():
        took = median(times[name])
        row(f"{what}, {at_once} at once: {name}", shown(took), f"{took / base:.2f}×", goal)


def engines() -> None:
    from tests.engines import shared

    title("containers: dibs against the bare API of the engine")
    for kind in ("docker", "podman"):
        engine = shared.engine(kind)
        if isinstance(engine, str):
            print(f"  {kind}: not measured: {engine}")
            continue
        try:
            side = Side(engine, "localhost/dibs-test:1")
            lasting = side.service.create(
                parse_spec({"backend": kind, "image": side.image, "command": ["sleep", "10000"], "grace": "0s"})
            )
            for at_once in (1, 16):
                first: dict[str, tuple[Job, str]] = {
                    "bare": (side.bare, ""),
                    "dibs": (side.through_dibs, "goal ≤ 1.15×"),
                }
                _compare(f"{kind}: first output", first, at_once)
                attached: dict[str, tuple[Job, str]] = {
                    "bare": (partial(side.bare, attached=True), ""),
                    "dibs": (side.in_the_foreground, ""),
                }
                _compare(f"{kind}: first output, attached", attached, at_once)
                further: dict[str, tuple[Job, str]] = {
                    "bare": (partial(side.bare_exec, lasting.id), ""),
                    "dibs": (partial(side.exec_through_dibs, lasting.id), "goal ≤ 1.3×"),
                }
                _compare(f"{kind}: exec", further, at_once)
        finally:
            shared.stop_all()

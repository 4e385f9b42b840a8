"""A running gateway for tests: the real server, as a process, on a free port and a unix socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.workloads.service import Workloads

PATIENCE = 120.0  # seconds; only what hangs takes so long, however busy the machine


class Reply(msgspec.Struct):
    """An answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float = PATIENCE) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class RunningGateway:
    """`dibs serve` as a process. `url`, `socket`, `home`, `token` (an administrator's)."""

    def __init__(self, home: Home, folder: Path, *flags: str, settings: str = "", env: dict[str, str] | None = None):
        self.home = home
        self.folder = folder
        self.socket = folder / "gw.sock"
        self.log_path = folder / "gateway.log"
        self.flags = flags
        self.env = {**os.environ, "DIBS_HOME": str(home.state), **(env or {})}
        self.url = ""
        self.port = 0
        if settings:
            home.config.mkdir(parents=True, exist_ok=True)
            (home.config / "config.toml").write_text(settings)

    def start(self, port: int = 0) -> RunningGateway:
        words = [sys.executable, "-W", "error::ResourceWarning", "-m", "dibs", "serve", "--log-format", "json"]
        words += ["--listen", f"127.0.0.1:{port}", "--socket", str(self.socket), *self.flags]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=log, env=self.env, cwd=self.folder, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "listening on" not in line:
            self.process.wait(10)
            self.process.stdout.close()
            raise AssertionError(f"the gateway did not start: {line!r}\n{self.log}")
        self.url = next(word.rstrip(",") for word in line.split() if word.startswith("http://"))
        self.port = int(self.url.rpartition(":")[2])
        self.hint = self.process.stdout.readline().strip()
        return self

    @property
    def token(self) -> str:
        return (self.home.state / "gateway.token").read_text().strip()

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self, number: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        """Ask it to stop; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the gateway does not stop\n{self.log[-4000:]}") from None
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "",
        headers: dict[str, str] | None = None,
        unix: bool = False,
        timeout: float = PATIENCE,
    ) -> Reply:
        """One request. `token` "": the administrator's; None: none. A body that is not bytes is sent as JSON."""
        connection = (
            UnixConnection(str(self.socket), timeout) if unix else HTTPConnection("127.0.0.1", self.port, timeout)
        )
        sent = dict(headers or {})
        if token is not None and not unix:
            sent["Authorization"] = f"Bearer {token or self.token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def until(self, question: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Ask until the answer is true; it is returned."""
        end = time.monotonic() + seconds
        while not (answer := question()):
            if time.monotonic() > end:
                raise AssertionError(f"it did not come true\n{self.log[-4000:]}")
            time.sleep(0.02)
        return answer

    def sandbox(self, reference: str, *states: str) -> Any:
        """A sandbox, as soon as it is in one of the states."""

        def look() -> Any:
            data = self.ask("GET", f"/api/v1/sandboxes/{reference}").data
            return data if not states or data["state"] in states else None

        return self.until(look)

    def make_token(self, name: str, *flags: str) -> str:
        words = [sys.executable, "-m", "dibs", "token", "create", name, *flags]
        done = subprocess.run(words, capture_output=True, text=True, env=self.env, check=True)
        return done.stdout.strip()


def end_all(home: Home) -> None:
    """End every sandbox of a home, and see that nothing is held."""
    with Workloads(home) as service:
        for row in service.sandboxes():
            service.remove(row.id, 0.0)
        assert service.leases() == []
        assert service.queue() == []


@pytest.fixture
def start_gateway(eight_gpus: Home, tmp_path: Path) -> Iterator[Callable[..., RunningGateway]]:
    """Start gateways, as many as a test wants, on one home with eight simulated GPUs."""
    running: list[RunningGateway] = []

    def start(*flags: str, settings: str = "", env: dict[str, str] | None = None) -> RunningGateway:
        folder = tmp_path / f"gateway-{len(running)}"
        folder.mkdir()
        gateway = RunningGateway(eight_gpus, folder, *flags, settings=settings, env=env)
        running.append(gateway)
        return gateway.start()

    yield start
    for gateway in running:
        if gateway.process.poll() is None:
            assert gateway.stop() == 0, gateway.log[-4000:]
        assert not gateway.socket.exists()
        assert "Traceback" not in gateway.log, gateway.log[-4000:]
    end_all(eight_gpus)


@pytest.fixture
def gateway(start_gateway: Callable[..., RunningGateway]) -> RunningGateway:
    """One running gateway."""
    return start_gateway()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """One running gateway for a whole module, on a home of its own with eight simulated GPUs."""
    root = tmp_path_factory.mktemp("served")
    home = Home(state=root / "home", config=root / "home" / "config").make()
    simulate(home, parse_world("8", model="H100"))
    gateway = RunningGateway(home, root).start()
    try:
        yield gateway
    finally:
        code = gateway.stop()
        end_all(home)
    assert code == 0, gateway.log[-4000:]
    assert "Traceback" not in gateway.log, gateway.log[-4000:]

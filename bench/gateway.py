"""The gateway under clients: how long what takes, against a bare health check and a bare nsenter of the same run.

`dibs serve` and its clients are processes of their own. Everything is measured with no sandbox, with 50 and with 200
living ones, because what grows with their number is what hurts later.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.measure import shown, title
from dibs.backends.port import Exec, Exit, Handle
from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.ledger.store import new_id
from dibs.process import myself
from dibs.receipt import Facts, Receipt
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Parts, Sandbox, SandboxId, SandboxState
from dibs.workloads.reconcile import handle_of
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

LEVELS = (0, 50, 200)
CLIENTS = 50
BODY = {
    "image": {"uri": "host"},
    "entrypoint": ["tail", "-f", "/dev/null"],
    "timeout": 3600,
    "resourceLimits": {"gpu": "1"},
}


class Bench:
    """A running gateway and a process with its clients."""

    def __init__(self, home: Home, gateway: subprocess.Popen[str], clients: subprocess.Popen[str]) -> None:
        self.home = home
        self.gateway = gateway
        self._clients = clients

    def ask(self, job: str, **how: Any) -> Any:
        assert self._clients.stdin is not None
        assert self._clients.stdout is not None
        self._clients.stdin.write(json.dumps({"job": job, **how}) + "\n")
        self._clients.stdin.flush()
        line = self._clients.stdout.readline()
        if not line:
            sys.exit("bench: the clients have ended")
        return json.loads(line)


@contextlib.contextmanager
def running(gpus: int, *flags: str, clients: str = "bench.gateway_client") -> Iterator[Bench]:
    """A gateway with these further flags, and clients: a module that takes jobs."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(state=Path(folder), config=Path(folder) / "config").make()
        simulate(home, parse_world(str(gpus), model="H100"))
        env = {**os.environ, "DIBS_HOME": folder}
        words = [sys.executable, "-m", "dibs", "serve", "--listen", "127.0.0.1:0", "--log-format", "json", *flags]
        with open(Path(folder) / "log", "w") as log:
            gateway = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
        assert gateway.stdout is not None
        port = int(
            next(word for word in gateway.stdout.readline().split() if word.startswith("http")).rpartition(":")[2]
        )
        child = subprocess.Popen(
            [sys.executable, "-m", clients], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        token = (home.state / "gateway.token").read_text().strip()
        first = {"port": port, "token": token}
        shell = home.state / "openshell.address"
        if shell.exists():
            first["openshell"] = shell.read_text().strip().partition("://")[2]
        child.stdin.write(json.dumps(first) + "\n")
        try:
            yield Bench(home, gateway, child)
        finally:
            child.communicate()
            gateway.terminate()
            gateway.wait()
            gateway.stdout.close()
            with Workloads(home) as service:
                for sandbox in service.sandboxes():
                    service.remove(sandbox.id, 0.0)


def part(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def line(name: str, values: Sequence[float], against: Sequence[float] | None = None, goal: str = "") -> None:
    """Median, 99th of a hundred, and both against something else of this run."""
    ratio = ""
    if against:
        ratio = f"{part(values, 0.5) / part(against, 0.5):.2f}× / {part(values, 0.99) / part(against, 0.99):.2f}×"
    print(f"  {name:<46} {shown(part(values, 0.5)):>10} {shown(part(values, 0.99)):>10}  {ratio:>16}  {goal}".rstrip())


def gateway() -> None:
    title("the gateway, by number of living sandboxes: p50, p99, and both against the line named")
    with running(512) as bench:
        alive: list[str] = []
        for level in LEVELS:
            alive += bench.ask(
                "many", path="/v1/sandboxes", clients=10, each=(level - len(alive)) // 10, body=BODY, expect=202
            )["ids"]
            bench.ask("ready", ids=alive)
            print(f"\n  with {level} sandboxes")
            _answers(bench)
            _life(bench)
            if alive:
                _inside(bench, alive[0])
        bench.ask("remove", ids=alive)
        _thousand(bench)


def _answers(bench: Bench) -> None:
    health = bench.ask("many", path="/health", clients=CLIENTS, each=40)["seconds"]
    posts = bench.ask("many", path="/v1/sandboxes", clients=CLIENTS, each=4, body=BODY, expect=202)
    line(f"GET /health, {CLIENTS} clients", health)
    line(f"POST /v1/sandboxes, {CLIENTS} clients", posts["seconds"], health, "against /health, goal p99 ≤ 5×")
    bench.ask("ready", ids=posts["ids"])
    bench.ask("remove", ids=posts["ids"])
    explained = bench.ask("many", path="/api/v1/explain", clients=8, each=25, body={"gpu": "2"})
    line("POST /api/v1/explain, 8 clients", explained["seconds"])
    print(f"  {'':<46} {len(explained['seconds']) / explained['took']:>8.0f}/s")
    line("GET /v1/sandboxes, one page of 20", bench.ask("many", path="/v1/sandboxes", clients=1, each=50)["seconds"])


def _life(bench: Bench) -> None:
    times = bench.ask("life", rounds=15, body=BODY)
    for name, words in (("accepted", "accepted"), ("ready", "… and ready"), ("output", "… and its first output")):
        line(f"a sandbox: {words}", times[name])
    line("its deletion", times["deleted"])


def _inside(bench: Bench, name: str) -> None:
    with Workloads(bench.home, registry=Registry(bench.home, long_lived=True)) as service:
        init = handle_of(service.sandbox(name)).init
        assert init is not None
        times = bench.ask("commands", name=name, pid=init.pid, rounds=60)
        direct = []
        for _ in range(30):
            began = time.perf_counter()
            session = service.exec(name, Exec(command=("true",)))
            while not any(isinstance(piece, Exit) for piece in session.receive(5.0)):
                pass
            direct.append(time.perf_counter() - began)
            session.close()
    line("nsenter -t PID -a true", times["nsenter"])
    line("true, through execd's API", times["argv"], times["nsenter"], "against nsenter, goal ≤ 3×")
    line("bash -c true, through execd's API", times["execd"], times["nsenter"], "against nsenter, goal ≤ 3×")
    line("true, through our API", times["native"], times["nsenter"], "against nsenter, goal ≤ 3×")
    line("true, Workloads.exec in a process", direct, times["nsenter"], "against nsenter")
    for size, words in ((1024, "1 KiB"), (1 << 20, "1 MiB")):
        times = bench.ask("files", name=name, size=size, rounds=20)
        line(f"a file of {words} written", times["write"])
        line(f"a file of {words} read", times["read"])


_RECEIPT = Receipt(
    sandbox="sb-1", name="n", backend="local", at=1.0, verdict="delivered", simulated=False, asked={}, devices=(),
    lines=(), rendered={}, observed=Facts(), expected=Facts(),
)  # fmt: skip


def _thousand(bench: Bench) -> None:
    """A list of a thousand. They are entered only; their keeper is this process, so they count as alive."""
    print("\n  with 1,000 sandboxes in the ledger")
    with Workloads(bench.home) as service:
        rows = []
        with service.ledger.writing():
            for number in range(1000):
                row = Sandbox(
                    id=SandboxId(new_id("sb")), name=f"n{number}", backend="local", state=SandboxState.CREATING,
                    uid=os.getuid(), username="bench", owner=myself(), folder="/nonexistent",
                    parts=Parts(spec=SandboxSpec(command=("true",))),
                    created_at=time.time(), labels={"team": "red"},
                )  # fmt: skip
                service.ledger.add_sandbox(row)
                handle = Handle("local", row.id, row.folder, keeper=myself(), init=myself())
                service.ledger.attach(row.id, handle=handle, receipt=_RECEIPT)
                rows.append(row)
        health = bench.ask("many", path="/health", clients=1, each=200)["seconds"]
        whole = bench.ask("many", path="/api/v1/sandboxes?page_size=1000", clients=1, each=20)["seconds"]
        line("GET /health, 1 client", health)
        line("GET /api/v1/sandboxes, all 1,000", whole, health, "against /health")
        page = bench.ask("many", path="/v1/sandboxes?pageSize=200", clients=1, each=30)["seconds"]
        line("GET /v1/sandboxes, a page of 200 of 1,000", page, health, "against /health")
        with service.ledger.writing():
            for row in rows:
                service.ledger.end(row.id, SandboxState.EXITED, exit=None, reason="measured")

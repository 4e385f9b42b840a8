"""Many clients at once, as OpenSandbox's SDK is one: create, wait until it answers, run, come back later, delete.

Each sandbox gets a mark of its own on its first visit, and must still have it on the last one: so it was the same one
all along, whatever became of gateways meanwhile. The clients know for themselves who has which device, from inside.
Whatever must not happen is written into `faults`; the test says that there are none.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from tests.gateway.conftest import RunningGateway
from tests.stress.clients import BROKEN, Answer, Client, output

NOT_YET = "KUBERNETES::POD_IP_NOT_AVAILABLE"
TOO_MANY = 300  # more GPUs than there are: always refused, never an error
READY = 120.0  # seconds that a client waits for an accepted sandbox before it calls it lost


class Size(msgspec.Struct, frozen=True):
    """How much of it."""

    sandboxes: int
    clients: int
    alive: int
    kills: int
    seconds: float = 0.0  # it goes on at least so long


FULL = Size(sandboxes=1000, clients=100, alive=200, kills=10, seconds=300.0)


class Downtime:
    """When which gateway was away. A broken connection at another time is a fault."""

    def __init__(self) -> None:
        self._away: dict[int, list[tuple[float, float]]] = {}

    def begins(self, port: int) -> None:
        self._away.setdefault(port, []).append((time.monotonic(), float("inf")))

    def ends(self, port: int) -> None:
        since, _ = self._away[port][-1]
        self._away[port][-1] = (since, time.monotonic())

    def excuses(self, port: int, since: float, until: float) -> bool:
        return any(begin <= until + 0.2 and since <= end + 0.2 for begin, end in self._away.get(port, ()))


class Box(msgspec.Struct):
    """A sandbox, as its client knows it."""

    id: str
    key: str
    gpus: int
    endpoint: str = ""
    headers: dict[str, str] = {}
    uuids: tuple[str, ...] = ()


class Load:
    """`run` until so many sandboxes have lived. `ports`: the gateways; a client goes on at the next one."""

    def __init__(self, ports: Sequence[int], token: str, size: Size, *, seed: int, patient: Sequence[str] = ()) -> None:
        self.ports = list(ports)
        self.size = size
        self.token = token
        self.down = Downtime()
        self.patient = frozenset(patient)  # codes that mean "try again": a database that is away
        self.faults: list[str] = []
        self.codes: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}
        self.begun = 0
        self.done = 0
        self.alive = 0
        self.most_alive = 0
        self.progress = asyncio.Event()
        self.beside: asyncio.Task[None] | None = None  # the load goes on at least until this has ended
        self._dice = random.Random(seed)
        self._has: dict[str, str] = {}  # device → the sandbox that sees it
        self._began = 0.0

    async def run(self) -> None:
        self._began = time.monotonic()
        await asyncio.gather(*(self._client(number) for number in range(self.size.clients)))
        for name in ("create", "ready", "run", "delete"):
            self.times.setdefault(name, [0.0])

    def _more(self) -> bool:
        if self.faults:
            return False
        if self.beside is not None and not self.beside.done():
            return True
        return self.begun < self.size.sandboxes or time.monotonic() - self._began < self.size.seconds

    async def _client(self, number: int) -> None:
        mine: list[Box] = []
        hold = max(1, self.size.alive // self.size.clients)
        visitor = Visitor(self, number)
        dice = random.Random(self._dice.random())
        try:
            while self._more():
                self.begun += 1
                key = f"{self.begun}-{dice.getrandbits(64):x}"
                if self.begun % 25 == 0:
                    await self._refused(visitor, key)
                box = await self._made(visitor, key, 2 if self.begun % 10 == 0 else 1)
                if box is None:
                    return
                mine.append(box)
                await asyncio.sleep(dice.uniform(0, 0.5))
                while len(mine) >= hold + (1 if self._more() and dice.random() < 0.3 else 0) and mine:
                    await self._last_visit(visitor, mine.pop(0))
            while mine:
                await self._last_visit(visitor, mine.pop(0))
        finally:
            await visitor.close()

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def stop(self, beside: asyncio.Task[None]) -> None:
        """What goes on beside the load has ended; with an error the load ends too."""
        if not beside.cancelled() and beside.exception() is not None:
            self.fault(f"beside the load: {beside.exception()!r}")

    def took(self, what: str, since: float) -> None:
        self.times.setdefault(what, []).append(time.monotonic() - since)

    async def _refused(self, visitor: Visitor, key: str) -> None:
        answer = await visitor.ask("POST", "/v1/sandboxes", create_body(f"no-{key}", TOO_MANY))
        if not (400 <= answer.status < 500 and answer.code):
            self.fault(f"too many GPUs: {answer.status} {answer.body[:300]!r}")

    async def _made(self, visitor: Visitor, key: str, gpus: int) -> Box | None:
        began = time.monotonic()
        answer = await visitor.ask("POST", "/v1/sandboxes", create_body(key, gpus))
        if answer.status != 202:
            self.fault(f"POST: {answer.status} {answer.body[:500]!r}")
            return None
        self.took("create", began)
        self.alive += 1
        self.most_alive = max(self.alive, self.most_alive)
        box = Box(answer.data["id"], key, gpus)
        if not await self._ready(visitor, box, began):
            return None
        self.took("ready", began)
        words = f'echo {box.key} > /tmp/mark; echo "$NVIDIA_VISIBLE_DEVICES"'
        said = await self._command(visitor, box, words)
        box.uuids = tuple(word for word in said.strip().split(",") if word)
        if len(box.uuids) != gpus:
            self.fault(f"{box.id} was to have {gpus} GPUs and sees {said!r}")
        for uuid in box.uuids:
            if uuid in self._has:
                self.fault(f"{uuid} is in {self._has[uuid]} and in {box.id}")
            self._has[uuid] = box.id
        return box

    async def _ready(self, visitor: Visitor, box: Box, began: float) -> bool:
        path = f"/v1/sandboxes/{box.id}/endpoints/44772"
        while True:
            answer = await visitor.ask("GET", path)
            if answer.status == 200:
                break
            if answer.status != 404 or answer.code != NOT_YET:
                self.fault(f"{box.id} was accepted and lost: {answer.status} {answer.body[:500]!r}")
                return False
            if time.monotonic() - began > READY:
                self.fault(f"{box.id} was accepted and is not there after {READY:.0f} s: {answer.body[:500]!r}")
                return False
            await asyncio.sleep(0.1)
        box.endpoint, box.headers = answer.data["endpoint"].partition("/")[2], answer.data["headers"]
        answer = await visitor.ask("GET", f"/{box.endpoint}/ping", headers=box.headers)
        if answer.status != 200:
            self.fault(f"{box.id} /ping: {answer.status} {answer.body[:500]!r}")
            return False
        return True

    async def _command(self, visitor: Visitor, box: Box, words: str) -> str:
        began = time.monotonic()
        answer = await visitor.ask("POST", f"/{box.endpoint}/command", {"command": words}, headers=box.headers)
        if answer.status != 200 or b"execution_complete" not in answer.body:
            self.fault(f"{box.id}: {words!r}: {answer.status} {answer.body[:500]!r}")
            return ""
        self.took("run", began)
        return output(answer.body)

    async def _last_visit(self, visitor: Visitor, box: Box) -> None:
        said = await self._command(visitor, box, "cat /tmp/mark")
        if said.strip() != box.key:
            self.fault(f"{box.id} is not the one that it was: {said!r}, not {box.key!r}")
        for uuid in box.uuids:
            self._has.pop(uuid, None)
        began = time.monotonic()
        answer = await visitor.ask("DELETE", f"/v1/sandboxes/{box.id}")
        if answer.status != 204:
            self.fault(f"DELETE {box.id}: {answer.status} {answer.body[:500]!r}")
        self.took("delete", began)
        self.alive -= 1
        self.done += 1
        self.progress.set()


class Visitor:
    """The connections of one client. What a dying gateway leaves unsaid is asked again, of the next one."""

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        auth = {"authorization": f"Bearer {load.token}"}
        self._clients = [Client(port, auth) for port in load.ports]
        self._turn = number

    async def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        load = self._load
        patience = time.monotonic() + READY
        while True:
            client = self._clients[self._turn % len(self._clients)]
            began = time.monotonic()
            try:
                answer = await client.ask(method, path, body, headers)
            except BROKEN as error:
                load.codes[type(error).__name__] += 1
                self._turn += 1
                if not load.down.excuses(client.port, began, time.monotonic()):
                    load.fault(f"{method} {path}: {error!r} while the gateway was there")
                    raise
                if time.monotonic() > patience:
                    load.fault(f"{method} {path}: no gateway for {READY:.0f} s")
                    raise
                await asyncio.sleep(0.05)
                continue
            load.codes[f"{answer.status} {answer.code}".strip() if answer.status >= 400 else str(answer.status)] += 1
            if answer.code in load.patient and time.monotonic() < patience:
                await asyncio.sleep(0.1)
                continue
            return answer

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def create_body(key: str, gpus: int) -> dict[str, Any]:
    return {
        "image": {"uri": "host"},
        "entrypoint": ["tail", "-f", "/dev/null"],
        "timeout": 3600,
        "resourceLimits": {"gpu": str(gpus)},
        "extensions": {"dibs.idempotency-key": key, "dibs.wait": "2m"},
    }


class Watcher(threading.Thread):
    """Looks into the ledger again and again, from outside: no unit twice, no device in two leases."""

    def __init__(self, look: Callable[[], list[str]], pause: float = 0.1) -> None:
        super().__init__(name="watcher", daemon=True)
        self._look = look
        self._pause = pause
        self._end = threading.Event()
        self.looks = 0
        self.twice: list[str] = []

    def run(self) -> None:
        while not self._end.wait(self._pause):
            self.twice += self._look()
            self.looks += 1

    def finish(self) -> None:
        self._end.set()
        self.join()


def shared_devices(leases: Sequence[tuple[str, str]]) -> list[str]:
    """Devices that are in two live leases, from rows of (lease, devices)."""
    seen: dict[str, str] = {}
    twice = []
    for lease, devices in leases:
        for device in msgspec.json.decode(devices):
            if device["id"] in seen:
                twice.append(f"{device['id']} is in {seen[device['id']]} and {lease}")
            seen[device["id"]] = lease
    return twice


class Vital(msgspec.Struct, frozen=True):
    """What a process has of the machine."""

    rss: int
    descriptors: int
    threads: int
    ledger: int = 0  # how many of its descriptors lead to the ledger: each thread may have a connection of its own

    @property
    def others(self) -> int:
        return self.descriptors - self.ledger


def vital(pid: int) -> Vital:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    targets = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    folders = {os.path.dirname(one) for one in targets if one.endswith("/ledger.db")}
    ledger = sum("/ledger.db" in one or one in folders for one in targets)
    return Vital(int(fields["VmRSS"].split()[0]) * 1024, len(targets), int(fields["Threads"]), ledger)


async def kill_and_restart(gateway: RunningGateway, down: Downtime) -> None:
    """kill -9, and at once a new one in its place."""
    down.begins(gateway.port)
    gateway.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(gateway.process.wait)
    if gateway.process.stdout is not None:
        gateway.process.stdout.close()
    with suppress(FileNotFoundError):
        gateway.socket.unlink()
    await asyncio.to_thread(gateway.start, gateway.port)
    down.ends(gateway.port)


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def summary(load: Load, seconds: float) -> str:
    lines = [f"{load.done} sandboxes in {seconds:.0f} s, at most {load.most_alive} at once; answers {dict(load.codes)}"]
    for name, values in load.times.items():
        lines.append(f"{name}: p50 {percentile(values, 0.5):.3f} s, p99 {percentile(values, 0.99):.3f} s")
    return "\n".join(lines)

"""Many of OpenShell's own clients at once: create, wait, look inside, hold a stream open, delete. Again and again.

Whether a card was given twice is decided by an oracle that knows nothing of dibs. Each card brings a file of its own
into the sandbox (a mount of its CDI spec), and the sandbox's command locks it for as long as it lives. The kernel
releases a lock when its holder is gone, so a lock that cannot be taken proves that two live sandboxes hold one card.
Whatever must not happen is written into `faults`; the test says that there are none.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import msgspec
from openshell._proto import datamodel_pb2, openshell_pb2_grpc
from openshell._proto import openshell_pb2 as pb
from openshell.errors import GatewayError
from tests.stress.load import Downtime

from openshell import SandboxClient

T = TypeVar("T")
WORKSPACE = "default"
DEFAULT = datamodel_pb2.WorkspaceSelector(workspace=WORKSPACE)
PATIENCE = 180.0  # seconds; what takes longer is lost or hangs
VIOLATION = 77
# Locks every card that it finds, on descriptors that live as long as the command; then says so.
ORACLE = f"""
n=3
for card in ${{CARDS:-/cards}}/*; do
  [ -e "$card" ] || exit 78
  eval "exec $n<\\"$card\\""
  flock -n $n || exit {VIOLATION}
  n=$((n+1))
done
echo held > /tmp/held
exec sleep 100000
"""
LOOK = "until [ -e /tmp/held ]; do sleep 0.05; done; ls /cards"


def make_cards(folder: Path, count: int) -> Path:
    """A folder of CDI specs with so many cards, whose files are in `folder / "cards"`."""
    cards, specs = folder / "cards", folder / "cdi"
    cards.mkdir()
    specs.mkdir()
    devices = []
    for number in range(count):
        file = cards / f"card{number}"
        file.write_text("")
        mount = {"hostPath": str(file), "containerPath": f"/cards/card{number}", "options": ["ro", "bind"]}
        devices.append({"name": str(number), "containerEdits": {"mounts": [mount]}})
    spec = {"cdiVersion": "0.6.0", "kind": "oracle.example/gpu", "devices": devices}
    (specs / "oracle.json").write_text(json.dumps(spec))
    return specs


class Size(msgspec.Struct, frozen=True):
    """How much of it. The gateway is killed in the first part, so that the rest shows whether it grows."""

    clients: int
    cards: int
    seconds: float
    kills: int


FULL = Size(clients=100, cards=16, seconds=180.0, kills=8)
SHORT = Size(clients=12, cards=4, seconds=15.0, kills=2)


class ShellLoad:
    """`run` for so long, against the gateway at `endpoint`, which is away at the times that `down` tells."""

    def __init__(self, endpoint: str, tokens: list[str], size: Size, seed: int) -> None:
        self.endpoint = endpoint
        self.tokens = tokens
        self.size = size
        self.down = Downtime()
        self.port = int(endpoint.rpartition(":")[2])
        self.faults: list[str] = []
        self.answers: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}
        self.served = 0
        self._has: dict[str, str] = {}  # card → the sandbox that sees it, as its clients know
        self._lock = threading.Lock()
        self._dice = random.Random(seed)
        self._until = 0.0

    def run(self) -> None:
        self._until = time.monotonic() + self.size.seconds
        seeds = [self._dice.random() for _ in range(self.size.clients)]
        threads = [
            threading.Thread(target=self._client, args=(number, random.Random(seed)), daemon=True)
            for number, seed in enumerate(seeds)
        ]
        for thread in threads:
            thread.start()
        end = self._until + 2 * PATIENCE
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self.fault(f"{thread.name} hangs")

    def fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)

    def _client(self, number: int, dice: random.Random) -> None:
        token = self.tokens[number % len(self.tokens)]
        with SandboxClient(self.endpoint, bearer_token=token, timeout=60) as client:
            turn = 0
            while time.monotonic() < self._until and not self.faults:
                turn += 1
                try:
                    self._life(client, f"c{number}-{turn}", dice)
                except Exception as error:  # noqa: BLE001 - any of them is a fault of the gateway's
                    self.fault(f"c{number}-{turn}: {error!r}")

    # -- one sandbox ------------------------------------------------------------------------------------------------

    def _life(self, client: SandboxClient, name: str, dice: random.Random) -> None:
        began = time.monotonic()
        spec = pb.SandboxSpec(command=["sh", "-c", ORACLE])
        spec.template.annotations["dibs.wait"] = "10m"
        spec.resource_requirements.gpu.count = gpus = 2 if dice.random() < 0.1 else 1

        def make() -> None:
            try:
                client.create(workspace=WORKSPACE, spec=spec, name=name)
            except GatewayError as error:
                if code_of(error) is not grpc.StatusCode.ALREADY_EXISTS or self.answers["UNAVAILABLE"] == 0:
                    raise  # a gateway that was killed may have accepted it before it could say so

        self._persist("create", make)
        self._persist("ready", lambda: client.wait_ready(name, workspace=WORKSPACE, timeout_seconds=PATIENCE))
        self._took("ready", began)
        cards = self._persist("exec", lambda: self._look(client, name, gpus))
        with self._lock:
            for card in cards:
                if card in self._has:
                    self.faults.append(f"{card} is in {self._has[card]} and in {name}")
                self._has[card] = name
        stream = self._open_stream(client, name, dice)
        time.sleep(dice.uniform(0, 0.3))
        with self._lock:
            for card in cards:
                self._has.pop(card, None)
        self._persist("delete", lambda: client.delete(name, workspace=WORKSPACE, allow_missing=True))
        self._persist("deleted", lambda: client.wait_deleted(name, workspace=WORKSPACE, timeout_seconds=PATIENCE))
        self._end_stream(name, stream)
        with self._lock:
            self.served += 1

    def _look(self, client: SandboxClient, name: str, gpus: int) -> list[str]:
        done = client.exec(name, ["sh", "-c", LOOK], workspace=WORKSPACE, timeout_seconds=60, no_login_shell=True)
        cards = done.stdout.split()
        if done.exit_code or len(cards) != gpus:
            self.fault(f"{name} was to have {gpus} cards: {done}")
        return cards

    def _open_stream(self, client: SandboxClient, name: str, dice: random.Random) -> Any:
        """A stream that lives as long as the sandbox, or is cancelled before. None if the gateway was away."""
        make: Any = openshell_pb2_grpc.OpenShellStub
        calls = make(client._channel)
        kind = dice.choice(["watch", "command", "conversation", "cancelled"])
        command = ["sh", "-c", "echo on; exec sleep 10000"]
        words = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox=name, command=command, no_login_shell=True)
        if kind == "watch":
            asked = pb.WatchSandboxRequest(
                workspace_scope=DEFAULT, sandbox=name, follow_status=True, follow_logs=dice.random() < 0.5
            )
            stream = calls.WatchSandbox(asked, timeout=PATIENCE)
        elif kind == "conversation":
            stream = calls.ExecSandboxInteractive(_talk(words), timeout=PATIENCE)
        else:
            stream = calls.ExecSandbox(words, timeout=PATIENCE)
        began = time.monotonic()
        try:
            next(stream)
        except (grpc.RpcError, StopIteration) as error:
            self._excuse(f"{kind} of {name}", error, began)
            return None
        with self._lock:
            self.streams[kind] += 1
        if kind == "cancelled":
            stream.cancel()
        return stream

    def _end_stream(self, name: str, stream: Any) -> None:
        """It must end by itself, now that its sandbox is gone: in order, or broken by a gateway that was killed."""
        if stream is None:
            return
        began = time.monotonic()
        try:
            for _ in stream:
                pass
        except grpc.RpcError as error:
            code = code_of(error)
            with self._lock:
                self.streams[code.name] += 1
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                self.fault(f"a stream of {name} was left hanging")
            elif code not in _BROKEN:
                self.fault(f"a stream of {name} ended with {error!r}")
        self._took("stream ends", began)

    # -- asking -----------------------------------------------------------------------------------------------------

    def _persist(self, what: str, work: Callable[[], T]) -> T:
        """Ask until there is an answer. Only while the gateway is away may there be none."""
        patience = time.monotonic() + PATIENCE
        while True:
            began = time.monotonic()
            try:
                found = work()
            except (GatewayError, grpc.RpcError) as error:
                self._excuse(what, error, began)
                if time.monotonic() > patience:
                    raise
                time.sleep(0.2)
                continue
            self._took(what, began)
            return found

    def _excuse(self, what: str, error: Exception, began: float) -> None:
        """Raise what is not the consequence of a gateway that was killed."""
        code = code_of(error) if isinstance(error, grpc.RpcError) else None
        with self._lock:
            self.answers[code.name if code else type(error).__name__] += 1
        # A channel waits a little before it connects again, so that it may notice a kill that is over.
        if code not in _BROKEN or not self.down.excuses(self.port, began - _BACKOFF, time.monotonic()):
            raise AssertionError(f"{what}: {error!r}") from error

    def _took(self, what: str, since: float) -> None:
        with self._lock:
            self.times.setdefault(what, []).append(time.monotonic() - since)


_BACKOFF = 30.0
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def code_of(error: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = error.code()
    return code


def _talk(words: pb.ExecSandboxRequest) -> Iterator[pb.ExecSandboxInput]:
    yield pb.ExecSandboxInput(start=words)
    yield pb.ExecSandboxInput(stdin=b"anything\n")

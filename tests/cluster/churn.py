"""Clients that come and go on a real cluster through one gateway, while parts of its control plane are killed.

`test_churn` runs it. Each client creates, looks inside, deletes. Who has which card is known from inside the
containers, past dibs and past the scheduler. Whatever must not happen is written into `faults`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, NamedTuple

from tests.cluster.images import BUSYBOX
from tests.cluster.place import Place
from tests.gateway.conftest import Reply, RunningGateway

from dibs.errors import BackendUnavailable
from dibs.kube import client as kube
from dibs.kube.client import Cluster

# Seconds after which a sandbox that was accepted counts as lost. Kubernetes' scheduler keeps no queue for devices: one
# that wants two cards may be passed by those that want one, until these come to an end.
PATIENCE = 900.0
KEPT = ("churn-1", "churn-2", "churn-3")  # these live until all others have ended
_LOOK = "ls -d /dev/simgpu*"


class Size(NamedTuple):
    sandboxes: int
    clients: int
    kills: int


class Churn:
    def __init__(self, gateway: RunningGateway, place: Place, size: Size, seed: int) -> None:
        self.gateway = gateway
        self.place = place
        self.size = size
        self.faults: list[str] = []
        self.ends: Counter[str] = Counter()
        self.asked_again: Counter[str] = Counter()
        self.most_held = 0
        self.kept: list[str] = []
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._next = 0
        self._has: dict[str, str] = {}

    @property
    def ended(self) -> int:
        return sum(self.ends.values())

    def run(self, beside: Callable[[], None]) -> None:
        """All clients to their end, and something beside them."""
        clusters = [self.place.running.client() for _ in range(self.size.clients)]
        threads = [threading.Thread(target=self._guarded, args=(self._client, one)) for one in clusters]
        for one in threads:
            one.start()
        self._guarded(beside)
        for one in threads:
            one.join()
        for cluster in clusters:
            cluster.close()

    def delete_kept(self) -> None:
        for sandbox in self.kept:
            self._delete(f"/api/v1/sandboxes/{sandbox}", sandbox)

    def held(self) -> dict[str, set[str]]:
        """The cards of every sandbox, as `node:card`, by what was seen inside."""
        return {one: {card for card, holder in self._has.items() if holder == one} for one in self._has.values()}

    def reached(self, part: float) -> None:
        """Wait until so much of it is done."""
        while self.ended < self.size.sandboxes * part and not self.faults:
            time.sleep(0.05)

    def fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)

    def _guarded(self, work: Callable[..., None], *words: object) -> None:
        try:
            work(*words)
        except Exception as error:  # noqa: BLE001 - told by the test
            self.fault(repr(error))

    def _client(self, cluster: Cluster) -> None:
        with self._lock:
            dice = random.Random(self._dice.random())
        while not self.faults:
            with self._lock:
                if self._next == self.size.sandboxes:
                    return
                self._next += 1
                number = self._next
            self._one(cluster, f"churn-{number}", 2 if number % 10 == 0 else 1, dice)

    def _one(self, cluster: Cluster, name: str, gpus: int, dice: random.Random) -> None:
        body = {
            "name": name, "gpu": gpus, "image": BUSYBOX, "backend": "kubernetes", "command": ["sleep", "1000"],
            "wait": f"{PATIENCE:.0f}s",
        }  # fmt: skip
        made = self._ask("POST", "/api/v1/sandboxes", body)
        if made.status != 202:
            self.fault(f"{name} was refused: {made.status} {made.body[:500]!r}")
            return
        sandbox = made.data["id"]
        path = f"/api/v1/sandboxes/{sandbox}"
        if dice.random() < 0.1:  # a client that changes its mind
            self._delete(path, sandbox)
            self._end("deleted at once")
            return
        if not self._ready(path, name):
            return
        node = _node(cluster, self.place.namespace, sandbox)
        self._hold(sandbox, gpus, [f"{node}:{one}" for one in self._inside(path)])
        if name in KEPT:
            self.kept.append(sandbox)
            self._end("kept")
            return
        time.sleep(dice.uniform(0.0, 0.3))
        self._delete(path, sandbox)
        self._end("served")

    def _end(self, how: str) -> None:
        with self._lock:
            self.ends[how] += 1

    def _ready(self, path: str, name: str) -> bool:
        end = time.monotonic() + PATIENCE
        while True:
            row = self._ask("GET", f"{path}/wait?until=ready&timeout=20")
            state = row.data.get("state", "") if row.status == 200 else ""
            if state == "running":
                return True
            if row.status != 200 or state in ("failed", "exited") or time.monotonic() > end:
                self.fault(f"{name} was accepted and lost: {row.status} {row.body[:800]!r}")
                return False

    def _inside(self, path: str) -> list[str]:
        """The cards that a command in the sandbox sees."""
        seen = self._ask("POST", f"{path}/exec", {"command": ["sh", "-c", _LOOK]})
        if seen.status != 200 or seen.data["exit_code"] != 0:
            self.fault(f"{path}: nothing can be seen in it: {seen.status} {seen.body[:500]!r}")
            return []
        return str(seen.data["stdout"]).split()

    def _hold(self, sandbox: str, gpus: int, cards: list[str]) -> None:
        """No other sandbox sees the cards of a live one."""
        if len(cards) != gpus:
            self.fault(f"{sandbox} was to have {gpus} cards and sees {cards}")
        with self._lock:
            self.faults += [f"{one} is in {self._has[one]} and in {sandbox}" for one in cards if one in self._has]
            self._has |= dict.fromkeys(cards, sandbox)
            self.most_held = max(self.most_held, len(self._has))

    def _delete(self, path: str, sandbox: str) -> None:
        with self._lock:  # from here on the next one may have its cards
            self._has = {card: holder for card, holder in self._has.items() if holder != sandbox}
        gone = self._ask("DELETE", f"{path}?grace=0s")
        if gone.status not in (200, 202, 204, 404):
            self.fault(f"{sandbox} cannot be deleted: {gone.status} {gone.body[:500]!r}")

    def _ask(self, method: str, path: str, body: object = None) -> Reply:
        """One request; asked again while the gateway says that the cluster does not answer."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                answer = self.gateway.ask(method, path, body)
            except (OSError, HTTPException) as error:
                raise AssertionError(f"{method} {path}: the gateway does not answer: {error!r}") from error
            code = answer.data.get("code", "") if answer.status == 503 else ""
            if not code.startswith("CLUSTER_") or time.monotonic() > end:
                return answer
            with self._lock:
                self.asked_again[code] += 1
            time.sleep(0.3)


def _node(cluster: Cluster, namespace: str, sandbox: str) -> str:
    """Where the pod of a sandbox runs, asked of the API server as soon as that answers."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return str(cluster.get(kube.PODS, sandbox, dict[str, Any], namespace)["spec"]["nodeName"])
        except BackendUnavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def left(place: Place) -> dict[str, list[str]]:
    """What is still in the namespace: pods, claims, templates."""
    found: dict[str, list[str]] = {}
    for kind in (kube.PODS, kube.CLAIMS, kube.TEMPLATES):
        names = [one["metadata"]["name"] for one in place.cluster.items(kind, dict[str, Any], place.namespace)]
        found |= {kind.plural: names} if names else {}
    return found

"""An engine with a home of dibs on it, as a user has it: the service in this process, and the command beside it.

The tests of this folder use it. What is in a container is looked at here without dibs: the engine names the first
process, and the kernel says what that process has.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from tests.engines import images
from tests.engines.images import REFERENCE
from tests.engines.running import Engine

from dibs.backends.port import Exec, Exit, Session
from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.request import parse_spec
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Sandbox
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

PATIENCE = 60.0
STANDARD = frozenset(("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"))


class House:
    """One engine, one home."""

    def __init__(self, engine: Engine, state: Path) -> None:
        self.engine = engine
        self.kind = engine.kind
        self.home = Home(state=state, config=state / "config").make()
        self.settings()
        self.service = Workloads(self.home)
        self.children: list[subprocess.Popen[bytes]] = []

    def settings(self, *lines: str) -> None:
        """What an administrator writes; the engine's socket comes by itself."""
        self.home.config.mkdir(exist_ok=True)
        text = "\n".join(lines) + f'\n[{self.kind}]\nsocket = "{self.engine.socket}"\n'
        (self.home.config / "config.toml").write_text(text)

    def again(self) -> Workloads:
        """As the next process would see everything."""
        self._hang_up()
        self.service = Workloads(self.home)
        return self.service

    def _hang_up(self) -> None:
        self.service.close()
        getattr(self.service.registry.get(self.kind), "close", lambda: None)()

    def world(self, cards: str = "4", **more: Any) -> None:
        simulate(self.home, parse_world(cards, **more))

    # --- asking

    def spec(self, **mapping: Any) -> SandboxSpec:
        return parse_spec({"backend": self.kind, "image": images.REFERENCE, "grace": "0s", **mapping})

    def options(self) -> list[str]:
        """The same for the command line."""
        return ["--backend", self.kind, "--image", images.REFERENCE, "--grace", "0s"]

    def create(self, **mapping: Any) -> Sandbox:
        return self.service.create(self.spec(**mapping))

    def run(self, *command: str, **mapping: Any) -> tuple[str, Exit]:
        """In the foreground, to its end: what it said on both streams, and how it ended."""
        row, session = self.service.launch(self.spec(command=list(command), **mapping))
        try:
            return conversation(session)
        finally:
            session.close()
            self.service.settle(row.id)

    def exec(self, reference: str, *command: str, **more: Any) -> tuple[str, Exit]:
        session = self.service.exec(reference, Exec(command=command, **more))
        try:
            return conversation(session)
        finally:
            session.close()

    # --- the command

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "DIBS_HOME": str(self.home.state)}

    @property
    def work(self) -> Path:
        """A working directory that the engine sees at the same path."""
        folder = self.engine.folder / "work"
        folder.mkdir(exist_ok=True)
        return folder

    def dibs(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dibs", *words], env=self.env, capture_output=True, text=True, check=False,
            timeout=PATIENCE, **{"stdin": subprocess.DEVNULL, "cwd": self.work, **more},
        )  # fmt: skip

    def started(self, *words: str) -> subprocess.Popen[bytes]:
        """`dibs run` on this engine, beside us."""
        child = subprocess.Popen(
            [sys.executable, "-m", "dibs", "run", "--backend", self.kind, "--image", images.REFERENCE, *words],
            env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.work,
        )  # fmt: skip
        self.children.append(child)
        return child

    # --- looking past dibs

    def inspected(self, name: str) -> dict[str, Any]:
        status, document = self.engine.api("GET", f"{self.engine.prefix}/containers/{name}/json")
        assert status == 200, document
        assert isinstance(document, dict)
        return document

    def container(self, row: Sandbox) -> dict[str, Any]:
        return self.inspected(f"dibs-{row.id}")

    def pid(self, row: Sandbox) -> int:
        return int(self.container(row)["State"]["Pid"])

    def nodes(self, row: Sandbox) -> list[str]:
        return nodes_of(self.pid(row))

    def names(self) -> set[str]:
        """Of all containers, running or not."""
        return {str(one["Names"][0]).lstrip("/") for one in self.engine.containers()}  # type: ignore[index]

    def images(self) -> set[str]:
        """All that have no children, with and without names."""
        status, found = self.engine.api("GET", f"{self.engine.prefix}/images/json")
        assert status == 200, found
        assert isinstance(found, list)
        return {str(one["Id"]) for one in found}

    def kill(self, row: Sandbox) -> None:
        assert self.engine.api("POST", f"{self.engine.prefix}/containers/dibs-{row.id}/kill?signal=KILL")[0] < 300

    def remove(self, name: str) -> None:
        status, answer = self.engine.api("DELETE", f"{self.engine.prefix}/containers/{name}?force=true&timeout=0")
        assert status < 300, answer

    def foreign(
        self, name: str, *, image: str = REFERENCE, labels: dict[str, str] | None = None,
        command: tuple[str, ...] = ("sleep", "1000"), **host: Any,
    ) -> str:  # fmt: skip
        """A container that dibs did not start. `host`: in the engine's own words."""
        if self.kind == "docker":
            path, body = f"/containers/create?name={name}", {
                "Image": image, "Cmd": list(command), "Labels": labels or {},
                "HostConfig": {"NetworkMode": "none", **host}, "StopTimeout": 0,
            }  # fmt: skip
        else:
            path, body = "/containers/create", {
                "name": name, "image": image, "command": list(command), "netns": {"nsmode": "none"},
                "labels": labels or {}, "stop_timeout": 0, **host,
            }  # fmt: skip
        prefix = "/v1.44" if self.kind == "docker" else self.engine.prefix
        status, answer = self.engine.api("POST", prefix + path, json=body)
        assert status == 201, answer
        status, answer = self.engine.api("POST", f"{prefix}/containers/{name}/start")
        assert status == 204, answer
        return name

    def states(self) -> dict[str, tuple[str, str]]:
        """`dibs gpus`, in short: device → state and remark."""
        _, found = self.service.devices()
        return {one.device.name: (one.state, one.note) for one in found}

    def free(self) -> bool:
        """No lease and no container of ours is left."""
        return not self.service.leases() and not any(name.startswith("dibs-") for name in self.names())

    # --- the end

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
        if not self.engine.answers():
            self.engine.start()
        left = []
        for row in self.again().sandboxes():
            if row.handle is not None:
                self.service.remove(row.id, 0.0)
            else:
                left.append(row.id)
        self._hang_up()
        self.engine.remove_containers()
        for entry in self.home.state.iterdir():
            if entry.name == "cdi":
                for file in entry.iterdir():
                    file.unlink()
            elif entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        assert left == [], "these are still being created, by no living process"


def conversation(session: Session) -> tuple[str, Exit]:
    said = b""
    while True:
        pieces = session.receive(PATIENCE)
        assert pieces, f"nothing came for {PATIENCE} s after {said!r}"
        for piece in pieces:
            if isinstance(piece, Exit):
                return said.decode(), piece
            said += piece.data


def nodes_of(pid: int) -> list[str]:
    """The device nodes of a process's /dev that not every container has: `simgpu0 c 1:3`."""
    found = []
    with os.scandir(f"/proc/{pid}/root/dev") as entries:
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            if entry.name not in STANDARD and (stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)):
                kind = "c" if stat.S_ISCHR(info.st_mode) else "b"
                found.append(f"{entry.name} {kind} {os.major(info.st_rdev)}:{os.minor(info.st_rdev)}")
    return sorted(found)


class Card(msgspec.Struct, frozen=True):
    """A node of the host that is this process's own. A container with a node of the same path or number anywhere on the
    machine has the card, and other workers have engines, too: no two of them may use the same."""

    name: str
    source: str  # on the host
    major: int
    minor: int

    @property
    def numbers(self) -> str:
        return f"{self.major}:{self.minor}"

    def path(self, vendor: str = "vendor") -> str:
        """In a container."""
        return f"/dev/{vendor}-{os.getpid()}-{self.name}"

    def seen(self, vendor: str = "vendor") -> str:
        """As `nodes_of` says it."""
        return f"{self.path(vendor).removeprefix('/dev/')} c {self.numbers}"

    def node(self, vendor: str = "vendor") -> dict[str, object]:
        """For a CDI spec."""
        return {
            "path": self.path(vendor), "hostPath": self.source, "type": "c", "major": self.major, "minor": self.minor
        }  # fmt: skip


def own_cards(engine: Engine, count: int) -> list[Card]:
    """Nodes with numbers that no driver has, where the engine sees them at the same path."""
    folder = engine.folder / "cards"
    folder.mkdir(exist_ok=True)
    found = []
    for number in range(count):
        # a process id has at most 22 bits, a minor number 20; from 240 on is for local use
        high, minor = divmod(os.getpid() * 3 + number, 1 << 20)
        card = Card(str(number), str(folder / str(number)), 240 + high, minor)
        if not os.path.exists(card.source):
            os.mknod(card.source, stat.S_IFCHR | 0o666, os.makedev(card.major, card.minor))
        found.append(card)
    return found


def vendor_spec(engine: Engine, cards: list[Card]) -> None:
    """A CDI spec of cards that are real nodes of the host, with numbers of their own."""
    devices = [{"name": card.name, "containerEdits": {"deviceNodes": [card.node()]}} for card in cards]
    spec = {"cdiVersion": "0.5.0", "kind": "vendor.example/gpu", "devices": devices}
    (engine.etc_cdi / "vendor.json").write_text(json.dumps(spec))


def until(what: Any, *, why: str = "") -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, why or "it did not come"
        time.sleep(0.02)


def keeper_of(row: Sandbox) -> Path:
    return Path(handle_of(row).folder) / "keeper"

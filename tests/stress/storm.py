"""A storm: clients, cards, and everything that can go wrong on a machine, in random order.

`test_storm` runs it. Whether a card was given twice is decided by `oracle`, which knows nothing of dibs.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.engines import images
from tests.engines.running import Engine
from tests.stress.oracle import SCRIPT, ByHand, Oracle, now

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.workloads.service import Workloads

CARDS = 4
HOME_SIZE = "48m"  # of the file system that holds the home, so that it can be filled
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")

# `dibs` on a machine whose clock is set while it works: nothing else changes.
JUMP = """
import runpy, sys, time
real, jump, looks = time.time, float(sys.argv.pop(1)), iter(range(1 << 60))
time.time = lambda: real() + (jump if next(looks) > 2 else 0.0)
runpy.run_module("dibs", run_name="__main__", alter_sys=True)
"""


def bring_flock(folder: Path) -> None:
    """flock(1) and what it needs, in a folder that can be mounted anywhere: busybox has none."""
    program = shutil.which("flock")
    assert program is not None, "flock is part of util-linux"
    shutil.copy(program, folder / "flock")
    for line in subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines():
        words = line.split()
        path = next((word for word in words if word.startswith("/")), None)
        if path is not None:
            shutil.copy(path, folder / ("ld.so" if words[0] == path else words[0]))


class Storm:
    """One home on a small file system, `local` and one engine, clients, and what is done to them."""

    def __init__(self, engine: Engine, folder: Path, seed: int) -> None:
        self.engine = engine
        self.dice = random.Random(seed)
        self.locks = folder / "locks"
        self.locks.mkdir()
        self.work = folder / "work"
        self.work.mkdir()
        self.tools = folder / "tools"
        self.tools.mkdir()
        bring_flock(self.tools)
        self.backup = folder / "ledger.backup"
        self.home = Home(state=engine.home, config=engine.home / "config").make()
        self.home.config.mkdir(exist_ok=True)
        (self.home.config / "config.toml").write_text(f'[{engine.kind}]\nsocket = "{engine.socket}"\n')
        simulate(self.home, parse_world(str(CARDS), model="H100"))
        Workloads(self.home).ledger.close()
        self.clients: list[subprocess.Popen[bytes]] = []
        self.ends: Counter[str] = Counter()  # the backend and the exit status
        self.words: Counter[str] = Counter()
        self.did: Counter[str] = Counter()
        self.oracle = Oracle(self.locks)
        self.forged: set[str] = set()  # containers of a stranger, under whatever name by now
        self.broken: list[str] = []
        self.began = time.monotonic()
        self.journal: list[str] = []
        self.strangers: list[subprocess.Popen[bytes]] = []
        self.disturbances: list[Callable[[], bool]] = [
            self.kill_anything, self.kill_anything, self.kill_anything, self.stop_anything, self.reuse_a_pid,
            self.pause_and_lose_the_keeper, self.kill_inside_a_pid_namespace, self.remove_the_ledger,
            self.restore_an_old_ledger, self.jump_the_clock, self.fill_the_disk, self.kill_the_engine,
            self.kill_the_engine_and_its_memory, self.rename_a_container, self.restart_a_container,
            self.forge_labels,
        ]  # fmt: skip

    # --- clients

    def environment(self) -> dict[str, str]:
        return {**os.environ, "DIBS_HOME": str(self.home.state)}

    def words_of(self, *, detach: bool, seconds: float) -> list[str]:
        backend = self.dice.choice(["local", self.engine.kind])
        count = self.dice.choice(["1", "1", "1", "2"])
        words = ["run", "-q", "--no-tty", "--gpu", count, "--wait", "90s"]
        words += ["--grace", "0s", "--backend", backend, "--mount", f"{self.locks}:/locks:rw"]
        words += ["--mount", f"{self.tools}:/tools"]
        if backend != "local":
            words += ["--image", images.REFERENCE, "--clean-env"]
        if detach:
            words += ["--detach", "--ttl", f"{self.dice.randint(2, 25)}s"]
        return [*words, "--", "sh", "-c", SCRIPT.format(seconds=f"{seconds:.2f}")]

    def start(self, prefix: tuple[str, ...] = (), how: tuple[str, ...] = ("-m", "dibs")) -> subprocess.Popen[bytes]:
        detach = self.dice.random() < 0.3
        seconds = self.dice.choice([0.0, 0.1, 0.5, 3.0, 600.0]) if detach else self.dice.uniform(0, 1.0)
        client = subprocess.Popen(
            [*prefix, sys.executable, *how, *self.words_of(detach=detach, seconds=seconds)], env=self.environment(),
            cwd=self.work, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self.clients.append(client)
        return client

    def reap(self) -> None:
        left = []
        for client in self.clients:
            if client.poll() is None:
                left.append(client)
                continue
            assert client.stderr is not None
            said = client.stderr.read().decode(errors="replace")
            client.stderr.close()
            words = list(map(str, client.args))  # type: ignore[arg-type]
            self.ends[f"{words[words.index('--backend') + 1]} {client.returncode}"] += 1
            if said:
                self.words[f"{client.returncode}: {said.strip().splitlines()[-1][-160:]}"] += 1
            if "Traceback" in said or client.returncode == 99:  # an error without a code of its own
                self.broken.append(f"{client.returncode}: {said[-3000:]}")
        self.clients = left

    def dibs(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "dibs", *words], env=self.environment(), cwd=self.work, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=180, check=False,
        )  # fmt: skip
        if b"Traceback" in done.stderr:
            self.broken.append(f"dibs {' '.join(words)}: {done.stderr.decode(errors='replace')[-3000:]}")
        return done

    # --- who holds what

    def given_away(self) -> list[str]:
        """Cards that `dibs gpus` calls free though a process holds their lock."""
        before = {pid: self._cards(pid) for pid in self.holders()}
        with Workloads(self.home) as service:
            free = {
                state.device.name.replace("gpu-", "simgpu") for state in service.devices()[1] if state.state == "free"
            }
        return [f"{pid} holds {card}" for pid, cards in before.items() for card in cards & free & self._cards(pid)]

    def _cards(self, pid: int) -> set[str]:
        try:
            files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            return set()
        return {file.rpartition("/")[2].removesuffix(".lock") for file in files if file.endswith(".lock")}

    def inside(self) -> dict[int, str]:
        """Processes of sandboxes, whatever became of these."""
        return {pid: _line(pid) for pid in _pids() if self._ours(pid)}

    def holders(self) -> dict[int, str]:
        """Processes that hold a lock of the oracle now."""
        return {pid: line for pid, line in self.inside().items() if self._cards(pid)}

    def _ours(self, pid: int) -> bool:
        """Whether /locks of this process is our folder."""
        try:
            here, there = os.stat(self.locks), os.stat(f"/proc/{pid}/root/locks")
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    # --- processes

    def processes(self) -> dict[int, str]:
        """dibs, shims, keepers, bubblewrap, commands: all of this storm's but the engine's own."""
        needles = (str(self.home.state).encode(), str(self.work).encode())
        found = {}
        for pid in _pids():
            line = _line(pid)
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                cwd = os.readlink(f"/proc/{pid}/cwd").encode()
            except OSError:
                continue
            if any(needle in environ or needle in line.encode() or needle in cwd for needle in needles):
                found[pid] = line
        engine = ("dockerd", "containerd", "podman", "conmon", "runc", "unshare --net", "nsenter")
        return {pid: line for pid, line in found.items() if not line.split("/")[-1].startswith(engine)}

    def _victim(self) -> int | None:
        found = sorted({**self.processes(), **self.holders()})
        return self.dice.choice(found) if found else None

    def kill_anything(self) -> bool:
        victim = self._victim()
        return victim is not None and _signal(victim, signal.SIGKILL)

    def stop_anything(self) -> bool:
        """Stopped for a while; then it goes on, or is killed where it stands."""
        victims = [pid for pid in (self._victim() for _ in range(3)) if pid is not None]
        hit = [pid for pid in victims if _signal(pid, signal.SIGSTOP)]
        time.sleep(self.dice.uniform(0.2, 3.0))
        for pid in hit:
            _signal(pid, self.dice.choice([signal.SIGCONT, signal.SIGKILL]))
            _signal(pid, signal.SIGCONT)
        return bool(hit)

    def reuse_a_pid(self) -> bool:
        """Kill a process and have its pid taken by a stranger at once."""
        victim = self._victim()
        if victim is None or not _signal(victim, signal.SIGKILL):
            return False
        deadline = time.monotonic() + 2
        while Path(f"/proc/{victim}").exists() and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.01)
        for _ in range(20):
            LAST_PID.write_text(str(victim - 1))
            stranger = subprocess.Popen(["sleep", "2"], cwd="/", env={})
            self.strangers.append(stranger)
            if stranger.pid == victim:
                return True
        return False

    def kill_inside_a_pid_namespace(self) -> bool:
        child = self.start(("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
        time.sleep(self.dice.uniform(0.2, 2.0))
        return _signal(child.pid, signal.SIGKILL)

    def jump_the_clock(self) -> bool:
        jump = self.dice.choice([3 * 86400, -3 * 86400, 90, -90])
        self.start(how=("-c", JUMP, str(jump)))
        return True

    # --- the ledger and the disk

    def pause_and_lose_the_keeper(self) -> bool:
        rows = self._running()
        if not rows:
            return False
        one = self.dice.choice(rows)
        if self.dibs("sandbox", "pause", one).returncode != 0:
            return False
        if self.dice.random() < 0.7:
            for pid, line in self.processes().items():
                if ("import shim" in line or "import ttl_daemon" in line) and self.dice.random() < 0.5:
                    _signal(pid, signal.SIGKILL)
        else:
            self.dibs("sandbox", "resume", one)
        return True

    def _running(self) -> list[str]:
        try:
            with sqlite3.connect(self.home.ledger, timeout=5) as connection:
                rows = connection.execute("SELECT id FROM sandboxes WHERE state = 'running'").fetchall()
            connection.close()
        except sqlite3.Error:
            return []
        return [str(row[0]) for row in rows]

    def _quiet(self) -> None:
        """No client is at work: what lives now is detached, or loses its client."""
        for client in self.clients:
            client.kill()
        for client in self.clients:
            client.wait()
        self.reap()

    def _files_of_ledger(self) -> list[Path]:
        return [path for path in self.home.ledger.parent.iterdir() if path.name.startswith(self.home.ledger.name)]

    def remove_the_ledger(self) -> bool:
        self._quiet()
        for path in self._files_of_ledger():
            path.unlink(missing_ok=True)
        return True

    def restore_an_old_ledger(self) -> bool:
        if not self.backup.exists():
            return self.back_up()
        self._quiet()
        for path in self._files_of_ledger():
            path.unlink(missing_ok=True)
        shutil.copy(self.backup, self.home.ledger)
        self.backup.unlink()
        return True

    def back_up(self) -> bool:
        try:
            source = sqlite3.connect(self.home.ledger, timeout=5)
            with sqlite3.connect(self.backup) as copy:
                source.backup(copy)
            source.close()
            copy.close()
        except sqlite3.Error:
            self.backup.unlink(missing_ok=True)
        return False

    def fill_the_disk(self) -> bool:
        """To the last page, but for the room that dibs keeps for itself."""
        filler = self.home.state / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        time.sleep(self.dice.uniform(0.2, 2.0))
        there = self.home.ledger.exists() and self.home.ledger.stat().st_size > 0
        read = self.dibs("gpus")
        if there and read.returncode not in (0, 86):  # a ledger that was removed just before cannot be made
            self.broken.append(f"dibs gpus on a full disk: {read.returncode} {read.stderr.decode()[-1500:]}")
        filler.unlink()
        return True

    # --- the engine

    def kill_the_engine(self) -> bool:
        self.engine.kill()
        time.sleep(self.dice.uniform(0, 1.0))
        self.engine.start()
        return True

    def kill_the_engine_and_its_memory(self) -> bool:
        self.engine.restart_with_empty_run()
        return True

    def _container(self, *states: str) -> dict[str, object] | None:
        found = [one for one in self.engine.containers() if one["State"] in states]
        return self.dice.choice(found) if found else None

    def rename_a_container(self) -> bool:
        one = self._container("running")
        if one is None:
            return False
        name = f"renamed-{self.dice.randrange(1 << 32):x}"
        return self._by_hand(f"/containers/{one['Id']}/rename?name={name}")[0] == 204

    def restart_a_container(self) -> bool:
        """An ended sandbox is started by hand: it holds its card again, though no lease says so."""
        one = self._container("exited")
        if one is None:
            return False
        labels = one.get("Labels") or {}
        assert isinstance(labels, dict)
        identity = str(one["Id"])
        sandbox = "" if identity in self.forged else str(labels.get("dibs.sandbox", ""))
        asked = now()
        status, _ = self._by_hand(f"/containers/{identity}/start")
        self.oracle.by_hand.append(ByHand(identity, sandbox, asked, now()))
        return status in (204, 304)

    def _by_hand(self, path: str, json: object = None) -> tuple[int, object]:
        """What a person asks of the engine. Where it gives no answer, that is told with its last words: it may have
        done what was asked, and has to be started again if it is gone."""
        try:
            return self.engine.api("POST", f"{self.engine.prefix}{path}", json=json)
        except OSError as error:
            said = self.engine.log.read_text(errors="replace").splitlines()[-12:]
            self.journal += [f"        no answer to {path}: {error}", *(f"          {line[:400]}" for line in said)]
            if not self.engine.answers():
                self.journal.append("        it was gone, and is started again")
                self.engine.kill()
                self.engine.start()
            return 0, None

    def forge_labels(self) -> bool:
        """A stranger's container that looks like one of ours; it holds nothing, and must not be removed."""
        one = self._container("running", "exited")
        if one is None:
            return False
        name = f"forged-{self.dice.randrange(1 << 32):x}"
        words = ["sleep", "1000"]
        if self.engine.kind == "docker":
            body = {"Image": images.REFERENCE, "Cmd": words, "Labels": one.get("Labels") or {}}
            body["HostConfig"] = {"NetworkMode": "none"}
            status, made = self._by_hand(f"/containers/create?name={name}", json=body)
        else:
            body = {"image": images.REFERENCE, "command": words, "labels": one.get("Labels") or {}, "name": name}
            body["netns"] = {"nsmode": "none"}
            status, made = self._by_hand("/containers/create", json=body)
        if status == 0:  # it may be there all the same
            self.forged |= {str(one["Id"]) for one in self.engine.containers() if name in str(one["Names"])}
        if status != 201:
            return False
        assert isinstance(made, dict)
        self.forged.add(str(made["Id"]))
        self._by_hand(f"/containers/{made['Id']}/start")
        return True

    # --- the end

    def disturb(self) -> None:
        what = self.dice.choice(self.disturbances)
        began = time.monotonic() - self.began
        done = what()
        self.journal.append(f"{began:7.2f} {what.__name__}{'' if done else ' (nothing to do)'}")
        if done:
            self.did[what.__name__] += 1

    def settle(self, seconds: float = 120.0) -> list[str]:
        """Everything goes; what is left after the next starts of dibs, in words."""
        self._quiet()
        for pid in self.processes():
            _signal(pid, signal.SIGCONT)
        if not self.engine.answers():
            self.engine.start()
        self.broken += self.given_away()
        self._end_strangers()
        for sandbox in self._live():
            done = self.dibs("sandbox", "rm", sandbox)
            if done.returncode:
                self.words[f"rm: {done.stderr.decode(errors='replace').strip()[-300:]}"] += 1
        deadline = time.monotonic() + seconds
        while left := self._left():
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        for stranger in self.strangers:
            stranger.wait()
        self.strangers.clear()
        return left

    def _end_strangers(self) -> None:
        """What the storm itself has made or started goes, by hand as well: its engine may have forgotten that it runs,
        or fail to remove it."""
        strangers = self.forged | {one.container for one in self.oracle.by_hand}
        for one in self.engine.containers():
            if one["Id"] in strangers:
                path = f"{self.engine.prefix}/containers/{one['Id']}?force=true&timeout=0"
                status, said = self.engine.api("DELETE", path)
                if status not in (200, 204, 404):
                    self.journal.append(f"        {one['Names']} {one['State']}: {status} {said}")
        for pid in _pids():
            container = next((one for one in strangers if one in _groups(pid)), None)
            if container is not None:
                self.journal.append(f"        ended by hand: {pid} {_line(pid)} of {container[:12]}")
                _signal(pid, signal.SIGKILL)

    def _live(self) -> list[str]:
        with Workloads(self.home) as service:
            return [row.id for row in service.sandboxes()]

    def _left(self) -> list[str]:
        with Workloads(self.home) as service:
            left = [f"lease {lease.id}" for lease in service.leases()]
            left += [f"sandbox {row.id} {row.state}" for row in service.sandboxes()]
            left += [f"ticket {ticket.id}" for ticket in service.queue()]
        found = {**self.processes(), **self.inside()}
        left += [f"process {pid}: {line} in {_groups(pid).split()[-1:]}" for pid, line in found.items()]
        left += [
            f"container {one['Id']} {one['Names']} {one['State']} {one.get('Labels')}"
            for one in self.engine.containers()
            if one["State"] in ("running", "paused", "restarting")
        ]
        return left


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]


def _groups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True

"""The host service as people use it: one gateway, run by root, and `dibs` run by others."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from dibs.backends.local import cgroups
from dibs.devices.simulated import parse_world, simulate
from dibs.gateway.host import Machine, install

from .conftest import OTHER, PLACE, USER

pytestmark = pytest.mark.root
Dibs = Callable[..., "subprocess.CompletedProcess[str]"]


class Service:
    """A host service below a folder of its own, and a way to call dibs as anybody."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = Machine(str(root))
        list(install(self.machine, start=False))
        self.machine.config.write_text('[gateway]\nsocket_mode = "0666"\n')
        simulate(self.machine.home, parse_world("4", model="H100"))
        for uid in (USER, OTHER, 0):
            folder = root / f"home-{uid}"
            folder.mkdir(mode=0o700)
            os.chown(folder, uid, uid)
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def env(self, uid: int) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.root / f"home-{uid}"), "DIBS_HOST_ROOT": str(self.root)}

    def start(self) -> None:
        log = (self.root / "log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-m", "dibs", "serve", "--host-service"],
            env=self.env(0), cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        log.close()
        assert self.process.stdout is not None
        ready = select.select([self.process.stdout], [], [], 60)[0]
        assert ready, (self.root / "log").read_text()
        assert "listening" in self.process.stdout.readline(), (self.root / "log").read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def popen(self, uid: int, *words: str, **more: object) -> subprocess.Popen[str]:
        who: dict[str, object] = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            [sys.executable, "-m", "dibs", *words],
            env=self.env(uid), cwd=self.root / f"home-{uid}", text=True, stdin=subprocess.DEVNULL, **who, **more,
        )  # fmt: skip

    def dibs(self, uid: int, *words: str) -> subprocess.CompletedProcess[str]:
        child = self.popen(uid, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = child.communicate(timeout=120)
        return subprocess.CompletedProcess(words, child.returncode, out, err)


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="dibs-host-", dir=PLACE) as folder:
        root = Path(folder)
        root.chmod(0o755)
        service = Service(root)
        yield service
        service.dibs(0, "sandbox", "rm", "--grace", "0s", *_names(service), "--")
        assert service.stop() == 0
        assert "a defect" not in (root / "log").read_text()


def _names(service: Service) -> list[str]:
    found = json.loads(service.dibs(0, "sandbox", "ls", "-o", "json").stdout)["sandboxes"]
    return [one["name"] for one in found] or ["none"]


@pytest.fixture
def service(running: Service) -> Iterator[Service]:
    yield running
    for name in _names(running):
        running.dibs(0, "sandbox", "rm", "--grace", "0s", name)


def test_a_command_runs_as_the_user_of_dibs(service: Service) -> None:
    for uid in (USER, OTHER):
        # Which network there is depends on the machine, and is said where it is none.
        result = service.dibs(uid, "run", "--network", "none", "--", "sh", "-c", "id -u; pwd; touch made")
        assert (result.stdout, result.stderr) == (f"{uid}\n{service.root}/home-{uid}\n", "")
        assert (service.root / f"home-{uid}" / "made").stat().st_uid == uid


def test_ordinary_users_cannot_reach_what_only_root_may(service: Service) -> None:
    secret = service.root / "secret"
    secret.write_text("root only")
    secret.chmod(0o600)
    result = service.dibs(USER, "run", "--", "cat", str(secret))
    assert result.returncode != 0
    assert result.stdout == ""
    refused = service.dibs(USER, "run", "--workdir", str(service.root / "home-0"), "--", "true")
    assert refused.returncode != 0
    mounted = service.dibs(USER, "run", "--mount", f"{secret}:/x/secret", "--", "cat", "/x/secret")
    assert "root only" not in mounted.stdout


def test_a_container_engine_is_no_way_to_become_root(service: Service) -> None:
    for engine in ("docker", "podman"):
        words = ("--backend", engine, "--image", "x", "--mount", "/:/host:rw", "--", "true")
        for verb in (("run",), ("sandbox", "create")):
            refused = service.dibs(USER, *verb, *words)
            assert refused.returncode == 81
            assert "ENGINE_NOT_FOR_USERS" in refused.stderr


def test_there_is_one_ledger_for_all_users(service: Service) -> None:
    assert service.dibs(USER, "run", "-d", "--name", "mine", "--gpu", "3", "--", "sleep", "100").returncode == 0
    refused = service.dibs(OTHER, "run", "--gpu", "2", "--", "true")
    assert refused.returncode == 83
    assert "mine" in refused.stderr
    held = json.loads(service.dibs(OTHER, "leases", "-o", "json").stdout)["leases"]
    assert [(lease["sandbox"], lease["user"]) for lease in held] == [("mine", str(USER))]


def test_only_the_owner_and_root_may_touch_a_sandbox(service: Service) -> None:
    service.dibs(USER, "run", "-d", "--name", "mine", "--", "sleep", "100")
    verbs = (("exec", "mine", "true"), ("rm", "mine"), ("stop", "mine"), ("pause", "mine"), ("logs", "mine"))
    for verb in verbs:
        result = service.dibs(OTHER, "sandbox", *verb)
        assert result.returncode == 88, verb
        assert "NOT_YOURS" in result.stderr
    inside = service.dibs(0, "sandbox", "exec", "mine", "id", "-u")
    assert inside.stdout == f"{USER}\n"  # root enters it, and is its user there
    assert service.dibs(0, "sandbox", "rm", "mine").returncode == 0


def test_limits_hold_for_an_ordinary_user(service: Service) -> None:
    if not cgroups.can_limit("pids").ok:
        pytest.skip("this host cannot limit processes")
    forks = "for i in $(seq 1 60); do sleep 5 & done; wait"
    result = service.dibs(USER, "run", "--pids", "20", "--", "sh", "-c", forks)
    assert "fork" in result.stderr.lower()


def test_the_services_socket_is_not_to_be_seen_in_a_sandbox(service: Service) -> None:
    for uid in (USER, 0):
        result = service.dibs(uid, "run", "--", "ls", str(service.machine.sockets))
        assert "dibs.sock" not in result.stdout


def test_sandboxes_outlive_a_restart_and_a_kill_of_the_service(service: Service) -> None:
    assert service.dibs(USER, "run", "-d", "--name", "stays", "--gpu", "1", "--", "sleep", "100").returncode == 0
    for number in (signal.SIGTERM, signal.SIGKILL):
        service.stop(number)
        service.start()
        assert service.dibs(USER, "sandbox", "exec", "stays", "id", "-u").stdout == f"{USER}\n"
        assert len(json.loads(service.dibs(OTHER, "leases", "-o", "json").stdout)["leases"]) == 1


def test_the_death_of_a_client_ends_what_it_ran_in_the_foreground(service: Service) -> None:
    child = service.popen(USER, "run", "--gpu", "4", "--", "sh", "-c", "echo ready; sleep 100", stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.kill()
    child.wait()
    child.stdout.close()
    assert service.dibs(OTHER, "run", "--gpu", "4", "--wait", "60s", "--", "true").returncode == 0


def test_a_user_who_may_not_use_the_service_is_told_how_he_could(service: Service) -> None:
    service.machine.socket.chmod(0o600)
    try:
        result = service.dibs(USER, "gpus")
        assert result.returncode == 91
        assert "usermod -aG dibs" in result.stderr
        assert "DIBS_HOME" not in result.stderr
    finally:
        service.machine.socket.chmod(0o666)


def test_a_home_of_ones_own_does_without_the_service(service: Service) -> None:
    own = service.root / f"home-{USER}" / "own"
    child = service.popen(USER, "--gateway", "none", "sandbox", "ls", stdout=subprocess.PIPE)
    assert child.communicate(timeout=60)[0].startswith("no live sandboxes")
    assert not own.exists()


def test_the_status_tells_that_it_runs(service: Service) -> None:
    result = service.dibs(USER, "host", "status", "-o", "json")
    found = json.loads(result.stdout)
    assert (result.returncode, found["running"], found["usable"]) == (0, True, True)
    assert service.process is not None
    assert (found["pid"], found["user"], found["gpus"], found["free"]) == (service.process.pid, "root", 4, 4)
    started = os.stat(f"/proc/{service.process.pid}").st_ctime
    assert abs(datetime.fromisoformat(found["since"]).timestamp() - started) < 60
    service.dibs(USER, "run", "-d", "--gpu", "3", "--", "sleep", "100")
    shown = service.dibs(OTHER, "host", "status").stdout
    assert "serves    4 GPUs (simulated), 1 free; 1 sandbox; 0 waiting" in shown
    assert "run by root, since 20" in shown


def test_it_listens_on_its_socket_and_nowhere_else(service: Service) -> None:
    assert service.process is not None
    own = {os.readlink(f"/proc/{service.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{service.process.pid}/fd")}
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert [line[9] for line in listening if line[3] == "0A" and f"socket:[{line[9]}]" in own] == []
    refused = service.dibs(0, "serve", "--host-service", "--listen", "127.0.0.1:0", "--check")
    assert "HOST_SERVICE_SOCKET_ONLY" in refused.stderr


def test_an_ordinary_user_can_have_a_request_explained(service: Service) -> None:
    result = service.dibs(USER, "explain", "--gpu", "1")
    assert result.returncode == 0, result.stderr
    named = service.dibs(USER, "explain", "--gpu", "1", "--backend", "docker", "-o", "json")
    assert "ENGINE_NOT_FOR_USERS" in named.stdout


def test_two_users_may_give_their_sandboxes_the_same_name(service: Service) -> None:
    for uid in (USER, OTHER):
        made = service.dibs(uid, "run", "-d", "--name", "train", "--", "sleep", "100")
        assert made.returncode == 0, made.stderr
    for uid in (USER, OTHER):
        assert service.dibs(uid, "sandbox", "exec", "train", "id", "-u").stdout == f"{uid}\n"
    again = service.dibs(USER, "run", "-d", "--name", "train", "--", "true")
    assert "NAME_TAKEN" in again.stderr
    unclear = service.dibs(0, "sandbox", "stop", "train")
    assert "several sandboxes are meant" in unclear.stderr
    assert service.dibs(USER, "sandbox", "rm", "--grace", "0s", "train").returncode == 0
    assert service.dibs(OTHER, "sandbox", "exec", "train", "id", "-u").stdout == f"{OTHER}\n"


def test_taints_and_the_simulated_world_are_for_administrators(service: Service) -> None:
    for words in (("taint", "gpu-0", "maintenance=fan"), ("simulate", "8")):
        refused = service.dibs(USER, "gpus", *words)
        assert refused.returncode != 0
        assert "ADMINISTRATOR_NEEDED" in refused.stderr
        assert "sudo" in refused.stderr
        assert "token" not in refused.stderr
    assert service.dibs(0, "gpus", "taint", "gpu-0", "maintenance=fan").returncode == 0
    assert service.dibs(0, "gpus", "untaint", "gpu-0").returncode == 0
    try:
        switched = service.dibs(0, "gpus", "simulate", "6", "--model", "H100")
        assert switched.returncode == 0, switched.stderr
        assert len(json.loads(service.dibs(USER, "gpus", "-o", "json").stdout)["devices"]) == 6
    finally:
        assert service.dibs(0, "gpus", "simulate", "4", "--model", "H100").returncode == 0


def test_while_the_service_is_stopped_no_user_falls_back_to_a_private_ledger(service: Service) -> None:
    home = service.root / f"home-{USER}"
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    service.stop()
    try:
        result = service.dibs(USER, "gpus")
        assert result.returncode != 0
        assert "GATEWAY_UNREACHABLE" in result.stderr
        assert "none" not in result.stderr
        assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before
    finally:
        service.start()

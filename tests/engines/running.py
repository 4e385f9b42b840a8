"""Real engines, started for tests and stopped without a trace.

An engine runs in a Debian root of its own (`installing`), in mount and network namespaces that a holder process keeps:
so it leaves no firewall rule, no bridge and no mount on the host, and can be killed and started again as on a real
machine. `/tmp` is the host's, so that paths of tests are the same inside. Everything that it makes lies in one folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.engines import images, installing

from dibs.http import Connection

PATIENCE = 60.0
NOBODY = 65534
REGISTRY = "127.0.0.1:5000"  # in the engine's network; not encrypted
_PREFIX = "dibs-engines-"

# In private namespaces: make the Debian root ours (pivot_root, never chroot: podman's exec would land in the host's).
_HOLD = """
set -e
mount --bind {root} {root}
mount -t proc proc {root}/proc
mount --rbind /sys {root}/sys
mount --rbind /dev {root}/dev
mount -t tmpfs tmpfs {root}/run
mount --rbind /tmp {root}/tmp
mkdir -p {root}/etc/cdi {root}/run/cdi {root}/.old
mount --bind {folder}/etc-cdi {root}/etc/cdi
mount --bind {folder}/home/cdi {root}/run/cdi
cd {root}
pivot_root . .old
umount -l /.old
ip link set lo up
echo ready
exec sleep infinity
"""
# A user who runs an engine has further ids, for the users of its containers.
_IDS = """
set -e
touch /etc/subuid /etc/subgid
mount --bind {folder}/subids /etc/subuid
mount --bind {folder}/subids /etc/subgid
"""


class Engine:
    """One engine: `docker` or `podman`. `cdi` is a folder of specs that it reads beside /etc/cdi (here: `etc_cdi`).

    Docker is told of it; for Podman it is the other of its two usual places, since only newer ones can be told.
    `rootless` (Podman only): it is run by an ordinary user, `NOBODY`, who owns its home and its socket.
    """

    def __init__(self, kind: str, suite: str = "trixie", *, cdi_on: bool = True, rootless: bool = False) -> None:
        self.kind = kind
        self.suite = suite
        self.rootless = rootless
        self.cdi_on = cdi_on
        self.options: dict[str, object] = {}  # more of what Docker's daemon is told when it starts
        self.root = installing.install(suite)
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        (self.folder / "owner").write_text(str(os.getpid()))
        self.etc_cdi = self.folder / "etc-cdi"
        self.home = self.folder / "home"  # a dibs home whose simulated devices the engine knows by name
        self.cdi = self.home / "cdi"
        for one in (self.etc_cdi, self.cdi):
            one.mkdir(parents=True)
        self.programs = self.folder / "programs"  # the first folder on its PATH
        (self.folder / "registries.conf").write_text(f'[[registry]]\nlocation = "{REGISTRY}"\ninsecure = true\n')
        self.own = self.folder / "own"  # what only the user of a rootless engine may look at
        self.socket = (self.own if rootless else self.folder) / "engine.sock"
        self.log = self.folder / "engine.log"
        self._holder: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None

    # --- life

    def start(self) -> Engine:
        """Start it, or start it again after it was killed."""
        if self._holder is None:
            script = _HOLD.format(root=self.root, folder=self.folder)
            self._holder = self._popen(
                ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script],
                None,
            )  # fmt: skip
            assert self._holder.stdout is not None
            if self._holder.stdout.readline().strip() != b"ready":
                raise installing.CannotInstall(f"the engine's namespaces cannot be made: {self._complaint()}")
            if self.rootless:
                self._give_to_user()
        self.socket.unlink(missing_ok=True)
        # A dockerd that was killed has left it, and its number may be another process's by now.
        Path(f"/proc/{self._holder.pid}/root/run/{self.folder.name}.pid").unlink(missing_ok=True)
        environment = self._environment()
        inside = ["nsenter", "--target", str(self._holder.pid), "--mount", "--net", "--"]
        if self.kind == "docker" and self._containerd is None:
            self._containerd = self._popen([*inside, *self._beside()], environment)
        self._daemon = self._popen([*inside, *self._command()], environment)
        deadline = time.monotonic() + PATIENCE
        while not self.answers():
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                raise installing.CannotInstall(f"{self.kind} does not start: {self._complaint()}")
            time.sleep(0.02)
        return self

    def inside(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """A program where the engine is, with its namespaces and its environment."""
        assert self._holder is not None
        return subprocess.Popen(
            ["nsenter", "--target", str(self._holder.pid), "--mount", "--net", "--", *words],
            env=self._environment(), text=True, **{"stdin": subprocess.DEVNULL, **more},
        )  # fmt: skip

    def cli(self, *words: str, **more: Any) -> str:
        """The engine's own command, as root has it there."""
        own = ["docker", "--host", f"unix://{self.socket}"] if self.kind == "docker" else self._command()[:9]
        child = self.inside(*own, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
        said = child.communicate(timeout=PATIENCE)[0]
        assert child.returncode == 0, said
        return said

    def _environment(self) -> dict[str, str]:
        environment = {
            "PATH": f"{self.programs}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1", "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"), "XDG_RUNTIME_DIR": "/run",
            "DOCKER_CONFIG": str(self.folder / "docker"),
        }  # fmt: skip
        if self.rootless:
            environment |= {"HOME": f"{self.own}/home", "XDG_RUNTIME_DIR": f"{self.own}/run"}
        return environment

    def _give_to_user(self) -> None:
        assert self._holder is not None
        self.folder.chmod(0o755)
        (self.folder / "subids").write_text(f"{NOBODY}:200000:65536\n")
        inside = ["nsenter", "--target", str(self._holder.pid), "--mount", "--", "sh", "-ec"]
        subprocess.run([*inside, _IDS.format(folder=self.folder)], check=True)
        for one in (self.own, self.own / "home", self.own / "run", self.home, self.cdi):
            one.mkdir(exist_ok=True)
            os.chown(one, NOBODY, NOBODY)
        self.own.chmod(0o700)

    def network(self) -> str:
        """The file of its network namespace."""
        assert self._holder is not None
        return f"/proc/{self._holder.pid}/ns/net"

    def _popen(self, words: list[str], env: dict[str, str] | None) -> subprocess.Popen[bytes]:
        """The holder says when it is ready; everything else goes to the log."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log if env is not None else subprocess.PIPE, stderr=log,
                env=env, start_new_session=True,
            )  # fmt: skip

    def _beside(self) -> list[str]:
        """containerd, as on a real machine: a service of its own that outlives dockerd."""
        run = f"/run/{self.folder.name}-containerd"
        (self.folder / "containerd.toml").write_text(
            f'version = 2\nroot = "{self.folder}/containerd"\nstate = "{run}"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{run}/containerd.sock"\n'
        )
        return ["containerd", "--config", f"{self.folder}/containerd.toml", "--log-level", "warn"]

    def _command(self) -> list[str]:
        folder = self.folder
        if self.kind == "docker":
            config = {
                "features": {"cdi": self.cdi_on},
                "cdi-spec-dirs": ["/etc/cdi", "/run/cdi"],
                "data-root": f"{folder}/data",
                "exec-root": f"/run/{folder.name}",
                "pidfile": f"/run/{folder.name}.pid",
                "hosts": [f"unix://{self.socket}"],
                "storage-driver": "overlay2",
                "exec-opts": ["native.cgroupdriver=cgroupfs"],
                "containerd": f"/run/{folder.name}-containerd/containerd.sock",
                "bridge": "none",
                "iptables": True,  # in a network namespace of its own; they keep its networks apart
                "ip6tables": False,
                **self.options,
            }
            (folder / "daemon.json").write_text(json.dumps(config))
            return ["dockerd", "--config-file", f"{folder}/daemon.json"]
        (folder / "containers.conf").write_text(
            "[containers]\n"
            'default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'  # root here may not raise them
            "[engine]\n"
            'cgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
        )
        if self.rootless:
            return [
                "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                "podman", "--root", f"{self.own}/data", "--runroot", f"{self.own}/run/c", "--storage-driver", "vfs",
                "--tmpdir", f"{self.own}/run/t", "system", "service", "--time=0", f"unix://{self.socket}",
            ]  # fmt: skip
        return [
            "podman", "--root", f"{folder}/data", "--runroot", f"/run/{folder.name}", "--storage-driver", "overlay",
            "--tmpdir", f"/run/{folder.name}-tmp",
            "system", "service", "--time=0", f"unix://{self.socket}",
        ]  # fmt: skip

    def answers(self) -> bool:
        try:
            with Connection(str(self.socket), timeout=10) as line:
                return line.request("GET", "/_ping").status == 200
        except OSError:
            return False

    @property
    def process(self) -> int:
        """The engine's own, to be sent signals."""
        assert self._daemon is not None
        return self._daemon.pid

    def kill(self) -> None:
        """As a crash: the containers are not asked."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()

    def restart_with_empty_run(self) -> None:
        """As after a crash of everything that keeps state in /run: containers go on, the engine has forgotten them."""
        assert self._holder is not None
        self.kill()
        if self._containerd is not None:
            self._containerd.kill()
            self._containerd.wait()
            self._containerd = None
        script = f"umount -l /run && mount -t tmpfs tmpfs /run && mkdir /run/cdi && mount --bind {self.cdi} /run/cdi"
        inside = ["nsenter", "--target", str(self._holder.pid), "--mount", "--", "sh", "-c", script]
        subprocess.run(inside, check=True)
        self.start()

    def stop(self) -> None:
        """Remove everything that it has made, and itself."""
        if self._holder is not None:
            try:
                if not self.answers():
                    self.start()
                self.remove_containers()
            finally:
                if self._daemon is not None:
                    self._daemon.terminate()
                    try:
                        self._daemon.wait(PATIENCE)
                    except subprocess.TimeoutExpired:
                        self._daemon.kill()
                        self._daemon.wait()
                kill_all(self.folder.name)
                for file in self.own.rglob("pause.pid"):  # it keeps the namespaces of a rootless engine
                    os.kill(int(file.read_text()), signal.SIGKILL)
                if self._containerd is not None:
                    self._containerd.wait()
                self._holder.kill()
                self._holder.wait()
                if self._holder.stdout is not None:
                    self._holder.stdout.close()
                self._holder = self._daemon = self._containerd = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _complaint(self) -> str:
        return " / ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:])

    # --- what tests ask of it, past dibs

    def api(self, method: str, path: str, json: object = None, body: bytes | None = None) -> tuple[int, object]:
        with Connection(str(self.socket), timeout=PATIENCE) as line:
            headers = {"Content-Type": "application/x-tar"} if body is not None else None
            response = line.request(method, path, body, json=json, headers=headers)
            data = response.read()
        try:
            return response.status, msgspec_json(data)
        except ValueError:
            return response.status, data

    @property
    def prefix(self) -> str:
        return "/v1.41" if self.kind == "docker" else "/v4.0.0/libpod"

    def version(self) -> str:
        answer = self.api("GET", "/version")[1]
        assert isinstance(answer, dict), answer
        return str(answer["Version"])

    def containers(self) -> list[dict[str, object]]:
        found = self.api("GET", f"{self.prefix}/containers/json?all=true")[1]
        assert isinstance(found, list | None), found
        return found or []

    def remove_containers(self) -> None:
        for one in self.containers():
            self.api("DELETE", f"{self.prefix}/containers/{one['Id']}?force=true&timeout=0")

    def load(self) -> str:
        """A small image, as its reference."""
        status, answer = self.api("POST", f"{self.prefix}/images/load", body=images.saved(self.root).read_bytes())
        assert status == 200, answer
        return images.REFERENCE


def msgspec_json(data: bytes) -> object:
    return json.loads(data) if data.strip() else None


def kill_all(token: str) -> None:
    """End the processes that an engine has left, and theirs: their command lines name its folder."""
    while found := _processes(token):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def _processes(token: str) -> list[int]:
    parents: dict[int, int] = {}
    named = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes()
            fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] in (b"Z", b"X"):
            continue
        parents[int(entry)] = int(fields[1])
        engine = words.split(b"\0", 1)[0].rpartition(b"/")[2]
        if token.encode() in words and engine.startswith((b"dockerd", b"containerd", b"podman", b"conmon", b"runc")):
            named.add(int(entry))
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in named} - named
        named |= more
        grown = bool(more)
    return sorted(named)


def processes_naming(container: str) -> list[int]:
    """Live processes with a container's id among their words: containerd's shim, conmon."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0") if entry.isdigit() else []
        except OSError:
            continue
        if container.encode() in words:
            found.append(int(entry))
    return found


def processes_with(*texts: str) -> list[int]:
    """Live processes with all of this on their command line."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_text(errors="replace") if entry.isdigit() else ""
        except OSError:
            continue
        if line and all(text in line for text in texts):
            found.append(int(entry))
    return found


def sweep() -> None:
    """Remove what test runs that were killed have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            owner = int((folder / "owner").read_text())
        except (OSError, ValueError):
            continue
        if not Path(f"/proc/{owner}").exists():
            kill_all(folder.name)
            for entry in os.listdir("/proc"):  # the holder of its namespaces
                if entry.isdigit() and _holds(entry, folder):
                    os.kill(int(entry), signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)


def _holds(pid: str, folder: Path) -> bool:
    try:
        return (
            str(folder / "etc-cdi") in Path(f"/proc/{pid}/mountinfo").read_text()
            and Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\0infinity\0"
        )
    except OSError:
        return False

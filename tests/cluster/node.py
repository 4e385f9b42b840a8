"""One real node of a test cluster: containerd and kubelet in namespaces of their own. The `keeper` owns it.

Its root is the Debian root of the engines' tests with a writable layer above it, so nothing is written on the host.
`/tmp` is the host's: paths of tests are the same inside. The first process of its PID namespace holds everything; when
it dies, containerd, kubelet and all pods die. What is left then is a folder and control groups, which `remove_groups`
removes, also for a keeper that was killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from tests.cluster import images, names, pki
from tests.cluster.control_plane import GATES, CannotStart
from tests.cluster.network import Network, await_namespace, die_with_us
from tests.cluster.owner import is_alive, own_name

_PATIENCE = 60.0
_GROUPS = Path("/sys/fs/cgroup")
_PREFIX = "dibs-test-node-"
_FOLDERS = ("upper", "work", "root", "kubelet", "containerd", "etc-cdi", "run-cdi", "log", "cni")

# `init` reaps what shims leave behind.
_HOLD = """
set -e
mount -t overlay overlay -o lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work {folder}/root
cd {folder}/root
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount --rbind /tmp tmp
mount -t tmpfs tmpfs run
mkdir -p var/lib/kubelet var/lib/containerd var/log etc/cdi run/cdi etc/cni/net.d .old usr/kube
mount --bind {folder}/kubelet var/lib/kubelet
mount --make-shared var/lib/kubelet
mount --bind {folder}/containerd var/lib/containerd
mount --bind {folder}/log var/log
mount --bind {folder}/etc-cdi etc/cdi
mount --bind {folder}/run-cdi run/cdi
mount --bind {folder}/cni etc/cni/net.d
mount --bind {binaries} usr/kube
hostname {name}
echo {name} | md5sum | cut -c1-32 > etc/machine-id
printf '127.0.0.1 localhost\\n{address} {name}\\n' > etc/hosts
printf 'nameserver 127.0.0.1\\n' > etc/resolv.conf
pivot_root . .old
umount -l /.old
echo 1 > /proc/sys/net/ipv4/ip_forward
touch /run/ready
exec tini -s -- sleep infinity
"""

# There is no kube-proxy: the one service that every pod may want is made by hand, as soon as there is a network.
_SERVICE = """
for chain in PREROUTING OUTPUT; do
    iptables -t nat -A $chain -d 10.96.0.1/32 -p tcp --dport 443 -j DNAT --to-destination {server}
done
"""


class Node:
    def __init__(self, name: str, *, lower: Path, binaries: Path, plane: Path, network: Network, server: str) -> None:
        self.name = name
        self._plane = plane
        self._lower = lower
        self._binaries = binaries
        self._network = network
        self._server = server
        self.folder = plane / name
        self.group = f"{_PREFIX}{own_name(os.getpid()).replace(' ', '-')}-{name}"
        self._holder: subprocess.Popen[bytes] | None = None
        self._init = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # -- life, in the order of the keeper

    def start(self) -> None:
        """Namespaces, control groups, containerd with its images, kubelet. The API server must answer already."""
        for one in _FOLDERS:
            (self.folder / one).mkdir(parents=True)
        make_groups(self.group)
        self._configure()
        self._hold()
        self._network.join(self.name, self._init)
        self._inside("sh", "-ec", _SERVICE.format(server=self._server))
        self.start_containerd()
        for archive in images.basic(self._lower):
            self.load(archive)
        self.start_kubelet()

    def start_containerd(self) -> None:
        self._run("containerd", "containerd", "--config", f"{self.folder}/containerd.toml", "--log-level", "warn")
        self._until(lambda: self._answers("ctr", "version"), "containerd")

    def start_kubelet(self) -> None:
        self._run(
            "kubelet", "/usr/kube/kubelet", f"--config={self.folder}/kubelet.json",
            f"--kubeconfig={self._plane}/{self.name}.kubeconfig", f"--hostname-override={self.name}",
            f"--node-ip={self._network.address(self.name)}",
        )  # fmt: skip

    def load(self, archive: Path) -> None:
        """An image, as kubelet sees it."""
        self._inside("ctr", "--namespace", "k8s.io", "images", "import", "-", stdin=archive)

    def kill(self, name: str) -> None:
        """As a crash: the process itself, not the `nsenter` that started it."""
        process = self.processes.pop(name)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            subprocess.run(["kill", "-KILL", child], check=False)
        process.wait()

    def stop(self) -> None:
        if self._holder is not None:
            self._holder.kill()  # `unshare --kill-child`: its PID namespace dies with it
            self._holder.wait()
        for process in self.processes.values():
            process.wait()
        self.processes = {}
        remove_groups(self.group)

    @property
    def init(self) -> int:
        """The process that holds its namespaces."""
        return self._init

    # -- inside

    def _hold(self) -> None:
        script = _HOLD.format(
            lower=self._lower, folder=self.folder, binaries=self._binaries, name=self.name,
            address=self._network.address(self.name),
        )  # fmt: skip
        self._holder = die_with_us(
            "unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child",
            "--propagation", "private", "sh", "-c", script, log=self.folder / "log" / "holder.log",
        )  # fmt: skip
        await_namespace(self._holder.pid, "net")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")

        def ready() -> bool:
            found = children.read_text().split()
            self._init = int(found[0]) if found else 0
            return bool(found) and Path(f"/proc/{self._init}/root/run/ready").exists()

        self._until(ready, "holder")

    def _words(self, *words: str) -> list[str]:
        path = "/usr/kube:/usr/sbin:/usr/bin:/sbin:/bin"
        enter = ["nsenter", "--target", str(self._init), "--mount", "--net", "--pid", "--uts", "--ipc"]
        return [*enter, "env", "-i", f"PATH={path}", "HOME=/root", *words]

    def _run(self, name: str, *words: str) -> None:
        self.processes[name] = die_with_us(*self._words(*words), log=self.folder / "log" / f"{name}.log")

    def _inside(self, *words: str, stdin: Path = Path("/dev/null")) -> None:
        with stdin.open("rb") as stream:
            done = subprocess.run(self._words(*words), stdin=stream, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotStart(f"{self.name}: {' '.join(words[:4])}: {done.stderr.strip()[-500:]}")

    def _answers(self, *words: str) -> bool:
        return subprocess.run(self._words(*words), capture_output=True, check=False).returncode == 0

    def _until(self, done: object, name: str) -> None:
        assert callable(done)
        end = time.monotonic() + _PATIENCE
        while not done():
            process = self._holder if name == "holder" else self.processes[name]
            assert process is not None
            if process.poll() is not None or time.monotonic() > end:
                tail = (self.folder / "log" / f"{name}.log").read_text(errors="replace").splitlines()[-5:]
                raise CannotStart(f"{self.name}: {name} is not ready: {' | '.join(tail)}")
            time.sleep(0.02)

    # -- configuration

    def _configure(self) -> None:
        address = self._network.address(self.name)
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(pause=images.PAUSE))
        pki.certificate(
            self._plane, f"kubelet-{self.name}", f"/O=system:nodes/CN=system:node:{self.name}", "serverAuth",
            f"IP:{address},DNS:{self.name}",
        )  # fmt: skip
        ranges = [[{"subnet": self._network.pods(self.name)}]]
        ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni"}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": ipam}
        network = {"cniVersion": "1.0.0", "name": "dibs", "plugins": [bridge, {"type": "portmap"}]}
        (self.folder / "cni" / "10-dibs.conflist").write_text(json.dumps(network))
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": f"{self._plane}/ca.crt"},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": f"{self._plane}/kubelet-{self.name}.crt",
            "tlsPrivateKeyFile": f"{self._plane}/kubelet-{self.name}.key",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,  # root here may not lower it
            "resolvConf": "/etc/resolv.conf",
            "clusterDNS": [self._network.host],
            "clusterDomain": names.DOMAIN,
            "enforceNodeAllocatable": ["pods"],
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "10s",
            "imageGCHighThresholdPercent": 100,
            "maxPods": 250,
            "registryPullQPS": 0,
            "featureGates": {name: True for name, _, _ in (one.partition("=") for one in GATES.split(","))},
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        }
        (self.folder / "kubelet.json").write_text(json.dumps(configuration))


_CONTAINERD = """version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


# -- control groups


def _hierarchies() -> list[Path]:
    if (_GROUPS / "cgroup.controllers").exists():
        return [_GROUPS]
    return [one for one in _GROUPS.iterdir() if one.is_dir() and not one.is_symlink()]


def make_groups(name: str) -> None:
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if (group / "cgroup.subtree_control").exists() and hierarchy == _GROUPS:
            available = (group / "cgroup.controllers").read_text().split()
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in available))
        if hierarchy.name == "cpuset":  # those of version 1 start empty
            for one in ("cpuset.cpus", "cpuset.mems"):
                (group / one).write_text((hierarchy / one).read_text())


def remove_groups(name: str) -> None:
    """Remove a node's control groups. A process that was killed stays in its group for a moment."""
    end = time.monotonic() + _PATIENCE
    while left := [one / name for one in _hierarchies() if (one / name).is_dir()]:
        for group in left:
            for folder, _, _ in os.walk(group, topdown=False):
                try:
                    Path(folder).rmdir()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if time.monotonic() > end:
                        raise CannotStart(f"{folder} cannot be removed: {error.strerror}") from error
        if any(group.is_dir() for group in left):
            time.sleep(0.02)


def sweep_groups() -> None:
    """Remove the groups of keepers that were killed: a group is called after the process that owns it."""
    for hierarchy in _hierarchies():
        for group in hierarchy.glob(f"{_PREFIX}*"):
            pid, started, _ = group.name.removeprefix(_PREFIX).split("-", 2)
            if not is_alive(f"{pid} {started}"):
                remove_groups(group.name)

"""A look into the running container: its device nodes, environment, limits, mounts and rights.

With the image's own shell, right after the start: Kubernetes has no moment between the setting up of a container and
its command. An image without a shell cannot be looked into; then the API server's word is all there is, and the receipt
says so. Nothing here decides: `workloads.receipt` compares.
"""

from __future__ import annotations

import re

from dibs.backends.kubernetes.exec_stream import NoShell
from dibs.backends.kubernetes.pods import SandboxPod
from dibs.backends.kubernetes.streams import MAIN, Talks
from dibs.backends.port import Handle, MountFact, NodeFact, Observation, Usage
from dibs.errors import Conflict
from dibs.kube import errors
from dibs.kube.client import NODES
from dibs.kube.objects import Node
from dibs.patterns import lazy_pattern
from dibs.quantity import NANO, Quantity

AFTER = "after start"
_STANDARD = frozenset(("console", "full", "fuse", "null", "ptmx", "random", "tty", "urandom", "zero"))
_UNLIMITED = 1 << 60  # what cgroup v1 says where there is no limit is near 2**63
_CGROUP = (
    "memory.max", "memory/memory.limit_in_bytes", "cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us",
    "cpu,cpuacct/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_period_us", "memory.current", "memory/memory.usage_in_bytes",
    "cpu.stat", "cpuacct/cpuacct.usage", "cpu,cpuacct/cpuacct.usage",
)  # fmt: skip
_LOOK = (
    MAIN
    + '[ -n "$m" ] || exit 3; e=@dibs@; '
    + 'for f in environ status mountinfo; do echo "$e$f"; cat /proc/$m/$f; echo; done; '
    + 'set --; for f in /dev/* /dev/*/*; do if [ -c $f ] || [ -b $f ]; then set -- "$@" $f; fi; done; '
    + 'echo "${e}nodes"; [ $# = 0 ] || ls -lnd "$@"; echo "${e}cgroup"; '
    + "for f in " + " ".join(_CGROUP) + '; do g=/sys/fs/cgroup/$f; if [ -r $g ]; then echo "=$f"; cat $g; fi; done; '
    + 'echo "${e}shm"; df -k /dev/shm 2>/dev/null; echo "${e}end"'
)  # fmt: skip
_NODE = lazy_pattern(r"^([bc])\S*\s+\d+\s+\d+\s+\d+\s+(\d+),\s*(\d+)\s.*?(/dev/\S+)$")


class Looks(Talks):
    """`observe` and `usage`."""

    def observe(self, handle: Handle) -> Observation:
        pod = self.running(handle)
        try:
            code, out, err = self.run(handle, ("sh", "-c", _LOOK), pod=pod)
        except NoShell:
            return Observation(origin={"": "API server"}, unseen=("nodes", "env", "limits", "mounts", *_PROCESS))
        if code == 3 or code in (137, 143):
            raise Conflict("the sandbox has just ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        parts = _parts(out)
        if "end" not in parts:
            said = err.decode("utf-8", "replace").strip()
            raise Conflict(
                f"it could not be looked into: {said or f'exit code {code}'}", field="sandbox",
                value=handle.sandbox_id, code="NOT_RUNNING",
            )  # fmt: skip
        return observed(pod, parts)

    def usage(self, handle: Handle) -> Usage:
        pod = self.running(handle)
        try:
            _, out, _ = self.run(handle, ("sh", "-c", _LOOK), pod=pod)
        except NoShell as error:
            raise Conflict(
                "the image has no shell, and without one its usage cannot be read", field="sandbox",
                value=handle.sandbox_id, code="SHELL_NEEDED",
            ) from error  # fmt: skip
        files = _cgroup(_parts(out).get("cgroup", b""))
        limits = _limits(files)
        used = _first_number(files, "memory.current", "memory/memory.usage_in_bytes")
        cpus, memory = self._room(pod)
        return Usage(
            cpu_seconds=_cpu_seconds(files),
            memory_bytes=used or 0,
            memory_limit=limits.get("memory_bytes", memory),
            cpus=limits["cpu_millis"] / 1000 if "cpu_millis" in limits else cpus,
        )

    def _room(self, pod: SandboxPod) -> tuple[float, int]:
        """What its node has, for a sandbox without limits; nothing where that may not be read."""
        try:
            room = self.cluster().get(NODES, pod.spec.node_name, Node).status.allocatable
        except (errors.Forbidden, errors.Missing):
            return 0.0, 0
        return (
            Quantity.parse(room.get("cpu", "0")).nanos / NANO,
            Quantity.parse(room.get("memory", "0")).nanos // NANO,
        )


_PROCESS = ("no_new_privileges", "seccomp", "capabilities", "root", "user")


def observed(pod: SandboxPod, parts: dict[str, bytes]) -> Observation:
    """What was printed, as facts."""
    env = {}
    for line in parts["environ"].split(b"\0"):
        name, equals, value = line.decode("utf-8", "surrogateescape").partition("=")
        if equals and name.strip():
            env[name] = value
    status = dict(line.split(":", 1) for line in parts["status"].decode("utf-8", "replace").splitlines() if ":" in line)
    mounted = _mounted(parts["mountinfo"].decode("utf-8", "replace"))
    files = _cgroup(parts["cgroup"])
    limits = _limits(files)
    wanted = pod.main.resources.get("limits") or {}
    unseen = [] if files else ["limits"]
    if "cpu" not in wanted:
        limits.pop("cpu_millis", None)  # the limit of a pod above it, or of the node: not ours
    if "memory" not in wanted:
        limits.pop("memory_bytes", None)
    if any(one.mount_path == "/dev/shm" for one in pod.main.volume_mounts):  # noqa: S108 - in the pod
        size = _shm(parts.get("shm", b""))
        if size is not None:
            limits["shm_bytes"] = size
    process = {
        "no_new_privileges": "yes" if status.get("NoNewPrivs", "").strip() == "1" else "no",
        "seccomp": "filtered" if status.get("Seccomp", "").strip() == "2" else "unfiltered",
        "capabilities": "none" if int(status.get("CapEff", "1").strip(), 16) == 0 else status["CapEff"].strip(),
    }
    root = next((mode for target, mode in mounted if target == "/"), "")
    if root == "ro":
        process["root"] = "ro"
    if pod.spec.security_context.get("runAsUser") is not None:
        process["user"] = status.get("Uid", "").split()[0]
    return Observation(
        nodes=_nodes(parts["nodes"].decode("utf-8", "replace")),
        env=env,
        mounts=_mounts(pod, mounted),
        limits=limits,
        process=process,
        origin={"": AFTER},
        unseen=tuple(unseen),
    )


def _parts(out: bytes) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    for piece in out.split(b"@dibs@")[1:]:
        name, _, body = piece.partition(b"\n")
        parts[name.decode("ascii", "replace")] = body
    return parts


def _nodes(text: str) -> tuple[NodeFact, ...]:
    found = []
    for line in text.splitlines():
        match = _NODE.match(line.strip())
        if match is None:
            continue
        path = match[4]
        name = path.removeprefix("/dev/")
        if name in _STANDARD or path.startswith(("/dev/pts/", "/dev/mqueue/")):
            continue
        found.append(NodeFact(path, match[1], int(match[2]), int(match[3])))
    return tuple(sorted(found))


def _mounted(text: str) -> list[tuple[str, str]]:
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 6:
            target = words[4].encode().decode("unicode_escape") if "\\" in words[4] else words[4]
            found.append((target, "ro" if "ro" in words[5].split(",") else "rw"))
    return found


def _mounts(pod: SandboxPod, mounted: list[tuple[str, str]]) -> tuple[MountFact, ...]:
    """Its volumes, as they are mounted. What the kubelet adds (hosts, resolv.conf …) is not the request's."""
    modes = dict(mounted)
    return tuple(
        MountFact(one.mount_path, "ro" if modes[one.mount_path] == "ro" else "rw", f"volume {one.name}")
        for one in pod.main.volume_mounts
        if one.mount_path in modes and one.name.startswith("dibs-")
    )


def _cgroup(body: bytes) -> dict[str, str]:
    files: dict[str, str] = {}
    for piece in ("\n" + body.decode("ascii", "replace")).split("\n=")[1:]:
        name, _, text = piece.partition("\n")
        files[name] = text.strip()
    return files


def _limits(files: dict[str, str]) -> dict[str, int]:
    limits: dict[str, int] = {}
    memory = _first_number(files, "memory.max", "memory/memory.limit_in_bytes")
    if memory is not None and memory < _UNLIMITED:
        limits["memory_bytes"] = memory
    quota, period = "", ""
    if "cpu.max" in files:
        quota, _, period = files["cpu.max"].partition(" ")
    else:
        for folder in ("cpu", "cpu,cpuacct"):
            quota = quota or files.get(f"{folder}/cpu.cfs_quota_us", "")
            period = period or files.get(f"{folder}/cpu.cfs_period_us", "")
    if quota and period and quota.isdigit() and period.isdigit():
        limits["cpu_millis"] = int(quota) * 1000 // int(period)
    return limits


def _first_number(files: dict[str, str], *names: str) -> int | None:
    return next((int(files[name]) for name in names if files.get(name, "").isdigit()), None)


def _cpu_seconds(files: dict[str, str]) -> float:
    match = re.search(r"usage_usec (\d+)", files.get("cpu.stat", ""))
    if match is not None:
        return int(match[1]) / 1e6
    return (_first_number(files, "cpuacct/cpuacct.usage", "cpu,cpuacct/cpuacct.usage") or 0) / 1e9


def _shm(body: bytes) -> int | None:
    for line in body.decode("ascii", "replace").splitlines():
        words = line.split()
        if words and words[-1] == "/dev/shm" and len(words) > 2 and words[1].isdigit():  # noqa: S108 - in the pod
            return int(words[1]) * 1024
    return None

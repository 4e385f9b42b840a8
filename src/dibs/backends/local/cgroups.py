"""Control groups: what limits a sandbox, and what freezes it.

`backend` asks whether a limit can be enforced, makes a sandbox's group before its first process, and reads the values
back for the receipt; the shim joins it and removes it. Version 1 (a tree per controller) and version 2 (one tree) are
told apart by trying, per controller, so that a hybrid host works too. Where an ordinary user may make no groups, the
user's systemd may be able to (`scopes`).

It must never let a limit pass that was not written and read back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import msgspec

from dibs.backends.local import scopes
from dibs.backends.port import Capability, Limits
from dibs.backends.proc import unescape
from dibs.errors import BackendUnavailable, Unsupported

PARENT = "dibs"
PERIOD = 100_000  # microseconds, the kernel's own default
LONG_PERIOD = 1_000_000  # for shares so small that the quota would be under the kernel's least of 1 ms
CONTROLLERS = ("cpu", "memory", "pids")
LEAF = "others"  # where the processes of a group go that is to hand controllers on
PAGE = os.sysconf("SC_PAGESIZE")


class Tree(msgspec.Struct, frozen=True):
    """Where groups of one controller can be made, or why not."""

    version: int
    folder: str = ""
    reason: str = ""
    remedy: str = ""
    scope: str = ""  # the mount of version 2, where a scope of the user's systemd has to be started for each group


class Group(msgspec.Struct, frozen=True):
    """The group of one sandbox: the folders to join, and the files that matter."""

    folders: tuple[str, ...] = ()
    freezer: str = ""  # "v1:FOLDER" or "v2:FOLDER"; made only when it is needed
    oom: str = ""
    scope: str = ""  # the unit of the user's systemd that it is in, if any


def read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def hierarchies(mountinfo: str) -> dict[str, tuple[int, str]]:
    """Controller → (version, mount point); version 2's tree is also listed as `unified`."""
    found: dict[str, tuple[int, str]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point, root = unescape(left.split(" ")[4]), left.split(" ")[3]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup":
            for name in options.split(","):
                found.setdefault(name, (1, point))
        elif kind == "cgroup2" and root == "/":
            found.setdefault("unified", (2, point))
    if "unified" in found:
        point = found["unified"][1]
        for name in read(f"{point}/cgroup.controllers").split():
            found[name] = (2, point)
    return found


def own_group(point: str) -> str:
    """The version 2 group that this process is in, below the mount."""
    for line in read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return os.path.normpath(f"{point}/{line[3:]}")
    return point


@lru_cache(maxsize=8)
def tree(name: str) -> Tree:
    """Where groups of a controller, or of the `freezer`, can be made. Found out by making one."""
    try:
        known = hierarchies(read("/proc/self/mountinfo"))
    except OSError as error:
        reason = f"the control groups cannot be read: {error.strerror}"
        return Tree(0, "", reason, "mount /proc and /sys/fs/cgroup")
    version, point = known.get(name, (0, ""))
    if not version and name == "freezer" and "unified" in known:
        version, point = known["unified"]
    if version == 1:
        return _try(1, f"{point}/{PARENT}", "")
    if version == 2:
        return _version_2(point, "" if name == "freezer" else name)
    return Tree(0, "", f"this host has no {name} control group", "mount a cgroup file system with that controller")


def _try(version: int, parent: str, controller: str) -> Tree:
    probe = f"{parent}/probe-{os.getpid()}"
    made = not os.path.isdir(parent)
    try:
        os.makedirs(parent, exist_ok=True)
        if controller:
            _enable(os.path.dirname(parent), controller)
            _enable(parent, controller)
        os.mkdir(probe)
        try:
            if os.getuid():  # root may always get in, and joining costs tens of milliseconds
                _join_and_leave(probe)
        finally:
            os.rmdir(probe)
    except OSError as error:
        if made:
            remove([parent])
        place = os.path.dirname(parent)
        reason = f"no control group can be made in {place}: {(error.strerror or str(error)).lower()}"
        return Tree(version, "", reason, _delegation(version, parent))
    return Tree(version, parent)


def _delegation(version: int, parent: str) -> str:
    """What root would have to do, in words that can be pasted."""
    uid = os.getuid()
    if version == 1:
        return f"run dibs as root, or have root run: mkdir -p {parent} && chown {uid} {parent}"
    place, group = os.path.dirname(parent), f"dibs-{uid}"
    steps = (
        f"cd {place}", "echo +cpu +memory +pids > cgroup.subtree_control", f"mkdir -p {group}/shell",
        f"chown {uid} {group} {group}/shell {group}/cgroup.* {group}/shell/cgroup.procs",
        f"echo {os.getppid()} > {group}/shell/cgroup.procs",
    )  # fmt: skip
    return f"run dibs as root, or have root run: {' && '.join(steps)}"


def _join_and_leave(folder: str) -> None:
    """A process must be able to get in: for ordinary users the kernel also wants the common ancestor to be theirs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            write(folder + "/cgroup.procs", "0")
            code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def _enable(folder: str, controller: str) -> None:
    path = f"{folder}/cgroup.subtree_control"
    if controller in read(path).split():
        return
    if controller not in read(f"{folder}/cgroup.controllers").split():
        raise OSError(errno.EOPNOTSUPP, f"the {controller} controller is not delegated to it")
    try:
        write(path, f"+{controller}")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _vacate(folder)
        write(path, f"+{controller}")


def _vacate(folder: str) -> None:
    """A group that hands controllers on may hold no processes. In one that was delegated to us we may move them."""
    leaf = f"{folder}/{LEAF}"
    os.makedirs(leaf, exist_ok=True)
    for _ in range(100):  # processes may fork meanwhile
        pids = read(f"{folder}/cgroup.procs").split()
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                write(f"{leaf}/cgroup.procs", pid)


def _version_2(point: str, controller: str) -> Tree:
    """The highest place in the tree where we may make groups: the root, or what was delegated to us."""
    own = own_group(point)
    places = [point]
    while own != point and own.startswith(point + "/"):
        places.insert(1, own)
        own = os.path.dirname(own)
    first = None
    for place in places:
        if scopes.foreign(place):
            continue
        found = _try(2, f"{place}/{PARENT}", controller)
        if found.folder:
            return found
        first = first or found
    assert first is not None
    if os.getuid() == 0 or not controller or PARENT != "dibs":  # the host service gives its users groups itself
        return first
    offer = scopes.offer(point)
    if controller in offer.controllers:
        return Tree(2, scope=point)
    if offer.controllers:
        reason, remedy = scopes.without(controller)
        return Tree(2, "", reason, remedy)
    # On a host with systemd the tree is systemd's: making groups in it by hand is no advice.
    return Tree(2, "", offer.reason, f"{offer.remedy}; or leave the limit out") if offer.remedy else first


def can_limit(name: str) -> Capability:
    found = tree(name)
    return Capability(bool(found.folder or found.scope), found.reason, found.remedy)


def expected(limits: Limits) -> dict[str, int]:
    """What will be read back: memory is counted in whole pages."""
    found = {}
    if limits.cpu_millis is not None:
        found["cpu_millis"] = limits.cpu_millis
    if limits.memory_bytes is not None:
        found["memory_bytes"] = limits.memory_bytes // PAGE * PAGE
    if limits.pids is not None:
        found["pids"] = limits.pids
    return found


def wanted(limits: Limits) -> list[str]:
    asked = {"cpu": limits.cpu_millis, "memory": limits.memory_bytes, "pids": limits.pids}
    return [name for name, value in asked.items() if value is not None]


def make(sandbox_id: str, limits: Limits, keeper: Callable[[], int]) -> Group:
    """The group of a sandbox with its limits written. On failure nothing is left.

    `keeper` is asked for the pid of the sandbox's shim where systemd has to start a scope for it.
    """
    folders: dict[str, str] = {}
    made: list[str] = []
    trees = {name: tree(name) for name in wanted(limits)}
    scope = ""
    try:
        for name, found in trees.items():
            if not (found.folder or found.scope):
                raise Unsupported(found.reason, field=name, code="LIMIT_NOT_ENFORCEABLE", remedy=found.remedy)
        in_scope = [name for name, found in trees.items() if found.scope]
        if in_scope:
            scope = scopes.start(sandbox_id, keeper(), trees[in_scope[0]].scope, in_scope)
        for name, found in trees.items():
            folder = f"{found.folder or scope}/{sandbox_id}"
            if folder not in made:
                os.mkdir(folder)
                made.append(folder)
            folders[name] = folder
        _write_limits(limits, {name: (found.version, folders[name]) for name, found in trees.items()})
    except OSError as error:
        remove(made)
        raise BackendUnavailable(
            f"the control group cannot be made: {error.strerror}", field="limits", value=str(error.filename or "")
        ) from error
    except (Unsupported, BackendUnavailable):
        remove(made)
        raise
    freezer = tree("freezer")
    oom = ""
    if "memory" in folders:
        oom = folders["memory"] + ("/memory.oom_control" if trees["memory"].version == 1 else "/memory.events")
    # The freezer's folder is made by the shim when it is needed: joining a group is slow, and pausing is rare.
    place = f"v{freezer.version}:{freezer.folder}/{sandbox_id}" if freezer.folder else ""
    if scope and not place:
        place = f"v2:{scope}/{sandbox_id}"
    return Group(tuple(made), place, oom, scopes.unit_of(sandbox_id) if scope else "")


def _write_limits(limits: Limits, places: dict[str, tuple[int, str]]) -> None:
    if limits.memory_bytes is not None:
        version, folder = places["memory"]
        limit, swap = ("memory.max", "memory.swap.max") if version == 2 else (V1_MEMORY, "memory.memsw.limit_in_bytes")
        write(f"{folder}/{limit}", str(limits.memory_bytes))
        with suppress(FileNotFoundError):  # without swap accounting there is no such file, and nothing to limit
            write(f"{folder}/{swap}", "0" if version == 2 else str(limits.memory_bytes))
    if limits.cpu_millis is not None:
        version, folder = places["cpu"]
        period = PERIOD if limits.cpu_millis >= 10 else LONG_PERIOD
        quota = limits.cpu_millis * period // 1000
        if version == 2:
            write(f"{folder}/cpu.max", f"{quota} {period}")
        else:
            write(f"{folder}/cpu.cfs_period_us", str(period))
            write(f"{folder}/cpu.cfs_quota_us", str(quota))
    if limits.pids is not None:
        write(f"{places['pids'][1]}/pids.max", str(limits.pids))


V1_MEMORY = "memory.limit_in_bytes"


def read_back(folders: list[str]) -> dict[str, int]:
    """The limits that are in force in the folders of a group."""
    found = {}
    for folder in folders:
        names = set(os.listdir(folder))
        for name in ("memory.max", V1_MEMORY):
            if name in names and (text := read(f"{folder}/{name}")) != "max" and int(text) < 1 << 60:
                found["memory_bytes"] = int(text)
        if "cpu.max" in names:
            quota, period = read(f"{folder}/cpu.max").split()
        elif "cpu.cfs_quota_us" in names:
            quota, period = read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us")
        else:
            quota, period = "max", "1"
        if quota not in ("max", "-1"):
            found["cpu_millis"] = int(quota) * 1000 // int(period)
        if "pids.max" in names and (text := read(f"{folder}/pids.max")) != "max":
            found["pids"] = int(text)
    return found


def remove(folders: list[str]) -> list[str]:
    """Remove empty groups; those that are still there are given back."""
    left = []
    for folder in folders:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(folder)
    return left

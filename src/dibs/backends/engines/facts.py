"""What an engine is and can, found out once.

`docker` and `podman` fill `Facts`; `device_injection` and `backend` decide by them. An engine may see another file
system than we do (rootless, a snap, a machine of its own): its paths are looked at through the root of its own process
where that is visible, and `root` says so.
"""

from __future__ import annotations

import errno
import os
import re

import msgspec

from dibs.backends import mounts as tables
from dibs.backends import proc
from dibs.cdi.cache import DEFAULT_SPEC_DIRS, Cache
from dibs.devices.cdi_source import cached
from dibs.errors import BackendUnavailable
from dibs.process import ProcessName, absent

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, at one look."""

    version: str
    architecture: str  # as images say it
    peer: ProcessName | None  # the engine's process, if it is visible from here
    cdi: bool
    cdi_dirs: tuple[str, ...]  # as the engine says them
    discovered: frozenset[str] | None = None  # CDI names that the engine says it knows; None: it does not say
    limits: frozenset[str] = frozenset(("cpu", "memory", "pids"))
    swap: bool = False  # whether swap can be limited
    init: bool = True  # whether it has a small init to put before a command
    seccomp: bool = False  # whether it filters system calls unless told not to
    legacy: bool = False  # whether NVIDIA's own request works
    rootless: bool = False
    systemd: bool = False  # whether systemd keeps its control groups, and may change what a container may open

    @property
    def root(self) -> str:
        """Where the engine's file system is, for us; empty: the same as ours, or not visible."""
        if self.peer is None:
            return ""
        path = f"{own_task(self.peer.pid)}/root"
        try:
            theirs, ours = os.stat(path), os.stat("/")
        except OSError:
            self.check_alive()
            return ""
        return "" if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino) else path

    def check_alive(self) -> None:
        """Raises BackendUnavailable if the engine's process is gone: what was looked at through it is not there then,
        whether or not it is where the engine runs."""
        if self.peer is not None and absent(self.peer):
            raise _gone("the engine")

    def seen(self, path: str) -> str:
        """A path of the engine as a path of ours. Raises BackendUnavailable if the engine's process is gone."""
        root = self.root
        return resolved(root, path) if root else path

    def specs(self) -> Cache:
        """The CDI specs that the engine reads, up to date."""
        return cached(tuple(self.seen(folder) for folder in self.cdi_dirs))


def own_task(pid: int) -> str:
    """A thread of an engine that is where the engine is.

    Podman goes into containers with threads of its own, and its first one may stay in there for good.
    """
    main = f"/proc/{pid}"
    before = _own_tasks.get(pid)
    if before is not None and _place(before[0]) == before[1]:
        return before[0]
    try:
        tasks = sorted(os.listdir(f"{main}/task"), key=int)
        places = {}
        for task in tasks:
            path = f"{main}/task/{task}"
            places[path] = _place(path)
    except OSError:
        return main  # it is not ours to look at
    if None in places.values():
        return main  # it changes under our eyes
    found = list(places.values())
    usual = max(found, key=found.count, default=None)
    first = next((path for path, place in places.items() if place == usual), main)
    chosen = main if first.endswith(f"/task/{pid}") else first
    if usual is not None:
        if len(_own_tasks) > 8:
            _own_tasks.clear()
        _own_tasks[pid] = (chosen, usual)
    return chosen


_own_tasks: dict[int, tuple[str, tuple[str, str]]] = {}  # what was found last, and where it was


def mount_table(engine: str, peer: ProcessName | None) -> tables.Table:
    """What is mounted where the engine is; empty if its process is not visible."""
    if peer is None:
        return tables.Table({}, frozenset())
    try:
        return tables.Table.of(tables.read(own_task(peer.pid)))
    except OSError as error:
        if error.errno not in _ENDED:
            raise proc.unreadable(f"the mounts of {engine}", error) from error
        raise _gone(engine) from error


def _gone(engine: str) -> BackendUnavailable:
    reason, remedy = f"{engine} cannot be reached: its process has ended", "try again; see whether the engine runs"
    return BackendUnavailable(reason, field="backend", value=engine, code="ENGINE_UNREACHABLE", remedy=remedy)


# Of the mount table of a process that is gone, ends just now (it has no mounts any more), or went meanwhile.
_ENDED = (errno.ENOENT, errno.EINVAL, errno.ESRCH)


def _place(task: str) -> tuple[str, str] | None:
    try:
        return os.readlink(f"{task}/ns/mnt"), os.readlink(f"{task}/ns/net")
    except OSError:
        return None


def resolved(root: str, path: str) -> str:
    """A path below another root, with its absolute links followed there: /var/run is one."""
    done = root
    for part in path.split("/"):
        if not part:
            continue
        here = f"{done}/{part}"
        try:
            target = os.readlink(here)
        except OSError:
            done = here
            continue
        done = resolved(root, target) if target.startswith("/") else f"{done}/{target}"
    return done


def architecture(machine: str = "") -> str:
    machine = machine or os.uname().machine
    return ARCHITECTURES.get(machine, machine)


def podman_spec_dirs(version: str, facts_root: str, environ: dict[str, str]) -> tuple[str, ...]:
    """The folders that Podman reads: what its configuration says, else the usual ones. The last file wins.

    Before 5.5 it does not look at its own setting; 5.5 itself has one folder less by default.
    """
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if release < (5, 5):
        return DEFAULT_SPEC_DIRS
    files = [environ["CONTAINERS_CONF"]] if environ.get("CONTAINERS_CONF") else []
    if not files:
        files = ["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"]
        for folder in ("/usr/share/containers/containers.conf.d", "/etc/containers/containers.conf.d"):
            try:
                names = sorted(os.listdir(resolved(facts_root, folder) if facts_root else folder))
            except OSError:
                continue
            files += [f"{folder}/{name}" for name in names if name.endswith(".conf")]
        own = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else "")
        if own:
            files.append(f"{own}/containers/containers.conf")
    if environ.get("CONTAINERS_CONF_OVERRIDE"):
        files.append(environ["CONTAINERS_CONF_OVERRIDE"])
    found: tuple[str, ...] = DEFAULT_SPEC_DIRS if release > (5, 5) else DEFAULT_SPEC_DIRS[:1]
    for path in files:
        try:
            with open(resolved(facts_root, path) if facts_root else path, "rb") as file:
                text = file.read()
        except OSError:
            continue
        if re.search(rb"^\s*cdi_spec_dirs", text, re.MULTILINE):
            import tomllib

            try:
                folders = tomllib.loads(text.decode()).get("engine", {}).get("cdi_spec_dirs")
            except (tomllib.TOMLDecodeError, UnicodeDecodeError):
                continue  # Podman does not start with such a file
            if isinstance(folders, list) and all(isinstance(folder, str) for folder in folders):
                found = tuple(folders)
    return found


def environment_of(peer: ProcessName | None) -> dict[str, str]:
    """The environment of the engine's process; empty where it cannot be read."""
    if peer is None:
        return {}
    try:
        return proc.variables(proc.words(peer.pid, "environ"))
    except OSError:
        return {}


def on_path(program: str, facts_root: str, environ: dict[str, str]) -> bool:
    """Whether the engine would find a program."""
    path = environ.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    for folder in path.split(":"):
        full = f"{folder}/{program}"
        if os.access(resolved(facts_root, full) if facts_root else full, os.X_OK):
            return True
    return False

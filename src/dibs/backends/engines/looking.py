"""A container seen from outside, through its first process: nodes, environment, mounts, limits, namespaces.

`backend.observe` calls it right after the start. It asks the kernel, not the engine: what an engine says that it did is
what is being checked. It needs to see the process (same host, enough rights) and says so where it does not.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from typing import Literal

from dibs.backends.port import NodeFact
from dibs.errors import BackendUnavailable, CommandFailed, InvalidRequest, NotFound

# What every container has, or gets with a terminal; the same everywhere and worth nothing.
STANDARD = frozenset(("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "kmsg"))
_OTHER_FILE_SYSTEMS = frozenset(("pts", "shm", "mqueue", "hugepages"))
# What engines mount by themselves.
_ENGINES_OWN = frozenset(
    (
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/sbin/docker-init",
        "/run/podman-init",
        "/dev/init",
        "/run/.containerenv",
        "/run/secrets",
    )
)
_NAMESPACES = {"ipc": "ipc", "mount": "mnt", "network": "net", "pid": "pid", "user": "user", "uts": "uts"}
_RUNTIMES = frozenset((b"runc", b"crun", b"exe"))
_BECOMING = 5.0  # seconds; it takes less than one thousandth, if the machine has nothing else to do
_ESCAPE = re.compile(r"\\([0-7]{3})")


def unreadable(what: str, error: OSError) -> BackendUnavailable:
    reason = f"{what} cannot be looked at: {(error.strerror or str(error)).lower()}"
    remedy = "dibs must run as root, or as the user of the engine, to look into its containers"
    return BackendUnavailable(reason, field="sandbox", code="OBSERVATION_FAILED", remedy=remedy)


def device_nodes(pid: int) -> tuple[NodeFact, ...]:
    """All device nodes of its /dev, but for the standard ones."""
    root = f"/proc/{pid}/root/dev"
    found: list[NodeFact] = []
    try:
        _nodes(root, "/dev", found)
    except OSError as error:
        raise unreadable("its devices", error) from error
    return tuple(sorted(found))


def _nodes(folder: str, shown: str, found: list[NodeFact]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            mode = info.st_mode
            path = f"{shown}/{entry.name}"
            if stat.S_ISDIR(mode):
                if not (shown == "/dev" and entry.name in _OTHER_FILE_SYSTEMS):
                    _nodes(entry.path, path, found)
            elif (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not (shown == "/dev" and entry.name in STANDARD):
                kind = "c" if stat.S_ISCHR(mode) else "b"
                found.append(NodeFact(path, kind, os.major(info.st_rdev), os.minor(info.st_rdev)))


def environment(pid: int) -> dict[str, str]:
    """Of the command. An engine says "started" a moment before the runtime's process has become it."""
    deadline = time.monotonic() + _BECOMING
    try:
        while not (items := _strings(pid, "environ")) or _becomes(pid):
            if time.monotonic() > deadline or _is_over(pid):
                break
            time.sleep(0.0005)
    except OSError as error:
        raise unreadable("its environment", error) from error
    pairs = [os.fsdecode(item).partition("=") for item in items if item]
    return {name: value for name, _, value in pairs}


def _strings(pid: int, name: str) -> list[bytes]:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        data = file.read()
    return data.split(b"\0") if data else []


def _becomes(pid: int) -> bool:
    """Whether it is still the runtime's, or between the two: then it has no words at all."""
    words = _strings(pid, "cmdline")
    return not words or (words[1:2] == [b"init"] and words[0].rpartition(b"/")[2] in _RUNTIMES)


def _is_over(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")


def mounts(pid: int) -> tuple[str, ...]:
    """Mount points with `ro` or `rw`, without those of the kernel and of the engine."""
    try:
        with open(f"/proc/{pid}/mountinfo") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise unreadable("its mounts", error) from error
    modes: dict[str, str] = {}
    for line in lines:
        words = line.split(" ")
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), words[4])
        modes[point] = "ro" if "ro" in words[5].split(",") else "rw"
    kernel = ("/proc", "/dev", "/sys")
    return tuple(
        sorted(
            f"{point} {mode}"
            for point, mode in modes.items()
            if point not in _ENGINES_OWN and point != "/" and not any(_below(point, top) for top in kernel)
        )
    )


def root_is_read_only(pid: int) -> bool:
    try:
        return bool(os.statvfs(f"/proc/{pid}/root").f_flag & os.ST_RDONLY)
    except OSError as error:
        raise unreadable("its root", error) from error


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def isolation(pid: int, engine: str) -> dict[str, Literal["host", "own"]]:
    """Of each namespace, whether it is the engine's own (which the engine calls the host's), by the engine's /proc."""
    found: dict[str, Literal["host", "own"]] = {}
    try:
        for name, kind in _NAMESPACES.items():
            same = os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"{engine}/ns/{kind}").st_ino
            found[name] = "host" if same else "own"
    except OSError as error:
        raise unreadable("its namespaces", error) from error
    return found


# --- programs


def _resolve(root: str, path: str) -> str:
    """The host's path of a file of the container. Links are followed here: the kernel would start an absolute one at
    the host's root."""
    parts = [part for part in path.split("/") if part]
    done: list[str] = []
    links = 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            del done[-1:]
        elif part != ".":
            here = "/".join([root, *done, part])
            if not stat.S_ISLNK(os.lstat(here).st_mode):
                done.append(part)
                continue
            links += 1
            if links > 40:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(here)
            done = [] if target.startswith("/") else done
            parts[:0] = [piece for piece in target.split("/") if piece]
    return "/".join([root, *done])


def check_command(pid: int, command: str, path: str, workdir: str) -> None:
    """Raise CommandFailed if it could not be executed there. OSError: the container cannot be looked at."""
    root = f"/proc/{pid}/root"
    os.stat(root)
    names = [command] if "/" in command else [f"{folder or '.'}/{command}" for folder in path.split(":")]
    trouble = ""
    for name in names:
        try:
            file = _resolve(root, name if name.startswith("/") else f"{workdir}/{name}")
            info = os.stat(file)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                trouble = trouble or (error.strerror or str(error)).lower()
            continue
        if stat.S_ISDIR(info.st_mode):
            trouble = trouble or "it is a folder"
        elif not info.st_mode & 0o111:
            trouble = trouble or "it is not executable"
        else:
            return
    os.stat(root)  # or it went away while we looked, and nothing was proved
    if trouble:
        raise CommandFailed(f"it cannot be executed: {trouble}", missing=False, value=command)
    where = "there is no such file in the image" if "/" in command else f"it is not in the sandbox's PATH ({path})"
    raise CommandFailed(f"there is no such command: {where}", missing=True, value=command)


def check_folder(pid: int, path: str) -> None:
    """Raise if there is no such folder in the container: an engine may make one, or say it less clearly."""
    root = f"/proc/{pid}/root"
    try:
        info = os.stat(_resolve(root, path))
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.exists(root):
            raise NotFound("there is no such folder", field="path", value=path) from error
        return  # it is just ending; the engine says so
    except OSError:
        return  # not for us to look at
    if not stat.S_ISDIR(info.st_mode):
        raise InvalidRequest("it is not a folder", field="path", value=path, code="PATH_UNSUITABLE")

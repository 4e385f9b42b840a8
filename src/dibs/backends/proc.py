"""A sandbox from outside, through one of its processes: device nodes, variables, mounts, namespaces, programs.

Backends whose sandboxes are processes of this host use it; each adds what is its own (which nodes and mounts come with
every sandbox of its kind, whose variables count). It asks the kernel, never what was planned. What cannot be read is an
error, not an empty answer; what a process that is just ending still shows is for the caller to judge.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from typing import Literal

from dibs.backends.port import NodeFact
from dibs.errors import BackendUnavailable, CommandFailed

# What every sandbox has; the same everywhere and worth nothing.
STANDARD = frozenset(("null", "zero", "full", "random", "urandom", "tty", "ptmx"))
KERNEL = ("/proc", "/dev", "/sys")
_NAMESPACES = {"ipc": "ipc", "mount": "mnt", "network": "net", "pid": "pid", "user": "user", "uts": "uts"}
_TERMINALS = range(136, 144)  # the major numbers of pseudo terminals
_ESCAPE = re.compile(r"\\([0-7]{3})")
_MOST_LINKS = 40  # as the kernel has it


def unreadable(what: str, error: OSError, remedy: str = "") -> BackendUnavailable:
    reason = f"{what} cannot be looked at: {(error.strerror or str(error)).lower()}"
    return BackendUnavailable(reason, field="sandbox", code="OBSERVATION_FAILED", remedy=remedy)


def below(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it."""
    return folder in ("/", path) or path.startswith(f"{folder}/")


# --- nodes


def device_nodes(
    pid: int, *, standard: frozenset[str] = STANDARD, passed: frozenset[str] = frozenset(("pts",))
) -> tuple[NodeFact, ...]:
    """All device nodes of its /dev but for the standard ones, and its own terminal. OSError if it cannot be read.

    `passed` are folders of /dev that are not looked into.
    """
    found: list[NodeFact] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"/proc/{pid}/root/dev{folder}") as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed while we look
                if stat.S_ISDIR(info.st_mode):
                    if folder or entry.name not in passed:
                        folders.append(f"{folder}/{entry.name}")
                elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                    node = _node(f"/dev{folder}/{entry.name}", info)
                    own_terminal = node.path == "/dev/console" and node.major in _TERMINALS
                    if not own_terminal and (folder or entry.name not in standard):
                        found.append(node)
    return tuple(sorted(found))


def _node(path: str, info: os.stat_result) -> NodeFact:
    kind: Literal["b", "c"] = "c" if stat.S_ISCHR(info.st_mode) else "b"
    return NodeFact(path, kind, os.major(info.st_rdev), os.minor(info.st_rdev))


# --- words


def words(pid: int, name: Literal["environ", "cmdline"]) -> list[bytes]:
    """What it was started with. OSError if it cannot be read."""
    with open(f"/proc/{pid}/{name}", "rb") as file:
        data = file.read()
    return data.split(b"\0") if data else []


def variables(items: list[bytes]) -> dict[str, str]:
    pairs = [os.fsdecode(item).partition("=") for item in items if item]
    return {name: value for name, _, value in pairs}


# --- mounts and namespaces


def unescape(text: str) -> str:
    """mountinfo writes blanks and backslashes in octal."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def mount_modes(pid: int) -> dict[str, str]:
    """Mount point → `ro` or `rw`; the last mount on a point is the one that is seen. OSError if it cannot be read."""
    modes: dict[str, str] = {}
    with open(f"/proc/{pid}/mountinfo") as file:
        for line in file:
            fields = line.split(" ")
            modes[unescape(fields[4])] = "ro" if "ro" in fields[5].split(",") else "rw"
    return modes


def isolation(pid: int, other: str = "/proc/self") -> dict[str, Literal["host", "own"]]:
    """Of each namespace, whether it is that of another process, given by its /proc. OSError if it cannot be read."""
    found: dict[str, Literal["host", "own"]] = {}
    for name, kind in _NAMESPACES.items():
        same = os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"{other}/ns/{kind}").st_ino
        found[name] = "host" if same else "own"
    return found


# --- programs


def resolve(pid: int, path: str) -> str:
    """The host's path of one of its files, without ever stepping out of its root.

    Links are followed here, because the kernel would follow an absolute one from the host's root.
    """
    root = f"/proc/{pid}/root"
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
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(here)
            done = [] if target.startswith("/") else done
            parts[:0] = [piece for piece in target.split("/") if piece]
    return "/".join([root, *done])


def executable(file: str) -> bool:
    """For anybody: who the command runs as is not known from outside."""
    return bool(os.stat(file).st_mode & 0o111)


def check_command(pid: int, command: str, path: str, workdir: str, runs: Callable[[str], bool] = executable) -> None:
    """Raise CommandFailed if it could not be executed there. OSError: the process cannot be looked at."""
    root = f"/proc/{pid}/root"
    os.stat(root)
    names = [command] if "/" in command else [f"{folder or '.'}/{command}" for folder in path.split(":")]
    trouble = ""
    for name in names:
        try:
            file = resolve(pid, name if name.startswith("/") else f"{workdir}/{name}")
            if stat.S_ISDIR(os.stat(file).st_mode):
                trouble = trouble or "it is a folder"
                continue
            if not runs(file):
                trouble = trouble or "it is not executable"
                continue
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                trouble = trouble or (error.strerror or str(error)).lower()
            continue
        missing = _missing_interpreter(pid, file, workdir)
        if not missing:
            return
        trouble = trouble or f"its interpreter {missing} is not in the sandbox"
    os.stat(root)  # or it went away while we looked, and nothing was proved
    if trouble:
        raise CommandFailed(f"it cannot be executed: {trouble}", missing=False, value=command)
    where = "there is no such file in the sandbox" if "/" in command else f"it is not in the sandbox's PATH ({path})"
    raise CommandFailed(f"there is no such command: {where}", missing=True, value=command)


def _missing_interpreter(pid: int, file: str, workdir: str) -> str:
    try:
        with open(file, "rb") as stream:
            line = stream.read(256).split(b"\n")[0]
    except PermissionError:
        return ""  # a program may be executable without being readable
    found = line[2:].split()
    if not line.startswith(b"#!") or not found:
        return ""
    name = os.fsdecode(found[0])
    try:
        resolve(pid, name if name.startswith("/") else f"{workdir}/{name}")
    except OSError:
        return name
    return ""

"""A sandbox from outside, through one of its processes: device nodes, variables, mounts, namespaces, programs.

Backends whose sandboxes are processes of this host use it; each adds what is its own (which nodes and mounts come with
every sandbox of its kind, whose variables count). It asks the kernel, never what was planned. What cannot be read is an
error, not an empty answer; what a process that is just ending still shows is for the caller to judge.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from typing import Literal

from dibs.backends import safe_open
from dibs.backends.port import NodeFact
from dibs.errors import BackendUnavailable, CommandFailed
from dibs.patterns import lazy_pattern

# What every sandbox has, with its numbers; the same everywhere and worth nothing.
STANDARD = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
    "ptmx": (5, 2),
}
_NAMESPACES = {"ipc": "ipc", "mount": "mnt", "network": "net", "pid": "pid", "user": "user", "uts": "uts"}
_CAP_SYS_PTRACE = 19
_TERMINALS = range(136, 144)  # the major numbers of pseudo terminals
_ESCAPE = lazy_pattern(r"\\([0-7]{3})")


def unreadable(what: str, error: OSError, remedy: str = "") -> BackendUnavailable:
    reason = f"{what} cannot be looked at: {(error.strerror or str(error)).lower()}"
    return BackendUnavailable(reason, field="sandbox", code="OBSERVATION_FAILED", remedy=remedy)


def below(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it."""
    return folder in ("/", path) or path.startswith(f"{folder}/")


# --- nodes


def device_nodes(
    pid: int,
    *,
    standard: Mapping[str, tuple[int, int]] = STANDARD,
    passed: frozenset[str] = frozenset(("pts",)),
    top: str = "/dev",
) -> tuple[NodeFact, ...]:
    """All device nodes of its /dev but for the standard ones, and its own terminal. OSError if it cannot be read.

    A node that has a standard name and other numbers is none of the standard ones. `passed` are folders of /dev that
    are not looked into.
    """
    found: list[NodeFact] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"/proc/{pid}/root{top}{folder}") as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed while we look
                if stat.S_ISDIR(info.st_mode):
                    if folder or entry.name not in passed:
                        folders.append(f"{folder}/{entry.name}")
                elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                    one = node(f"{top}{folder}/{entry.name}", info)
                    own_terminal = one.path == "/dev/console" and one.major in _TERMINALS
                    usual = not folder and standard.get(entry.name) == (one.major, one.minor) and one.kind == "c"
                    if not own_terminal and not usual:
                        found.append(one)
    return tuple(sorted(found))


def node(path: str, info: os.stat_result) -> NodeFact:
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
    return text if "\\" not in text else _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def isolation(pid: int, other: str = "/proc/self") -> dict[str, Literal["host", "own"]]:
    """Of each namespace, whether it is that of another process, given by its /proc. OSError if it cannot be read."""
    found: dict[str, Literal["host", "own"]] = {}
    for name, kind in _NAMESPACES.items():
        same = os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"{other}/ns/{kind}").st_ino
        found[name] = "host" if same else "own"
    return found


def status(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status. OSError if it cannot be read."""
    with open(f"/proc/{pid}/status") as file:
        pairs = [line.partition(":") for line in file]
    return {name: value.strip() for name, _, value in pairs}


def may_look_at_all() -> bool:
    """Whether this process may look at those of other users."""
    return os.geteuid() == 0 or bool(int(status(os.getpid()).get("CapEff", "0"), 16) >> _CAP_SYS_PTRACE & 1)


def capabilities(lines: Mapping[str, str]) -> str:
    """All capability sets of a process, by its status; `none` if every one of them is empty."""
    sets = (("permitted", "CapPrm"), ("effective", "CapEff"), ("inheritable", "CapInh"), ("bounding", "CapBnd"))
    found = {name: int(lines.get(key, "0") or "0", 16) for name, key in (*sets, ("ambient", "CapAmb"))}
    return ", ".join(f"{name} {value:x}" for name, value in found.items() if value) or "none"


def user(pid: int, lines: Mapping[str, str]) -> str:
    """Effective user and group as the process itself has them: by the map of its user namespace.

    All four ids of each kind must be the same, or they are all told. OSError if the map cannot be read.
    """
    told = []
    for kind, key in (("uid", "Uid"), ("gid", "Gid")):
        rows = _id_map(pid, kind)
        ids = dict.fromkeys(_inside(int(word), rows) for word in lines[key].split())
        told.append("/".join(ids))
    return ":".join(told)


def _id_map(pid: int, kind: str) -> list[list[int]]:
    with open(f"/proc/{pid}/{kind}_map") as file:
        return [[int(word) for word in line.split()] for line in file]


def _inside(number: int, rows: list[list[int]]) -> str:
    for first, outside, count in rows:
        if outside <= number < outside + count:
            return str(number - outside + first)
    return f"unmapped {number}"


def groups(lines: Mapping[str, str]) -> str:
    """The further groups of a process, by their numbers on the host."""
    return ",".join(sorted(lines.get("Groups", "").split(), key=int)) or "none"


def further_groups(pid: int, lines: Mapping[str, str]) -> set[int]:
    """The further groups of a process as it has them itself; one that its namespace does not know by its number on the
    host. OSError if the map cannot be read."""
    rows = _id_map(pid, "gid")
    told = [_inside(int(number), rows) for number in lines.get("Groups", "").split()]
    return {int(number.rpartition(" ")[2]) for number in told}


def control_groups(pid: int) -> frozenset[str]:
    """The paths of the control groups that a process is in. OSError if they cannot be read."""
    with open(f"/proc/{pid}/cgroup") as file:
        return frozenset(line.rstrip("\n").split(":", 2)[2] for line in file)


def members(pid: int) -> list[int]:
    """Every process in the pid namespace of one, itself included. OSError if it is gone."""
    own = os.stat(f"/proc/{pid}/ns/pid").st_ino
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}/ns/pid").st_ino == own:
                    found.append(int(name))
            except OSError:
                continue  # gone, or not ours to look at
    return found


def connected(pid: int | str) -> bool:
    """Whether its network leads anywhere: it has a default route. OSError if it cannot be read."""
    with open(f"/proc/{pid}/net/route") as file:
        if any(line.split()[1:2] == ["00000000"] and line.split()[7:8] == ["00000000"] for line in file):
            return True
    try:
        with open(f"/proc/{pid}/net/ipv6_route") as file:
            return any(line.startswith(f"{'0' * 32} 00 ") and line.split()[9] != "lo" for line in file)
    except FileNotFoundError:
        return False  # a kernel without IPv6


# --- programs


def executable(file: str) -> bool:
    """For any user: which one the command runs as is not known from outside."""
    return bool(os.stat(file).st_mode & 0o111)


def check_command(pid: int, command: str, path: str, workdir: str, runs: Callable[[str], bool] = executable) -> None:
    """Raise CommandFailed if it could not be executed there. OSError: the process cannot be looked at."""
    root = f"/proc/{pid}/root"
    os.stat(root)
    names = [command] if "/" in command else [f"{folder or '.'}/{command}" for folder in path.split(":")]
    trouble = ""
    for name in names:
        try:
            with safe_open.opened(root, name if name.startswith("/") else f"{workdir}/{name}") as file:
                wrong = _wrong_program(root, file, workdir, runs)
        except OSError as error:
            # A folder of PATH that may not be searched has no commands, as for a shell.
            unsearchable = error.errno == errno.EACCES and "/" not in command
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) and not unsearchable:
                trouble = trouble or (error.strerror or str(error)).lower()
            continue
        if not wrong:
            return
        trouble = trouble or wrong
    os.stat(root)  # or it went away while we looked, and nothing was proved
    if trouble:
        raise CommandFailed(f"it cannot be executed: {trouble}", missing=False, value=command)
    where = "there is no such file in the sandbox" if "/" in command else f"it is not in the sandbox's PATH ({path})"
    raise CommandFailed(f"there is no such command: {where}", missing=True, value=command)


def _wrong_program(root: str, file: int, workdir: str, runs: Callable[[str], bool]) -> str:
    """Why a file cannot be executed; empty if it can."""
    mode = os.fstat(file).st_mode
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if not stat.S_ISREG(mode):
        return "it is not a regular file"
    if not runs(safe_open.again(file)):
        return "it is not executable"
    try:
        line = safe_open.head(file, 256).split(b"\n")[0]
    except PermissionError:
        return ""  # a program may be executable without being readable
    found = line[2:].split()
    if not line.startswith(b"#!") or not found:
        return ""
    name = os.fsdecode(found[0])
    try:
        with safe_open.opened(root, name if name.startswith("/") else f"{workdir}/{name}") as interpreter:
            if stat.S_ISREG(os.fstat(interpreter).st_mode):
                return ""
    except OSError:
        return f"its interpreter {name} is not in the sandbox"
    return f"its interpreter {name} is not a regular file"

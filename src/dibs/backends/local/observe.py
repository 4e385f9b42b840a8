"""Looking into a sandbox from outside.

`backend.observe` calls it while the command is held back, and whenever somebody asks later. Everything comes from the
kernel's view of the sandbox's processes (/proc/PID), never from what was planned. What cannot be read is an error, not
an empty observation.

`Sandboxed.resolve` follows a path as the sandbox would, without ever stepping out of its root.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Literal

from dibs.backends.local.rootfs import mount_points
from dibs.backends.port import NodeFact
from dibs.errors import BackendUnavailable, CommandFailed

STANDARD = frozenset(("null", "zero", "full", "random", "urandom", "tty", "ptmx"))
PTS_MAJORS = range(136, 144)


def unreadable(what: str, error: OSError) -> BackendUnavailable:
    return BackendUnavailable(
        f"the sandbox cannot be looked at: {what}: {(error.strerror or str(error)).lower()}", code="OBSERVATION_FAILED"
    )


def device_nodes(init: int) -> tuple[NodeFact, ...]:
    """Every device node below /dev that is not one of the standard ones."""
    base = f"/proc/{init}/root/dev"
    found: list[NodeFact] = []
    folders = [""]
    try:
        while folders:
            folder = folders.pop()
            for name in os.listdir(f"{base}{folder}"):
                inside = f"{folder}/{name}"
                info = os.lstat(f"{base}{inside}")
                if stat.S_ISDIR(info.st_mode):
                    if inside != "/pts":
                        folders.append(inside)
                elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                    node = NodeFact(
                        f"/dev{inside}",
                        "c" if stat.S_ISCHR(info.st_mode) else "b",
                        os.major(info.st_rdev),
                        os.minor(info.st_rdev),
                    )
                    # bubblewrap binds the sandbox's own terminal as /dev/console
                    own_terminal = inside == "/console" and node.major in PTS_MAJORS
                    if not own_terminal and (folder or name not in STANDARD):
                        found.append(node)
    except OSError as error:
        raise unreadable("its device nodes", error) from error
    return tuple(sorted(found))


def environment(init: int) -> dict[str, str]:
    """The command's environment, as bubblewrap has it: what it was started with, and what it was told to add.

    Not the command's own copy, which it can change.
    """
    try:
        with open(f"/proc/{init}/environ", "rb") as file:
            pairs = [os.fsdecode(item).partition("=") for item in file.read().split(b"\0") if item]
        with open(f"/proc/{init}/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError as error:
        raise unreadable("its environment", error) from error
    if "--" not in words:
        raise BackendUnavailable("the sandbox's init is not bubblewrap", code="OBSERVATION_FAILED")
    found = {name: value for name, _, value in pairs}
    options = words[: words.index("--")]
    for i, word in enumerate(options):
        if word == "--setenv":
            found[options[i + 1]] = options[i + 2]
    return found


def mounts(init: int, base: set[str]) -> tuple[str, ...]:
    """Mount points other than those of the root itself, with `ro` or `rw`."""
    try:
        with open(f"/proc/{init}/mountinfo") as file:
            text = file.read()
    except OSError as error:
        raise unreadable("its mounts", error) from error
    modes = {}
    for line in text.splitlines():
        point = next(iter(mount_points(line)))
        modes[point] = "ro" if "ro" in line.split(" ")[5].split(",") else "rw"
    kernel = ("/proc/", "/dev/", "/sys/")
    return tuple(sorted(f"{p} {mode}" for p, mode in modes.items() if p not in base and not p.startswith(kernel)))


def shared_memory(init: int) -> int:
    """How much fits into /dev/shm."""
    try:
        room = os.statvfs(f"/proc/{init}/root/dev/shm")
    except OSError as error:
        raise unreadable("its shared memory", error) from error
    return room.f_blocks * room.f_frsize


_NAMESPACES = {"ipc": "ipc", "mount": "mnt", "network": "net", "pid": "pid", "user": "user", "uts": "uts"}


def isolation(init: int) -> dict[str, Literal["host", "own"]]:
    """Of each namespace, whether it is the one that dibs itself is in."""
    found: dict[str, Literal["host", "own"]] = {}
    try:
        for name, kind in _NAMESPACES.items():
            same = os.stat(f"/proc/{init}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino
            found[name] = "host" if same else "own"
    except OSError as error:
        raise unreadable("its namespaces", error) from error
    return found


class Sandboxed:
    """Paths as the sandbox sees them."""

    def __init__(self, init: int) -> None:
        self._root = f"/proc/{init}/root"

    def resolve(self, path: str) -> str:
        """The host's path of a file of the sandbox. Links are followed here, because the kernel would follow an
        absolute one from the host's root."""
        parts = [part for part in path.split("/") if part]
        done: list[str] = []
        links = 0
        while parts:
            part = parts.pop(0)
            if part == ".":
                continue
            if part == "..":
                del done[-1:]
                continue
            here = "/".join([self._root, *done, part])
            if stat.S_ISLNK(os.lstat(here).st_mode):
                links += 1
                if links > 40:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(here)
                if target.startswith("/"):
                    done = []
                parts[:0] = [piece for piece in target.split("/") if piece]
            else:
                done.append(part)
        return "/".join([self._root, *done])

    def check_command(self, command: str, path: str, workdir: str) -> None:
        """Raise if the command could not be executed."""
        if "/" in command:
            tries = [command]
        else:
            tries = [f"{folder or '.'}/{command}" for folder in path.split(":")]
        trouble = ""
        for one in tries:
            full = one if one.startswith("/") else f"{workdir}/{one}"
            try:
                file = self.resolve(full)
                info = os.stat(file)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    trouble = trouble or (error.strerror or str(error)).lower()
                continue
            if stat.S_ISDIR(info.st_mode):
                trouble = trouble or "it is a folder"
            elif not os.access(file, os.X_OK):
                trouble = trouble or "it is not executable"
            else:
                missing = self._missing_interpreter(file, workdir)
                if not missing:
                    return
                trouble = trouble or f"its interpreter {missing} is not in the sandbox"
        if trouble:
            raise CommandFailed(f"it cannot be executed: {trouble}", missing=False, value=command)
        where = (
            "there is no such file in the sandbox" if "/" in command else f"it is not in the sandbox's PATH ({path})"
        )
        raise CommandFailed(f"there is no such command: {where}", missing=True, value=command)

    def _missing_interpreter(self, file: str, workdir: str) -> str:
        try:
            with open(file, "rb") as stream:
                line = stream.read(256).split(b"\n")[0]
        except PermissionError:
            return ""  # a program may be executable without being readable
        words = line[2:].split()
        if not line.startswith(b"#!") or not words:
            return ""
        name = os.fsdecode(words[0])
        try:
            self.resolve(name if name.startswith("/") else f"{workdir}/{name}")
        except OSError:
            return name
        return ""

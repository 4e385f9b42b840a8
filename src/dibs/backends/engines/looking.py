"""A container seen from outside, through its first process: nodes, environment, mounts, limits, namespaces.

`looks` calls it right after the start, `early` before the command. It asks the kernel, not the engine: what an engine
says that it did is what is being checked. It needs to see the process (same host, enough rights) and says so where it
does not.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from typing import Literal

from dibs.backends import proc, within
from dibs.backends.port import NodeFact
from dibs.errors import BackendUnavailable, InvalidRequest, NotFound

# What every container has, or gets with a terminal; the same everywhere and worth nothing.
STANDARD = proc.STANDARD | {"console", "kmsg"}
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
_RUNTIMES = frozenset((b"runc", b"crun", b"exe"))
_BECOMING = 5.0  # seconds; it takes less than one thousandth, if the machine has nothing else to do


def unreadable(what: str, error: OSError) -> BackendUnavailable:
    remedy = "dibs must run as root, or as the user of the engine, to look into its containers"
    return proc.unreadable(what, error, remedy)


def device_nodes(pid: int) -> tuple[NodeFact, ...]:
    """All device nodes of its /dev, but for the standard ones."""
    try:
        return proc.device_nodes(pid, standard=STANDARD, passed=_OTHER_FILE_SYSTEMS)
    except OSError as error:
        raise unreadable("its devices", error) from error


def environment(pid: int) -> dict[str, str]:
    """Of the command. An engine says "started" a moment before the runtime's process has become it."""
    deadline = time.monotonic() + _BECOMING
    try:
        while not (items := proc.words(pid, "environ")) or _becomes(pid):
            if time.monotonic() > deadline or _is_over(pid):
                break
            time.sleep(0.0005)
    except OSError as error:
        raise unreadable("its environment", error) from error
    return proc.variables(items)


def _becomes(pid: int) -> bool:
    """Whether it is still the runtime's, or between the two: then it has no words at all."""
    words = proc.words(pid, "cmdline")
    return not words or (words[1:2] == [b"init"] and words[0].rpartition(b"/")[2] in _RUNTIMES)


def _is_over(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")


def await_init(pid: int) -> None:
    """Wait until an engine's init minds signals: the kernel drops what a first process neither catches nor blocks.

    Whoever cannot be looked at is not waited for.
    """
    deadline = time.monotonic() + _BECOMING
    while time.monotonic() < deadline:
        try:
            if not _becomes(pid) and _minds(pid, signal.SIGTERM):
                return
        except OSError:
            return
        time.sleep(0.001)


def _minds(pid: int, number: int) -> bool:
    """Whether it catches or blocks a signal. Docker's init blocks all, but is seen to block none: while it waits for
    them the kernel takes them out of the mask. It ignores one of a terminal's after it has set that up."""
    with open(f"/proc/{pid}/status") as file:
        masks = {line[:6]: int(line.split()[1], 16) for line in file if line.startswith(("SigBlk", "SigCgt", "SigIgn"))}
    wanted = {"SigBlk": number, "SigCgt": number, "SigIgn": signal.SIGTTIN}
    return not masks or any(masks.get(name, 0) >> (one - 1) & 1 for name, one in wanted.items())


def mounts(pid: int) -> tuple[str, ...]:
    """Mount points with `ro` or `rw`, without those of the kernel and of the engine."""
    try:
        modes = proc.mount_modes(pid)
    except OSError as error:
        raise unreadable("its mounts", error) from error
    return tuple(
        sorted(
            f"{point} {mode}"
            for point, mode in modes.items()
            if point not in _ENGINES_OWN and point != "/" and not any(proc.below(point, top) for top in proc.KERNEL)
        )
    )


def root_is_read_only(pid: int) -> bool:
    try:
        return bool(os.statvfs(f"/proc/{pid}/root").f_flag & os.ST_RDONLY)
    except OSError as error:
        raise unreadable("its root", error) from error


def isolation(pid: int, engine: str) -> dict[str, Literal["host", "own"]]:
    """Of each namespace, whether it is the engine's own (which the engine calls the host's), by the engine's /proc."""
    try:
        return proc.isolation(pid, engine)
    except OSError as error:
        raise unreadable("its namespaces", error) from error


def check_folder(pid: int, path: str) -> None:
    """Raise if there is no such folder in the container: an engine may make one, or say it less clearly."""
    root = f"/proc/{pid}/root"
    try:
        with within.opened(root, path) as fd:
            info = os.fstat(fd)
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.exists(root):
            raise NotFound("there is no such folder", field="path", value=path) from error
        return  # it is just ending; the engine says so
    except OSError:
        return  # not for us to look at
    if not stat.S_ISDIR(info.st_mode):
        raise InvalidRequest("it is not a folder", field="path", value=path, code="PATH_UNSUITABLE")

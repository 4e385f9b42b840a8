"""Small questions to the kernel: processes, descriptors, control files.

Imported by dibs and, as a file of its own, by the shim: standard library only, and little of it.
"""

from __future__ import annotations

import errno
import os
import select
import time

FORKED_ONLY = 0x40  # PF_FORKNOEXEC


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def own_start() -> int:
    """When this process was started, in ticks after the machine's start: what the kernel shows is by the clock of our
    time namespace, as in `dibs.process`."""
    with open("/proc/self/stat", "rb") as stat:
        shown = int(stat.read().rpartition(b")")[2].split()[19])
    try:
        with open("/proc/self/timens_offsets") as file:
            ahead = [line.split() for line in file if line.startswith(("boottime", "7"))]
    except FileNotFoundError:
        return shown
    seconds = sum(int(whole) + int(nanoseconds) / 1e9 for _, whole, nanoseconds in ahead)
    return shown - round(seconds * os.sysconf("SC_CLK_TCK"))


def children_of(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except ProcessLookupError:
        return []
    except FileNotFoundError:  # it is gone, or the kernel is built without this file
        names = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [name for name in names if status_field(name, "PPid") == str(pid)]


def inside(init: int) -> list[int]:
    """Every process of the sandbox but its init, as pids of the host."""
    try:
        mine = os.stat(f"/proc/{init}/ns/pid").st_ino
    except OSError:
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != init:
            try:
                if os.stat(f"/proc/{name}/ns/pid").st_ino == mine:
                    found.append(int(name))
            except PermissionError:
                if _beside(int(name), init):
                    found.append(int(name))
            except OSError:
                continue
    return found


def _beside(pid: int, init: int) -> bool:
    """Whether a process whose namespaces may not be read is in the sandbox.

    To an ordinary user that is a copy: a fork of `enter`, which is not dumpable. Two things can be read of any process:
    how deeply its pid namespace is nested, and the id of its root mount, which is unique to a mount namespace. The
    parent of a copy is in the mount namespace only.
    """
    depth = len(status_field(pid, "NSpid").split())
    if depth < 2 or depth != len(status_field(init, "NSpid").split()):
        return False
    mount = _root_mount(pid)
    return bool(mount) and mount == _root_mount(init)


def _root_mount(pid: int) -> str:
    """The id of the first mount that a process sees; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/mountinfo") as file:
            return file.readline().partition(" ")[0]
    except OSError:  # EINVAL: a zombie has left its namespaces
        return ""


def status_field(pid: int, name: str) -> str:
    """A line of /proc/PID/status; empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return line.partition(":")[2].strip()
    except OSError:
        return ""
    return ""


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def has_executed(pid: int) -> bool:
    """Whether a process has become another program since it was forked. False if it is gone."""
    fields = _stat(pid)
    return bool(fields) and not int(fields[6]) & FORKED_ONLY


def session(pid: int) -> int:
    """The session that a process is in; -1 if it is gone."""
    fields = _stat(pid)
    return int(fields[3]) if fields else -1


def gone(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def close_inherited(first: int) -> None:
    """Close every descriptor from `first` on: at the start of a program, before it has opened any itself."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= first:
            try:  # noqa: SIM105  # contextlib is not worth its memory here
                os.close(int(name))
            except OSError:
                pass  # that of the listing itself


def wait_for(path: str, text: str, seconds: float = 5.0) -> None:
    until = boottime() + seconds
    while True:
        with open(path) as file:
            if text in file.read():
                return
        if boottime() > until:
            raise OSError(errno.ETIMEDOUT, f"{path} did not become {text}")
        time.sleep(0.001)


def kill_strays(sandbox_id: str) -> bool:
    """End processes of a sandbox that has no shim any more. Whether none was left at the last look.

    A shim that is killed while it sets a sandbox up may leave bubblewrap's init behind, which waits for ever and runs
    nothing. It is known by its environment.
    """
    mark = f"DIBS_SANDBOX={sandbox_id}".encode()
    for _ in range(20):  # a process that is just being made is seen in the next round
        found = False
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        os.kill(int(name), 9)
                        found = True
            except OSError:
                continue  # gone, or another user's
        if not found:
            return True
        time.sleep(0.01)
    return False

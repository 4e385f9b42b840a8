"""Process names, with which a process can be proved gone.

A pid alone proves nothing, because pids are reused. A process is named by host, boot, pid namespace, pid and start
time. `ledger` stores that name for the owner of a lease and for its workload; `absent` answers whether the named
process is provably gone. When it cannot be known, it is "not proven": on another host, or in a pid namespace that is
not below ours.

The boot tells kernels apart. The host is only a name: containers of one kernel may show different ones, clones of a
machine the same. That another boot of this host is over is made sure of by `ledger.kernels`, before anything is read.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache

import msgspec

_TICKS = os.sysconf("SC_CLK_TCK")
_FIRST_NAMESPACE = 0xEFFFFFFC  # the kernel's fixed number of the pid namespace that it started with


class ProcessName(msgspec.Struct, frozen=True):
    """A process of some host, past or present."""

    host: str
    boot: str
    pid_namespace: int
    pid: int
    started: int  # clock ticks after boot, field 22 of /proc/PID/stat


@lru_cache(maxsize=1)
def host_id() -> str:
    """This machine, as its ledger rows call it. DIBS_HOST_ID overrides it, for tests and cloned machines."""
    forced = os.environ.get("DIBS_HOST_ID")
    if forced:
        return forced
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text:
            return text
    return os.uname().nodename


@lru_cache(maxsize=1)
def boot_id() -> str:
    """This boot of the machine. DIBS_BOOT_ID overrides it, to play a reboot in tests."""
    forced = os.environ.get("DIBS_BOOT_ID")
    if forced:
        return forced
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except FileNotFoundError:  # some sandboxed kernels have none
        with open("/proc/stat") as file:
            return next(line for line in file if line.startswith("btime")).strip()


ended_boots: set[str] = set()  # boots of this host, under whatever name, that the ledger knows to be over


@lru_cache(maxsize=1)
def pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


_known_as: list[str] = []


def known_as(name: str) -> None:
    """The name that the ledger has for this host: the one that was seen first, whatever `hostname` says since."""
    _known_as[:] = [name]


def node_name() -> str:
    return _known_as[0] if _known_as else os.uname().nodename


@lru_cache(maxsize=1)
def clock_ahead() -> float:
    """Seconds by which the clocks of our time namespace are ahead of the machine's own; 0 outside of one.

    The kernel shows start times and CLOCK_BOOTTIME by the reader's clock. Others read what we note by theirs.
    """
    try:
        with open("/proc/self/timens_offsets") as file:
            for line in file:
                clock, seconds, nanoseconds = line.split()
                if clock in ("boottime", "7"):  # its number, before Linux 5.7
                    return int(seconds) + int(nanoseconds) / 1e9
    except FileNotFoundError:
        pass  # a kernel without time namespaces
    return 0.0


def boottime() -> float:
    """Seconds since the machine was started. This clock is never set, and it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - clock_ahead()


def start_time(pid: int) -> int | None:
    """When a process started, in ticks after the machine's start, whatever our time namespace; None if there is no
    such process.

    A zombie is no process, unless only its main thread has ended and others of its threads run.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1):
        return None
    return int(fields[19]) - round(clock_ahead() * _TICKS)


def as_shown(started: int) -> int:
    """The start time of a process as the kernel shows it to processes of our time namespace."""
    return started + round(clock_ahead() * _TICKS)


def name_of(pid: int) -> ProcessName | None:
    """The full name of a running process of this host; None if it is gone."""
    started = start_time(pid)
    if started is None:
        return None
    return ProcessName(host_id(), boot_id(), pid_namespace(), pid, started)


@lru_cache(maxsize=1)
def myself() -> ProcessName:
    mine = name_of(os.getpid())
    if mine is None:
        raise RuntimeError("cannot read /proc/self: dibs needs a mounted /proc")
    return mine


def absent(process: ProcessName) -> bool:
    """True only if the process is proved gone: its boot is over, or its pid is free or another process's."""
    if process.boot != boot_id():
        return process.boot in ended_boots or process.host == host_id()
    if process.pid_namespace != pid_namespace():
        return _gone_from_below(process)
    started = start_time(process.pid)
    if started is None and not os.path.exists(f"/proc/{process.pid}"):
        # Where /proc hides other users' processes (hidepid), the kernel still knows whether there is one.
        try:
            os.kill(process.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
    # In a time namespace that begins between two ticks it may be one more or less.
    return started is None or abs(started - process.started) > 1


def _gone_from_below(process: ProcessName) -> bool:
    """Whether a process of another pid namespace is proved gone. Only the first namespace sees those of all others."""
    if pid_namespace() != _FIRST_NAMESPACE:
        return False
    try:
        mine = os.readlink("/proc/self/ns/time")
        start_time(1)
        for name in os.listdir("/proc"):
            if name.isdigit() and _may_be(int(name), process, mine):
                return False
    except (OSError, ValueError):
        return False  # processes of others are hidden from us
    return os.path.exists("/proc/1/stat")


def _may_be(pid: int, process: ProcessName, clock: str) -> bool:
    """Whether a process that we know as `pid` may be the named one. `clock`: our time namespace. Raises OSError."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"NSpid:")), b"")
        inside = line.split()[1:]
        if len(inside) < 2 or int(inside[-1]) != process.pid:
            return False
        if os.stat(f"/proc/{pid}/ns/pid").st_ino != process.pid_namespace:
            return False
        if os.readlink(f"/proc/{pid}/ns/time") != clock:
            return True  # it may be an older dibs, which noted its start by a clock with another beginning
        started = start_time(pid)
        return started is not None and abs(started - process.started) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return False  # it ended while we looked


def is_here(process: ProcessName) -> bool:
    """Whether the process runs, on this kernel and in this pid namespace. Its host's name may have changed since."""
    found = name_of(process.pid)
    return found is not None and msgspec.structs.replace(found, host=process.host) == process


def username() -> str:
    """The user of this process, by name; by number where the number has no name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())

"""Who a process is, so that it can be proved gone.

A pid alone proves nothing: it is given to somebody else later. A process is named by host, boot, pid namespace, pid and
start time. `ledger` stores that name for the owner of a lease and for its workload; `absent` answers whether the named
process is provably gone. When it cannot be known (another host, another pid namespace) the answer is "not proven".
"""

from __future__ import annotations

import os
from functools import lru_cache

import msgspec


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
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


@lru_cache(maxsize=1)
def pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def start_time(pid: int) -> int | None:
    """When a process started, in ticks after boot; None if there is no such process.

    A zombie is no process, unless only its main thread has ended and others of its threads run.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1):
        return None
    return int(fields[19])


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
    """True only if the process is proved gone: its boot is over, or its pid is free or somebody else's."""
    if process.host != host_id():
        return False
    if process.boot != boot_id():
        return True
    if process.pid_namespace != pid_namespace():
        return False
    started = start_time(process.pid)
    if started is None and not os.path.exists(f"/proc/{process.pid}"):
        # Where /proc hides other users' processes (hidepid), the kernel still knows whether there is one.
        try:
            os.kill(process.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
    return started != process.started


def username() -> str:
    """Whoever runs this, by name; by number where the number has no name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())

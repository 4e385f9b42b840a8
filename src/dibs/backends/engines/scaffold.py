"""Mounts that an engine makes in every container, whatever it was asked for: the kernel's file systems, files such as
/etc/hosts, its init. They are not told in an observation; everything else is.

`process_view` asks. A mount is taken for the engine's own by what it is, not only by where it is: a file of the host on
/etc/hosts, or the host's own /proc on /proc, is none of them.
"""

from __future__ import annotations

import re

from dibs.backends.mounts import Entry, Table
from dibs.backends.proc import below

_FILES = frozenset(("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv", "/run/secrets"))
_INITS = frozenset(("/sbin/docker-init", "/run/podman-init", "/dev/init"))
_INIT_PROGRAMS = frozenset(("docker-init", "tini", "tini-static", "catatonit", "dumb-init"))
_VOLUME = re.compile(r"/volumes/[0-9a-f]{64}/_data$")
_GROUPS = ("cgroup", "cgroup2")


def is_own(entry: Entry, entries: dict[str, Entry], host: Table, container: str, groups: frozenset[str]) -> bool:
    """`entries`: all that can be reached in the container; `host`: the mounts where the engine runs; `groups`: the
    control groups that its process is in, which without delegation are those of the engine's user."""
    point = entry.point
    fresh = entry.device not in host.devices
    if point == "/":
        return True  # its mode is told by itself, and what it is made of by the image
    if point in _FILES:
        return bool(container) and f"/{container}/" in entry.root
    if point in _INITS:
        return entry.mode == "ro" and entry.root.rpartition("/")[2] in _INIT_PROGRAMS
    if below(point, "/proc"):
        return _is_proc(entry, entries, fresh)
    if below(point, "/sys"):
        return _is_sys(entry, fresh, container, groups)
    if below(point, "/dev"):
        return _is_dev(entry, fresh, host, container)
    return False


def is_volume(entry: Entry, volumes: frozenset[str]) -> bool:
    """Whether it is a volume without a name, on a place where the image wants one."""
    return entry.point in volumes and _VOLUME.search(entry.root) is not None


def _is_proc(entry: Entry, entries: dict[str, Entry], fresh: bool) -> bool:
    """Its own /proc, parts of it made read-only, parts of it hidden."""
    if entry.point == "/proc":
        return fresh and entry.kind == "proc"
    proc = entries.get("/proc")
    if proc is not None and entry.device == proc.device:
        return entry.mode == "ro" and f"/proc{entry.root}" == entry.point
    return _hides(entry, fresh)


def _is_sys(entry: Entry, fresh: bool, container: str, groups: frozenset[str]) -> bool:
    """/sys read-only: the one of its network namespace, which may be the host's. Its groups, read-only."""
    if entry.point == "/sys":
        return entry.kind == "sysfs" and entry.root == "/" and entry.mode == "ro"
    if entry.kind in _GROUPS:
        own = entry.root == "/" or entry.root in groups or (bool(container) and container in entry.root)
        return entry.mode == "ro" and own
    if entry.point == "/sys/fs/cgroup":
        return fresh and entry.kind == "tmpfs"
    if entry.kind == "sysfs":
        return entry.mode == "ro" and f"/sys{entry.root}" == entry.point
    return _hides(entry, fresh)


def _is_dev(entry: Entry, fresh: bool, host: Table, container: str) -> bool:
    if entry.point in ("/dev/pts", "/dev/console"):
        return entry.kind == "devpts"
    if entry.point == "/dev/mqueue":
        return fresh and entry.kind == "mqueue"
    if entry.point == "/dev/shm":  # noqa: S108  # the container's own
        return entry.kind == "tmpfs" and (fresh or _is_containers(entry, host, container))
    return fresh and entry.kind == "tmpfs" and entry.point == "/dev"


def _is_containers(entry: Entry, host: Table, container: str) -> bool:
    """Whether the engine has mounted this file system for this container, in a folder with its id."""
    places = [one.point for one in host.entries.values() if one.device == entry.device]
    return bool(container) and any(f"/{container}/" in place for place in places)


def _hides(entry: Entry, fresh: bool) -> bool:
    """An empty file system or the null device, to take something out of sight."""
    return (fresh and entry.kind == "tmpfs") or entry.root == "/null"

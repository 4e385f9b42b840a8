"""A container seen from outside, through its first process: nodes, environment, mounts, limits, namespaces.

`observe` calls it right after the start, `observe_prestart` before the command. It asks the kernel, not the engine:
what an engine says that it did is what is being checked. It needs to see the process (same host, enough rights) and
says so where it does not.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from typing import Literal

import msgspec

from dibs.backends import accounts, plain_fields, proc, safe_open
from dibs.backends import mounts as tables
from dibs.backends.engines import scaffold
from dibs.backends.engines.plain_fields import FIELDS
from dibs.backends.port import MountFact, NodeFact
from dibs.errors import BackendUnavailable, InvalidRequest, NotFound

# What every container has, or gets with a terminal; the same everywhere and worth nothing.
STANDARD = {**proc.STANDARD, "kmsg": (1, 11), "console": (5, 1)}
_OTHER_FILE_SYSTEMS = frozenset(("pts", "shm", "mqueue", "hugepages"))
_DRIVER = re.compile(r"nvidia|cuda|/libnv|/vdpau/")
_EXITING = 0x4  # a flag of the kernel's for a process that has begun to end
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


class View(msgspec.Struct):
    """A container's process, and what is needed to understand what it shows."""

    pid: int
    container: str  # its id; empty: not known
    engine: str  # the /proc folder of the engine's process, or of this one
    user: str = ""  # as it was asked for
    volumes: frozenset[str] = frozenset()  # places where the image wants a volume
    legacy: bool = False  # whether NVIDIA's own hook has added files of the driver
    seccomp: bool = False  # whether the engine filters system calls
    asked: frozenset[str] = frozenset()  # plain fields are looked at only if their names are among these

    def entries(self) -> list[tables.Entry]:
        return tables.reachable(tables.parse(tables.read(self.pid)))


def nodes_and_mounts(view: View) -> tuple[tuple[NodeFact, ...], tuple[MountFact, ...], str]:
    """All device nodes but for the standard ones, all mounts but for the engine's own, and the mode of the root."""
    try:
        host = tables.Table.of(tables.read(view.engine))
        entries = view.entries()
        nodes = {
            *proc.device_nodes(view.pid, standard=STANDARD, passed=_OTHER_FILE_SYSTEMS),
            *tables.nodes_elsewhere(view.pid, entries),
        }
        by_point = {entry.point: entry for entry in entries}
        groups = proc.control_groups(view.pid)
        found = []
        for entry in entries:
            if scaffold.is_own(entry, by_point, host, view.container, groups):
                continue
            if scaffold.is_volume(entry, view.volumes):
                continue
            source = tables.source_of(view.pid, entry, host)
            if not (proc.below(entry.point, "/dev") and source[:2] in ("c ", "b ")):  # a node, and told as such
                found.append(MountFact(entry.point, entry.mode, source))
    except OSError as error:
        raise unreadable("its devices and mounts", error) from error
    return tuple(sorted(nodes)), tuple(sorted(found)), by_point["/"].mode


def is_drivers(mount: MountFact) -> bool:
    """Whether it may be what NVIDIA's own hook mounts: files of the driver, read-only, and its sockets."""
    return mount.mode == "ro" and _DRIVER.search(mount.target) is not None


def plain(view: View) -> dict[str, int]:
    """The plain fields that were asked for."""
    try:
        return plain_fields.observed(FIELDS, view.pid, view.asked)
    except OSError as error:
        raise unreadable("its limits", error) from error


# What Docker gives by default; Podman gives a part of it.
_DEFAULT_CAPABILITIES = 0xA80425FB


def person(view: View) -> dict[str, str]:
    """User, further groups and capabilities, in the words of the request where they are what it means."""
    try:
        lines = proc.status(view.pid)
        ids = proc.user(view.pid, lines)
        root = f"/proc/{view.pid}/root"
        own = proc.further_groups(view.pid, lines)
        uid, _, gid = ids.partition(":")
        try:
            meant = accounts.find(view.user or "0", root)
            usual = accounts.memberships(meant[0], root) if uid.isdigit() else set()
        except InvalidRequest:
            meant, usual = (-1, -1), set()
    except OSError as error:
        raise unreadable("its user", error) from error
    further = sorted(own - usual - ({int(gid)} if gid.isdigit() else set()))
    sets = [int(lines.get(key, "0"), 16) for key in ("CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb")]
    usual_powers = not any(one & ~_DEFAULT_CAPABILITIES for one in sets) and not sets[4]
    return {
        "user": view.user or "0" if ids == f"{meant[0]}:{meant[1]}" else ids,
        "groups": ",".join(map(str, further)) or "none",
        "capabilities": "the engine's default" if usual_powers else proc.capabilities(lines),
    }


def protected(view: View) -> str:
    """Whether the parts of /proc that change the host are read-only."""
    try:
        points = {entry.point: entry.mode for entry in view.entries()}
    except OSError as error:
        raise unreadable("its mounts", error) from error
    return "read-only" if points.get("/proc/sys") == "ro" else "writable"


def is_whole(pid: int) -> bool:
    """Whether a process is not ending: from one that is, less and less can be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and not int(fields[6]) & _EXITING


def environment(pid: int) -> dict[str, str]:
    """Of the command. An engine says "started" a moment before the runtime's process has become it."""
    deadline = time.monotonic() + _BECOMING
    try:
        while not (items := proc.words(pid, "environ")) or becomes(pid):
            if time.monotonic() > deadline or _is_over(pid):
                break
            time.sleep(0.0005)
    except OSError as error:
        raise unreadable("its environment", error) from error
    return proc.variables(items)


def becomes(pid: int) -> bool:
    """Whether a process is still the runtime, about to become the command; in between it has no arguments at all."""
    words = proc.words(pid, "cmdline")
    return not words or (words[1:2] == [b"init"] and words[0].rpartition(b"/")[2] in _RUNTIMES)


def _is_over(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")


def await_init(pid: int) -> None:
    """Wait until an engine's init minds signals: the kernel drops what a first process neither catches nor blocks.

    A process that cannot be inspected is not waited for.
    """
    deadline = time.monotonic() + _BECOMING
    while time.monotonic() < deadline:
        try:
            if not becomes(pid) and _minds(pid, signal.SIGTERM):
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
        with safe_open.opened(root, path) as fd:
            info = os.fstat(fd)
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.exists(root):
            raise NotFound("there is no such folder", field="path", value=path) from error
        return  # it is just ending; the engine says so
    except OSError:
        return  # not for us to look at
    if not stat.S_ISDIR(info.st_mode):
        raise InvalidRequest("it is not a folder", field="path", value=path, code="PATH_UNSUITABLE")


def check_copied(pid: int, path: str) -> None:
    """Raise for what an engine leaves out without a word: it copies from the image's files, not from what is mounted.

    `pid` 0: the container cannot be looked into, and only the path itself is known.
    """
    top = os.path.normpath("/" + path)
    made_up = any(proc.below(top, folder) for folder in ("/proc", "/sys"))
    if pid and not made_up:
        try:
            with safe_open.opened(f"/proc/{pid}/root", path) as fd:
                device = os.fstat(fd).st_dev
            kernel = {os.stat(f"/proc/{pid}/root{folder}").st_dev for folder in ("/proc", "/sys")}
            made_up = device in kernel - {os.stat(f"/proc/{pid}/root").st_dev}
        except OSError:
            return  # the engine says what is wrong
    if made_up:
        raise InvalidRequest(
            "it is made up by the kernel while it is read: read it with a command", field="path", value=path,
            code="COPY_FAILED", remedy=f"run `cat {path}` in the sandbox",
        )  # fmt: skip

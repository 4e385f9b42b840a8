"""Mount tables: what is mounted in a process's mount namespace, what of it can be reached, and what it is.

Backends use it on both sides of a proof: on the host's own table to say what a bind will show, and on that of a sandbox
to say what is there. A mount that another one hides is not there. It asks the kernel only. It also opens paths of the
host without ever following a link, so that what was checked is what is mounted.
"""

from __future__ import annotations

import os
import stat
from typing import Literal

import msgspec

from dibs.backends import proc
from dibs.backends.port import MountFact, NodeFact
from dibs.backends.proc import unescape

_TERMINALS = range(136, 144)  # the major numbers of pseudo-terminals


class Entry(msgspec.Struct, frozen=True):
    """One line of a mountinfo."""

    id: str
    parent: str
    device: str  # of the file system, as "254:0"
    root: str  # the folder of the file system that is mounted
    point: str
    mode: Literal["ro", "rw"]
    kind: str  # type of the file system
    options: str  # of the file system

    @property
    def sealed(self) -> bool:
        """Whether nothing can be written through it, by the mount or by its file system."""
        return self.mode == "ro" or "ro" in self.options.split(",")


def read(process: int | str = "/proc/self") -> str:
    """The mount table of a process, given by its pid or its folder in /proc, as text. OSError if it cannot be read."""
    folder = f"/proc/{process}" if isinstance(process, int) else process
    with open(f"{folder}/mountinfo", errors="surrogateescape") as file:
        return file.read()


def parse(text: str) -> list[Entry]:
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        number, parent, device, root, point, modes, *_ = left.split(" ")
        kind, _, options = right.split(" ", 2)
        mode: Literal["ro", "rw"] = "ro" if "ro" in modes.split(",") else "rw"
        if "\\" in line:
            root, point, options = unescape(root), unescape(point), unescape(options)
        found.append(Entry(number, parent, device, root, point, mode, kind, options))
    return found


def reachable(entries: list[Entry]) -> list[Entry]:
    """Those that no other mount hides, neither on top of them nor above them."""
    by_id = {entry.id: entry for entry in entries}
    places = {(entry.parent, entry.point): entry.id for entry in entries}  # of two on one place the later one
    known: dict[str, bool] = {}

    def buried(entry: Entry) -> bool:
        """Whether another mount lies between it and the root."""
        if entry.id not in known:
            known[entry.id] = False  # the root is its own parent in some tables
            parent = by_id.get(entry.parent)
            found = places[entry.parent, entry.point] != entry.id or (parent is not None and buried(parent))
            path = entry.point
            while not found and path != "/":
                path = path.rpartition("/")[0] or "/"
                found = (entry.parent, path) in places and places[entry.parent, path] != entry.id
            known[entry.id] = found
        return known[entry.id]

    return [entry for entry in entries if (entry.id, entry.point) not in places and not buried(entry)]


class Table(msgspec.Struct):
    """The reachable mounts of the host, by mount point."""

    entries: dict[str, Entry]
    devices: frozenset[str]  # of all file systems that are mounted, hidden ones too

    @classmethod
    def of(cls, text: str) -> Table:
        entries = parse(text)
        return cls({entry.point: entry for entry in reachable(entries)}, frozenset(entry.device for entry in entries))

    def at(self, path: str) -> Entry | None:
        """The mount that a path without links is on."""
        while path not in self.entries:
            if path == "/":
                return None
            path = path.rpartition("/")[0] or "/"
        return self.entries[path]

    def under(self, folder: str) -> list[Entry]:
        """Mounts below a folder, not counting one on the folder itself: a bind brings them along."""
        top = folder.rstrip("/") + "/"
        return [entry for point, entry in self.entries.items() if point.startswith(top) and point != folder]


# --- what is mounted


def named(path: str, kind: str = "", device: str = "") -> str:
    """A file, folder or node of the host, in words that can be compared. OSError if it is not there.

    A FUSE file system answers its owner only, and may say anything: there its number must do.
    """
    if kind.startswith("fuse"):
        return f"{kind} on {device}"
    return identity(os.lstat(path))


def identity(info: os.stat_result) -> str:
    if stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
        kind = "c" if stat.S_ISCHR(info.st_mode) else "b"
        return f"{kind} {os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
    return f"inode {info.st_ino} on {os.major(info.st_dev)}:{os.minor(info.st_dev)}"


def facts(pid: int, host: Table, entries: list[Entry] | None = None) -> tuple[MountFact, ...]:
    """All mounts that can be reached in a process's namespace. OSError if they cannot be read."""
    found = []
    for entry in reachable(parse(read(pid))) if entries is None else entries:
        found.append(MountFact(entry.point, entry.mode, source_of(pid, entry, host)))
    return tuple(sorted(found))


def source_of(pid: int, entry: Entry, host: Table) -> str:
    """A file system that is mounted on the host too is told by the file; one of the sandbox's own by its type."""
    if entry.kind.startswith("fuse"):
        return f"{entry.kind} on {entry.device}"
    if entry.device in host.devices:
        try:
            info = os.lstat(f"/proc/{pid}/root{entry.point}")
        except PermissionError:
            # In a folder of the host that is closed to this user: nothing that was rendered lies there, so whatever it
            # is, it is one mount too many. That must be told as such, not as a look that failed.
            return f"{entry.kind} on {entry.device}, in a folder that is closed to this user"
        if entry.point == "/dev/console" and stat.S_ISCHR(info.st_mode) and os.major(info.st_rdev) in _TERMINALS:
            return "terminal"
        return identity(info)
    if entry.kind == "overlay":
        lower = next((word[9:] for word in entry.options.split(",") if word.startswith("lowerdir=")), "")
        return f"overlay of {lower.removeprefix('/oldroot') or '/'}"  # bubblewrap has the host's root there meanwhile
    return entry.kind


def nodes_elsewhere(pid: int, entries: list[Entry]) -> set[NodeFact]:
    """Device nodes outside of /dev: mounted by themselves, or in a folder of nodes that is mounted somewhere."""
    found: set[NodeFact] = set()
    for entry in entries:
        if entry.kind != "devtmpfs" or proc.below(entry.point, "/dev"):
            continue
        info = os.lstat(f"/proc/{pid}/root{entry.point}")
        if stat.S_ISDIR(info.st_mode):
            found |= {*proc.device_nodes(pid, standard={}, passed=frozenset(), top=entry.point)}
        elif (stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)) and entry.root != "/null":
            found.add(proc.node(entry.point, info))
    return found


# --- opening without links


class Changed(OSError):
    """A path of the host is not what it was when it was checked."""


def open_beneath(path: str) -> int:
    """A descriptor (O_PATH) of an absolute path none of whose parts is a link. Raises OSError; Changed for a link.

    Resolved part by part: a concurrent rename can make it fail, but cannot redirect it.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("/", flags | os.O_DIRECTORY)
    try:
        for part in path.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                raise Changed(40, "it has .. in it", path)
            following = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = following
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                raise Changed(40, "there is a symbolic link on the way", path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def real(path: str) -> str:
    """A path with its links followed. One that changes while it is read gives a path that leads nowhere, and is refused
    where it is opened; it is no error here."""
    try:
        return os.path.realpath(path)
    except OSError:
        return path  # a link that is one no more


def look_beneath(path: str) -> os.stat_result:
    """What an absolute path without links is. Raises OSError; Changed for a link."""
    fd = open_beneath(path)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)

"""Folders of the host that no sandbox may see: with the socket of a shim, or of the host service, one commands it.

`rendering` hides them and `validation` refuses to mount them, wherever the host shows them: a folder can be mounted at
more than one place (`mount --bind`), and so can one above it or one in it. The mounts of the host are read, nothing is
changed.
"""

from __future__ import annotations

import os
import time

import msgspec

from dibs.backends.proc import below, unescape
from dibs.home import HOST_SOCKETS, Home, find_home

_SECOND = 1.0

_looked_up: dict[Home, tuple[float, list[str]]] = {}


class Mount(msgspec.Struct, frozen=True):
    """A line of mountinfo: which folder (`root`) of which file system is seen where (`point`)."""

    device: str
    root: str
    point: str


def folders(home: Home) -> list[str]:
    """Every path of this host that leads to one of them.

    Looked up once a second: a gateway renders hundreds of workloads in that time.
    """
    at, found = _looked_up.get(home, (-_SECOND, []))
    if time.monotonic() - at >= _SECOND:
        default = find_home({"HOME": os.path.expanduser("~")}).state
        real = dict.fromkeys(os.path.realpath(path) for path in (home.state, default, HOST_SOCKETS))
        with open("/proc/self/mountinfo") as file:
            mounts = parse(file.read())
        found = list(dict.fromkeys(place for path in real for place in [path, *elsewhere(path, mounts)]))
        _looked_up[home] = (time.monotonic(), found)
    return found


def parse(text: str) -> list[Mount]:
    found = []
    for line in text.splitlines():
        fields = line.split(" ", 5)
        found.append(Mount(fields[2], unescape(fields[3]), unescape(fields[4])))
    return found


def elsewhere(path: str, mounts: list[Mount]) -> list[str]:
    """Other paths at which a folder, or a folder in it, is mounted."""
    own = Mount("", "/", "/")
    for mount in mounts:  # a later one lies on top
        if below(path, mount.point) and len(mount.point) >= len(own.point):
            own = mount
    inside = _join(own.root, path[len(own.point.rstrip("/")) :])  # its name within its file system
    found = []
    for mount in mounts:
        if mount.device != own.device:
            continue
        if below(inside, mount.root):
            place, original = _join(mount.point, inside[len(mount.root.rstrip("/")) :]), path
        elif below(mount.root, inside):
            place, original = mount.point, path + mount.root[len(inside) :]
        else:
            continue
        if place != path and _same(place, original):
            found.append(place)
    return found


def _join(folder: str, rest: str) -> str:
    return f"{folder.rstrip('/')}/{rest.lstrip('/')}".rstrip("/") or "/"


def _same(one: str, other: str) -> bool:
    """Or else something is mounted over it, and it is not seen there; if we may not look, nor may the sandbox."""
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False

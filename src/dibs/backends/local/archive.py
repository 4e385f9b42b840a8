"""Tar streams in and out, refusing what is hostile.

`enter` uses it inside a sandbox, `roots` for root archives on the host. Standard library only, and every import is made
by `prepare`, before the files around us belong to somebody else.

Refused: absolute names, names with `..`, links that point out of the folder, device nodes and anything else that is no
file, folder, link or fifo.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import tarfile

BLOCK = 1 << 16


class Refused(Exception):
    """`kind` says what the caller can do: `hostile`, `missing`, `unsuitable` or `broken`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def prepare() -> None:
    """Load everything that packing and unpacking will need."""
    import bz2  # noqa: F401
    import lzma  # noqa: F401
    import tarfile
    import zlib  # noqa: F401

    # Looking up user names loads libraries by the sandbox's own nsswitch.conf: numbers are enough.
    tarfile.pwd = None  # type: ignore[attr-defined]
    tarfile.grp = None  # type: ignore[attr-defined]


def inside(name: str, folder: str) -> bool:
    path = os.path.normpath(os.path.join(folder, name))
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def check(member: tarfile.TarInfo, folder: str) -> None:
    """Refuse a member that could touch anything outside of `folder`."""
    name = member.name
    if name.startswith("/"):
        raise Refused("hostile", f'the archive has an absolute name: "{name}"')
    if ".." in name.split("/"):
        raise Refused("hostile", f'the archive has a name with "..": "{name}"')
    if member.issym():
        target = os.path.join(os.path.dirname(name), member.linkname)
        if member.linkname.startswith("/") or not inside(target, folder):
            raise Refused("hostile", f'the archive has a link that points out of it: "{name}" -> "{member.linkname}"')
    elif member.islnk():
        if member.linkname.startswith("/") or ".." in member.linkname.split("/"):
            raise Refused("hostile", f'the archive has a link that points out of it: "{name}" -> "{member.linkname}"')
    elif member.ischr() or member.isblk():
        raise Refused("hostile", f'the archive has a device node: "{name}"')
    elif not (member.isfile() or member.isdir() or member.isfifo()):
        raise Refused("hostile", f'the archive has an entry of an unknown kind: "{name}"')


def check_way(name: str, folder: str) -> None:
    """Refuse to go through a link that leads out: one that was there before, or came with the archive."""
    real = os.path.realpath(folder)
    way = os.path.realpath(os.path.join(folder, os.path.dirname(name)))
    if way != real and not way.startswith(real.rstrip("/") + "/"):
        raise Refused("hostile", f'the archive goes through a link that leads out: "{name}"')


def unpack(stream: BinaryIO, folder: str, ready: Callable[[], None], *, absolute_links: bool = False) -> None:
    """Unpack below an existing folder. `absolute_links`: for a root, where they are ordinary and are never followed."""
    import tarfile

    if not os.path.isdir(folder):
        kind = "unsuitable" if os.path.lexists(folder) else "missing"
        raise Refused(kind, f'"{folder}" is {"no folder" if kind == "unsuitable" else "not there"}')
    ready()
    times: list[tuple[str, float, int]] = []
    try:
        with tarfile.open(fileobj=stream, mode="r|*", bufsize=BLOCK) as tar:
            for member in tar:
                if not (absolute_links and member.issym()):
                    check(member, folder)
                elif ".." in member.name.split("/") or member.name.startswith("/"):
                    raise Refused("hostile", f'the archive has a name that leads out: "{member.name}"')
                check_way(member.name, folder)
                _put(tar, member, os.path.join(folder, member.name), folder, times)
        for path, mtime, mode in reversed(times):
            os.chmod(path, mode)
            os.utime(path, (mtime, mtime))
    except tarfile.TarError as error:
        raise Refused("broken", f"the archive cannot be read: {error}") from error
    except EOFError as error:
        raise Refused("broken", "the archive ends too early") from error


def _put(
    tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, folder: str, times: list[tuple[str, float, int]]
) -> None:
    mode = stat.S_IMODE(member.mode) & 0o777  # no set-user-id from outside
    if member.isdir():
        if os.path.islink(path):
            raise Refused("hostile", f'the archive goes through a link: "{member.name}"')
        os.makedirs(path, mode=0o700, exist_ok=True)
        times.append((path, member.mtime, mode))
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        if os.path.isdir(path) and not os.path.islink(path):
            raise Refused("unsuitable", f'"{path}" is a folder, the archive has something else there')
        os.unlink(path)  # a link in its place is replaced, never written through
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.islnk():
        source = os.path.join(folder, member.linkname)
        check_way(member.linkname, folder)
        os.link(source, path, follow_symlinks=False)
    elif member.isfifo():
        os.mkfifo(path, mode)
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            source_file = tar.extractfile(member)
            while source_file is not None and (piece := source_file.read(BLOCK)):
                file.write(piece)
            file.flush()
            os.fchmod(fd, mode)
        os.utime(path, (member.mtime, member.mtime))


def pack(stream: BinaryIO, path: str, ready: Callable[[], None]) -> None:
    """`path` as a tar stream, its entries named after the last part of the path."""
    import tarfile

    if not os.path.lexists(path):
        raise Refused("missing", f'"{path}" is not there')
    name = os.path.basename(os.path.normpath(path)) or "."
    ready()
    with tarfile.open(fileobj=stream, mode="w|", bufsize=BLOCK, format=tarfile.PAX_FORMAT) as tar:
        tar.add(path, arcname=name)

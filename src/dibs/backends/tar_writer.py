"""Packs a file or a folder as a tar stream, while a hostile process may be changing it.

`local/enter.py` calls it inside a sandbox, `workloads/files.py` on the host, where a sandbox may have the folder
mounted. Everything is opened from the folder above it and never through a link, and looked at only after it was opened
(`O_NOFOLLOW`, `O_NONBLOCK`, then `fstat`): a file that becomes a link or a fifo meanwhile is an error, not a way out
and not a wait without end.

What cannot be copied is refused, not left out: sockets, fifos, device nodes, and the kernel's own file systems, whose
files have no size. Owners do not come along.

Standard library only, as `tar_reader`: it is loaded beside a sandbox as a file of its own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from dibs.backends.tar_reader import BLOCK, PIECE, Refused
else:
    from tar_reader import BLOCK, PIECE, Refused


MOST_HARD_LINKS = 1 << 20  # names that are remembered; further ones become files of their own
KERNEL = ("/proc", "/sys")
_ANY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = _ANY | os.O_DIRECTORY
_KINDS = {stat.S_IFIFO: "a fifo", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}

Parts = tuple[str, ...]


def prepare() -> None:
    """Load everything that packing will need."""
    import tarfile

    # Looking up user names loads libraries by the sandbox's own nsswitch.conf: numbers are enough.
    tarfile.pwd = None  # type: ignore[attr-defined]
    tarfile.grp = None  # type: ignore[attr-defined]


class Packing:
    """One file or folder. `open` first: it says what is wrong before anything is sent."""

    def __init__(self, path: str, name: str = "") -> None:
        self._path = os.path.abspath(os.path.realpath(path) if path.endswith("/") else path)
        self._name = name or os.path.basename(os.path.abspath(path)) or "."
        self._root = -1  # the folder that it is in
        self._seen: dict[tuple[int, int], str] = {}
        self._kernels: set[int] = set()

    def open(self) -> None:
        for path in KERNEL:
            try:
                self._kernels.add(os.stat(path).st_dev)
            except OSError:
                continue  # there is none
        try:
            self._kernels.discard(os.stat("/").st_dev)  # an empty folder of an image
            self._root = os.open(os.path.dirname(self._path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            info = os.stat(os.path.basename(self._path) or ".", dir_fd=self._root, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            self.close()
            raise Refused("missing", f'"{self._path}" is not there') from None
        self._check(info, self._path)

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _check(self, info: os.stat_result, path: str) -> None:
        """Raise for what cannot be copied."""
        kind = _KINDS.get(stat.S_IFMT(info.st_mode))
        if kind:
            raise Refused("unsuitable", f'"{path}" is {kind}: only files, folders and links are copied')
        if info.st_dev in self._kernels and not stat.S_ISLNK(info.st_mode):
            raise Refused("unsuitable", f'"{path}" is made up by the kernel while it is read: read it with a command')

    def pieces(self) -> Iterator[bytes]:
        """The stream. Folders come before what is in them."""
        from tarfile import DIRTYPE

        last = os.path.basename(self._path) or "."
        waiting: list[Parts] = []
        yield from self._entry(self._root, last, (), waiting)
        while waiting:
            parts = waiting.pop()
            folder = self._walk(last, parts)
            try:
                info = os.fstat(folder)
                self._check(info, self._shown(parts))
                yield self._header(info, parts, DIRTYPE)
                with os.scandir(folder) as entries:
                    for entry in entries:
                        yield from self._entry(folder, entry.name, (*parts, entry.name), waiting)
            finally:
                os.close(folder)
        yield b"\0" * (2 * BLOCK)

    def _walk(self, last: str, parts: Parts) -> int:
        """A folder, from the top on: no link is followed, and no more than two descriptors are used."""
        fd = os.open(last, _FOLDER, dir_fd=self._root)
        for part in parts:
            try:
                deeper = os.open(part, _FOLDER, dir_fd=fd)
            finally:
                os.close(fd)
            fd = deeper
        return fd

    def _shown(self, parts: Parts) -> str:
        return "/".join((self._path.rstrip("/"), *parts)) or "/"

    def _entry(self, folder: int, name: str, parts: Parts, waiting: list[Parts]) -> Iterator[bytes]:
        from tarfile import LNKTYPE, REGTYPE, SYMTYPE

        path = self._shown(parts)
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        self._check(info, path)
        if stat.S_ISLNK(info.st_mode):
            yield self._header(info, parts, SYMTYPE, os.readlink(name, dir_fd=folder))
            return
        if stat.S_ISDIR(info.st_mode):
            waiting.append(parts)
            return
        try:
            fd = os.open(name, _ANY, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise Refused("unsuitable", f'"{path}" was exchanged while it was copied') from error
            raise
        try:
            info = os.fstat(fd)
            self._check(info, path)
            if not stat.S_ISREG(info.st_mode):
                raise Refused("unsuitable", f'"{path}" was exchanged while it was copied')
            key = (info.st_dev, info.st_ino)
            if key in self._seen:
                yield self._header(info, parts, LNKTYPE, self._seen[key])
                return
            if info.st_nlink > 1 and len(self._seen) < MOST_HARD_LINKS:
                self._seen[key] = self._arcname(parts)
            yield self._header(info, parts, REGTYPE)
            yield from self._contents(fd, info.st_size, path)
        finally:
            os.close(fd)

    def _contents(self, fd: int, size: int, path: str) -> Iterator[bytes]:
        """As much as was announced: what is written meanwhile does not belong to it."""
        left = size
        while left:
            piece = os.read(fd, min(left, PIECE))
            if not piece:
                raise Refused("unsuitable", f'"{path}" became shorter while it was copied')
            left -= len(piece)
            yield piece
        if not size and os.read(fd, 1) and not os.fstat(fd).st_size:
            raise Refused("unsuitable", f'"{path}" is made up by the kernel while it is read: read it with a command')
        yield b"\0" * (-size % BLOCK)

    def _arcname(self, parts: Parts) -> str:
        return "/".join((self._name, *parts))

    def _header(self, info: os.stat_result, parts: Parts, kind: bytes, target: str = "") -> bytes:
        import tarfile

        return header(
            self._arcname(parts), kind, info.st_size if kind == tarfile.REGTYPE else 0, info.st_mode & 0o7777,
            info.st_mtime_ns, target,
        )  # fmt: skip


def header(
    name: str, kind: bytes, size: int, mode: int, mtime_ns: int, target: str = "", owner: tuple[int, int] = (0, 0)
) -> bytes:
    """The header of a member."""
    import tarfile

    one = tarfile.TarInfo(name)
    one.type, one.size, one.mode, one.linkname = kind, size, mode, target
    one.uid, one.gid = owner
    seconds = mtime_ns // 10**9
    one.mtime = seconds if seconds * 10**9 == mtime_ns else mtime_ns / 10**9
    return one.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def pack(path: str, name: str = "") -> Iterator[bytes]:
    """A file or folder as a tar stream, its entries below `name` or the last part of the path. Raises Refused early."""
    packing = Packing(path, name)
    packing.open()

    def gathered() -> Iterator[bytes]:
        """In pieces worth sending."""
        box: list[bytes] = []
        length = 0
        try:
            for piece in packing.pieces():
                box.append(piece)
                length += len(piece)
                if length >= PIECE:
                    yield b"".join(box)
                    box.clear()
                    length = 0
            yield b"".join(box)
        finally:
            packing.close()

    return gathered()

"""Unpacks a tar stream below a folder, and touches nothing else, whatever the stream says and whatever is there.

`local/enter.py` calls it inside a sandbox, `local/roots.py` for root archives, `workloads/files.py` for what comes out
of a sandbox. Everything is done by descriptors: each folder on the way is opened from the one above it and never
through a link (`O_NOFOLLOW`), so neither a link of this archive, nor one that an earlier copy left, nor one that
is put there meanwhile leads out. What is in the way of a file is unlinked and a new file made (`O_EXCL`):
nothing is ever written through a link, symbolic or hard. Symbolic links come last. A hard link is only made to a file
that this same archive has made. Owners, devices, sockets and set-user-id bits do not come along.

Standard library only, as `tar_reader`: it is loaded beside a sandbox as a file of its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from dibs.backends import tar_reader
    from dibs.backends.tar_reader import Member, Readable, Reader, Refused, hostile
else:
    import tar_reader
    from tar_reader import Reader, Refused, hostile

MOST_MEMORY = 1 << 28  # bytes, for what must be remembered until the end: folders and symbolic links; about
MOST_FILES = 1 << 20  # that hard links may lead to
_PER_NAME = 250  # bytes of one beside its letters; about
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Parts = tuple[str, ...]


class Target:
    """The folder that is unpacked into.

    `mask`: permission bits that no file gets. `rename`: what the first part of every name becomes;
    all must have the same. `fifos`: they may be
    made. `any_link`: symbolic links may say what they want, since no code here follows them;
    otherwise relative ones must stay inside, as an engine wants it.
    """

    def __init__(
        self, folder: int, *, mask: int = 0, rename: str = "", fifos: bool = False, any_link: bool = False
    ) -> None:
        self._root = folder
        self._mask = mask
        self._rename = rename
        self._top: str | None = None  # the first part of every name
        self._fifos = fifos
        self._any_link = any_link
        self._at: Parts = ()
        self._fd = os.dup(folder)
        self._folders: dict[Parts, tuple[int, int]] = {}  # made here: mode and time, set at the end
        self._files: set[int] = set()  # made here: device and inode
        self._links: dict[Parts, str] = {}
        self._memory = 0
        self.leading_out: list[str] = []  # symbolic links that were made and lead out

    def close(self) -> None:
        os.close(self._fd)

    def parts(self, name: str) -> Parts:
        if not self._rename:
            return tar_reader.parts_of(name)
        tar_reader.parts_of(name)  # also the part that goes
        top, _, rest = name.partition("/")
        if self._top is None:
            self._top = top
        if top != self._top:
            hostile(f'a name beside "{self._top}": "{name}"')
        return tar_reader.parts_of(f"{self._rename}/{rest}")

    # --- folders

    def _go(self, parts: Parts, *, make: bool = True) -> int:
        """A descriptor of a folder; missing ones are made. It is valid until the next call."""
        if parts[: len(self._at)] != self._at:
            root = os.dup(self._root)
            os.close(self._fd)
            self._fd, self._at = root, ()
        for part in parts[len(self._at) :]:
            here = (*self._at, part)
            if here in self._links:
                hostile(f'a name that goes through a link: "{"/".join(parts)}"')
            fd = self._enter(part, here, make=make)
            os.close(self._fd)
            self._fd, self._at = fd, here
        return self._fd

    def _enter(self, part: str, here: Parts, *, make: bool) -> int:
        try:
            return os.open(part, _FOLDER, dir_fd=self._fd)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(part, 0o700, dir_fd=self._fd)
            self._remember(here, 0o755, None)
            return os.open(part, _FOLDER, dir_fd=self._fd)
        except OSError as error:
            info = os.stat(part, dir_fd=self._fd, follow_symlinks=False)
            if stat.S_ISLNK(info.st_mode):
                hostile(f'a name that goes through a link: "{"/".join(here)}"')
            if not stat.S_ISDIR(info.st_mode):
                raise Refused("unsuitable", f'"{"/".join(here)}" is no folder, the archive has one there') from error
            raise

    def _remember(self, parts: Parts, mode: int, mtime: int | None) -> None:
        if parts not in self._folders:
            self._pay(parts)
        self._folders[parts] = (mode & 0o777 & ~self._mask, -1 if mtime is None else mtime)

    def _pay(self, parts: Parts, target: str = "") -> None:
        self._memory += _PER_NAME + sum(map(len, parts)) + len(target)
        if self._memory > MOST_MEMORY:
            count = len(self._folders) + len(self._links)
            raise Refused("unsuitable", f"the archive has too many folders and links ({count}); copy it in parts")

    # --- members

    def put(self, member: Member, reader: Reader) -> None:
        parts = self.parts(member.name)
        if member.kind == "folder":
            self._put_folder(parts, member)
            return
        if parts in self._links and member.kind != "link" and not self._any_link:
            hostile(f'a {member.kind} where it has a link: "{member.name}"')
        if not parts:
            hostile(f'something else than a folder under the name "{member.name}"')
        if member.kind == "link":
            self._note_link(parts, member)
        elif member.kind == "file":
            self._clear(parts)
            self._put_file(parts, member, reader)
        elif member.kind == "hard link":
            self._put_hard_link(parts, member)
        elif member.kind == "fifo" and self._fifos:
            self._clear(parts)
            os.mkfifo(parts[-1], member.mode & 0o777 & ~self._mask, dir_fd=self._go(parts[:-1]))
        else:
            hostile(f'a {member.kind}: "{member.name}"')

    def _put_folder(self, parts: Parts, member: Member) -> None:
        if not parts:
            return  # the target itself is its owner's
        if parts in self._links:
            hostile(f'a folder where it has a link: "{member.name}"')
        self._go(parts)
        if parts in self._folders:  # one that was there keeps its mode
            self._remember(parts, member.mode, member.mtime)

    def _clear(self, parts: Parts) -> None:
        """Take away what is in the place of a file; never a folder."""
        if parts in self._links:
            del self._links[parts]
        folder = self._go(parts[:-1])
        try:
            os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError) as error:
            info = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                raise
            raise Refused(
                "unsuitable", f'"{"/".join(parts)}" is a folder, the archive has something else there'
            ) from error

    def _put_file(self, parts: Parts, member: Member, reader: Reader) -> None:
        fd = os.open(parts[-1], _NEW, 0o600, dir_fd=self._go(parts[:-1]))
        try:
            if len(self._files) < MOST_FILES:
                self._files.add(_identity(os.fstat(fd)))
            for piece in reader.contents():
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            os.fchmod(fd, member.mode & 0o777 & ~self._mask)
            os.utime(fd, ns=(member.mtime, member.mtime))
        finally:
            os.close(fd)

    def _note_link(self, parts: Parts, member: Member) -> None:
        name, target = "/".join(parts), member.target
        leads_out = tar_reader.leads_out(name, target)
        if leads_out and not self._any_link and not target.startswith("/"):
            hostile(f'a link that points out of it: "{member.name}" -> "{target}"')
        self._clear(parts)
        self._pay(parts, target)
        self._links[parts] = target

    def _put_hard_link(self, parts: Parts, member: Member) -> None:
        source = self.parts(member.target)
        if source == parts:
            hostile(f'a hard link to itself: "{member.name}"')
        if source in self._links:  # engines write a second name of a link like this
            target = self._links[source]
            self._clear(parts)
            self._pay(parts, target)
            self._links[parts] = target
            return
        if not source:
            hostile(f'a hard link to a folder: "{member.name}"')
        self._clear(parts)
        try:
            folder = os.dup(self._go(source[:-1], make=False))
        except FileNotFoundError:
            hostile(f'a hard link to a file that it has not made: "{member.name}" -> "{member.target}"')
        try:
            into = self._go(parts[:-1])
            info = os.stat(source[-1], dir_fd=folder, follow_symlinks=False)
            if _identity(info) in self._files and stat.S_ISREG(info.st_mode):
                os.link(source[-1], parts[-1], src_dir_fd=folder, dst_dir_fd=into, follow_symlinks=False)
                made = os.stat(parts[-1], dir_fd=into, follow_symlinks=False)
                if _identity(made) == _identity(info):
                    return
                os.unlink(parts[-1], dir_fd=into)  # it was replaced meanwhile
        except FileNotFoundError:
            pass
        finally:
            os.close(folder)
        hostile(f'a hard link to a file that it has not made: "{member.name}" -> "{member.target}"')

    # --- the end

    def finish(self) -> None:
        """Links, then modes and times of folders, from the innermost on."""
        for parts, target in self._links.items():
            os.symlink(target, parts[-1], dir_fd=self._go_past(parts[:-1]))
            if tar_reader.leads_out("/".join(parts), target):
                self.leading_out.append("/".join(parts))
        for parts in sorted(self._folders, key=len, reverse=True):
            mode, mtime = self._folders[parts]
            fd = self._go_past(parts)
            os.fchmod(fd, mode)
            if mtime >= 0:
                os.utime(fd, ns=(mtime, mtime))

    def _go_past(self, parts: Parts) -> int:
        """As `_go`, at the end, when the links are there."""
        self._links, links = {}, self._links
        try:
            return self._go(parts, make=False)
        finally:
            self._links = links


def _identity(info: os.stat_result) -> int:
    return info.st_dev << 64 | info.st_ino


def unpack(stream: Readable, target: Target, *, compressed: bool = False) -> int:
    """Unpack all of a stream; the number of its members. Raises Refused, and leaves what came before."""
    reader = Reader(stream, compressed=compressed)
    count = 0
    for member in reader:
        target.put(member, reader)
        count += 1
    target.finish()
    return count


def open_folder(path: str) -> int:
    """A folder to unpack into, wherever its own path leads."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Refused("missing", f'"{path}" is not there') from None
    except NotADirectoryError:
        raise Refused("unsuitable", f'"{path}" is no folder') from None


def unpack_into(path: str, stream: Readable, ready: Callable[[], None], *, root: bool = False) -> None:
    """Unpack below an existing folder. `root`: as the files of a root, where links may say what they want."""
    folder = open_folder(path)
    target = Target(folder, any_link=root, fifos=root)
    try:
        ready()
        unpack(stream, target, compressed=True)
    finally:
        target.close()
        os.close(folder)

"""Tar streams on their way into a sandbox that somebody else unpacks: an engine, or memory.

Those who unpack for us ask few questions, and do it as root. So every archive is read through first, each member is
checked, owners are set to the workload's user, and only a whole and harmless archive is handed on: nothing is unpacked
of one that is refused.

Refused: absolute names, names with `..`, links that point out of the folder, device nodes, and whatever is no file,
folder, link or fifo. The `local` backend unpacks by itself, in a process without dibs, and refuses the same (a test
holds both to it).
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from dibs.errors import InvalidRequest

if TYPE_CHECKING:
    import tarfile

_PIECE = 1 << 16
_IN_MEMORY = 1 << 20


def refused(reason: str) -> InvalidRequest:
    return InvalidRequest(reason, field="archive", code="ARCHIVE_REFUSED")


class _Stream(io.RawIOBase):
    """An iterator of pieces as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def checked(archive: Iterator[bytes], folder: str, uid: int, gid: int) -> IO[bytes]:
    """The archive, read through and made harmless, at its beginning; close it."""
    import tarfile

    out = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115  # handed to the caller
    try:
        source = io.BufferedReader(_Stream(archive), _PIECE)
        with (
            tarfile.open(fileobj=source, mode="r|*", bufsize=_PIECE) as tar,
            tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as result,
        ):
            for member in tar:
                check(member, folder)
                member.uid, member.gid, member.uname, member.gname = uid, gid, "", ""
                member.mode &= 0o777  # no set-user-id from outside
                member.pax_headers = {}
                result.addfile(member, tar.extractfile(member) if member.isreg() else None)
    except tarfile.TarError as error:
        out.close()
        raise refused(f"the archive cannot be read: {error}") from error
    except EOFError as error:
        out.close()
        raise refused("the archive ends too early") from error
    except BaseException:
        out.close()
        raise
    out.seek(0)
    return out


def check(member: tarfile.TarInfo, folder: str) -> None:
    """Raise InvalidRequest for a member that could touch anything outside of `folder`."""
    name, target = member.name, member.linkname
    if name.startswith("/"):
        raise refused(f'the archive has an absolute name: "{name}"')
    if ".." in name.split("/"):
        raise refused(f'the archive has a name with "..": "{name}"')
    if member.issym():
        if target.startswith("/") or not _inside(os.path.join(os.path.dirname(name), target), folder):
            raise refused(f'the archive has a link that points out of it: "{name}" -> "{target}"')
    elif member.islnk():
        if target.startswith("/") or ".." in target.split("/"):
            raise refused(f'the archive has a link that points out of it: "{name}" -> "{target}"')
    elif member.ischr() or member.isblk():
        raise refused(f'the archive has a device node: "{name}"')
    elif not (member.isreg() or member.isdir() or member.isfifo()):
        raise refused(f'the archive has an entry of an unknown kind: "{name}"')


def _inside(name: str, folder: str) -> bool:
    top = os.path.normpath(folder)
    path = os.path.normpath(os.path.join(top, name))
    return path == top or path.startswith(top.rstrip("/") + "/")


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece

"""Tar streams on their way into a sandbox, unpacked elsewhere: by an engine, or in memory.

Engines ask few questions, and unpack as root. So every archive is read through first (`tar_reader`), each member is
checked and written anew, with the workload's user as its owner, and only a whole and harmless archive is handed on:
nothing is unpacked of one that is refused.

Refused: what `tar_extract` refuses on `local` (a test holds both to it): absolute names, names with `..`, names that go
through a link, relative links that point out of the folder, hard links to what the archive has not made, and whatever
is no file, folder or link.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

from dibs.backends.tar_reader import Member, Reader, Refused, hostile, leads_out, parts_of
from dibs.errors import InvalidRequest

_PIECE = 1 << 16
_IN_MEMORY = 1 << 20
MOST_MEMORY = 1 << 28  # bytes, for the names that are remembered; about
_PER_NAME = 250  # bytes of one beside its letters; about


def refused(reason: str) -> InvalidRequest:
    return InvalidRequest(reason, field="archive", code="ARCHIVE_REFUSED")


class Stream:
    """An iterator of pieces as something to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(piece)
        found = bytes(self._rest[:size])
        self._rest = self._rest[size:]
        return found


class Checks:
    """What was seen of an archive so far, and whether the next member fits."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}  # with their kind
        self._memory = 0

    def check(self, member: Member) -> None:
        """Raise Refused for a member that could touch anything outside of the folder."""
        parts = parts_of(member.name)
        for end in range(1, len(parts)):
            kind = self._names.get(parts[:end], "folder")
            if kind != "folder":
                hostile(f'a name that goes through a {kind}: "{member.name}"')
        before = self._names.get(parts, member.kind)
        if before == "link" and member.kind != "link":
            hostile(f'a {member.kind} where it has a link: "{member.name}"')  # which the engine might write through
        if "folder" in (before, member.kind) and before != member.kind:
            hostile(f'a {member.kind} where it has a {before}: "{member.name}"')
        if not parts and member.kind != "folder":
            hostile(f'something else than a folder under the name "{member.name}"')
        if member.kind == "link":
            if not member.target.startswith("/") and leads_out(member.name, member.target):
                hostile(f'a link that points out of it: "{member.name}" -> "{member.target}"')
        elif member.kind == "hard link":
            source = parts_of(member.target)
            if source == parts or self._names.get(source, "folder") == "folder":
                hostile(f'a hard link to a file that it has not made: "{member.name}" -> "{member.target}"')
        elif member.kind not in ("file", "folder"):
            hostile(f'a {member.kind}: "{member.name}"')
        for end in range(1, len(parts)):
            if parts[:end] not in self._names:
                self._remember(parts[:end], "folder")
        kind = member.kind
        if kind == "hard link" and self._names[parts_of(member.target)] == "link":
            kind = "link"  # it is one, under another name
        self._remember(parts, kind)

    def _remember(self, parts: tuple[str, ...], kind: str) -> None:
        if parts not in self._names:
            self._memory += _PER_NAME + sum(map(len, parts))
            if self._memory > MOST_MEMORY:
                raise Refused("unsuitable", f"the archive has too many members ({len(self._names)}); copy it in parts")
        self._names[parts] = kind


def checked(archive: Iterator[bytes], uid: int, gid: int) -> IO[bytes]:
    """The archive, read through and made harmless, at its beginning; close it."""
    from dibs.backends.tar_writer import header

    flags = {"file": b"0", "hard link": b"1", "link": b"2", "folder": b"5"}
    out = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115  # handed to the caller
    try:
        checks = Checks()
        reader = Reader(Stream(archive), compressed=True)
        for member in reader:
            checks.check(member)
            kind, mode = flags[member.kind], member.mode & 0o777  # no set-user-id from outside
            name = "/".join(parts_of(member.name)) or "."
            target = "/".join(parts_of(member.target)) if member.kind == "hard link" else member.target
            out.write(header(name, kind, member.size, mode, member.mtime, target, owner=(uid, gid)))
            for piece in reader.contents():
                out.write(piece)
            out.write(b"\0" * (-member.size % 512))
        out.write(b"\0" * 1024)
    except Refused as error:
        out.close()
        raise refused(str(error)) from error
    except BaseException:
        out.close()
        raise
    out.seek(0)
    return out


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece

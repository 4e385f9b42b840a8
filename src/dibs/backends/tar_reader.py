"""Reads tar streams that may be hostile: one member at a time, strictly, in bounded memory.

`tar_extract` and `tar_check` read with it: everything that is copied into or out of a sandbox, and root archives.
`tarfile` is not used for reading: it takes a header of any size into memory, remembers every member, and its older
versions run in circles on negative sizes.

Understood: files, folders, symbolic and hard links, fifos and device nodes, in the formats v7, ustar, pax and GNU; long
names; gzip, bzip2 and xz where asked for. Refused: sparse members, other kinds, wrong checksums, and a stream without
an end. What a member may do is up to the code that unpacks it.

Standard library only: it is also loaded beside a sandbox (`local/enter.py`), as a file of its own. Every import is made
by `prepare`, before the files around us belong to the sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, NoReturn, Protocol

BLOCK = 512
PIECE = 1 << 16
LONGEST_HEADER = 1 << 20  # of pax records or a long name; as Go's reader
LONGEST_NAME = 4096  # PATH_MAX
MOST_PADDING = 1 << 20  # zeros after the end; GNU tar's largest record

Kind = Literal["file", "folder", "link", "hard link", "fifo", "device node"]
_KINDS: dict[bytes, Kind] = {
    b"\0": "file", b"0": "file", b"7": "file", b"1": "hard link", b"2": "link", b"3": "device node",
    b"4": "device node", b"5": "folder", b"6": "fifo",
}  # fmt: skip
_PAX, _GLOBAL, _LONG_NAME, _LONG_TARGET, _SPARSE = b"x", b"g", b"L", b"K", b"S"
_TIME = re.compile(rb"(-?)([0-9]{1,11})(?:\.([0-9]{0,9})[0-9]*)?")


class Refused(Exception):
    """`kind` says what the caller can do: `hostile`, `missing`, `unsuitable` or `broken`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Member(NamedTuple):
    """One entry. `name` and `target` are as they were written: nothing is cleaned."""

    name: str
    kind: Kind
    size: int  # of a file; else 0
    mode: int
    mtime: int  # nanoseconds
    target: str  # of a link


def prepare() -> None:
    """Load everything that reading will need."""
    import bz2  # noqa: F401
    import lzma  # noqa: F401
    import zlib  # noqa: F401


def broken(reason: str) -> NoReturn:
    raise Refused("broken", f"the archive cannot be read: {reason}")


def hostile(reason: str) -> NoReturn:
    raise Refused("hostile", f"the archive has {reason}")


def parts_of(name: str) -> tuple[str, ...]:
    """The folders and the last part of a name that must stay below the target."""
    if name.startswith("/"):
        hostile(f'an absolute name: "{name}"')
    found = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in found:
        hostile(f'a name with "..": "{name}"')
    return found


def leads_out(name: str, target: str) -> bool:
    """Whether a link might lead out of the folder that the archive is unpacked in.

    If none of its links leads out in this sense, then none does at all: steps back are only taken from where the link
    really is, and there are no more of them than there are folders above it.
    """
    depth = len(parts_of(name)) - 1
    steps = [part for part in target.split("/") if part not in ("", ".")]
    back = next((number for number, part in enumerate(steps) if part != ".."), len(steps))
    return target.startswith("/") or back > depth or ".." in steps[back:]


class Reader:
    """The members of a stream. The contents of a file are read with `contents` before the next member is asked for."""

    def __init__(self, stream: Readable, *, compressed: bool = False) -> None:
        self._read = _plain(stream) if compressed else stream.read
        self._rest = b""
        self._left = 0  # bytes of the current file that were not read
        self._padding = 0

    def _exactly(self, size: int) -> bytes:
        """As many bytes; fewer only if the stream ends."""
        found = [self._rest[:size]]
        self._rest = self._rest[size:]
        missing = size - len(found[0])
        while missing:
            piece = self._read(min(missing, PIECE))
            if not piece:
                break
            found.append(piece[:missing])
            self._rest = piece[missing:]
            missing -= len(found[-1])
        return b"".join(found)

    def _whole(self, size: int) -> bytes:
        found = self._exactly(size)
        if len(found) < size:
            raise Refused("broken", "the archive ends too early")
        return found

    def contents(self) -> Iterator[bytes]:
        """The current file, piece by piece."""
        while self._left:
            piece = self._whole(min(self._left, PIECE))
            self._left -= len(piece)
            yield piece

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member

    def _next(self) -> Member | None:
        for _ in self.contents():
            pass
        self._whole(self._padding)
        self._padding = 0
        records: dict[bytes, bytes] = {}
        while True:
            block = self._whole(BLOCK)
            if not any(block):
                if records:
                    broken("a header without its member")
                self._end()
                return None
            kind, size = block[156:157], _checked(block)
            if kind not in (_PAX, _GLOBAL, _LONG_NAME, _LONG_TARGET):
                return self._member(block, records, size)
            if size > LONGEST_HEADER:
                broken(f"a header of {size} bytes")
            data = self._whole(size)
            self._whole(-size % BLOCK)
            if kind == _LONG_NAME:
                records[b"path"] = data.rstrip(b"\0")
            elif kind == _LONG_TARGET:
                records[b"linkpath"] = data.rstrip(b"\0")
            elif kind == _PAX:
                records.update(_records(data))
            elif {b"path", b"linkpath", b"size"} & set(_records(data)):
                broken("a name or size for all members")

    def _member(self, block: bytes, records: dict[bytes, bytes], size: int) -> Member:
        flag = block[156:157]
        if flag == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in records):
            hostile("a sparse file; make it without --sparse")
        name = records.get(b"path")
        if name is None:
            name = _text(block[:100])
            if block[257:263] == b"ustar\0" and block[345] != 0:
                name = _text(block[345:500]) + b"/" + name
        target = records.get(b"linkpath", _text(block[157:257]))
        shown = os.fsdecode(name[:200])
        if flag not in _KINDS:
            hostile(f'an entry of an unknown kind: "{shown}"')
        if not name or b"\0" in name or b"\0" in target:
            broken("a name that is empty or not text")
        if len(name) > LONGEST_NAME or len(target) > LONGEST_NAME:
            broken(f'a name of more than {LONGEST_NAME} bytes: "{shown}"')
        kind = _KINDS[flag]
        if kind == "file" and name.endswith(b"/"):
            kind = "folder"  # of the oldest format
        if b"size" in records:
            size = _decimal(records[b"size"])
        if kind == "file":
            self._left, self._padding = size, -size % BLOCK
        else:
            size = 0
        if kind in ("link", "hard link") and not target:
            broken(f'a link without a target: "{shown}"')
        mtime = _time(records[b"mtime"]) if b"mtime" in records else _number(block[136:148]) * 10**9
        if not -(1 << 62) < mtime < 1 << 62:
            broken(f'an impossible time: "{shown}"')
        return Member(
            os.fsdecode(name), kind, size, _number(block[100:108]) & 0o7777, mtime,
            os.fsdecode(target) if kind in ("link", "hard link") else "",
        )  # fmt: skip

    def _end(self) -> None:
        """Read on to the end of the stream: its producer may still report what went wrong."""
        seen = 0
        while piece := self._exactly(PIECE):
            seen += len(piece)
            if any(piece) or seen > MOST_PADDING:
                broken("there is something after its end")


def _checked(block: bytes) -> int:
    """The size that a header announces, if it is one."""
    stored = _number(block[148:156])
    unsigned = sum(block[:148]) + 8 * 32 + sum(block[156:])
    signed = unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
    if stored not in (unsigned, signed):
        broken("a header has a wrong checksum")
    size = _number(block[124:136])
    if size < 0:
        broken("a negative size")
    return size


def _number(field: bytes) -> int:
    if field[0] in (0x80, 0xFF):  # GNU: binary
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    text = field.partition(b"\0")[0].strip(b" ")
    if text.strip(b"01234567"):
        broken("a number that is none")
    return int(text or b"0", 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        broken("a number that is none")
    return int(text)


def _time(text: bytes) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        broken("a time that is none")
    found = int(match[2]) * 10**9 + int((match[3] or b"").ljust(9, b"0"))
    return -found if match[1] else found


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _records(data: bytes) -> dict[bytes, bytes]:
    """The records of a pax header: `LENGTH KEY=VALUE\\n`, one after the other."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        if not any(data[at : at + 1]):  # padding, which some writers count in
            if any(data[at:]):
                broken("a pax header that is none")
            break
        space = data.find(b" ", at, at + 20)
        if space < 0:
            broken("a pax header that is none")
        end = at + _decimal(data[at:space])
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(data) or data[end - 1 : end] != b"\n" or not equals:
            broken("a pax header that is none")
        found[key] = value
        at = end
    return found


def _plain(stream: Readable) -> Callable[[int], bytes]:
    """Reads what may be compressed; never more at once than is asked for."""
    import bz2
    import lzma
    import zlib

    start = b""
    while len(start) < 6 and (piece := stream.read(6 - len(start))):
        start += piece

    unread = [start]

    def read(size: int) -> bytes:
        if unread:
            return unread.pop() or stream.read(size)
        return stream.read(size)

    def gzip() -> Iterator[bytes]:
        tool = zlib.decompressobj(wbits=31)
        data = b""
        while not tool.eof:
            data = tool.unconsumed_tail or read(PIECE)
            if not data:
                return
            yield tool.decompress(data, PIECE)

    def other(tool: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> Iterator[bytes]:
        while not tool.eof:
            data = read(PIECE) if tool.needs_input else b""
            if tool.needs_input and not data:
                return
            yield tool.decompress(data, PIECE)

    if start.startswith(b"\x1f\x8b"):
        pieces = gzip()
    elif start.startswith(b"BZh"):
        pieces = other(bz2.BZ2Decompressor())
    elif start == b"\xfd7zXZ\0":
        pieces = other(lzma.LZMADecompressor(memlimit=128 << 20))
    else:
        return read

    def decompressed(_size: int) -> bytes:
        try:
            return next((piece for piece in pieces if piece), b"")
        except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
            raise Refused("broken", f"the archive cannot be read: {error}") from error

    return decompressed

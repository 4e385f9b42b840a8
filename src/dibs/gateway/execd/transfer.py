"""The contents of files: into a sandbox, out of it, and replaced in place. Any size passes in pieces.

`routes` calls it. A file is written beside its place and moved there when all of it has come, so an upload that breaks
off changes nothing. What must not be here is a whole file: only small ones are collected, so that they need one exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec
from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)

from dibs.backends.port import Output
from dibs.errors import DibsError, InvalidRequest
from dibs.gateway.execd import answers, scripts
from dibs.gateway.execd.files import Permission, Replacement, checked, decode, refusal, words
from dibs.gateway.execd.script_runner import (
    GREETING,
    Inside,
    RuntimeProblem,
    Said,
    ScriptFailed,
    finished,
    number,
    raise_for,
)
from dibs.gateway.sessions import AsyncSession

SMALL = 1 << 20  # bytes of a file that is written with a single exec
LARGEST_METADATA = 1 << 16
LARGEST_SAID = 1 << 16  # bytes that the tools may say beside the file
LARGEST_EARLY = 1 << 20  # bytes of the file that may come before its size
_RANGE = re.compile(r"(\d*)-(\d*)")


class Metadata(msgspec.Struct, kw_only=True):
    """The part that comes before each file of an upload."""

    path: str
    mode: int | None = None
    owner: str | None = None
    group: str | None = None


# --- into a sandbox


class Upload:
    """One file on its way in."""

    def __init__(self, inside: Inside, path: str, permission: Permission, *, keep: bool = False) -> None:
        path, mode, owner, group = words(path, permission)
        self._inside = inside
        self._path = path
        self._args = (path, secrets.token_hex(8), mode, owner, group, "keep" if keep else "")
        self._box = bytearray()
        self._session: AsyncSession | None = None

    async def write(self, data: bytes) -> None:
        if self._session is None:
            self._box += data
            if len(self._box) <= SMALL:
                return
            self._session = await self._inside.open(scripts.WRITE, *self._args, "")
            data, self._box = bytes(self._box), bytearray()
        await self._session.send(data)

    async def finish(self) -> None:
        """All of it has come: put it in its place."""
        try:
            if self._session is None:
                _done(await self._inside.run(scripts.WRITE, *self._args, str(len(self._box)), data=bytes(self._box)))
                return
            await self._session.end_of_input()
            _done(await finished(self._session))
            self._session.abandon()
            _done(await self._inside.run(scripts.FINISH, *self._args))
        except ScriptFailed as error:
            raise refusal(error, [self._path]) from error

    async def discard(self) -> None:
        """It will not be finished: leave nothing behind."""
        if self._session is not None:
            self._session.abandon()
            with contextlib.suppress(DibsError):  # the sandbox is gone, and the part with it
                await self._inside.run(scripts.DISCARD, *self._args)


def _done(said: Said) -> None:
    if said.code:
        raise RuntimeProblem(said.err.decode("utf-8", "replace").strip() or f"the tool ended with {said.code}")


async def upload(inside: Inside, content_type: str, chunks: AsyncIterator[bytes]) -> None:
    """A multipart body: pairs of `metadata` and `file`."""
    kind, options = parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise _bad("the body must be multipart/form-data", "INVALID_REQUEST_BODY", content_type)
    parts = _Parts(inside)
    try:
        with PushMultipartParser(boundary, max_header_size=1 << 16) as parser:
            async for chunk in chunks:
                for event in parser.parse(chunk):
                    await parts.take(event)
        await parts.end()
    except MultipartError as error:
        raise _bad(f"the body is broken: {error}", "INVALID_FILE_CONTENT") from error
    finally:
        await asyncio.shield(parts.leave())


class _Parts:
    """What the parser finds: which part it is, and what becomes of it."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._name = ""
        self._text = bytearray()
        self._metadata: Metadata | None = None
        self._file: Upload | None = None
        self._count = 0

    async def take(self, event: Any) -> None:
        if isinstance(event, MultipartSegment):
            await self._begin(event.name)
        elif event is None:
            await self._finish()
        elif self._file is not None:
            await self._file.write(bytes(event))
        else:
            self._text += event
            if len(self._text) > LARGEST_METADATA:
                raise _bad("it is too large", "INVALID_FILE_METADATA", field="metadata")

    async def _begin(self, name: str) -> None:
        self._name = name
        if name == "metadata":
            self._text.clear()
        elif name == "file":
            if self._metadata is None:
                raise _bad("a file must come after its metadata", "INVALID_FILE_METADATA", field="file")
            one = self._metadata
            permission = Permission(mode=one.mode, owner=one.owner, group=one.group)
            self._file = Upload(self._inside, one.path, permission)
            self._metadata = None
        else:
            raise _bad("a part is either metadata or file", "INVALID_FILE", name, field="part")

    async def _finish(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                await file.finish()
            except BaseException:
                await asyncio.shield(file.discard())
                raise
            self._count += 1
        elif self._metadata is not None:
            raise _bad("two metadata without a file between them", "INVALID_FILE_METADATA", field="metadata")
        else:
            try:
                self._metadata = decode(bytes(self._text), Metadata)
            except InvalidRequest as error:
                raise _bad(error.problems[0].reason, "INVALID_FILE_METADATA", field="metadata") from error

    async def end(self) -> None:
        if self._metadata is not None:
            raise _bad("its file is missing", "INVALID_FILE", self._metadata.path, field="metadata")
        if not self._count:
            raise _bad("there is no file in it", "INVALID_FILE")

    async def leave(self) -> None:
        if self._file is not None:
            await self._file.discard()


def _bad(reason: str, code: str, value: str = "", field: str = "body") -> InvalidRequest:
    return InvalidRequest(reason, field=field, value=value, code=code)


# --- out of a sandbox


class Reading:
    """A file that is being read; `size` is all of it."""

    def __init__(self, session: AsyncSession, size: int, early: list[Output], err: bytes) -> None:
        self.session = session
        self.size = size
        self._early = early
        self._err = bytearray(err)

    async def ask(self, start: int, length: int) -> None:
        await self.session.send(f"{start} {length}\n".encode())
        await self.session.end_of_input()

    async def pieces(self, client: answers.Client | None = None) -> AsyncIterator[bytes]:
        """What is read; nothing more once the client has gone, however long the sandbox says nothing."""
        for piece in self._early:
            yield piece.data
        while self.session.exit is None:
            found = await (self.session.next() if client is None else client.wait(self.session.next()))
            if found is None:
                return
            for one in found:
                if not isinstance(one, Output):
                    continue
                if one.stream == "stdout":
                    yield one.data
                else:
                    self._err += one.data
                    del self._err[LARGEST_SAID:]
        if self.session.exit.code not in (0, 141):  # 141: head has had enough of tail
            raise RuntimeProblem(self._err.decode("utf-8", "replace").strip() or "the file cannot be read")


async def read(inside: Inside, path: str, *args: str) -> Reading:
    """Open a file; `args` are "bytes", or "lines" with the first line and their number."""
    session = await inside.open(scripts.READ, checked(path), *args)
    try:
        async with asyncio.timeout(GREETING):
            return await _sized(session)
    except ScriptFailed as error:
        session.abandon()
        raise refusal(error, [path]) from error
    except TimeoutError as error:
        session.abandon()
        raise RuntimeProblem(f"the sandbox did not open the file within {GREETING:g} seconds") from error
    except BaseException:
        session.abandon()
        raise


async def _sized(session: AsyncSession) -> Reading:
    """Up to the line that tells the size. What speaks is the sandbox, which may say anything."""
    err = bytearray()
    early: list[Output] = []
    while True:
        if err.startswith(b"dibs:size ") and b"\n" in err:
            line, _, rest = bytes(err).partition(b"\n")
            return Reading(session, number(line[len(b"dibs:size ") :]), early, rest)
        if session.exit is not None:
            raise_for(bytes(err))
            raise RuntimeProblem(err.decode("utf-8", "replace").strip() or "the file cannot be read")
        if len(err) > LARGEST_SAID or sum(len(piece.data) for piece in early) > LARGEST_EARLY:
            raise RuntimeProblem("the sandbox's tools say something else than they were told to")
        for piece in await session.next():
            if isinstance(piece, Output) and piece.stream == "stderr":
                err += piece.data
            elif isinstance(piece, Output):
                early.append(piece)


async def download(
    inside: Inside, path: str, *, byte_range: str = "", offset: str = "", limit: str = ""
) -> answers.Streamed | answers.Whole:
    if offset or limit:
        return await _lines(inside, path, offset, limit)
    reading = await read(inside, path, "bytes")
    start, length, status = 0, reading.size, 200
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-disposition", disposition(path)),
        (b"accept-ranges", b"bytes"),
    ]
    if byte_range:
        found = ranged(byte_range, reading.size)
        if found is None:
            reading.session.abandon()
            text = f'range "{byte_range[:80]}": the file has {reading.size} bytes'
            return answers.error(416, "INVALID_RANGE", text, [(b"content-range", f"bytes */{reading.size}".encode())])
        start, length = found
        status = 206
        headers.append((b"content-range", f"bytes {start}-{start + length - 1}/{reading.size}".encode()))
    headers.append((b"content-length", str(length).encode()))

    async def give(client: answers.Client) -> None:
        async with reading.session:
            await reading.ask(start, length)
            left = length
            async for piece in reading.pieces(client):
                await client.write(piece[:left])
                left -= len(piece[:left])
                if client.gone.is_set() or not left:
                    break
            if left and not client.gone.is_set():
                raise ConnectionAbortedError("the file became shorter while it was read")  # cut, never filled up
            await client.write(b"", last=True)

    return answers.Streamed(give, headers=headers, status=status)


async def _lines(inside: Inside, path: str, offset: str, limit: str) -> answers.Streamed:
    for name, text in (("offset", offset or "1"), ("limit", limit or "1")):
        if not text.isdecimal() or not 0 < int(text) < 1 << 62:
            raise _bad("it must be a whole number from 1 on", "INVALID_REQUEST_BODY", text, field=name)
    reading = await read(inside, path, "lines", offset or "1", limit or str(1 << 62))

    async def give(client: answers.Client) -> None:
        held = b""  # the end of the last line is not a part of the slice
        async with reading.session:
            async for piece in reading.pieces(client):
                data = held + piece
                held = b"\n" if data.endswith(b"\n") else b""
                await client.write(data[: len(data) - len(held)])
                if client.gone.is_set():
                    return
            await client.write(b"", last=True)

    return answers.Streamed(give, headers=[(b"content-type", b"text/plain; charset=utf-8")])


def ranged(text: str, size: int) -> tuple[int, int] | None:
    """Start and length of the first range; None if it cannot be satisfied."""
    unit, _, ranges = text.partition("=")
    match = _RANGE.fullmatch(ranges.split(",")[0].strip())
    if unit.strip().lower() != "bytes" or match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, length) if length else None
    start = int(match[1])
    end = min(int(match[2]) if match[2] else size - 1, size - 1)
    return (start, end - start + 1) if start <= end else None


def disposition(path: str) -> bytes:
    """A header that names the file, whatever its name holds."""
    name = path.rstrip("/").rpartition("/")[2] or "file"
    plain = "".join(char if " " <= char <= "~" and char not in '"\\%' else "_" for char in name)
    exact = quote(name.encode("utf-8", "surrogateescape"), safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}".encode()


# --- in place


class Replacer:
    """Replaces in a stream, as `bytes.replace` would in the whole.

    A short text that is there often may become much: it is given out piece by piece, never gathered.
    """

    def __init__(self, old: bytes, new: bytes) -> None:
        self._old = old
        self._new = new
        self._rest = b""
        self.count = 0

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[bytes]:
        box, out, size, at = self._rest + data, [], 0, 0
        while (found := box.find(self._old, at)) >= 0:
            out += [box[at:found], self._new]
            size += found - at + len(self._new)
            at = found + len(self._old)
            self.count += 1
            if size > SMALL:
                yield b"".join(out)
                out, size = [], 0
        keep = len(box) if final else max(at, len(box) - len(self._old) + 1)
        out.append(box[at:keep])
        self._rest = box[keep:]
        yield b"".join(out)


async def replace(inside: Inside, path: str, wanted: Replacement, done: Callable[[int], None] | None = None) -> int:
    """Replace all of a text in a file, which stays the same file; how often it was there."""
    if not wanted.old:
        raise _bad("it must not be empty", "INVALID_REQUEST_BODY", field="old")
    replacer = Replacer(wanted.old.encode(), wanted.new.encode())
    reading = await read(inside, path, "bytes")
    writing = Upload(inside, path, Permission(), keep=True)
    try:
        async with reading.session:
            await reading.ask(0, reading.size)
            async for piece in reading.pieces():
                for part in replacer.feed(piece):
                    await writing.write(part)
        for part in replacer.feed(b"", final=True):
            await writing.write(part)
        if replacer.count:
            await writing.finish()
        else:
            await writing.discard()
    except BaseException:
        await asyncio.shield(writing.discard())
        raise
    if done is not None:
        done(replacer.count)
    return replacer.count

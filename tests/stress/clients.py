"""A client that is tight enough not to be what is measured: HTTP/1.1 on asyncio's streams, one connection kept alive.

The tests of load and the benchmark of the gateway use it. It knows no more of HTTP than the gateway answers: a length,
chunks, or an end of the connection. Nothing is tried again here; a broken connection is the caller's business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec

BROKEN = (OSError, asyncio.IncompleteReadError)  # what a gateway that dies looks like from outside


class Answer(msgspec.Struct):
    """Status, headers (small letters) and the whole body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a stated refusal; empty if this is none."""
        try:
            data = self.data
        except ValueError:
            return ""
        return str(data.get("code", "")) if isinstance(data, dict) and data.get("message", data.get("detail")) else ""


class Client:
    """One connection; opened when it is needed, opened anew after it broke."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None, timeout: float = 60.0) -> None:
        self.port = port
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._timeout = timeout
        self._pipes: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request, to the end of its answer. A body that is not bytes is sent as JSON."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._ask(method, path, body, headers or {})
        except BaseException:
            await self.close()
            raise

    async def _ask(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        if self._pipes is None:
            self._pipes = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._pipes
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        length = f"content-length: {len(data)}\r\n" if body is not None else ""
        writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n{self._lines}{own}{length}\r\n".encode() + data
        )
        await writer.drain()
        status, found = await self._head(reader)
        if status == 204 or found.get("content-length") == "0":
            content = b""
        elif "content-length" in found:
            content = await reader.readexactly(int(found["content-length"]))
        elif found.get("transfer-encoding") == "chunked":
            content = await self._chunks(reader)
        else:
            content = await reader.read()
            found["connection"] = "close"
        if found.get("connection") == "close":
            await self.close()
        return Answer(status, found, content)

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        found = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                found[name.lower()] = value.strip()
        return int(first.split(" ")[1]), found

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        parts = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readuntil(b"\r\n")
        return b"".join(parts)

    async def close(self) -> None:
        if self._pipes is not None:
            _, writer = self._pipes
            self._pipes = None
            writer.close()
            try:
                await writer.wait_closed()
            except BROKEN:
                return


def events(body: bytes) -> list[dict[str, Any]]:
    """The events of an answer of `POST /command`: JSON, one per frame."""
    return [
        json.loads(line.removeprefix("data:"))
        for line in body.decode().splitlines()
        if line.strip().startswith(("{", "data:"))
    ]


def output(body: bytes) -> str:
    return "".join(str(event.get("text", "")) for event in events(body) if event["type"] == "stdout")

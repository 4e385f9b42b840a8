"""Terminals over WebSocket: a shell (or a command) that stays when its client goes, as long as this gateway lives.

`routes` calls it. The shell starts with the first connection. What it says is kept in a ring, so that a client that
comes back gets what it has missed; one client at a time has it, another may take it over. While no client is connected
the shell is read on, so that it does not stop; what falls out of the ring is lost.

    binary from the client   0x00 input
    binary to the client     0x01 output · 0x02 errors (without a terminal) · 0x03 what was missed, after 8 bytes of
                             the offset that comes next
    JSON from the client     {"type": "resize", "cols", "rows"} · {"type": "signal", "signal": "SIGINT"} · ping · stdin
    JSON to the client       connected {session_id, mode} · pong · exit {exit_code} · error {code, error}
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from typing import Any

import msgspec
from litestar.connection import WebSocket
from litestar.exceptions import WebSocketException

from dibs.backends.port import Output
from dibs.errors import Conflict, DibsError, NotFound
from dibs.gateway.execd import scripts
from dibs.gateway.execd.script_runner import Inside, Started

RING = 1 << 20  # bytes of output kept for a client that reconnects; arbitrary
MOST = 256  # terminals of a gateway at once
FORGOTTEN = 3600.0  # seconds after its end, or without ever a client, that a terminal is kept
TAKEN_OVER = 4001
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGKILL", "SIGTSTP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGWINCH")


class PtyRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /pty`."""

    cwd: str | None = None
    command: str | None = None


class Frame(msgspec.Struct, kw_only=True):
    """A text frame of a client."""

    type: str = ""
    data: str = ""
    cols: int = 0
    rows: int = 0
    signal: str = ""


class Ring:
    """The last bytes of a stream, each with its offset from the beginning."""

    def __init__(self, size: int = RING) -> None:
        self._size = size
        self._data = bytearray()
        self.end = 0

    def add(self, data: bytes) -> None:
        self.end += len(data)
        self._data += data
        del self._data[: max(0, len(self._data) - self._size)]

    def since(self, offset: int) -> bytes:
        """Everything from an offset on that is still there."""
        start = self.end - len(self._data)
        return bytes(self._data[max(0, offset - start) :])


class Terminal:
    """One shell, with at most one client."""

    def __init__(self, terminal_id: str, inside: Inside, request: PtyRequest) -> None:
        self.id = terminal_id
        self.inside = inside
        self.request = request
        self.ring = Ring()
        self.tty = True
        self.seen = time.monotonic()
        self._started: Started | None = None
        self._reading: asyncio.Task[None] | None = None
        self._client: asyncio.Queue[bytes | None] | None = None
        self._held: WebSocket[Any, Any, Any] | None = None
        self._starting = asyncio.Lock()
        self.ended = asyncio.Event()
        self.exit_code: int | None = None

    @property
    def running(self) -> bool:
        return self._started is not None and not self.ended.is_set()

    async def start(self, tty: bool) -> None:
        async with self._starting:
            if self._started is not None:
                return
            self.tty = tty
            script = scripts.TERMINAL if tty else scripts.PIPES
            self._started = await self.inside.start(
                script, self.request.command or "", cwd=self.request.cwd or "", tty=tty,
                env={"TERM": "xterm-256color"} if tty else {},
            )  # fmt: skip
            self._reading = asyncio.create_task(self._read(self._started))

    async def _read(self, started: Started) -> None:
        session = started.session
        pieces = started.early
        try:
            while True:
                for piece in pieces:
                    if isinstance(piece, Output):
                        self.ring.add(piece.data)
                        if self._client is not None:
                            # A client that does not read holds the shell back, as a real terminal would.
                            await self._hand((b"\x02" if piece.stream == "stderr" else b"\x01") + piece.data)
                if session.exit is not None:
                    self.exit_code = session.exit.code
                    return
                pieces = await session.next()
        except ConnectionAbortedError:
            self.exit_code = 137
        finally:
            self.seen = time.monotonic()
            session.abandon()
            self.ended.set()
            if self._client is not None:
                await self._hand(None)

    async def _hand(self, frame: bytes | None) -> None:
        while self._client is not None:
            client = self._client
            try:
                async with asyncio.timeout(1.0):
                    await client.put(frame)
            except TimeoutError:
                continue  # it may have been taken over meanwhile
            return

    async def serve(self, socket: WebSocket[Any, Any, Any], *, since: int | None, takeover: bool) -> None:
        """One client, until it goes, is taken over, or the shell ends."""
        if self._held is not None:
            if not takeover:
                raise Conflict("another client has it", field="pty", value=self.id, code="ALREADY_CONNECTED")
            await self._evict()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(16)
        self._held = socket
        try:
            await socket.accept()
            try:
                await self.start(socket.query_params.get("pty") != "0")
            except DibsError as error:
                await _tell(socket, type="error", code="START_FAILED", error=str(error))
                return
            missed = self.ring.since(since or 0)
            end = self.ring.end
            self._client = queue
            if missed:
                await socket.send_data(b"\x03" + end.to_bytes(8, "big") + missed, mode="binary")
            await _tell(socket, type="connected", session_id=self.id, mode="pty" if self.tty else "pipe")
            if self.ended.is_set():
                queue.put_nowait(None)
            await self._converse(socket, queue)
        except WebSocketException:
            return  # it went
        finally:
            self.seen = time.monotonic()
            if self._held is socket:
                self._held = None
            if self._client is queue:
                self._client = None
            _drain(queue)

    async def _converse(self, socket: WebSocket[Any, Any, Any], queue: asyncio.Queue[bytes | None]) -> None:
        hearing = asyncio.create_task(self._hear(socket))
        telling = asyncio.create_task(self._speak(socket, queue))
        try:
            done, _ = await asyncio.wait((hearing, telling), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (hearing, telling):
                task.cancel()
            await asyncio.gather(hearing, telling, return_exceptions=True)

    async def _speak(self, socket: WebSocket[Any, Any, Any], queue: asyncio.Queue[bytes | None]) -> None:
        while (frame := await queue.get()) is not None:
            await socket.send_data(frame, mode="binary")
        await _tell(socket, type="exit", exit_code=self.exit_code)
        await socket.close(1000, "process exited")

    async def _hear(self, socket: WebSocket[Any, Any, Any]) -> None:
        while True:
            message: Any = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data, text = message.get("bytes"), message.get("text")
            if self._started is None:
                continue
            if data:
                if data[0] == 0:
                    await self._started.session.send(data[1:])
            elif text is not None:
                await self._obey(socket, text, self._started)

    async def _obey(self, socket: WebSocket[Any, Any, Any], text: str, started: Started) -> None:
        try:
            frame = msgspec.json.decode(text, type=Frame)
        except msgspec.DecodeError as error:
            await _tell(socket, type="error", code="INVALID_FRAME", error=str(error))
            return
        if frame.type == "stdin":
            await started.session.send(frame.data.encode())
        elif frame.type == "resize":
            if self.tty and 0 < frame.cols < 1 << 16 and 0 < frame.rows < 1 << 16:
                await started.session.resize(frame.rows, frame.cols)
        elif frame.type == "signal" and frame.signal in _SIGNALS:
            await started.session.signal(int(getattr(signal, frame.signal)))
        elif frame.type == "ping":
            await _tell(socket, type="pong")
        else:
            await _tell(socket, type="error", code="INVALID_FRAME", error=f'there is no frame "{frame.type[:40]}"')

    async def _evict(self) -> None:
        held, self._held, self._client = self._held, None, None
        if held is not None:
            try:
                async with asyncio.timeout(1.0):
                    await held.close(TAKEN_OVER, "TAKEN_OVER")
            except (TimeoutError, WebSocketException, RuntimeError):
                return  # it does not listen any more

    async def end(self) -> None:
        if self._started is not None and not self.ended.is_set():
            try:
                await self.inside.kill(self._started, signal.SIGKILL)
            except DibsError:
                self._started.session.abandon()
            try:
                async with asyncio.timeout(5.0):
                    await self.ended.wait()
            except TimeoutError:
                self._started.session.abandon()
        elif self._held is not None:
            await self._held.close(1000, "deleted")


async def _tell(socket: WebSocket[Any, Any, Any], **fields: Any) -> None:
    await socket.send_data(msgspec.json.encode(fields).decode(), mode="text")


def _drain(queue: asyncio.Queue[bytes | None]) -> None:
    while not queue.empty():
        queue.get_nowait()


class Terminals:
    """One per gateway."""

    def __init__(self) -> None:
        self._all: dict[str, Terminal] = {}

    def make(self, inside: Inside, request: PtyRequest) -> str:
        self._forget()
        if len(self._all) >= MOST:
            raise Conflict(f"there are {MOST} terminals already", field="pty", code="TOO_MANY", remedy="end some")
        terminal = Terminal(f"pty-{secrets.token_hex(12)}", inside, request)
        self._all[terminal.id] = terminal
        return terminal.id

    def find(self, sandbox_id: str, terminal_id: str) -> Terminal:
        found = self._all.get(terminal_id)
        if found is None or found.inside.sandbox_id != sandbox_id:
            raise NotFound("there is no such terminal", field="pty", value=terminal_id, code="CONTEXT_NOT_FOUND")
        return found

    async def end(self, sandbox_id: str, terminal_id: str) -> None:
        terminal = self.find(sandbox_id, terminal_id)
        del self._all[terminal_id]
        await terminal.end()

    def _forget(self) -> None:
        now = time.monotonic()
        for one in list(self._all.values()):
            if not one.running and now - one.seen > FORGOTTEN:
                del self._all[one.id]

    async def close(self) -> None:
        for one in list(self._all.values()):
            await one.end()
        self._all.clear()

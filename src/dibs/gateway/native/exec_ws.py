"""Talking to processes of a sandbox: one question with one answer (POST exec), and conversations (WebSocket).

Frames of a conversation are binary; the first byte says what the rest is:

    0   input for the process                 from the client
    1   its output          2   its errors    from the gateway
    3   control, as JSON    {"signal": 15} {"resize": [rows, columns]} {"eof": true}     from the client
                            {"count": true}: how much of the input is read?              from the client
                            {"counting": "bytes"}, then {"taken": n} as it is read; or {"counting": "reading"}, then
                            {"reading": true} when the command waits for input; or {"counting": "no"}
                            {"exec": {…}} first of all, if the query names no command
                            {"exit": {…}, "taken": n} {"error": {…}}                     from the gateway, last

If the client hangs up, a process that was started for it is killed; one that it was attached to runs on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import Response, WebSocket, post, websocket
from msgspec import UNSET, Meta, UnsetType

from dibs.backends.port import Exec, Exit, Output
from dibs.errors import DibsError, InvalidRequest, Timeout
from dibs.gateway.auth import require
from dibs.gateway.native.common import (
    Ask,
    NoQuery,
    gateway_of,
    query,
    reference,
    reply,
    unless_gone,
    watched,
)
from dibs.gateway.native.sandboxes import ROOT, WRITE, seconds
from dibs.gateway.problems import ClientGone, body_of, problem_data
from dibs.gateway.sessions import AsyncSession
from dibs.gateway.state import Gateway
from dibs.wire import sandboxes as ws
from dibs.wire.reading import convert, read_body, read_object
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads

STDIN, STDOUT, STDERR, CONTROL = 0, 1, 2, 3
_MOST_OUTPUT = 8 << 20  # of each stream in one answer; a conversation has no such limit
_LOOK = 0.03  # seconds between two looks whether a command waits for input
_STREAMS = {"stdout": STDOUT, "stderr": STDERR}
Socket = WebSocket[Any, Any, Any]


class TalkQuery(msgspec.Struct, frozen=True):
    """A command and how it is run; or nothing, and the first frame says it."""

    command: tuple[ws.Word, ...] = ()
    env: tuple[ws.Word, ...] = ()
    workdir: ws.Path | None = None
    user: ws.User | None = None
    tty: bool = False


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may say besides input."""

    signal: Annotated[int, Meta(ge=1, le=64)] | UnsetType = UNSET
    resize: tuple[Annotated[int, Meta(ge=1, le=10000)], Annotated[int, Meta(ge=1, le=10000)]] | UnsetType = UNSET
    eof: bool = False
    count: bool = False
    exec: dict[str, Any] | UnsetType = UNSET


@post(ROOT + "/{ref:str}/exec", status_code=200)
async def run(request: Ask) -> Response[bytes]:
    """Run a command to its end. If the caller hangs up, or the time is over, it is killed."""
    who = require(request, WRITE)
    query(request, NoQuery)
    ref = reference(request)
    gateway = gateway_of(request)
    asked = read_body(ws.ExecRequest, await request.body())
    limit = None if asked.timeout is UNSET else seconds(asked.timeout, "timeout")
    async with watched(request) as gone:
        session = await _open(gateway, who, ref, _command(asked))
        async with session:
            try:
                return reply(await unless_gone(gone, _whole(session, asked, limit)))
            except (ClientGone, Timeout):
                await session.kill()
                raise


async def _open(gateway: Gateway, who: Identity, ref: str, command: Exec | None) -> AsyncSession:
    """A new command, or (None) the sandbox's own."""

    def begin(workloads: Workloads) -> Any:
        view = workloads.seen_by(who)
        return view.attach(ref) if command is None else view.exec(ref, command)

    return AsyncSession(await gateway.pool.call_long(begin))


def _command(asked: ws.ExecRequest) -> Exec:
    return Exec(
        command=asked.command,
        env=asked.env,
        workdir=None if asked.workdir is UNSET else asked.workdir,
        user="" if asked.user is UNSET else asked.user,
        tty=asked.tty,
    )


async def _whole(session: AsyncSession, asked: ws.ExecRequest, limit: float | None) -> ws.ExecResult:
    feeding = asyncio.get_running_loop().create_task(_feed(session, asked.stdin.encode()))
    try:
        async with asyncio.timeout(limit):
            return await _gather(session)
    except TimeoutError:
        raise Timeout(
            "the command took longer than asked; it was killed", field="timeout", value=f"{limit:g}s",
            code="COMMAND_TIMEOUT", remedy="allow more time",
        ) from None  # fmt: skip
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding


async def _feed(session: AsyncSession, data: bytes) -> None:
    if data:
        await session.send(data)
    await session.end_of_input()


async def _gather(session: AsyncSession) -> ws.ExecResult:
    out = {"stdout": bytearray(), "stderr": bytearray()}
    truncated = False
    while True:
        for piece in await session.next():
            if isinstance(piece, Exit):
                texts = {name: bytes(data).decode(errors="replace") for name, data in out.items()}
                return ws.ExecResult(piece.code, texts["stdout"], texts["stderr"], piece.reason, truncated)
            target = out[piece.stream]
            room = _MOST_OUTPUT - len(target)
            truncated = truncated or len(piece.data) > room
            target += piece.data[: max(room, 0)]


# -- conversations --------------------------------------------------------------------------------------------------


@websocket(ROOT + "/{ref:str}/exec")
async def talk(socket: Socket) -> None:
    """A new command."""
    async with answering(socket):
        who = require(socket, WRITE)
        asked = query(socket, TalkQuery)
        ref = reference(socket)
        gateway = gateway_of(socket)
        row = await gateway.pool.call_as(who, lambda w: w.sandbox(ref))
        command = _from_query(asked) if asked.command else None
        if command is None:
            await socket.accept()
            command = await _first(socket)
        session = await _open(gateway, who, row.id, command)
        async with session:
            if asked.command:
                await socket.accept()
            try:
                finished = await _converse(socket, session)
            except BaseException:
                await session.kill()
                raise
            if not finished:
                await session.kill()


@websocket(ROOT + "/{ref:str}/attach")
async def attach(socket: Socket) -> None:
    """The sandbox's own command."""
    async with answering(socket):
        who = require(socket, WRITE)
        query(socket, NoQuery)
        ref = reference(socket)
        session = await _open(gateway_of(socket), who, ref, None)
        async with session:
            await socket.accept()
            await _converse(socket, session)


def _from_query(asked: TalkQuery) -> Exec:
    pairs = [word.partition("=") for word in asked.env]
    body = {
        "command": list(asked.command),
        "env": {name: value for name, _, value in pairs},
        "tty": asked.tty,
        **({"workdir": asked.workdir} if asked.workdir is not None else {}),
        **({"user": asked.user} if asked.user is not None else {}),
    }
    return _command(convert(ws.ExecRequest, body, strict=True))


async def _first(socket: Socket) -> Exec:
    control = _control(await next_frame(socket))
    if control is None or control.exec is UNSET:
        raise InvalidRequest(
            "the first frame must say what to run", field="exec", code="FIELD_MISSING",
            remedy='send byte 3 and {"exec": {"command": [...]}}',
        )  # fmt: skip
    return _command(convert(ws.ExecRequest, control.exec, strict=True))


async def next_frame(socket: Socket) -> bytes:
    """The next binary frame. Raises ClientGone."""
    message: Any = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise ClientGone
    data = message.get("bytes")
    if not data:
        raise InvalidRequest("frames are binary and not empty", field="frame", code="FRAME_INVALID", remedy="see docs")
    return bytes(data)


def _control(frame: bytes) -> Control | None:
    """What a control frame says; None for input."""
    if frame[0] == STDIN:
        return None
    if frame[0] != CONTROL:
        raise InvalidRequest(
            "a client sends 0 (input) or 3 (control)", field="frame", value=str(frame[0]), code="FRAME_INVALID",
            remedy="begin the frame with one of them",
        )  # fmt: skip
    return convert(Control, read_object(frame[1:]), strict=True)


async def _converse(socket: Socket, session: AsyncSession) -> bool:
    """Both directions until the process ends (True) or the client hangs up (False)."""
    loop = asyncio.get_running_loop()
    hearing = loop.create_task(hear(socket, session))
    speaking = loop.create_task(_speak(socket, session))
    try:
        await asyncio.wait((hearing, speaking), return_when=asyncio.FIRST_COMPLETED)
        if speaking.done():
            speaking.result()
            return True
        hearing.result()
        return False
    except ClientGone:
        return False
    finally:
        for task in (hearing, speaking):
            if not task.done():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def hear(socket: Socket, session: AsyncSession) -> None:
    counting: list[asyncio.Task[None]] = []
    try:
        await _hear(
            socket, session, lambda: counting.append(asyncio.get_running_loop().create_task(_count(socket, session)))
        )
    finally:
        for task in counting:  # they end with the conversation
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)


async def _hear(socket: Socket, session: AsyncSession, count: Callable[[], None]) -> None:
    while True:
        frame = await next_frame(socket)
        control = _control(frame)
        if control is None:
            await session.send(frame[1:])
            continue
        if control.signal is not UNSET:
            await session.signal(control.signal)
        if control.resize is not UNSET:
            await session.resize(*control.resize)
        if control.eof:
            await session.end_of_input()
        if control.count:
            count()


async def _count(socket: Socket, session: AsyncSession) -> None:
    """Tell a client that shares its input with others when, or how much of it, is read."""
    if await session.count_input():
        await send(socket, CONTROL, b'{"counting":"bytes"}')
        return
    known = await session.reading()
    await send(socket, CONTROL, b'{"counting":"no"}' if known is None else b'{"counting":"reading"}')
    while known is False and session.exit is None:
        await asyncio.sleep(_LOOK)
        known = await session.reading()
    if session.exit is None:
        await send(socket, CONTROL, b'{"reading":true}')


async def _speak(socket: Socket, session: AsyncSession) -> None:
    while True:
        for piece in await next_pieces(socket, session):
            if isinstance(piece, Output):
                await send(socket, _STREAMS[piece.stream], piece.data)
                continue
            end = ws.Exit(piece.code, piece.reason, piece.signal, piece.detail, piece.at)
            await send(socket, CONTROL, last_words(end, session))
            await socket.close(1000)
            return


async def next_pieces(socket: Socket, session: AsyncSession) -> list[Output | Exit]:
    """What has come from the process. How much of its input it has read is told here, to a client that has asked."""
    pieces = await session.next()
    if (taken := session.new_count()) is not None and session.exit is None:
        await send(socket, CONTROL, msgspec.json.encode({"taken": taken}))
    return pieces


def last_words(end: ws.Exit, session: AsyncSession) -> bytes:
    """How it ended and, where that is known, how much of its input it had read."""
    words: dict[str, Any] = {"exit": end}
    if session.taken is not None:
        words["taken"] = session.taken
    return msgspec.json.encode(words)


async def send(socket: Socket, kind: int, data: bytes) -> None:
    await socket.send_data(bytes([kind]) + data, mode="binary")


class answering:  # noqa: N801 - used as a statement
    """Errors of a conversation: before it is accepted as an HTTP answer, afterwards as a last frame."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, _: Any, error: BaseException | None, __: Any) -> bool:
        socket = self._socket
        if error is None:
            return False
        if isinstance(error, ClientGone | ConnectionError):
            return True
        if not isinstance(error, DibsError):
            return False
        scope: Any = socket.scope
        request_id = scope["state"].get("request_id", "")
        with contextlib.suppress(Exception):  # the client may be gone
            if socket.connection_state in {"connect", "init"}:
                status, media_type, body, extra = body_of(error, scope["path"], request_id)
                headers = [(b"content-type", media_type.encode())]
                headers += [(name.lower().encode(), value.encode()) for name, value in extra.items()]
                await socket.send({"type": "websocket.http.response.start", "status": status, "headers": headers})
                await socket.send({"type": "websocket.http.response.body", "body": body, "more_body": False})
            else:
                await send(socket, CONTROL, msgspec.json.encode({"error": problem_data(error, request_id)}))
                await socket.close(1008 if isinstance(error, InvalidRequest) else 1011)
        return True


HANDLERS = (run, talk, attach)

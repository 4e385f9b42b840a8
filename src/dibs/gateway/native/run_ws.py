"""`dibs run` over a gateway: one connection requests a sandbox, waits for it, and streams its input and output.

The remote client uses it for what a local `dibs` does in one process, with the same messages and the same errors. The
caller is in the ledger's queue as long as the connection is open. When it closes, the caller leaves the queue and its
foreground command ends. (POST /sandboxes creates a sandbox that does not depend on a connection.)

    first, from the client    3 {"run": {…the request, base_env…}, "foreground": true}
    from the gateway          3 {"waiting": {…}}   3 {"note": "…"}   3 {"sandbox": {…}}   3 {"error": {…}}
    then, in the foreground   as in `exec_ws`

A client of the host service is on the same machine, and the sandbox is its own user's: in the foreground it talks to
the sandbox directly, so that a restart of the service is nothing to either. Its place in the queue has an id of its
choice (`ticket`), and is kept for a while when the service goes: the client comes back with the same id.

    first, from the client    3 {"run": {…}, "foreground": true, "direct": true, "ticket": "tk-…"}
    from the gateway          3 {"attach": {"id": "sb-…", "folder": "…"}}, before the command is started
    from the client           3 {"attached": true}, or false: then it is a conversation over the gateway, as above
    at the end                3 {"ended": true} from the client, 3 {"settled": true} when the devices are free
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import msgspec
from litestar import websocket

from dibs.backends.port import Exit, Handle, Output, Session
from dibs.errors import Conflict, DibsError, InvalidRequest
from dibs.gateway.auth import require
from dibs.gateway.native.common import NoQuery, gateway_of, query
from dibs.gateway.native.exec_ws import (
    CONTROL,
    STDERR,
    STDOUT,
    Socket,
    answering,
    hear,
    last_words,
    next_frame,
    next_pieces,
    send,
)
from dibs.gateway.native.sandboxes import WRITE, environment_of, within_ttl
from dibs.gateway.native.views import one_sandbox
from dibs.gateway.problems import ClientGone
from dibs.gateway.sessions import AsyncSession
from dibs.gateway.state import Gateway
from dibs.plan.decision import Refusal
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.sandbox import SandboxId
from dibs.wire import sandboxes as ws
from dibs.wire.reading import read_object
from dibs.workloads.admission import check_reach
from dibs.workloads.booking import Order
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads
from dibs.workloads.waiter import Waiting, WaitNews

_KEPT = 120.0  # seconds that a place is kept for a client that comes back after a restart
_ATTACHING = 60.0  # seconds that a client gets to attach
_TICKET = re.compile(r"tk-[0-9a-f]{12,32}", re.ASCII)
_WAITING_AT_ONCE = 64  # callers who wait in a thread; the next ones wait for one of these, and are told so

Tell = Callable[[dict[str, Any]], None]


class RunRequest(msgspec.Struct, frozen=True):
    """The first frame."""

    spec: SandboxSpec
    base_env: dict[str, str]
    foreground: bool
    direct: bool = False
    ticket: str = ""


class Direct:
    """In place of a session: the client itself is attached to the sandbox."""

    def close(self) -> None:
        return None


class Caller:
    """What the thread that makes a sandbox knows of its caller."""

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self.gone = threading.Event()
        self.stopping = stopping  # whether this gateway is stopping
        self.answered = threading.Event()
        self.attached = False


class CallersWaiting(Waiting):
    """The caller's place in the queue. Given up when the connection is closed."""

    tell_often = True  # a closed connection is noticed when something is sent

    def __init__(self, workloads: Workloads, spec: SandboxSpec, tell: Tell, caller: Caller, ticket: str = "") -> None:
        super().__init__(
            workloads.ledger, workloads.registry, spec, workloads.identity, self._pass_on,
            ticket=ticket, kept=_KEPT if ticket else 0.0,
        )  # fmt: skip
        self._send = tell
        self._caller = caller
        self._gone = caller.gone

    def leaves(self) -> bool:
        return bool(self._kept) and self._caller.stopping()

    def wait(self, refusal: Refusal) -> bool:
        if self._gone.is_set():
            raise _hung_up()
        return super().wait(refusal)

    def _pass_on(self, news: WaitNews) -> None:
        if self._gone.is_set():
            raise _hung_up()
        self._send({"waiting": news})


def _hung_up() -> Conflict:
    return Conflict("the caller hung up", field="run", code="CALLER_GONE")


@websocket("/api/v1/run")
async def run(socket: Socket) -> None:
    """A sandbox, made for a client that listens."""
    async with answering(socket):
        who = require(socket, WRITE)
        query(socket, NoQuery)
        gateway = gateway_of(socket)
        await socket.accept()
        wanted = _read(await next_frame(socket), gateway)
        sandbox_id, session = await _make(socket, gateway, who, wanted)
        if session is None:
            await _show(socket, gateway, who, sandbox_id)
            await socket.close(1000)
            return
        if isinstance(session, Direct):
            await _attend(socket, gateway, who, sandbox_id)
            return
        async with AsyncSession(session) as talk:
            ended = False
            try:
                await _show(socket, gateway, who, sandbox_id)
                ended = await _converse(socket, gateway, talk, sandbox_id)
            finally:
                if not ended:
                    await _let_go(gateway, session, sandbox_id)


async def _attend(socket: Socket, gateway: Gateway, who: Identity, sandbox_id: str) -> None:
    """Until a client that is attached itself says that its command has ended, or hangs up. A stop of ours ends nothing:
    the sandbox has its client, and ends with it."""
    try:
        await _show(socket, gateway, who, sandbox_id)
        frame = await next_frame(socket)
        if frame[0] != CONTROL or read_object(frame[1:]) != {"ended": True}:
            raise InvalidRequest(
                "only the end can be told here", field="frame", code="FRAME_INVALID", remedy="see docs"
            )
        await gateway.pool.call_long(lambda w: w.settle(sandbox_id))
        await send(socket, CONTROL, b'{"settled":true}')
        await socket.close(1000)
    except BaseException:
        if not gateway.stopping:
            await _let_go(gateway, None, sandbox_id)
        raise


async def _let_go(gateway: Gateway, session: Session | None, sandbox_id: str) -> None:
    """The client is gone: what ran in the foreground ends, as if the client itself had been its parent."""
    connection = getattr(session, "_connection", None)
    if connection is not None:
        # Without a goodbye: the shim takes that for the death of its client, and records it as such.
        with contextlib.suppress(OSError):
            connection.sock.shutdown(2)

    def end(workloads: Workloads) -> None:
        workloads.stop(sandbox_id)

    with contextlib.suppress(DibsError):  # what cannot be ended now is ended by the watcher
        await asyncio.shield(gateway.pool.call_long(end))


def _read(frame: bytes, gateway: Gateway) -> RunRequest:
    data = read_object(frame[1:]) if frame[0] == CONTROL else {}
    mapping, foreground = data.get("run"), data.get("foreground", False)
    direct, ticket = data.get("direct", False), data.get("ticket", "")
    known = {"run", "foreground", "direct", "ticket"}
    if (
        not isinstance(mapping, dict)
        or not isinstance(foreground, bool)
        or not isinstance(direct, bool)
        or not (isinstance(ticket, str) and (not ticket or _TICKET.fullmatch(ticket)))
        or set(data) - known
    ):
        raise InvalidRequest(
            "the first frame must say what to run", field="run", code="FIELD_MISSING",
            remedy='send byte 3 and {"run": {"command": [...]}, "foreground": true}',
        )  # fmt: skip
    base_env = environment_of(mapping)
    return RunRequest(within_ttl(parse_spec(mapping), gateway), base_env, foreground, direct, ticket)


async def _show(socket: Socket, gateway: Gateway, who: Identity, sandbox_id: str) -> None:
    view = await gateway.pool.call_as(who, lambda w: one_sandbox(w, w.sandbox(sandbox_id)))
    await send(socket, CONTROL, msgspec.json.encode({"sandbox": view}))


async def _make(
    socket: Socket, gateway: Gateway, who: Identity, wanted: RunRequest
) -> tuple[SandboxId, Session | None]:
    """Make it in a thread, pass on its news, and notice when the client is gone."""
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    caller = Caller(lambda: gateway.stopping)
    gone = caller.gone

    def tell(words: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(news.put_nowait, words)

    def work(workloads: Workloads) -> tuple[SandboxId, Session | None]:
        return make(workloads.seen_by(who), wanted, tell, caller)

    async with _place(gateway, wanted):
        making = asyncio.ensure_future(gateway.pool.call_long(work))
        making.add_done_callback(lambda _: news.put_nowait(None))
        listening = loop.create_task(_listen(socket, caller))
        try:
            while (words := await news.get()) is not None:
                with contextlib.suppress(Exception):  # the client is gone: `gone` says so, and the thread lets go
                    await send(socket, CONTROL, msgspec.json.encode(words))
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            if not making.done():
                gone.set()  # the gateway stops, or we are cancelled
                with contextlib.suppress(Exception):
                    await asyncio.shield(making)
        sandbox_id, session = await making
        if gone.is_set():
            if isinstance(session, Direct):
                if not gateway.stopping:
                    await _let_go(gateway, None, sandbox_id)
            elif session is not None:
                session.close()
            raise ClientGone
        return sandbox_id, session


@contextlib.asynccontextmanager
async def _place(gateway: Gateway, wanted: RunRequest) -> Any:
    """Requests that may wait for long must not take all threads from the others."""
    if wanted.spec.wait_seconds is None:
        yield
        return
    if gateway not in _places:
        _places[gateway] = asyncio.Semaphore(_WAITING_AT_ONCE)
    async with _places[gateway]:
        yield


_places: WeakKeyDictionary[Gateway, asyncio.Semaphore] = WeakKeyDictionary()


async def _listen(socket: Socket, caller: Caller) -> None:
    """Until the caller hangs up. Before there is a sandbox, all it may say is whether it is attached."""
    with contextlib.suppress(ClientGone, DibsError):
        while not caller.answered.is_set():
            frame = await next_frame(socket)
            words = read_object(frame[1:]) if frame[0] == CONTROL else {}
            if not isinstance(words.get("attached"), bool):
                break
            caller.attached = words["attached"]
            caller.answered.set()
        else:
            await asyncio.get_running_loop().create_future()  # the next frame belongs to the conversation
    caller.gone.set()


class Listener:
    """The client of `Workloads.make` that listens to us."""

    def __init__(self, wanted: RunRequest, tell: Tell, caller: Caller) -> None:
        self._wanted = wanted
        self._tell = tell
        self._caller = caller

    def _direct(self, order: Order) -> bool:
        return self._wanted.direct and self._wanted.foreground and order.backend.holds and not order.who.remote

    def waiting(self, workloads: Workloads, order: Order) -> CallersWaiting:
        ticket = self._wanted.ticket if self._direct(order) else ""
        return CallersWaiting(workloads, order.spec, self._tell, self._caller, ticket)

    def note(self, text: str) -> None:
        self._tell({"note": text})

    def attach(self, order: Order) -> Callable[[Handle], Session] | None:
        return partial(self._have_attached, order) if self._direct(order) else None

    def _have_attached(self, order: Order, handle: Handle) -> Session:
        """Have the client attach itself; here, if it cannot."""
        caller = self._caller
        self._tell({"attach": {"id": handle.sandbox_id, "folder": handle.folder}})
        until = time.monotonic() + _ATTACHING
        while not caller.answered.wait(0.1):
            if caller.gone.is_set():
                raise _hung_up()
            if time.monotonic() > until:
                raise Conflict("the caller did not attach", field="run", code="CALLER_GONE", remedy="try again")
        return cast("Session", Direct()) if caller.attached else order.backend.attach(handle)


def make(workloads: Workloads, wanted: RunRequest, tell: Tell, caller: Caller) -> tuple[SandboxId, Session | None]:
    """As `Workloads.create` and `launch`, within what the caller may have."""
    spec = check_reach(workloads, wanted.spec)
    client = Listener(wanted, tell, caller)
    return workloads.make(spec, client, base_env=wanted.base_env, foreground=wanted.foreground)


async def _converse(socket: Socket, gateway: Gateway, session: AsyncSession, sandbox_id: str) -> bool:
    """Both directions until the command ends (True; its devices are free then) or the caller hangs up."""
    loop = asyncio.get_running_loop()
    hearing = loop.create_task(hear(socket, session))
    speaking = loop.create_task(_speak(socket, gateway, session, sandbox_id))
    try:
        done, _ = await asyncio.wait((hearing, speaking), return_when=asyncio.FIRST_COMPLETED)
        if speaking in done:
            speaking.result()
            return True
        error = hearing.exception()
        if session.exit is not None:
            await speaking  # it is over already, and is being told
            return True
        if isinstance(error, DibsError):
            raise error
        return False
    finally:
        for task in (hearing, speaking):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _speak(socket: Socket, gateway: Gateway, session: AsyncSession, sandbox_id: str) -> None:
    while True:
        for piece in await next_pieces(socket, session):
            if isinstance(piece, Output):
                await send(socket, STDOUT if piece.stream == "stdout" else STDERR, piece.data)
                continue
            await session.close()
            await gateway.pool.call_long(lambda w: w.settle(sandbox_id))
            await send(socket, CONTROL, last_words(_end(piece), session))
            await socket.close(1000)
            return


def _end(end: Exit) -> ws.Exit:
    return ws.Exit(end.code, end.reason, end.signal, end.detail, end.at)


HANDLERS = (run,)

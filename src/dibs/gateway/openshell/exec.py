"""Commands in a sandbox: one request with a stream of output, and a conversation with input and window sizes.

Output is read only as fast as the client takes it, so a client that never reads holds the process back and nothing
piles up here. When the call ends early (cancelled, past its deadline, the connection gone), the process is killed.
Half-closing a conversation is the end of the process's input, no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc

from dibs.backends.port import Exec, Exit, Output
from dibs.errors import CommandFailed, Conflict, DibsError, InvalidRequest, Problem
from dibs.gateway.openshell import names, repeats, sandboxes, schema
from dibs.gateway.openshell.calls import WRITE, Call, Method
from dibs.gateway.openshell.requests import unknown
from dibs.gateway.sessions import AsyncSession
from dibs.request.spec import SandboxSpec
from dibs.workloads.service import Workloads

TIMED_OUT = 124  # the exit code of a command that took longer than it may, as timeout(1) has it
_KILLED = 128 + signal.SIGKILL
_MOST_WORDS = 1024
_ROWS, _COLUMNS, _LARGEST_SIDE = 24, 80, 10_000  # of a terminal's window
_LONGEST = 32 << 10  # bytes of one word or value
_PIECE = 64 << 10  # bytes of output in one message
_UNTIL_THERE = 20.0  # seconds that a command waits for a sandbox that is being created; the SDK does not
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


async def run(call: Call, request: Any) -> None:
    """ExecSandbox."""
    async with _session(call, request) as session:
        feeding = asyncio.get_running_loop().create_task(_feed(session, request.stdin))
        try:
            await _speak(call, session, _limit(request))
        finally:
            await _end(feeding)


async def talk(call: Call, _: Any) -> None:
    """ExecSandboxInteractive: `start` first, then input and window sizes."""
    first = await _next(call)
    if first is None or first.WhichOneof("payload") != "start":
        raise InvalidRequest(
            "the first message must say what to run", field="start", code="FIELD_MISSING", remedy="send start first"
        )
    async with _session(call, first.start) as session:
        hearing = asyncio.get_running_loop().create_task(_hear(call, session, first.start))
        speaking = asyncio.get_running_loop().create_task(_speak(call, session, _limit(first.start)))
        try:
            await asyncio.wait((hearing, speaking), return_when=asyncio.FIRST_COMPLETED)
            if not speaking.done():
                hearing.result()  # raises what was wrong with the input; its end is no reason to stop
            await speaking
        finally:
            await _end(speaking)
            await _end(hearing)


# -- starting -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _session(call: Call, request: Any) -> AsyncIterator[AsyncSession]:
    """The process. However the block is left before the process has ended, it is killed."""
    place = await call.place(request.workspace_scope)
    _check(request)
    gateway = call.gateway
    loop = asyncio.get_running_loop()
    until = loop.time() + _UNTIL_THERE

    def begin(workloads: Workloads) -> Any:
        mine = workloads.seen_by(place.who)
        row = sandboxes.find(mine, request.sandbox)
        if sandboxes.coming(row) and loop.time() < until and not gateway.stopping:
            return None
        if not row.ready:
            raise Conflict(
                "sandbox is not ready", field="sandbox", value=row.name, code="WRONG_STATE", remedy=f"it is {row.state}"
            )
        command = _command(request, row.spec)
        if not request.request_id:
            return mine.exec(row.id, command)
        repeats.claim_command(mine, place.who, request)
        try:
            return mine.exec(row.id, command)
        except DibsError:
            repeats.release_command(mine, place.who, request)
            raise

    begun: Any = None
    while begun is None:
        begun = await gateway.pool.call_long(begin)
        if begun is None:
            await asyncio.sleep(0.05)
    session = AsyncSession(begun)
    try:
        async with session:
            size = _size(request)
            if size is not None:
                await session.resize(*size)  # engines give a terminal its size when its command runs
            try:
                yield session
            finally:
                if session.exit is None:
                    await session.kill()
    except asyncio.CancelledError:
        raise
    except CommandFailed as error:
        await _not_started(call, error)


async def _not_started(call: Call, error: CommandFailed) -> None:
    """A command that is not there ends like one of a shell: with its words and 127 or 126."""
    event = schema.message("ExecSandboxEvent")
    complaint = event()
    complaint.stderr.data = f"{error}\n".encode()
    await call.send(complaint)
    last = event()
    last.exit.exit_code = error.status
    await call.send(last)


def _check(request: Any) -> None:
    problems = unknown(request)
    command = list(request.command)
    if not command or not command[0]:
        problems.append(Problem("COMMAND_INVALID", "command", "", "there is no command", "name one"))
    if len(command) > _MOST_WORDS:
        reason = f"has more than {_MOST_WORDS} words"
        problems.append(Problem("COMMAND_INVALID", "command", f"{len(command)} words", reason, "write a script"))
    for place, word in enumerate(command):
        if len(word.encode()) > _LONGEST or "\0" in word:
            reason = f"has a NUL byte in it, or more than {_LONGEST} bytes"
            problems.append(Problem("COMMAND_INVALID", f"command[{place}]", word[:40], reason, "pass it as stdin"))
    for name, value in request.environment.items():
        if _NAME.fullmatch(name) is None or len(value.encode()) > _LONGEST or "\0" in value or "\n" in value:
            reason = f"a value is one line of at most {_LONGEST} bytes, and a name is letters, digits and _"
            problems.append(Problem("ENV_INVALID", f"environment.{name[:64]}", "", reason, "pass it as stdin"))
    if request.workdir and (not request.workdir.startswith("/") or not request.workdir.isprintable()):
        problems.append(Problem("WORKDIR_INVALID", "workdir", request.workdir[:64], "must be an absolute path"))
    for side in ("rows", "cols"):
        size = getattr(request, side)
        if size and not request.tty:
            problems.append(Problem("CONFLICT", side, str(size), "without tty there is no window", "say tty"))
        elif size > _LARGEST_SIDE:
            problems.append(Problem("SIZE_INVALID", side, str(size), f"must be from 1 to {_LARGEST_SIDE}"))
    problem = names.request_id_problem(request.request_id)
    if problem:
        problems.append(problem)
    duration = request.execution_timeout
    if duration.seconds < 0 or duration.nanos < 0 or duration.seconds > 366 * 86400:
        said = f"{duration.seconds}s"
        problems.append(Problem("TIMEOUT_INVALID", "execution_timeout", said, "must be between 0 and a year"))
    if problems:
        raise InvalidRequest(problems)


def _command(request: Any, spec: SandboxSpec) -> Exec:
    """As asked for, in a login shell unless the request says otherwise."""
    words = tuple(request.command)
    environment = dict(request.environment)
    if not request.no_login_shell:
        words = _in_login_shell(words, (*spec.env, *environment))
    return Exec(command=words, env=environment, workdir=request.workdir or None, tty=request.tty, size=_size(request))


def _size(request: Any) -> tuple[int, int] | None:
    return (request.rows or _ROWS, request.cols or _COLUMNS) if request.rows or request.cols else None


def _in_login_shell(words: tuple[str, ...], asked: tuple[str, ...]) -> tuple[str, ...]:
    """The profile of a login shell may set variables anew, PATH most often. Those that were asked for are put back."""
    names = sorted({name for name in asked if _NAME.fullmatch(name)})
    save = "".join(f'export DIBS_KEPT_{number}="${{{name}}}"; ' for number, name in enumerate(names))
    back = "".join(
        f'export {name}="$DIBS_KEPT_{number}"; unset DIBS_KEPT_{number}; ' for number, name in enumerate(names)
    )
    inner = f'{back}exec "$@"'
    if not names:
        return ("/bin/sh", "-lc", inner, "sh", *words)
    return ("/bin/sh", "-c", f'{save}exec /bin/sh -lc "$0" sh "$@"', inner, *words)


def _limit(request: Any) -> float | None:
    duration = request.execution_timeout
    seconds = float(duration.seconds) + duration.nanos / 1e9
    return seconds or None


# -- talking --------------------------------------------------------------------------------------------------------


async def _feed(session: AsyncSession, data: bytes) -> None:
    if data:
        await session.send(data)
    await session.end_of_input()


async def _hear(call: Call, session: AsyncSession, start: Any) -> None:
    if start.stdin:
        await session.send(start.stdin)
    while True:
        message = await _next(call)
        if message is None:
            await session.end_of_input()
            return
        kind = message.WhichOneof("payload")
        if kind == "stdin":
            await session.send(message.stdin)
        elif kind == "resize":
            size = message.resize
            if not start.tty:
                raise InvalidRequest(
                    "without tty there is no window", field="resize", code="CONFLICT", remedy="say tty in start"
                )
            if not 0 < size.rows <= _LARGEST_SIDE or not 0 < size.cols <= _LARGEST_SIDE:
                raise InvalidRequest(
                    f"must be from 1 to {_LARGEST_SIDE}",
                    field="resize",
                    value=f"{size.rows}x{size.cols}",
                    code="SIZE_INVALID",
                )
            await session.resize(size.rows, size.cols)
        else:
            raise InvalidRequest(
                "only input and window sizes come after start", field=kind or "payload", code="FRAME_INVALID",
                remedy="send stdin or resize",
            )  # fmt: skip


async def _next(call: Call) -> Any:
    """The next message of a conversation; None when the client sends no more."""
    data = await call.context.read()
    if data is grpc.aio.EOF:
        return None
    message = schema.parsed("ExecSandboxInput", data)
    sandboxes.check_unknown(message)
    return message


async def _speak(call: Call, session: AsyncSession, limit: float | None) -> None:
    """Output until the end, and the end itself. When its time is over, the process is killed.

    The time is kept apart from the writing: a client that does not read delays the answer, not the end of the process.
    And a write that is cancelled halfway would leave the stream unable to carry the exit code.
    """
    alarm = asyncio.get_running_loop().create_task(_kill_after(session, limit)) if limit else None
    try:
        code = await _pass_on(call, session, limit)
    finally:
        if alarm is not None:
            await _end(alarm)
    last = schema.message("ExecSandboxEvent")()
    last.exit.exit_code = code
    await call.send(last)


async def _kill_after(session: AsyncSession, limit: float) -> None:
    await asyncio.sleep(limit)
    await session.kill()


async def _pass_on(call: Call, session: AsyncSession, limit: float | None) -> int:
    """The exit code. TIMED_OUT when the time is over: what the process left running may hold its output open."""
    event = schema.message("ExecSandboxEvent")
    loop = asyncio.get_running_loop()
    until = None if limit is None else loop.time() + limit
    late = False
    while not late:
        pieces = await session.next(None if until is None else max(0.0, until - loop.time()))
        late = until is not None and loop.time() >= until
        for piece in pieces:
            if isinstance(piece, Exit):
                return TIMED_OUT if late and piece.code == _KILLED else piece.code
            assert isinstance(piece, Output)
            for start in range(0, len(piece.data), _PIECE):
                message = event()
                part = message.stdout if piece.stream == "stdout" else message.stderr
                part.data = piece.data[start : start + _PIECE]
                await call.send(message)
    return TIMED_OUT


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended. Its error matters only to the code that awaits it."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


METHODS = (
    Method("ExecSandbox", "ExecSandboxRequest", "ExecSandboxEvent", run, WRITE, "stream"),
    Method("ExecSandboxInteractive", "ExecSandboxInput", "ExecSandboxEvent", talk, WRITE, "talk"),
)

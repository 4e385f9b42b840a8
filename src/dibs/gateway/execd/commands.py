"""Commands of a client: in the foreground as a stream of events, in the background under a watcher of their own.

`routes` calls it. A command in the foreground belongs to its connection: if the client goes away, the whole process
group is killed. One in the background belongs to the sandbox; the gateway may be gone meanwhile (`background`).
"""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec

from dibs.backends.port import Exit, ExitReason, Output
from dibs.errors import DibsError, InvalidRequest, NotFound
from dibs.gateway.execd import answers, events, scripts
from dibs.gateway.execd.command_registry import CommandBook, Record
from dibs.gateway.execd.script_runner import GREETING, LARGEST_EARLY, Inside, RuntimeProblem, Said, Started, number

GRACE = 3.0  # seconds between asking a command to end and making it
GLANCE = 0.1  # seconds between two looks at a command that was asked to end
MOST_LOG = 16 << 20  # bytes of a log in one answer; the cursor leads to the rest
LARGEST_ID = 4294967294
SSE_HEADERS = (
    (b"content-type", events.MEDIA_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_NAME = re.compile(r"[^=\0]+")
_TICK = 0.25  # seconds after which a silent command's client is told that the gateway stops


class CommandRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /command`."""

    command: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    background: bool | None = None
    timeout: int | None = None  # milliseconds
    uid: int | None = None
    gid: int | None = None
    envs: dict[str, str] | None = None


class Running:
    """A command in the foreground, while it runs."""

    def __init__(
        self, record: Record, inside: Inside, started: Started, after: Callable[[], None] | None = None
    ) -> None:
        self.after = after
        self.record = record
        self.inside = inside
        self.started = started
        self.ended = asyncio.Event()
        self.why = ""  # why it was ended, if it was


def check(request: CommandRequest) -> tuple[list[str], str, float | None, dict[str, str]]:
    """What to run, as whom, for how many seconds at most, with which variables; refuses what cannot be meant."""
    if (request.command is None) == (request.argv is None):
        raise _wrong("command", "", "give either command or argv")
    if request.command is not None:
        if not request.command.strip():
            raise _wrong("command", request.command, "it is empty")
        words = ["shell", request.command]
    else:
        argv = request.argv or []
        if not argv or not argv[0] or argv[0].startswith("-"):
            raise _wrong("argv", argv[0] if argv else "", "the first word must name a program")
        words = ["argv", *argv]
    if request.gid is not None and request.uid is None:
        raise _wrong("gid", str(request.gid), "it needs a uid")
    for field, one in (("uid", request.uid), ("gid", request.gid)):
        if one is not None and not 0 <= one <= LARGEST_ID:
            raise _wrong(field, str(one), f"it must be between 0 and {LARGEST_ID}")
    envs = request.envs or {}
    for name, value in envs.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise _wrong("envs", name, "this cannot be the name or the value of a variable")
    user = "" if request.uid is None else str(request.uid) + ("" if request.gid is None else f":{request.gid}")
    return words, user, seconds(request.timeout), envs


def seconds(milliseconds: int | None) -> float | None:
    if milliseconds is None or milliseconds == 0:
        return None
    if milliseconds < 0:
        raise _wrong("timeout", str(milliseconds), "it must not be negative")
    return milliseconds / 1000


def _wrong(field: str, value: str, reason: str) -> InvalidRequest:
    return InvalidRequest(reason, field=field, value=value, code="INVALID_REQUEST_BODY")


class Commands:
    """All commands in the foreground of one gateway, and the book of all."""

    def __init__(self, book: CommandBook, stopping: Callable[[], bool] = lambda: False) -> None:
        self.book = book
        self._stopping = stopping
        self._running: dict[str, Running] = {}
        self._endings: set[asyncio.Task[None]] = set()

    # -- in the foreground

    async def run(self, inside: Inside, request: CommandRequest) -> answers.Streamed:
        words, user, limit, envs = check(request)
        inside = inside.as_user(user)
        started = await inside.start(scripts.COMMAND, *words, cwd=request.cwd or "", env=envs)
        content = request.command if request.command is not None else " ".join(request.argv or ())
        return self.stream(inside, started, content, limit)

    def stream(
        self,
        inside: Inside,
        started: Started,
        content: str,
        limit: float | None,
        after: Callable[[], None] | None = None,
    ) -> answers.Streamed:
        """The events of a command that has been started; `after` is called when it has ended."""
        record = Record(f"cmd-{secrets.token_hex(12)}", inside.sandbox_id, content, time.time(), user=inside.user)
        running = Running(record, inside, started, after)
        self._running[record.id] = running
        self.book.remember(record)
        return answers.Streamed(lambda client: self._tell(client, running, limit), headers=SSE_HEADERS)

    async def _tell(self, client: answers.Client, running: Running, limit: float | None) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        timer = None
        if limit is not None:
            words = f"the command was killed after {round(limit * 1000)} ms, its timeout"
            timer = loop.call_later(limit, lambda: self._spawn(self._kill(running, words)))
        try:
            await client.write(events.init(running.record.id))
            try:
                ended = await self._pass_on(client, running)
            except (ConnectionAbortedError, DibsError) as error:  # hung up on, or lost by its engine
                ended = Exit(137, ExitReason.LOST, 9)
                running.why = running.why or str(error)
            if ended is None and not client.gone.is_set():
                await self._end(running, "the gateway was stopped")
                ended = Exit(137, ExitReason.LOST, 9)
            if ended is not None:
                why = (running.why,) if running.why else ()
                code = ended.code or (137 if why else 0)
                last = events.failed(code, *why) if code else events.complete(loop.time() - began)
                self._settle(running)  # before the client can ask
                await client.write(last, last=True)
        finally:
            if timer is not None:
                timer.cancel()
            if not running.ended.is_set():
                self._spawn(self._end(running, "the client went away"))

    async def _pass_on(self, client: answers.Client, running: Running) -> Exit | None:
        """Output as events, up to the Exit; None if the client went away before, or the gateway stops."""
        session = running.started.session
        lines = {"stdout": events.Lines("stdout"), "stderr": events.Lines("stderr")}
        pieces: list[Output | Exit] | None = running.started.early
        loop = asyncio.get_running_loop()
        ping_at = loop.time() + events.PING_SECONDS
        while True:
            frames: list[bytes] = []
            for stream, data in events.portions(pieces or ()):
                frames.append(lines[stream].feed(data))
                if sum(map(len, frames)) > events.PORTION:
                    await client.write(b"".join(frames))
                    frames.clear()
            if session.exit is not None:
                frames += [one.feed(b"", final=True) for one in lines.values()]
            elif loop.time() >= ping_at:
                frames.append(events.ping())
                ping_at = loop.time() + events.PING_SECONDS
            if any(frames):
                await client.write(b"".join(frames))
            if session.exit is not None:
                return session.exit
            if client.gone.is_set() or self._stopping():
                return None
            pieces = await client.wait(session.next(), min(_TICK, max(0.0, ping_at - loop.time())))

    async def _kill(self, running: Running, why: str) -> None:
        """The whole group, now. Readers of its output see the end."""
        if running.ended.is_set() or running.started.session.exit is not None:
            return
        running.why = running.why or why
        try:
            await running.inside.kill(running.started, signal.SIGKILL)
        except DibsError:
            running.started.session.abandon()  # the sandbox is going, or cannot be entered: hang up

    async def _end(self, running: Running, why: str) -> None:
        await self._kill(running, why)
        self._settle(running)

    def _settle(self, running: Running) -> None:
        session, record = running.started.session, running.record
        if running.ended.is_set():
            return
        record.finished_at = time.time()
        record.exit_code = session.exit.code if session.exit is not None else 137
        record.error = running.why or (f"exit status {record.exit_code}" if record.exit_code else "")
        session.abandon()
        running.ended.set()
        self._running.pop(record.id, None)
        if running.after is not None:
            running.after()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """The gateway stops: what runs for its clients ends with it."""
        for running in list(self._running.values()):
            await self._end(running, "the gateway was stopped")
        await asyncio.gather(*self._endings)

    # -- in the background

    async def detach(self, inside: Inside, request: CommandRequest) -> bytes:
        """Start a command that stays when its client goes; its events, which end at once."""
        words, user, limit, envs = check(request)
        inside = inside.as_user(user)
        command_id = f"cmd-{secrets.token_hex(12)}"
        at = time.time()
        wait = "" if limit is None else f"{limit:.3f}"
        started = await inside.start(
            scripts.BACKGROUND, command_id, wait, scripts.BACKGROUND_CHILD, *words, cwd=request.cwd or "", env=envs
        )
        async with started.session:  # hung up as soon as its watcher needs us no more
            await _ready(started)
        content = request.command if request.command is not None else " ".join(request.argv or ())
        record = Record(command_id, inside.sandbox_id, content, at, started.hello.room, user)
        try:
            await self.book.add(record)
        except BaseException:
            self._spawn(self._forget(inside, record))
            raise
        return events.init(command_id) + events.complete(time.time() - at)

    async def _forget(self, inside: Inside, record: Record) -> None:
        """Its id was never given out: it could not be recorded."""
        await inside.run(scripts.STOP, record.folder, "KILL")

    # -- looking after them

    async def status(self, inside: Inside, command_id: str) -> Record:
        record = await self.book.find(inside.sandbox_id, command_id)
        if record.background and record.finished_at is None:
            said = await inside.as_user(record.user).run(scripts.STATUS, record.folder)
            await self._learn(record, said)
        return record

    async def logs(self, inside: Inside, command_id: str, cursor: int) -> tuple[bytes, int]:
        """What a background command said after the first `cursor` lines, and how many lines there are then."""
        record = await self.book.find(inside.sandbox_id, command_id)
        if not record.background:
            raise InvalidRequest(
                "only a background command keeps its output", field="command", value=command_id, code="NOT_SUPPORTED",
                remedy="the output of a command in the foreground is in its stream",
            )  # fmt: skip
        said = await inside.as_user(record.user).run(scripts.LOGS, record.folder, str(cursor + 1), str(MOST_LOG))
        await self._learn(record, said)
        data = said.out
        whole = data.rfind(b"\n") + 1
        ended = record.finished_at is not None and len(data) < MOST_LOG
        if not ended and (whole or len(data) < MOST_LOG):
            data = data[:whole]  # the rest of the last line has yet to come
        return data, cursor + data.count(b"\n") + bool(data and not data.endswith(b"\n"))

    async def _learn(self, record: Record, said: Said) -> None:
        """What was seen of a background command in its sandbox."""
        if record.finished_at is not None:
            return
        ended = said.word("ended")
        if ended is not None:
            words = [*ended, "", "", ""]
            code, at, late = number(words[0]), float(number(words[1])), words[2] == "1"
            record.exit_code, record.finished_at = code, max(at, record.started_at)
            record.error = "it was killed: its time was over" if late else (f"exit status {code}" if code else "")
        elif said.word("lost") is not None:
            record.exit_code, record.finished_at = 137, time.time()
            record.error = "it was killed together with its watcher"
        elif said.word("gone") is not None:
            record.exit_code, record.finished_at = 137, time.time()
            record.error = "its files are gone from the sandbox: whether it ended cannot be told"
        else:
            return
        await self.book.finish(record)

    async def interrupt(self, inside: Inside, command_id: str) -> None:
        """Ask the command's process group to end; after a while make it. One that has ended stays as it is."""
        try:
            record = await self.book.find(inside.sandbox_id, command_id)
        except NotFound as error:  # clients know no 404 here: to them the id is wrong
            raise InvalidRequest(error.problems) from error
        if record.finished_at is not None:
            return
        running = self._running.get(command_id)
        if running is not None:
            running.why = "the command was interrupted"
            await running.inside.kill(running.started, signal.SIGTERM)
            try:
                async with asyncio.timeout(GRACE):
                    await running.ended.wait()
            except TimeoutError:
                await self._kill(running, running.why)
            return
        inside = inside.as_user(record.user)
        await self._learn(record, await inside.run(scripts.STOP, record.folder, "TERM"))
        began = asyncio.get_running_loop().time()
        while record.finished_at is None:
            await asyncio.sleep(GLANCE)
            passed = asyncio.get_running_loop().time() - began
            if passed > 3 * GRACE:
                raise RuntimeProblem("the command does not end, not even when it is killed", value=command_id)
            late = passed > GRACE
            ask = (scripts.STOP, record.folder, "KILL") if late else (scripts.STATUS, record.folder)
            await self._learn(record, await inside.run(*ask))


async def _ready(started: Started) -> None:
    try:
        async with asyncio.timeout(GREETING):
            await _said_ready(started)
    except TimeoutError as error:
        raise RuntimeProblem(f"the command was not started within {GREETING:g} seconds") from error


async def _said_ready(started: Started) -> None:
    said = b""
    pieces = started.early
    while b"dibs:ready\n" not in said:
        said += b"".join(piece.data for piece in pieces if isinstance(piece, Output))
        if started.session.exit is not None and b"dibs:ready\n" not in said:
            raise RuntimeProblem(f"the command was not started: {said.decode('utf-8', 'replace').strip()}")
        if len(said) > LARGEST_EARLY:
            raise RuntimeProblem("the sandbox's shell says something else than it was told to")
        if b"dibs:ready\n" not in said:
            pieces = await started.session.next()


def status_data(record: Record) -> dict[str, Any]:
    """The answer to `GET /command/status/{id}`."""
    data: dict[str, Any] = {
        "id": record.id,
        "content": record.content,
        "running": record.finished_at is None,
        "exit_code": record.exit_code,
        "started_at": _told(record.started_at),
    }
    if record.error:
        data["error"] = record.error
    if record.finished_at is not None:
        data["finished_at"] = _told(record.finished_at)
    return data


def _told(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")

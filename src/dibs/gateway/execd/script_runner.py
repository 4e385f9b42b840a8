"""Into one sandbox: running a script there, and what it had to say.

Everything of `execd` goes through here. One `Inside` is made for each request: whose it is, which sandbox, as which
user. It checks nothing of the paths and commands that it carries, because they mean nothing outside of the sandbox;
whether the caller may touch the sandbox is the service's decision, asked with every call.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from typing import TYPE_CHECKING

import msgspec

from dibs.backends.port import Exec, Exit, Output, Session, Usage
from dibs.errors import CommandFailed, DibsError, InvalidRequest
from dibs.gateway.execd import envfile, scripts
from dibs.gateway.sessions import AsyncSession

if TYPE_CHECKING:
    import socket

    from dibs.gateway.threads import Pool
    from dibs.workloads.identity import Identity
    from dibs.workloads.service import Workloads

LARGEST_WORD = 120_000  # bytes of one argument; the kernel takes 128 KiB
LARGEST_ANSWER = 16 << 20  # bytes of a listing; arbitrary, some sixty thousand files
LARGEST_EARLY = 1 << 20  # bytes that may come before the greeting, on the other stream
LARGEST_ENVS = 1 << 20  # bytes of the variables' file
PATIENCE = 600.0  # seconds for anything but a client's own command; arbitrary, a big tree takes its time
GREETING = 30.0  # seconds for a shell to start
_FAIL = b"\ndibs:fail "
_HELLO = b"dibs:hello "
_LINES_BEFORE = 20


class RuntimeProblem(DibsError):
    """Something went wrong in the sandbox itself."""

    default_code = "RUNTIME_ERROR"


class ScriptFailed(DibsError):
    """A script said no; `word` and `index` as in `scripts`, `said` what the tools said."""

    default_code = "RUNTIME_ERROR"

    def __init__(self, word: str, index: int, said: str) -> None:
        super().__init__(said or word)
        self.word = word
        self.index = index
        self.said = said


class Hello(msgspec.Struct, frozen=True):
    """How a started command can be found again, in the sandbox's own numbers; without `start` it cannot."""

    pid: int
    group: int
    start: int
    room: str


class Started(msgspec.Struct):
    """A command after its greeting; `early` is output that came with it."""

    session: AsyncSession
    hello: Hello
    early: list[Output | Exit]


class Said(msgspec.Struct, frozen=True):
    code: int
    out: bytes
    err: bytes

    def word(self, name: str) -> list[str] | None:
        """The rest of the first line `dibs:<name>`, in words; None if there is none."""
        for line in self.err.split(b"\n"):
            if line == b"dibs:" + name.encode() or line.startswith(b"dibs:" + name.encode() + b" "):
                return line.decode("utf-8", "replace").split()[1:]
        return None


class Inside:
    """One sandbox, for one caller."""

    def __init__(self, pool: Pool, identity: Identity, sandbox_id: str, user: str = "") -> None:
        self._pool = pool
        self._identity = identity
        self.sandbox_id = sandbox_id
        self.user = user

    def as_user(self, user: str) -> Inside:
        return Inside(self._pool, self._identity, self.sandbox_id, user)

    # -- what the service is asked

    async def check(self) -> None:
        """That there is such a sandbox, that it runs, and that the caller may touch it."""
        await self._pool.call(_check, self._identity, self.sandbox_id)

    async def usage(self) -> Usage:
        return await self._pool.call(_usage, self._identity, self.sandbox_id)

    async def connect(self, port: int) -> socket.socket:
        found = await self._pool.call(_connect, self._identity, self.sandbox_id, port)
        found.setblocking(False)
        return found

    async def open(self, script: str, *args: str, env: dict[str, str] | None = None, tty: bool = False) -> AsyncSession:
        """A script, started. Nothing is left running if the caller goes away meanwhile."""
        for word in args:
            if len(word.encode("utf-8", "surrogateescape")) > LARGEST_WORD:
                raise InvalidRequest(
                    "it is too long", field="command", code="COMMAND_TOO_LONG", value=word[:40],
                    remedy=f"the kernel takes {LARGEST_WORD} bytes; write it to a file and run that",
                )  # fmt: skip
            if "\0" in word:
                raise InvalidRequest("it must not hold a NUL", field="command", value=word, code="INVALID_REQUEST_BODY")
        command = Exec(command=("sh", "-c", script, "sh", *args), env=env or {}, tty=tty, user=self.user)
        opening = asyncio.ensure_future(self._pool.call(_exec, self._identity, self.sandbox_id, command))
        try:
            session = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise
        except CommandFailed as error:
            raise RuntimeProblem(
                "the sandbox has no shell", field="command", value="sh", code="NOT_SUPPORTED",
                remedy="use an image with sh and coreutils, or busybox",
            ) from error  # fmt: skip
        return AsyncSession(session)

    async def run(self, script: str, *args: str, data: bytes | None = None) -> Said:
        """A script, to its end. Raises ScriptFailed where it says `dibs:fail`."""
        async with await self.open(script, *args) as session:
            try:
                async with asyncio.timeout(PATIENCE):
                    if data is not None:
                        await session.send(data)
                        await session.end_of_input()
                    return await finished(session)
            except TimeoutError as error:
                raise RuntimeProblem(f"the sandbox did not do it within {PATIENCE:g} seconds") from error

    async def start(
        self, script: str, *args: str, cwd: str = "", env: dict[str, str] | None = None, tty: bool = False
    ) -> Started:
        """A script that greets: up to its greeting, with the sandbox's own variables read and set."""
        token = secrets.token_hex(16)
        session = await self.open(script, token, self.sandbox_id, cwd, *args, env=env, tty=tty)
        try:
            async with asyncio.timeout(GREETING):
                return await _greeted(session, token, env or {}, "stdout" if tty else "stderr")
        except TimeoutError as error:
            session.abandon()
            raise RuntimeProblem(f"the sandbox's shell did not start within {GREETING:g} seconds") from error
        except BaseException:
            session.abandon()
            raise

    async def kill(self, started: Started, number: signal.Signals) -> None:
        """A signal to the whole process group of a command in the foreground."""
        hello = started.hello
        if hello.start:  # its input may be stuck, and signals with it
            name = number.name.removeprefix("SIG")
            await self.run(scripts.KILL, str(hello.pid), str(hello.group), str(hello.start), name)
        else:
            await self.check()  # a paused one would hear it only when it goes on
            await started.session.signal(number)


def _seen(workloads: Workloads, identity: Identity) -> Workloads:
    return workloads.seen_by(identity)


def _check(workloads: Workloads, identity: Identity, sandbox_id: str) -> None:
    _seen(workloads, identity).check_running(sandbox_id)


def _usage(workloads: Workloads, identity: Identity, sandbox_id: str) -> Usage:
    return _seen(workloads, identity).usage(sandbox_id)


def _connect(workloads: Workloads, identity: Identity, sandbox_id: str, port: int) -> socket.socket:
    return _seen(workloads, identity).connect(sandbox_id, port)


def _exec(workloads: Workloads, identity: Identity, sandbox_id: str, command: Exec) -> Session:
    return _seen(workloads, identity).exec(sandbox_id, command)


def _close_unwanted(opening: asyncio.Future[Session]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def finished(session: AsyncSession, before: bytes = b"", limit: int = LARGEST_ANSWER) -> Said:
    """What is still to come of a script."""
    out, err = bytearray(), bytearray(before)
    while True:
        for piece in await session.next():
            if isinstance(piece, Exit):
                raise_for(bytes(err))
                return Said(piece.code, bytes(out), bytes(err))
            (out if piece.stream == "stdout" else err).extend(piece.data)
        if len(out) + len(err) > limit:
            raise RuntimeProblem("the answer is too large", code="ANSWER_TOO_LARGE", remedy="ask for less")


def number(word: bytes | str) -> int:
    """A number that a script has said; the sandbox may say anything in its place."""
    text = word.decode("ascii", "replace") if isinstance(word, bytes) else word
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise RuntimeProblem("the sandbox's shell says something else than it was told to", value=text[:40])
    return int(text)


def raise_for(err: bytes) -> None:
    """Raise what a script has said, if it has failed."""
    said, found, rest = (b"\n" + err).rpartition(_FAIL)
    if found:
        words = rest.split(b"\n")[0].split()
        index = int(words[1]) if len(words) > 1 and words[1].isdigit() and len(words[1]) < 10 else 0
        text = b" ".join(line for line in said.split(b"\n") if line.strip() and not line.startswith(b"dibs:"))
        raise ScriptFailed(words[0].decode("ascii", "replace"), index, text.decode("utf-8", "replace").strip())


async def _greeted(session: AsyncSession, token: str, env: dict[str, str], stream: str) -> Started:
    box = bytearray()
    early: list[Output | Exit] = []

    async def until(end: bytes, limit: int) -> bytes:
        """Take from the stream up to `end`."""
        while (at := box.find(end)) < 0:
            if len(box) > limit:
                raise RuntimeProblem("the sandbox's variables are too many", code="ANSWER_TOO_LARGE")
            if session.exit is not None:
                raise_for(bytes(box))
                said = bytes(box).decode("utf-8", "replace").strip() or f"the shell ended with {session.exit.code}"
                raise RuntimeProblem(f"the command was not started: {said}")
            for piece in await session.next():
                if isinstance(piece, Output) and piece.stream == stream:
                    box.extend(piece.data)
                elif isinstance(piece, Output):
                    early.append(piece)
            if sum(len(piece.data) for piece in early if isinstance(piece, Output)) > LARGEST_EARLY:
                raise RuntimeProblem("the sandbox's shell says something else than it was told to")
        taken = bytes(box[:at])
        del box[: at + len(end)]
        return taken

    ending = b"\r\n" if stream == "stdout" else b"\n"
    for _ in range(_LINES_BEFORE):  # a script that fails says so in a line of its own, after those of its tools
        line = await until(ending, 1 << 16)
        if line.startswith(_HELLO):
            break
        raise_for(b"\n" + line + b"\n")
    else:
        raise RuntimeProblem("the sandbox's shell says something else than it was told to")
    pid, group, start, envs, room = (*line[len(_HELLO) :].decode("utf-8", "surrogateescape").split(" ", 4), "")[:5]
    if envs == "1":
        text = (await until(b"\n" + token.encode() + b"\n", LARGEST_ENVS)).decode("utf-8", "surrogateescape")
        values = {name: value for name, value in envfile.parse(text).items() if name not in env}
        await session.send(envfile.exports(values).encode("utf-8", "surrogateescape"))
        await session.end_of_input()
    if box:
        early.append(Output("stdout" if stream == "stdout" else "stderr", bytes(box)))
    if session.exit is not None:
        early.append(session.exit)
    return Started(session, Hello(number(pid), number(group), number(start), room), early)

"""Shells that keep their variables, their functions and their folder between runs.

`routes` calls it. Each run is a fresh shell that takes up what the last one left in files inside the sandbox, so such a
session outlives a restart of the gateway, works on every gateway of a ledger, and its output and exit code are exactly
those of the run. Two runs in one session wait for each other. In sh (without bash) functions are not kept.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from weakref import WeakValueDictionary

import msgspec

from dibs.errors import InvalidRequest, NotFound
from dibs.gateway.execd import answers, scripts
from dibs.gateway.execd.commands import Commands, seconds
from dibs.gateway.execd.script_runner import Inside, ScriptFailed

_ID = re.compile(r"ses-[0-9a-f]{24}")


class SessionRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /session`."""

    cwd: str | None = None


class RunRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /session/{id}/run`."""

    command: str
    cwd: str | None = None
    timeout: int | None = None  # milliseconds


class Shells:
    """One per gateway."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def make(self, inside: Inside, request: SessionRequest) -> str:
        session_id = f"ses-{secrets.token_hex(12)}"
        token = secrets.token_hex(16)
        await inside.run(scripts.SHELL_MAKE, token, inside.sandbox_id, request.cwd or "", session_id)
        return session_id

    async def run(self, inside: Inside, session_id: str, request: RunRequest) -> answers.Streamed:
        if not request.command.strip():
            raise InvalidRequest("it is empty", field="command", code="INVALID_REQUEST_BODY")
        _check(session_id)
        limit = seconds(request.timeout)
        turn = self._turns.setdefault(session_id, asyncio.Lock())
        await turn.acquire()
        try:
            started = await inside.start(
                scripts.SHELL_RUN, session_id, scripts.SHELL_BASH, scripts.SHELL_SH, request.command,
                cwd=request.cwd or "",
            )  # fmt: skip
        except BaseException as error:
            turn.release()
            if isinstance(error, ScriptFailed) and error.word == "session":
                raise _unknown(session_id) from error
            raise
        return self._commands.stream(inside, started, request.command, limit, after=turn.release)

    async def end(self, inside: Inside, session_id: str) -> None:
        _check(session_id)
        try:
            await inside.run(scripts.SHELL_END, secrets.token_hex(16), inside.sandbox_id, "", session_id)
        except ScriptFailed as error:
            if error.word == "session":
                raise _unknown(session_id) from error
            raise


def _check(session_id: str) -> None:
    if _ID.fullmatch(session_id) is None:
        raise _unknown(session_id)


def _unknown(session_id: str) -> NotFound:
    return NotFound("there is no such session", field="session", value=session_id, code="CONTEXT_NOT_FOUND")

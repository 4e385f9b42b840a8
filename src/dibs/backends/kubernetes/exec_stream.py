"""Further commands in the container of a sandbox, through the API server's exec.

The API knows no environment, no working directory and no process id for them. So where the image has a shell, a line of
it sets these, says its process id on the first line of the output, and becomes the command: with that signals can be
sent, and a missing command is told at once. Values of the environment go in through stdin, because a command's words
end up in the API server's audit log. Nothing of it stays in the container.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal as signals
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.backends.port import Exec, Exit, ExitReason, Output
from dibs.errors import BackendUnavailable, Conflict, DibsError, InvalidRequest
from dibs.kube.client import ERROR, RESIZE, STDERR, STDIN, STDOUT
from dibs.patterns import lazy_pattern

if TYPE_CHECKING:
    from dibs.kube.channels import Channels

PROTOCOL = "v5.channel.k8s.io"
_NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NO_SHELL = lazy_pattern(r'exec: "(?:/bin/)?sh"|stat (?:/bin/)?sh')
_MISSING = ("executable file not found", "no such file or directory")
_BEGIN = """eval "$dibs"; unset dibs
command -v "$1" >/dev/null 2>&1 || { echo missing; exit 127; }
echo "$$"; exec "$@"
"""
_FROM_INPUT = "IFS= read -r dibs\n" + _BEGIN
_FROM_WORDS = "dibs=$1; shift\n" + _BEGIN


class NoShell(Exception):
    """The image has no shell."""


def wrapped(command: Exec) -> tuple[tuple[str, ...], bytes]:
    """The command as a shell runs it, and what goes before its input."""
    bad = [name for name in command.env if _NAME.fullmatch(name) is None]
    if bad:
        raise InvalidRequest("a shell cannot set such a name", field="env", value=", ".join(bad), code="ENV_INVALID")
    words = ["dibs_n=$(printf '\\n.'); dibs_n=${dibs_n%.}"] if "\n" in "".join(command.env.values()) else []
    words += [f"export {name}={_quoted(value)}" for name, value in command.env.items()]
    if command.workdir:
        words.append(f"cd -- {_quoted(command.workdir)} || {{ echo workdir; exit 126; }}")
    line = "; ".join(words) or ":"
    if command.tty:
        return ("sh", "-c", _FROM_WORDS, "sh", line, *command.command), b""
    return ("sh", "-c", _FROM_INPUT, "sh", *command.command), line.encode() + b"\n"


def _quoted(value: str) -> str:
    """For a shell, on one line."""
    return '"$dibs_n"'.join(shlex.quote(part) for part in value.split("\n"))


def exit_of_status(body: bytes) -> Exit:
    """The last word of the error channel. Raises NoShell, or BackendUnavailable if the command was never run."""
    try:
        status: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        status = {"message": body.decode("utf-8", "replace")}
    if status.get("status") == "Success":
        return Exit(0, at=time.time())
    message = str(status.get("message") or "")
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
            code = int(cause["message"])
            number = code - 128 if 128 < code <= 192 else None
            return Exit(code, ExitReason.SIGNALLED if number else ExitReason.EXITED, number, at=time.time())
    if _NO_SHELL.search(message) and any(words in message for words in _MISSING):
        raise NoShell(message)
    if any(words in message for words in _MISSING):
        return Exit(127, ExitReason.NOT_STARTED, detail=message, at=time.time())
    if "container not found" in message or "not running" in message or ("task" in message and "not found" in message):
        raise Conflict(f"the sandbox does not run: {message}", field="sandbox", code="NOT_RUNNING")
    raise BackendUnavailable(f"the node could not run it: {message}", field="exec", code="EXEC_FAILED")


class ExecSession:
    """See `Session` in the port."""

    def __init__(
        self,
        channels: Channels,
        *,
        tty: bool,
        early: list[Output],
        kill: Callable[[int], None],
        ended: Exit | None = None,
        trouble: DibsError | None = None,
    ) -> None:
        self._channels = channels
        self._tty = tty
        self._kill = kill
        self._pieces: list[Output | Exit] = list(early)
        self._over = False
        self._closed = False
        self._trouble = trouble
        self._bell = os.eventfd(1 if early or ended else 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        self._poller.register(channels.fileno(), select.EPOLLIN)
        self._poller.register(self._bell, select.EPOLLIN)
        if ended is not None:
            self._end(ended)

    def fileno(self) -> int:
        return self._poller.fileno()

    def send(self, data: bytes) -> None:
        try:
            self._channels.send(STDIN, data)
        except BrokenPipeError as error:
            raise Conflict("the connection to the command is closed", code="SESSION_CLOSED") from error

    def end_of_input(self) -> None:
        try:
            if self._tty:
                self._channels.send(STDIN, b"\x04")
            else:
                self._channels.close_channel(STDIN)
        except BrokenPipeError:
            return  # the other side was faster

    def signal(self, number: int) -> None:
        if not self._over:
            self._kill(number)

    def resize(self, rows: int, columns: int) -> None:
        if not self._over:
            try:
                self._channels.send(RESIZE, msgspec.json.encode({"Width": columns, "Height": rows}))
            except BrokenPipeError:
                return  # it has just ended

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._pieces:
                self._quiet()
                found, self._pieces = self._pieces, []
                return found
            if self._trouble is not None:
                raise self._trouble
            if self._closed or self._over:
                return []
            left = None if until is None else max(0.0, until - time.monotonic())
            for channel, data in self._channels.receive(left):
                self._take(channel, data)
            if self._channels.over and not self._settled():
                # The node cut the line without a word: the container has gone.
                self._end(Exit(137, ExitReason.SIGNALLED, 9, "the sandbox ended", time.time()))
            if not self._pieces and left is not None and time.monotonic() >= (until or 0.0):
                return []

    def _settled(self) -> bool:
        return self._over or self._trouble is not None

    def _quiet(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return

    def _take(self, channel: int, data: bytes) -> None:
        if channel in (STDOUT, STDERR):
            if data:
                self._pieces.append(Output("stdout" if channel == STDOUT else "stderr", data))
        elif channel == ERROR and not self._over:
            try:
                self._end(exit_of_status(data))
            except NoShell as error:
                self._end(Exit(127, ExitReason.NOT_STARTED, detail=str(error), at=time.time()))
            except DibsError as error:
                self._trouble = error

    def _end(self, ended: Exit) -> None:
        self._over = True
        self._pieces.append(ended)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._over:
            with suppress(DibsError):  # the sandbox is going, or cannot be entered
                self._kill(signals.SIGHUP)  # as a terminal that is closed
        self._channels.close()
        self._poller.close()
        os.close(self._bell)

"""Between the user's terminal and a process in a sandbox: bytes both ways, signals, the window's size, the exit."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # its wrappers take longer to load than this file
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dibs.backends.port import Exit, Output, Session
from dibs.cli.stdin import Stdin
from dibs.errors import Conflict

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
IMPATIENT = 3  # this many Ctrl-C kill the command
_CTRL_C = 0x03
_IN_A_ROW = 5.0  # seconds


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def converse(
    session: Session,
    *,
    tty: bool,
    stdin: bool,
    kill: Callable[[], None],
    take: Callable[[Output], None] | None = None,
) -> Exit:
    """Until the process has ended. `kill` is called at the third Ctrl-C, `take` with each piece of output."""
    take = take or write
    fd = _stdin_fd() if stdin else None
    source = Stdin(fd, session) if fd is not None else None
    patience = _Patience()
    with _forwarding(session, kill), _raw_mode(tty):
        if tty:
            _resize(session)
        if source is None:
            _pass_on(session, b"")
        ended = source is None
        while True:
            waiting = [session.fileno()]
            if source is not None and not ended and source.waiting:
                waiting.append(source.fd)
            ready, _, _ = select.select(waiting, [], [], source.pause if source is not None and not ended else None)
            if source is not None and source.fd in ready:
                data = source.read()
                if tty and patience.lost(data):
                    kill()
                ended = not _pass_on(session, data)
            if session.fileno() in ready:
                for item in session.receive(0):
                    if isinstance(item, Exit):
                        if source is not None:
                            source.give_back()
                        return item
                    take(item)


class _Patience:
    """Counts Ctrl-C on a terminal in raw mode, where it is a byte for the command rather than a signal for us.

    Three in a row, with no other key between them and within a few seconds, kill a command that ignores it.
    """

    def __init__(self) -> None:
        self._pressed: list[float] = []

    def lost(self, typed: bytes) -> bool:
        now = time.monotonic()
        for key in typed:
            if key == _CTRL_C:
                self._pressed = [at for at in self._pressed if now - at < _IN_A_ROW]
                self._pressed.append(now)
            else:
                self._pressed.clear()
        return len(self._pressed) >= IMPATIENT


def _pass_on(session: Session, data: bytes) -> bool:
    """What was typed, or its end; False if no more will come. Who has just ended reads nothing, and its end follows."""
    try:
        if data:
            session.send(data)
        else:
            session.end_of_input()
    except Conflict:
        return False
    return bool(data)


def write(item: Output) -> None:
    """All of it, to where it belongs. What the user's own stdout cannot take is an error of the pipe, as anywhere."""
    fd = 1 if item.stream == "stdout" else 2
    view = memoryview(item.data)
    while view:
        view = view[os.write(fd, view) :]


def _stdin_fd() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, ValueError, OSError):
        return None  # started without a stdin


@contextmanager
def _forwarding(session: Session, kill: Callable[[], None]) -> Iterator[None]:
    interrupts = 0

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        if number == signal.SIGINT:
            interrupts += 1
            if interrupts >= IMPATIENT:
                kill()
                return
        session.signal(number)

    def resized(_number: int, _frame: FrameType | None) -> None:
        _resize(session)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _resize(session: Session) -> None:
    try:
        size = os.get_terminal_size(0)
    except OSError:
        return  # stdin is no terminal any more; the size stays as it was
    if size.lines and size.columns:  # a terminal that has not been given a size has none to pass on
        session.resize(size.lines, size.columns)


@contextmanager
def _raw_mode(tty: bool) -> Iterator[None]:
    """The terminal passes every key on; it is as before afterwards, however this ends."""
    if not tty or not os.isatty(0):  # a command can have a terminal though we have none: --tty
        yield
        return
    import termios
    import tty as terminal

    before = termios.tcgetattr(0)
    terminal.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)

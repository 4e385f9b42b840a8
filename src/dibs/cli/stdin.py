"""The caller's stdin, of which no more is taken than the command reads.

A shell loop such as `while read line; do dibs run … ; done < list` shares its stdin with every command in it. Input has
to be sent before the command asks for it, so what it leaves unread is given back: a file is wound back; a pipe is only
peeked into (tee(2)), and emptied as the command reads. An engine never says what was read of what it was given: there
nothing is sent before the command waits for input, and what was sent then is gone. From terminals, and where neither
can be known, input is simply passed on.
"""

from __future__ import annotations

import os
import stat

from dibs.backends.port import Session

_PIECE = 65536
_NONBLOCK = 2  # SPLICE_F_NONBLOCK
_LOOK = 0.03  # seconds between two looks whether the command waits for input


class Stdin:
    """What `terminal.converse` reads from. `why_pending` says whether more may be read now."""

    def __init__(self, fd: int, session: Session) -> None:
        self.fd = fd
        self._session = session
        kind = os.fstat(fd).st_mode
        self._file = stat.S_ISREG(kind)
        shared = self._file or stat.S_ISFIFO(kind)
        count = getattr(session, "count_input", None)
        counted = shared and count is not None and count()
        self._pipe = stat.S_ISFIFO(kind) and counted
        self._reading = getattr(session, "reading", None) if shared and not counted else None
        self._sent = 0
        self._peeked = 0  # bytes that were sent, and are still in the pipe

    @property
    def waiting(self) -> bool:
        """Whether it is worth looking for more input; a peeked pipe would always seem to have some."""
        if self._reading is not None and not self._at_end():
            if self._reading() is False:
                return False
            self._reading = None
        if self._peeked and (self._taken() or 0) >= self._sent:
            self._consume(self._peeked)
        return not self._peeked

    @property
    def pause(self) -> float | None:
        """How long to wait for output before `why_pending` is asked again; None: until something comes."""
        return None if self._reading is None else _LOOK

    def _at_end(self) -> bool:
        """Whether there is nothing left that could be taken from another reader."""
        if self._file:
            return os.lseek(self.fd, 0, os.SEEK_CUR) >= os.fstat(self.fd).st_size
        import fcntl
        import sys
        import termios

        return not int.from_bytes(fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)), sys.byteorder)

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        data = self._peek() if self._pipe else os.read(self.fd, _PIECE)
        self._sent += len(data)
        return data

    def give_back(self) -> None:
        """The command has ended: what it did not read is left for the next one."""
        taken = self._taken()
        if taken is None:
            return
        unread = max(0, self._sent - taken)
        if self._file and unread:
            os.lseek(self.fd, -unread, os.SEEK_CUR)
        elif self._peeked:
            self._consume(max(0, self._peeked - unread))

    def _taken(self) -> int | None:
        found: int | None = getattr(self._session, "taken", None)
        return found

    def _peek(self) -> bytes:
        import ctypes

        reading, writing = os.pipe()
        try:
            count = ctypes.CDLL(None, use_errno=True).tee(self.fd, writing, _PIECE, _NONBLOCK)
            if count < 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
            self._peeked = count
            return os.read(reading, count) if count else b""
        finally:
            os.close(reading)
            os.close(writing)

    def _consume(self, count: int) -> None:
        self._peeked -= count
        while count and (piece := os.read(self.fd, count)):  # empty: another reader of the pipe has taken it
            count -= len(piece)

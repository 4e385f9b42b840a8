"""Turns: the processes that want to write to one SQLite ledger, one after the other.

`sqlite` takes a turn before each write transaction. It is a kernel lock (flock) on the state folder: those that wait
for it sleep, and the lock of a process that is killed is free at once. However many there are, no waiter gives up while
the others get on: the time limit is for a writer that hangs. It is only about who goes next: what is exclusive stays
SQLite's business, so where the folder cannot be locked (some network file systems) it goes on without.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

_CANNOT = (errno.ENOLCK, errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP)


class Turns:
    """One process's way to the lock of a folder. Not for sharing between threads."""

    def __init__(self, ledger: Path) -> None:
        self._folder = ledger.parent
        self._journal = f"{ledger}-wal"  # every commit changes it
        self._fd = -1
        self._taken = False

    def take(self, patience: float) -> bool:
        """Wait for our turn; False if nothing was written for so many seconds."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                return True  # not readable for us: SQLite says what is wrong, if anything is
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._taken = True
        except BlockingIOError:
            self._taken = self._wait(patience)
            return self._taken
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        return True

    def _wait(self, patience: float) -> bool:
        """The kernel's wait has no time limit, so a thread does it for us. If it comes too late it lets go again."""
        import threading

        fd, done, given_up = self._fd, threading.Event(), threading.Lock()
        late = False

        def wait() -> None:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with given_up:
                if late:
                    os.close(fd)
                else:
                    done.set()

        threading.Thread(target=wait, name="dibs-turn", daemon=True).start()
        until, seen = time.monotonic() + patience, self._written()
        try:
            while not done.wait(min(1.0, max(0.0, until - time.monotonic()))) and time.monotonic() < until:
                if (now := self._written()) != seen:
                    until, seen = time.monotonic() + patience, now
        finally:
            with given_up:
                if not done.is_set():
                    late, self._fd = True, -1  # the descriptor is the thread's now
        return not late

    def _written(self) -> tuple[int, int]:
        """Changes with every write to the ledger."""
        try:
            found = os.stat(self._journal)
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def give(self) -> None:
        if self._taken:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._taken = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

"""A doorbell: the FIFO on which a waiting process sleeps, and by which others can tell that it is gone.

`workloads.waiting` holds one for each ticket; the ledger rings those at the head of the queue when devices or a place
are given back. A FIFO needs no server, and the kernel closes its reading end when the process ends, however it ends:
from then on it cannot be opened for writing, in whatever pid namespace that is tried. The path comes from a row of the
ledger, so nothing but a FIFO is ever opened: opening a device could change something.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path


class Doorbell:
    """The owner's end. Close it when the ticket is given back."""

    def __init__(self, path: Path, *, group: bool = False) -> None:
        """`group`: its members may ring, too. No other user may listen: a listener keeps the place alive."""
        path.parent.mkdir(mode=0o770 if group else 0o700, exist_ok=True)
        os.mkfifo(path, 0o600)
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            path.unlink()
            raise
        self._writer = -1
        if group:
            path.chmod(0o620)

    def wait(self, seconds: float) -> bool:
        """Whether it rang before that time was over."""
        if self._writer < 0:
            # Without a writer of our own a FIFO counts as ended once the first one has rung and gone.
            self._writer = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(max(seconds, 0.0) * 1000):
            return False
        self.drain()
        return True

    def drain(self) -> None:
        """Forget the rings up to now."""
        try:
            while len(os.read(self._fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
        os.close(self._fd)
        try:
            self.path.unlink()
        except FileNotFoundError:
            return  # another process took us for dead and cleared it away


def ring(path: str, *, quietly: bool = False) -> bool | None:
    """Ring, or `quietly` only check for a listener. False: the listener is gone. None: that cannot be told."""
    try:
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISFIFO(os.fstat(found).st_mode):
            return None
        bell = os.open(f"/proc/self/fd/{found}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return False if error.errno == errno.ENXIO else None
    finally:
        os.close(found)
    try:
        if not quietly:
            os.write(bell, b"!")
    except BlockingIOError:
        return True  # full: it has been rung often enough
    except BrokenPipeError:
        return False
    finally:
        os.close(bell)
    return True

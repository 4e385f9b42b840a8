"""The owner's side of the fork server (`forker`): one for each long-lived process, started when it is first needed.

`helper` asks it for new shims and enterers. Any number of threads may ask at once: a request is a single message. After
a fork the child has none, and starts its own; one that has died is replaced.
"""

from __future__ import annotations

import _socket as socket
import os
import sys
import threading
from contextlib import suppress

from dibs.backends.local.spawning import spawn

INT = 4


class Zygote:
    """A running fork server."""

    def __init__(self) -> None:
        self.pid, fd = spawn("forker", packets=True)
        self.line = socket.socket(fileno=fd)

    def fork(self, program: bytes, passed: list[int]) -> None:
        """Raises OSError if it is gone."""
        data = b"".join(fd.to_bytes(INT, sys.byteorder) for fd in passed)
        self.line.sendmsg([program], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, data)])

    def close(self) -> None:
        self.line.close()
        with suppress(ChildProcessError):  # where our program ignores its children, the kernel has waited for it
            os.waitpid(self.pid, 0)


class _Mine:
    """What this process has. A fork has another one: neither the lock nor the server can be shared."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.zygote: Zygote | None = None

    def take(self, broken: Zygote | None = None) -> Zygote:
        """The running one; another one than that which did not work."""
        with self.lock:
            if self.zygote is None or self.zygote is broken:
                self._close()
                self.zygote = Zygote()
            return self.zygote

    def end(self) -> None:
        with self.lock:
            self._close()

    def _close(self) -> None:
        if self.zygote is not None:
            self.zygote.close()
            self.zygote = None

    def forget(self) -> None:
        """After a fork, in the child: let go of the parent's, which is not ours to wait for."""
        if self.zygote is not None:
            self.zygote.line.close()
        self.__init__()  # type: ignore[misc]


_mine = _Mine()
os.register_at_fork(after_in_child=_mine.forget)


def start(module: str, stdin: int = -1, stdout: int = -1) -> int:
    """A new shim or `enter`; our end of the connection to it. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    more, passed = b"", [theirs.fileno()]
    if stdin >= 0:
        more, passed = b"i", [*passed, stdin]
    elif stdout >= 0:
        more, passed = b"o", [*passed, stdout]
    request = (b"S" if module == "shim" else b"E") + more
    try:
        zygote = _mine.take()
        try:
            zygote.fork(request, passed)
        except OSError:
            _mine.take(zygote).fork(request, passed)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours.detach()


def end() -> None:
    """Let it go; the next request starts another one."""
    _mine.end()

"""The owner's side of the fork server (`forker`): one for each long-lived process, started when it is first needed.

`helper` asks it for new shims and enterers. Any number of threads may ask at once: a request is a single message. After
a fork the child has none, and starts its own; one that has died is replaced.
"""

from __future__ import annotations

import _socket as socket
import errno
import os
import sys
import threading
from contextlib import suppress

from dibs.backends.local.spawning import spawn
from dibs.backends.local.wire import frame

INT = 4
TAKEN = frame(b"B")
ATTEMPTS = 3


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
    request = b"S" if module == "shim" else b"E"
    more = -1
    if stdin >= 0:
        request, more = request + b"i", stdin
    elif stdout >= 0:
        request, more = request + b"o", stdout
    broken: Zygote | None = None
    for _ in range(ATTEMPTS):
        zygote = _mine.take(broken)
        fd = _ask(zygote, request, more)
        if fd >= 0:
            return fd
        broken = zygote
    raise BrokenPipeError(errno.EPIPE, "the fork server ends at once")


def _ask(zygote: Zygote, request: bytes, more: int) -> int:
    """Our end of the connection; -1 if the server is gone and has not taken the request."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        zygote.fork(request, [theirs.fileno(), *([more] if more >= 0 else [])])
        theirs.close()
        # One that is killed may have our message and never read it. If it says that it has, it is not asked again.
        if ours.recv(len(TAKEN), socket.MSG_WAITALL) == TAKEN:
            return ours.detach()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        theirs.close()
        ours.close()
    return -1


def end() -> None:
    """Let it go; the next request starts another one."""
    _mine.end()

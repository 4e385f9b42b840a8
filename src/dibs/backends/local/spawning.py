"""Starting an isolated interpreter for the shim, for `enter` or for the fork server, as early as possible.

`helper` calls `spawn`. The command line calls `start_early` before it has loaded anything else: an interpreter takes a
while to start, and the time in which dibs itself loads is enough for it. If the request is then refused, our end of the
connection closes, and the waiting program ends without having done anything. Imports next to nothing.
"""

from __future__ import annotations

import os
import sys

from dibs.descriptors import closing

TYPE_CHECKING = False  # loading typing for it would cost more than it gives
if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
BESIDE = os.path.dirname(HERE)  # `tar_reader` and what belongs to it, which other backends use as well
# By import rather than as a script, so that the compiled file is used.
# Nothing is left to be taken apart at the end, which would take longer than what many of them do.
BOOT = "import sys,os;sys.path+=sys.argv[1:];import {0};{0}.main();os._exit(0)"
# Needed by interpreters that were built with a shared library in an unusual place.
KEPT = ("LD_LIBRARY_PATH",)

_waiting: list[tuple[int, int]] = []  # the early shim: its pid, and our end of the connection


def spawn(module: str, stdin: int = -1, stdout: int = -1, *, packets: bool = False) -> tuple[int, int]:
    """Run a module; its pid, and our end of the connection to its descriptor 3. Raises OSError."""
    import _socket
    import fcntl

    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET if packets else _socket.SOCK_STREAM)
    high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
    theirs.close()
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    for fd, target in ((stdin, 0), (stdout, 1), (-1, 2)):
        if fd >= 0:
            actions.append((os.POSIX_SPAWN_DUP2, fd, target))
        else:
            actions.append((os.POSIX_SPAWN_OPEN, target, "/dev/null", os.O_RDWR, 0))
    actions += [(os.POSIX_SPAWN_DUP2, high, 3), *closing(4)]
    argv = [sys.executable, "-I", "-S", "-c", BOOT.format(module), HERE, BESIDE]
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    try:
        pid = os.posix_spawn(sys.executable, argv, env, file_actions=actions, setsid=True)
    except OSError:
        ours.close()
        raise
    finally:
        os.close(high)
    return pid, ours.detach()


def start_early(words: Sequence[str] = ()) -> None:
    """A shim that waits for its orders, unless `words`, of the command line, say that none will be needed. What fails
    here fails again, with a reason, when it is really needed."""
    if sys.executable and not _waiting and not _elsewhere(words):
        try:
            _waiting.append(spawn("shim"))
        except OSError:
            return


def _elsewhere(words: Sequence[str]) -> bool:
    """Whether it is plain that another backend is meant. Misread, it costs a moment only."""
    options = list(words[: words.index("--")] if "--" in words else words)
    return any(word.startswith("--image") for word in options) or (
        "--backend" in options[:-1] and options[options.index("--backend") + 1] != "local"
    )


def drop_early() -> None:
    """End the waiting shim: it will not be needed soon."""
    if _waiting:
        pid, connection = _waiting.pop()
        os.close(connection)
        os.kill(pid, 9)  # it has done nothing yet
        os.waitpid(pid, 0)


def take_early() -> tuple[int, int] | None:
    """The prestarted shim, for the next sandbox."""
    return _waiting.pop() if _waiting else None

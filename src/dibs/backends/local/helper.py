"""Starting the two programs that live beside a sandbox: the shim and `enter`.

`backend` calls it. Both are run by this interpreter, isolated (`-I -S`), from their own files, with almost no
environment: what a request says must not reach an interpreter outside of the sandbox.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from dibs.backends.local.shim_client import Connection
from dibs.errors import BackendUnavailable

HERE = str(Path(__file__).parent)
# By import rather than as a script, so that the compiled file is used.
BOOT = "import sys;sys.path.append(sys.argv[1]);import {0};{0}.main()"
# Needed by interpreters that were built with a shared library in an unusual place.
KEPT = ("LD_LIBRARY_PATH",)


class Program(msgspec.Struct):
    """A running program: the connection to its descriptor 3, and the child of ours that will end soon."""

    connection: Connection
    child: int

    def reap(self) -> None:
        with suppress(ChildProcessError):  # where our program ignores its children, the kernel has waited for them
            os.waitpid(self.child, 0)


def start(module: str, complaints: str = "/dev/null", stdin: int = -1, stdout: int = -1) -> Program:
    """Run `shim` or `enter`.

    Both leave our process tree by themselves. The child that remains ends at once for `enter`, for the shim when the
    command is let go; it has to be reaped then.
    """
    if not sys.executable:
        raise BackendUnavailable("this process does not know its own Python interpreter, which runs the sandbox's shim")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
    theirs.close()
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    for fd, target in ((stdin, 0), (stdout, 1)):
        if fd >= 0:
            actions.append((os.POSIX_SPAWN_DUP2, fd, target))
        else:
            actions.append((os.POSIX_SPAWN_OPEN, target, "/dev/null", os.O_RDWR, 0))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions += [(os.POSIX_SPAWN_OPEN, 2, complaints, flags, 0o600), (os.POSIX_SPAWN_DUP2, high, 3)]
    argv = [sys.executable, "-I", "-S", "-c", BOOT.format(module), HERE]
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    try:
        pid = os.posix_spawn(sys.executable, argv, env, file_actions=actions, setsid=True)
    except OSError as error:
        ours.close()
        raise BackendUnavailable(f"the sandbox's {module} cannot be started: {error.strerror}") from error
    finally:
        os.close(high)
    return Program(Connection(ours), pid)


def enter(stdin: int = -1, stdout: int = -1) -> Connection:
    program = start("enter", stdin=stdin, stdout=stdout)
    program.reap()
    return program.connection

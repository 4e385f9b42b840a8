"""Starting the two programs that live beside a sandbox: the shim and `enter`.

`backend` calls it. Both are run by this interpreter, isolated (`-I -S`), from their own files, with almost no
environment: what a request says must not reach an interpreter outside of the sandbox.
"""

from __future__ import annotations

import _socket as socket  # the wrapper around it takes longer to load than all that it adds is worth here
import os
import sys
from contextlib import suppress

import msgspec

from dibs.backends.local.shim_client import Connection
from dibs.backends.local.spawning import spawn, take_early
from dibs.errors import BackendUnavailable


class Program(msgspec.Struct):
    """A running program: the connection to its descriptor 3, and the child of ours that will end soon."""

    connection: Connection
    child: int

    def reap(self) -> None:
        with suppress(ChildProcessError):  # where our program ignores its children, the kernel has waited for them
            os.waitpid(self.child, 0)


def start(module: str, stdin: int = -1, stdout: int = -1) -> Program:
    """Run `shim` or `enter`.

    Both leave our process tree by themselves. The child that remains ends at once for `enter`, for the shim when the
    command is let go; it has to be reaped then.
    """
    if not sys.executable:
        raise BackendUnavailable("this process does not know its own Python interpreter, which runs the sandbox's shim")
    early = take_early() if module == "shim" else None
    try:
        pid, fd = early or spawn(module, stdin, stdout)
    except OSError as error:
        raise BackendUnavailable(f"the sandbox's {module} cannot be started: {error.strerror}") from error
    return Program(Connection(socket.socket(fileno=fd)), pid)


def enter(stdin: int = -1, stdout: int = -1) -> Connection:
    program = start("enter", stdin=stdin, stdout=stdout)
    program.reap()
    return program.connection

"""Starting the two programs that live beside a sandbox: the shim and `enter`.

`backend` and `enter_client` call it. Both are run by this interpreter, isolated (`-I -S`), from their own files, with
almost no environment: what a request says must not reach an interpreter outside of the sandbox. A process that lives
long has them forked by a server that has them loaded already (`fork_client`).
"""

from __future__ import annotations

import _socket as socket  # the wrapper around it takes longer to load than all that it adds is worth here
import os
import sys
from contextlib import suppress

import msgspec

from dibs.backends.local.shim_client import Connection
from dibs.backends.local.spawning import spawn, take_early
from dibs.backends.port import Handle
from dibs.errors import BackendUnavailable, DibsError


class Program(msgspec.Struct):
    """A running program: the connection to its descriptor 3, and the child of ours that will end soon, if any."""

    connection: Connection
    child: int = -1

    def pid(self) -> int:
        """The number of the program itself, which has left its child behind. Only before it is told what to do."""
        answer = self.connection.ask(b"W")
        if answer is None:
            raise BackendUnavailable("a helper of the sandbox ended at once")
        return int(answer["pid"])

    def reap(self) -> None:
        if self.child < 0:
            return
        with suppress(ChildProcessError):  # where our program ignores its children, the kernel has waited for them
            os.waitpid(self.child, 0)


class Helpers:
    """How this process starts them."""

    def __init__(self, *, long_lived: bool = False) -> None:
        self._long_lived = long_lived

    def start(self, module: str, stdin: int = -1, stdout: int = -1) -> Program:
        """Run `shim` or `enter`.

        Both leave our process tree by themselves. The child that remains ends at once for `enter`, for the shim when
        the command is let go; it has to be reaped then.
        """
        if not sys.executable:
            raise BackendUnavailable(
                "this process does not know its own Python interpreter, which runs the sandbox's shim"
            )
        try:
            if self._long_lived:
                from dibs.backends.local import fork_client

                return Program(Connection(socket.socket(fileno=fork_client.start(module, stdin, stdout))))
            early = take_early() if module == "shim" else None
            pid, fd = early or spawn(module, stdin, stdout)
        except OSError as error:
            raise BackendUnavailable(f"the sandbox's {module} cannot be started: {error.strerror}") from error
        return Program(Connection(socket.socket(fileno=fd)), pid)

    def enter(self, handle: Handle, stdin: int = -1, stdout: int = -1) -> Connection:
        """Run `enter`, as a process that can join the groups of this sandbox."""
        program = self.start("enter", stdin=stdin, stdout=stdout)
        program.reap()
        if scope := handle.data.get("scope"):
            from dibs.backends.local import scopes

            try:
                scopes.attach(scope, handle.sandbox_id, program.pid())
            except DibsError:
                program.connection.close()
                raise
        return program.connection

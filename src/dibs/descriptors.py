"""Descriptors that a new process must not inherit, and those that this one must have.

Python opens everything so that it is closed in a new program (PEP 446). What remains is what this process was started
with, what a C library has opened, and what the program that uses dibs as a library has made inheritable: a sandbox, its
shim, a hook or an engine's keeper would have all of it. Everything that starts a program with `posix_spawn` adds these
actions; `subprocess` has a way of its own (`close_fds`).
"""

from __future__ import annotations

import os
import sys


def closing(first: int = 3) -> list[tuple[int, int]]:
    """File actions that close every inheritable descriptor from `first` on. They come after those that open any."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd < first:
            continue
        try:
            inheritable = os.get_inheritable(fd)
        except OSError:
            continue  # that of the listing itself, or closed by another thread: there is nothing to inherit
        if inheritable:
            found.append((os.POSIX_SPAWN_CLOSE, fd))
    return found


def open_standard() -> None:
    """Open what was closed of stdin, stdout and stderr (`dibs run … >&-`), as nothing to read from or write to.

    The next file that is opened would have its number: the ledger, or a socket, and output would be written into it.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))

"""Opens files of a sandbox from outside, without being led out of its root or made to wait.

`proc` and the backends look at commands, folders and user files with it, by the root of a process (`/proc/PID/root`) or
a root folder. A path is walked part by part, by descriptors: each part is opened as it is (`O_PATH`, `O_NOFOLLOW`), and
the text of a link is walked on from the sandbox's root. So it does not matter what is exchanged meanwhile, as it would
between looking at a path and opening it. Only regular files are read, never waiting, and never more than was asked for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

MOST_LINKS = 40  # as the kernel has it
DEEPEST = 200  # folders; arbitrary, and fewer than the descriptors that a process may have
_PART = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(root: str, path: str) -> Iterator[int]:
    """A descriptor that names a file of a root; nothing can be read with it yet. OSError if there is none such."""
    folders = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        links = 0
        while parts:
            part = parts.pop(0)
            if "\0" in part:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path[:80])
            if part == "..":
                if len(folders) > 1:
                    os.close(folders.pop())
                continue
            fd = os.open(part, _PART, dir_fd=folders[-1])
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                folders.append(fd)
                if len(folders) > DEEPEST:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path[:80])
                continue
            try:
                target = os.readlink("", dir_fd=fd)
            finally:
                os.close(fd)
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path[:80])
            if target.startswith("/"):
                while len(folders) > 1:
                    os.close(folders.pop())
            parts[:0] = [piece for piece in target.split("/") if piece not in ("", ".")]
        yield folders[-1]
    finally:
        for fd in folders:
            os.close(fd)


def again(fd: int) -> str:
    """A path of this process for what `opened` gave: it leads to that very file and nowhere else."""
    return f"/proc/self/fd/{fd}"


def head(fd: int, size: int) -> bytes:
    """The first bytes of what `opened` gave, if it is a regular file; else OSError."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    reading = os.open(again(fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = b""
        while len(found) < size and (piece := os.read(reading, size - len(found))):
            found += piece
        return found
    finally:
        os.close(reading)


def read(root: str, path: str, limit: int) -> bytes:
    """A small file of a root. OSError if it is missing, no regular file, or larger than the limit."""
    with opened(root, path) as fd:
        found = head(fd, limit + 1)
    if len(found) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return found

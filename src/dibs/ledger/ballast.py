"""Room for the ledger on a full disk: a file that is there only to be thrown away.

`sqlite` calls it. To read a ledger, and to free what is booked, takes a little room (SQLite's files beside the ledger).
So a small file is kept, and removed when the disk is full; while it is missing and cannot be made again, nothing new is
entered: `DISK_FULL`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dibs.home import Home

SIZE = 512 << 10  # some twenty ends of sandboxes
ROOM = 256 << 10  # less than this is too little to work with
_LEAST = 64 << 10  # with this, one end can be written
_INODES = 4


def is_full(folder: Path) -> bool:
    """Whether there is too little room to work with, of bytes or of files."""
    found = os.statvfs(folder)
    free = found.f_bavail if os.geteuid() else found.f_bfree
    return free * found.f_frsize < ROOM or (found.f_files > 0 and found.f_favail < _INODES)


def spend(home: Home) -> None:
    """Make room, if there is none."""
    if is_full(home.state):
        with suppress(FileNotFoundError):
            os.unlink(_path(home))


def keep(home: Home) -> bool:
    """Whether all of the room is kept; it is made again if the disk has it."""
    try:
        if os.stat(_path(home)).st_size >= SIZE:
            return True
    except FileNotFoundError:
        pass  # spent
    found = os.statvfs(home.state)
    return found.f_bavail * found.f_frsize >= 2 * SIZE and _fill(home, SIZE)


def save(home: Home) -> None:
    """After work: keep what is left of the room, before others take it."""
    size = SIZE
    while size >= _LEAST and not os.path.exists(_path(home)) and not _fill(home, size):
        size //= 2


def _fill(home: Home, size: int) -> bool:
    try:
        fd = os.open(_path(home), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, home.file_mode)
    except OSError:
        return False
    try:
        os.fchmod(fd, home.file_mode)
        os.posix_fallocate(fd, 0, size)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(_path(home))
        return False
    finally:
        os.close(fd)
    return True


def _path(home: Home) -> str:
    return f"{home.state}/ballast"

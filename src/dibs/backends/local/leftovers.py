"""What may be left of a sandbox whose maker died, or whose shim did.

`backend.discard` calls it. A shim holds a lock on its sandbox's folder as long as it is there; whoever gets the lock
knows that no shim is, and none that comes later will find the folder.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from dibs.backends.local import cgroups
from dibs.errors import BackendUnavailable

PATIENCE = 15.0  # a shim without a maker ends within a moment; one that is stuck is told, not waited for


def take_over(folder: Path, hurry: Callable[[], None]) -> int:
    """Wait until no shim has the folder, and keep others out. The lock; -1 if there is no folder."""
    import fcntl

    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return -1
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise BackendUnavailable(
                    "the sandbox's shim does not end", field="sandbox", value=folder.name, code="SHIM_STUCK"
                ) from None
            hurry()
            select.select([], [], [], 0.01)
        else:
            return fd


def remove_groups(sandbox_id: str) -> None:
    """The control groups of a sandbox without processes, wherever they may have been made."""
    found = {
        f"{tree.folder}/{sandbox_id}" for tree in map(cgroups.tree, (*cgroups.CONTROLLERS, "freezer")) if tree.folder
    }
    left = list(found)
    for _ in range(200):  # the last process leaves its group a moment after it is gone
        left = cgroups.remove(left)
        if not left:
            return
        select.select([], [], [], 0.01)
    raise BackendUnavailable("a control group is still in use", field="cgroup", value=left[0])

"""What may be left of a sandbox whose maker died, or whose shim did.

`backend` calls it. A shim holds a lock on its sandbox's folder as long as it is there. Getting the lock
proves that no shim is there, and one that comes later will not find the folder.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from dibs.backends.local import cgroups
from dibs.backends.local.handles import await_gone, groups
from dibs.backends.port import Handle
from dibs.errors import BackendUnavailable
from dibs.process import is_here

ORPHAN = 2.0  # seconds in which what is killed is gone; what is not, is stuck in the kernel, and is not waited for
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


def end_orphan(handle: Handle) -> None:
    """End a sandbox whose shim is gone, frozen or held back though it may be, and remove its control groups.

    The kernel ends bubblewrap with the shim, and the sandbox with bubblewrap, but not a process that is frozen
    (version 1 keeps even SIGKILL from it), nor one that has not been let go yet. Raises BackendUnavailable if it may
    still be there.
    """
    init = handle.init
    freezer = handle.data.get("freezer", "")
    until = time.monotonic() + ORPHAN
    while init is not None and is_here(init):
        try:
            thaw(freezer)
            os.kill(init.pid, 9)
        except ProcessLookupError:
            break
        except PermissionError as error:
            raise BackendUnavailable(
                "its shim is gone, and what is left of it belongs to another user", field="sandbox",
                value=handle.sandbox_id, code="NOT_YOURS", remedy="run a dibs command as that user, or as root",
            ) from error  # fmt: skip
        await_gone(init, 1.0)
        if time.monotonic() > until:
            raise BackendUnavailable(
                "the sandbox's first process does not end", field="sandbox", value=handle.sandbox_id,
                code="SANDBOX_STUCK", remedy=f"see what keeps it: cat /proc/{init.pid}/stack /proc/{init.pid}/cgroup",
            )  # fmt: skip
    cgroups.remove([*groups(handle), *filter(None, [freezer])])


def thaw(folder: str) -> None:
    """Let the processes of a freezer run, whichever version it is of."""
    for name, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        try:
            if folder:
                cgroups.write(f"{folder}/{name}", word)
        except FileNotFoundError:
            continue  # of the other version, or never made

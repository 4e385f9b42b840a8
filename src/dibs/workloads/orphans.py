"""Containers that an engine creates after its client has been killed.

An engine completes a request even if the client is gone. So when `reconcile` finds no container of a dead creator, one
may still appear a moment later. A note is kept here, and for a while each reconciliation looks again. Such a container
never runs, because nothing starts it. The same holds when the engine itself is killed: a runtime that it had started
continues, and may leave a process that waits forever for the order to run the command.

A note is a file named after the sandbox, "docker 1234.5 0123abc": the backend, when it was noted, in seconds since the
machine's start, and the container's id, if it is known.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from dibs.backends.port import Handle
from dibs.errors import BackendUnavailable, StateError
from dibs.home import Home, no_room, write_private
from dibs.process import boottime
from dibs.workloads.registry import Registry

LATE = 300.0  # seconds in which an engine has surely done what it was asked for; a look after that is the last one
PAUSE = 2.0  # seconds between two looks, by any process


def expect(home: Home, handle: Handle) -> None:
    """Something of this sandbox may still come."""
    folder = _folder(home)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        known = handle.data.get("container", "")
        write_private(folder / handle.sandbox_id, f"{handle.backend} {boottime()!r} {known}".rstrip())
    except OSError as error:
        raise StateError(
            f"what an engine may still make cannot be noted: {(error.strerror or str(error)).lower()}",
            field="DIBS_HOME", value=str(folder), code="DISK_FULL" if no_room(error) else "STATE_FOLDER_UNUSABLE",
            remedy="make room there, or set DIBS_HOME to a folder that you can write to",
        ) from error  # fmt: skip


def sweep(home: Home, registry: Registry) -> None:
    """Remove what has come. One that cannot be asked after now is asked after the next time."""
    folder = _folder(home)
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except FileNotFoundError:
        return
    if not names or not _my_turn(folder):
        return
    for name in names:
        try:
            backend, noted, container = _read(folder / name)
            if backend:
                late = Handle(backend, name, str(home.sandbox(name)))
                registry.get(backend).discard(late)
                if container:
                    registry.get(backend).discard(msgspec.structs.replace(late, data={"container": container}))
        except (BackendUnavailable, FileNotFoundError):
            continue  # the engine is away, or another process was done with it
        if not 0 <= boottime() - noted <= LATE:  # long ago, or before the machine was started
            (folder / name).unlink(missing_ok=True)


def _read(note: Path) -> tuple[str, float, str]:
    """The backend, when it was noted, and the container. Without a backend it is being written; if it stays so, its
    writer was killed: the sandbox is still in the ledger, and is noted anew."""
    words = note.read_text().split(" ")
    age = time.time() - note.stat().st_mtime
    return words[0], float(words[1]) if len(words) > 1 else boottime() - max(0.0, age), "".join(words[2:])


def _my_turn(folder: Path) -> bool:
    """Many may reconcile at once; one of them looks. Without room for its mark each of them does."""
    mark = folder / ".looked"
    try:
        if abs(time.time() - mark.stat().st_mtime) < PAUSE:  # the clock may have been set back since
            return False
    except FileNotFoundError:
        pass  # the first look
    try:
        mark.touch()
    except OSError as error:
        if not no_room(error):
            raise StateError(
                f"the state folder cannot be written: {(error.strerror or str(error)).lower()}", field="DIBS_HOME",
                value=str(folder), code="STATE_FOLDER_UNUSABLE", remedy="check the permissions of the folder",
            ) from error  # fmt: skip
    return True


def _folder(home: Home) -> Path:
    """One for each user of a home that several share: who has noted something may also remove it."""
    return home.state / f"late-{os.getuid()}"

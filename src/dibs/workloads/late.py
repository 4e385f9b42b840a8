"""Containers that an engine makes after the process that asked for them has been killed.

A request that the engine has heard is carried out, whoever is still there to read the answer. So when `reconcile` has
found nothing of a creation whose creator is gone, there may be something a moment later. It notes that here, and for a
while whoever reconciles looks once more. What is made so late never runs: nobody starts it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from dibs.backends.port import Handle
from dibs.errors import BackendUnavailable, StateError
from dibs.home import Home, write_private
from dibs.workloads.registry import Registry

LATE = 300.0  # seconds in which an engine has surely done what it was asked for; a look after that is the last one
PAUSE = 2.0  # seconds between two looks, whoever looks


def expect(home: Home, backend: str, sandbox_id: str) -> None:
    """Something of this sandbox may still come."""
    folder = _folder(home)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        write_private(folder / sandbox_id, backend)
    except OSError as error:
        raise StateError(
            f"what an engine may still make cannot be noted: {error.strerror}", field="DIBS_HOME", value=str(folder),
            code="STATE_FOLDER_UNUSABLE", remedy="make room there, or set DIBS_HOME to a folder that you can write to",
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
            backend, noted = (folder / name).read_text(), (folder / name).stat().st_mtime
            if not backend:
                continue  # it is being written
            registry.get(backend).discard(Handle(backend, name, str(home.sandbox(name))))
        except (BackendUnavailable, FileNotFoundError):
            continue  # the engine is away, or somebody else was done with it
        if time.time() - noted > LATE:
            (folder / name).unlink(missing_ok=True)


def _my_turn(folder: Path) -> bool:
    """Many may reconcile at once; one of them looks."""
    mark = folder / ".looked"
    try:
        if time.time() - mark.stat().st_mtime < PAUSE:
            return False
    except FileNotFoundError:
        pass  # nobody has yet
    mark.touch()
    return True


def _folder(home: Home) -> Path:
    """One for each user of a home that several share: whoever has noted something can also look after it."""
    return home.state / f"late-{os.getuid()}"

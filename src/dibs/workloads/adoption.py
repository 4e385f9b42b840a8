"""From what lives to the ledger: sandboxes that the ledger has forgotten are entered again, with their devices.

`reconcile` calls it. A ledger that was deleted, restored from an old copy or replaced knows nothing of sandboxes
that live, and would give their devices away. Everything that is recorded beside the ledger and not in it is entered;
whether it still runs is then proved in the usual way. What cannot be entered is reported, and as long as it lives no
device is booked at all: it is not known which ones it has.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dibs.backends.port import Handle, Phase
from dibs.errors import BackendUnavailable, StateError
from dibs.home import Home
from dibs.ledger.records import Record
from dibs.ledger.rows import unsealed
from dibs.ledger.store import Ledger
from dibs.process import ProcessName, absent
from dibs.sandbox import decoder
from dibs.workloads.registry import Registry


def adopt(ledger: Ledger, registry: Registry) -> list[str]:
    """Enter what the ledger has forgotten; the ids. Cheap where it has forgotten nothing."""
    if ledger.is_new:
        _look_for_unrecorded(ledger, registry.home)
        ledger.is_new = False
    found = ledger.unknown()
    for sandbox_id in found:
        try:
            _adopt_one(ledger, registry, sandbox_id)
        except StateError:
            folder = registry.home.sandbox(sandbox_id)
            if not _shim_lives(folder) and not _container_lives(folder):
                with ledger.writing():
                    ledger.drop_unknown(sandbox_id)
    return found


def _adopt_one(ledger: Ledger, registry: Registry, sandbox_id: str) -> None:
    record = ledger.recorded(sandbox_id)
    if record is None:
        return  # it has just ended
    phase = _phase(record, registry)
    with ledger.writing():
        if sandbox_id in ledger.unknown():  # or another process was faster
            _restore(ledger, record, phase)


def restore_attached(ledger: Ledger, registry: Registry, sandbox_id: str) -> bool:
    """Whether a sandbox that the ledger believes to be unfinished had been attached; then it is again."""
    record = ledger.recorded(sandbox_id)
    if record is None or record.row.get("receipt") is None:
        return False
    phase = _phase(record, registry)
    with ledger.writing():
        _restore(ledger, record, phase)
    return True


def problems(ledger: Ledger) -> list[StateError]:
    """What lives and cannot be entered, with what to do about it."""
    found = []
    for sandbox_id in ledger.unknown():
        try:
            ledger.recorded(sandbox_id)
        except StateError as error:
            found.append(error)
    return found


def _restore(ledger: Ledger, record: Record, phase: Phase) -> None:
    state = "paused" if phase is Phase.PAUSED else "running"
    ledger.restore(record, state=state, started=phase in (Phase.RUNNING, Phase.PAUSED))


def _phase(record: Record, registry: Registry) -> Phase:
    try:
        handle = decoder(Handle).decode(unsealed(record.row["handle"], "handle"))
        return registry.get(handle.backend, record.row["uid"]).status(handle).phase
    except (KeyError, TypeError, msgspec.DecodeError) as error:
        raise StateError(
            str(error), field="sandbox", value=str(record.row.get("id")), code="SANDBOX_UNKNOWN"
        ) from error
    except BackendUnavailable:
        return Phase.UNKNOWN


def _look_for_unrecorded(ledger: Ledger, home: Home) -> None:
    """Shims that live though there is no record of them: made by a dibs that kept none, or the record was lost too."""
    try:
        names = os.listdir(home.sandboxes)
    except FileNotFoundError:
        return
    recorded = set(ledger.unknown())
    known = {row.id for row in ledger.sandboxes(live_only=True)}
    for name in names:
        if name not in recorded and name not in known and _shim_lives(home.sandbox(name)):
            ledger.mark_unknown(name)


def _shim_lives(folder: Path) -> bool:
    """A shim has its folder locked as long as it is there."""
    import fcntl

    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True  # another user's: it cannot be told
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _container_lives(folder: Path) -> bool:
    """Whether the first process of a container may still be there. Its folder says which one that is."""
    try:
        return not absent(decoder(ProcessName).decode((folder / "init").read_bytes()))
    except FileNotFoundError:
        return False  # none was started here
    except (OSError, msgspec.DecodeError):
        return True  # it cannot be told

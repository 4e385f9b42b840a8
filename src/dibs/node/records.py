"""Which claims are prepared on this node: one small file each, so that a kill between any two steps loses nothing.

`prepare` writes a record before it writes anything else for a claim, and removes it after everything else is removed.
So whatever was left on the node has a record. A record that cannot be read is an error, never "not prepared".
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dibs.errors import StateError


class PreparedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device of a claim, as the kubelet is told of it."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi: tuple[str, ...]
    share: str = ""  # the id of a share; other claims may have others
    admin: bool = False  # an administrator's access, beside whatever claim has it
    units: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prepared claim."""

    uid: str
    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    spec: str = ""  # the CDI spec that was written for it, as JSON; "" if its devices have names of their own
    version: int = 1


class Records:
    """The records of one driver, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> dict[str, Record]:
        found = {}
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return {}
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                record = self._read(self._folder / name)
                if record is not None:
                    found[record.uid] = record
        return found

    def get(self, uid: str) -> Record | None:
        return self._read(self._file(uid))

    def write(self, record: Record) -> None:
        """On the disk before this returns."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        file = self._file(record.uid)
        draft = file.with_name(f".{file.name}.new")
        try:
            with open(draft, "wb") as out:
                out.write(msgspec.json.encode(record))
                out.flush()
                os.fsync(out.fileno())
            draft.replace(file)
            self._sync()
        except OSError as error:
            raise self._unusable(file, f"cannot be written: {error.strerror}") from error

    def remove(self, uid: str) -> None:
        try:
            self._file(uid).unlink()
            self._sync()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(self._file(uid), f"cannot be removed: {error.strerror}") from error

    def remove_drafts(self) -> None:
        """What a kill in the middle of a write has left; nothing reads it."""
        for draft in self._folder.glob(".*.new"):
            draft.unlink()

    def _file(self, uid: str) -> Path:
        if not uid or not uid.replace("-", "").isalnum():
            raise StateError("this is no uid of a claim", field="claim", value=uid, code="NODE_STATE_INVALID")
        return self._folder / f"{uid}.json"

    def _read(self, file: Path) -> Record | None:
        try:
            record = msgspec.json.decode(file.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(file, f"cannot be read: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise self._unusable(file, f"is damaged: {error}") from error
        if record.version != 1:
            raise self._unusable(file, f"has version {record.version}, and this dibs knows 1")
        return record

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _unusable(self, file: Path, why: str) -> StateError:
        return StateError(
            f"the record of a prepared claim {why}", field="record", value=str(file), code="NODE_STATE_INVALID",
            remedy="drain the node, remove the file, and start dibs node again",
        )  # fmt: skip

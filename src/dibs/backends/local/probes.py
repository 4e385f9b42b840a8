"""What was found out about this machine by trying, kept so that it is not tried at every start.

`bubblewrap` and `rootfs` ask. A result belongs to one boot, one user and one key; the key must name everything that the
result depends on. Losing the file costs some milliseconds, so nothing here ever fails: it forgets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from dibs.process import boot_id


class _File(msgspec.Struct):
    boot: str
    results: dict[str, str] = {}


class Probes:
    """Results by key, in memory and in one small file."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.stem}-{os.getuid()}{path.suffix}")
        self._known: _File | None = None

    def _load(self) -> _File:
        if self._known is None:
            fresh = _File(boot_id())
            try:
                known = self._read()
            except (OSError, msgspec.DecodeError):
                known = fresh
            self._known = known if known.boot == fresh.boot else fresh
        return self._known

    def _read(self) -> _File:
        """What another user wrote is not believed."""
        with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise PermissionError
            return msgspec.json.decode(file.read(), type=_File)

    def get(self, key: str, find_out: Callable[[], str], *, keep: Callable[[str], bool] = bool) -> str:
        """The result for a key; found out, and kept if `keep` says that it is worth it, when it is not known yet."""
        known = self._load()
        if key in known.results:
            return known.results[key]
        result = find_out()
        if keep(result):
            known.results[key] = result
            self._save(known)
        return result

    def _save(self, known: _File) -> None:
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(msgspec.json.encode(known))
            draft.replace(self._path)
        except OSError:
            return  # not kept: the next process tries again

"""Reading a sandbox's log while the shim writes it.

`backend.logs` calls it. The file format is the shim's: microseconds (8 bytes), stream (1), length (4), data; `log.1` is
the older part. It must cope with a rotation under its feet and with a record that is not yet whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from dibs.backends.port import LogRecord
from dibs.errors import StateError

HEADER = 13
STREAMS: dict[int, Literal["stdout", "stderr"]] = {1: "stdout", 2: "stderr"}


class Reader:
    """Everything in the log, once, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._inode = 0

    def _open(self, name: str) -> bool:
        try:
            file = (self._folder / name).open("rb")
        except FileNotFoundError:
            return False
        self.close()
        self._file = file
        self._inode = os.fstat(file.fileno()).st_ino
        return True

    def _inode_of(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_ino
        except FileNotFoundError:
            return 0

    def _advance(self) -> bool:
        """Go to the next file, if the one that is open is no longer the newest."""
        if self._file is None:
            return self._open("log.1") or self._open("log")
        if self._inode == self._inode_of("log") or not self._inode_of("log"):
            return False
        # If ours is log.1, the next one is log. Otherwise two rotations have passed, and log.1 is all that is left.
        return self._open("log" if self._inode == self._inode_of("log.1") else "log.1") or self._open("log")

    def records(self) -> Iterator[LogRecord]:
        """What has been written since the last call."""
        while True:
            if self._file is not None:
                yield from self._rest()
            if not self._advance():
                if self._file is not None:
                    yield from self._rest()
                return

    def _rest(self) -> Iterator[LogRecord]:
        assert self._file is not None
        while True:
            start = self._file.tell()
            header = self._file.read(HEADER)
            length = int.from_bytes(header[9:13], "big") if len(header) == HEADER else 0
            data = self._file.read(length)
            if len(header) < HEADER or len(data) < length:
                self._file.seek(start)
                return
            stream = STREAMS.get(header[8])
            if stream is None:
                raise StateError("the log is damaged", field="log", value=str(self._folder), code="LOG_DAMAGED")
            yield LogRecord(int.from_bytes(header[:8], "big") / 1e6, stream, data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

"""Writing a sandbox's log. `logs` reads it.

The shim's. Standard library only, and little of it.
"""

from __future__ import annotations

import errno
import os
import time


class Log:
    """Framed records: microseconds (8 bytes), stream (1: stdout, 2: stderr), length (4), data. One rotation.

    A full disk costs records, never the workload: what is lost is counted, and told as soon as there is room.
    """

    def __init__(self, folder: int, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.sequence = 0
        self.lost = 0
        self.lost_in_all = 0
        self.why = ""
        self.fd = -1
        self.size = 0

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.fd = os.open("log", flags, 0o600, dir_fd=self.folder)
        self.size = os.fstat(self.fd).st_size

    def _put(self, stream: int, data: bytes) -> None:
        if self.fd < 0:
            self._open()
        if self.size and self.size + len(data) > self.limit:
            os.rename("log", "log.1", src_dir_fd=self.folder, dst_dir_fd=self.folder)
            os.close(self.fd)
            self.fd = -1
            self._open()
        micros = int(time.time() * 1e6)
        record = micros.to_bytes(8, "big") + bytes([stream]) + len(data).to_bytes(4, "big") + data
        try:
            while record:
                record = record[os.write(self.fd, record) :]
        except OSError:
            os.ftruncate(self.fd, self.size)  # half a record would make the rest unreadable
            raise
        self.size += 13 + len(data)

    def append(self, stream: int, data: bytes) -> None:
        try:
            if self.lost:
                self._put(2, f"[dibs: {self.lost} bytes of output were not logged: {self.why}]\n".encode())
                self.lost = 0
            self._put(stream, data)
        except OSError as error:
            self.lost += len(data)
            self.lost_in_all += len(data)
            self.why = os.strerror(error.errno or errno.EIO).lower()
        self.sequence += 1

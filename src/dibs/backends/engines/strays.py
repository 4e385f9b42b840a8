"""Processes of a container that its engine has forgotten.

An engine that is killed between the runtime's start and its own note of it does not know that there are processes: it
removes such a container and leaves them. `endings` ends them, before it says that a container is gone. A process
belongs to a container if its control group is named after it.
"""

from __future__ import annotations

import os
import signal
import time

from dibs.errors import BackendUnavailable

PATIENCE = 10.0  # seconds for killed processes to be gone


def end(identity: str) -> None:
    """End every process of a container, by its id; returns when there is none. Raises BackendUnavailable."""
    deadline = time.monotonic() + PATIENCE
    while found := processes(identity):
        for pid in found:
            _kill(pid, identity)
        if time.monotonic() > deadline:
            reason = f"processes of the container are left: {', '.join(map(str, found))}"
            raise BackendUnavailable(reason, field="sandbox", value=identity, code="ENGINE_FAILED")
        time.sleep(0.005)


def processes(identity: str) -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _belongs(entry, identity)]


def _belongs(pid: str, identity: str) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            if identity not in file.read():
                return False
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _kill(pid: int, identity: str) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _belongs(str(pid), identity):  # or the number is somebody else's by now
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError as error:
        reason = f"a process of the container is left, and may not be ended by you: {pid}"
        raise BackendUnavailable(reason, field="sandbox", value=identity, code="ENGINE_FAILED") from error
    finally:
        os.close(descriptor)

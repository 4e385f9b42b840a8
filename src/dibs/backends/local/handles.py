"""What a handle says about its sandbox, by looking at processes and files.

`backend` and `enter_client` ask. Nothing here talks to a shim.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

import msgspec

from dibs.backends.port import Exit, Handle, Phase, Status
from dibs.errors import Conflict, StateError
from dibs.process import ProcessName, absent, is_here


def groups(handle: Handle) -> list[str]:
    return [path for path in handle.data.get("groups", "").split("\n") if path]


def exit_status(handle: Handle) -> Exit | None:
    try:
        data = (Path(handle.folder) / "exit.json").read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"the exit status cannot be read: {error.strerror}", value=handle.folder) from error
    try:
        return msgspec.json.decode(data, type=Exit)
    except msgspec.DecodeError as error:
        raise StateError(f"the exit status cannot be read: {error}", value=handle.folder) from error


def noted_phase(handle: Handle) -> str:
    """The phase that its shim has noted last; empty if there is no note."""
    try:
        with open(f"{handle.folder}/phase", "rb") as file:
            return file.read(16).strip().decode("ascii", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StateError(f"the sandbox's folder cannot be read: {error.strerror}", value=handle.folder) from error


def is_running(handle: Handle) -> bool:
    """Whether its shim has noted that it runs. If not, it must be asked: the note may be missing."""
    return noted_phase(handle) == "running" and handle.keeper is not None and not absent(handle.keeper)


def await_gone(process: ProcessName | None, seconds: float) -> None:
    """Wait for the end of a process of this host, without polling."""
    if process is None or not is_here(process):
        return
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if is_here(process):
            select.select([fd], [], [], seconds)
    finally:
        os.close(fd)


def living_init(handle: Handle) -> int:
    if handle.init is None or absent(handle.init):
        raise Conflict("the sandbox has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
    return handle.init.pid


def not_running(status: Status, handle: Handle) -> Conflict:
    remedy = {Phase.PAUSED: "resume it first", Phase.HELD: "start it first"}.get(status.phase, "")
    return Conflict(
        f"the sandbox is {status.phase}", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING", remedy=remedy
    )

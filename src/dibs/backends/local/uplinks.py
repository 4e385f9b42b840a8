"""The helpers of private networks, from outside: which one a sandbox has, and the end of one whose shim is gone.

`backend` and `observe` ask. A shim ends its own helper (`uplink`), and a helper ends by itself when its network is
gone; this is for the case that neither has happened yet.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dibs.backends.local.handles import await_gone
from dibs.backends.port import Handle, PublishedPort
from dibs.errors import BackendUnavailable
from dibs.process import ProcessName, is_here, name_of

FILES = ("uplink", "uplink.err", "uplink.sock")
ENDING = 5.0  # seconds for a killed process to be gone


def end(folder: Path) -> None:
    """End the helper that a sandbox's folder names, if it is still that process. Raises if it does not end."""
    try:
        words = (folder / "uplink").read_text().split()
    except (FileNotFoundError, NotADirectoryError):
        return
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return  # it was not executed yet: the process that writes this ends with its shim
    found = name_of(int(words[0]))
    if found is None or found.started != int(words[1]):
        return
    try:
        os.kill(found.pid, 9)
    except ProcessLookupError:
        return
    await_gone(found, ENDING)
    if is_here(found):
        raise BackendUnavailable("the helper of its network does not end", field="sandbox", value=folder.name)


def of(handle: Handle) -> ProcessName:
    try:
        return msgspec.json.decode(handle.data.get("uplink", ""), type=ProcessName)
    except msgspec.MsgspecError as error:
        reason = "the handle does not say which process connects its network"
        raise BackendUnavailable(reason, field="sandbox", value=handle.sandbox_id, code="OBSERVATION_FAILED") from error


def name(process: ProcessName) -> str:
    """Which program it is; empty if it is gone. Its first name: pasta replaces itself by a faster build."""
    try:
        with open(f"/proc/{process.pid}/comm") as file:
            found = file.read().strip().partition(".")[0]
    except OSError:
        return ""
    return {"passt": "pasta"}.get(found, found) if is_here(process) else ""


def published(handle: Handle, process: ProcessName) -> list[str]:
    """The ports of the host that the helper really listens on. OSError if the tables cannot be read.

    The owner of a socket may be hidden from an ordinary user; then a new listener on a port that had none counts
    before.
    """
    ports = msgspec.json.decode(handle.data.get("publish", "[]"), type=tuple[PublishedPort, ...])
    if not ports:
        return []
    from dibs.backends import sockets

    rows = sockets.rows()
    try:
        own: set[int] | None = sockets.held_by(process.pid)
    except PermissionError:
        own = None
    return [
        str(port)
        for port in ports
        if any(
            row.listens and (row.address, row.port) == (port.address, port.host_port)
            and (own is None or row.inode in own)
            for row in rows
        )
    ]  # fmt: skip

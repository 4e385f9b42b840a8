"""What dibs writes beside a container, in the folder of its sandbox, and the process that keeps its time.

    init      the container's first process, by its full name; there since the start
    ending    why dibs asked for the end, and when: "stopped 1700000000.5"
    expiry    when its time to live is over, in seconds since the epoch, or "none"
    keeper    the process that ends it then

`backend` uses it. The engine is the one who knows whether a container runs; these files only say why it does not.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends.port import Handle
from dibs.errors import StateError
from dibs.process import ProcessName, absent, name_of

_NAME = msgspec.json.Decoder(ProcessName)


def folder_of(handle: Handle) -> Path:
    return Path(handle.folder)


def write(folder: Path, name: str, text: str) -> None:
    """Replace a file in one step."""
    draft = folder / f".{name}.{os.getpid()}"
    try:
        draft.write_text(text)
        draft.replace(folder / name)
    except OSError as error:
        reason = f"the sandbox's folder cannot be written: {error.strerror}"
        raise StateError(reason, field="folder", value=str(folder)) from error


def read(folder: Path, name: str) -> str:
    """Empty if there is no such file."""
    try:
        return (folder / name).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        reason = f"the sandbox's folder cannot be read: {error.strerror}"
        raise StateError(reason, field="folder", value=str(folder)) from error


# --- its first process


def remember_init(folder: Path, pid: int) -> ProcessName | None:
    """The container runs. Without a process that is visible from here, that alone is kept."""
    found = name_of(pid) if pid > 0 else None
    write(folder, "init", msgspec.json.encode(found).decode())
    return found


def init_of(folder: Path) -> ProcessName | None:
    text = read(folder, "init")
    if not text or text == "null":
        return None
    try:
        return _NAME.decode(text)
    except msgspec.DecodeError as error:
        raise StateError(f"a file of the sandbox is damaged: {error}", value=str(folder / "init")) from error


# --- why it ended


def ask_end(folder: Path, reason: str) -> None:
    """Say why the end is asked for; the first who does is heard. A folder that is gone needs no reason."""
    try:
        fd = os.open(folder / "ending", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except (FileExistsError, FileNotFoundError, NotADirectoryError):
        return
    with os.fdopen(fd, "w") as file:
        file.write(f"{reason} {time.time()!r}")


def ending(folder: Path) -> tuple[str, float] | None:
    reason, _, at = read(folder, "ending").partition(" ")
    try:
        return (reason, float(at)) if reason else None
    except ValueError:
        return None  # it is being written: the end is not there yet


# --- its time


def set_deadline(folder: Path, at: float | None) -> None:
    write(folder, "expiry", "none" if at is None else repr(at))


def deadline(folder: Path) -> float | None:
    text = read(folder, "expiry").strip()
    if not text or text == "none":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise StateError("the time to live cannot be read", value=str(folder / "expiry")) from error


def overdue(handle: Handle, now: float | None = None) -> bool:
    """Whether its time to live is over. Who finds it so while it runs ends it: its keeper may have been killed."""
    at = deadline(folder_of(handle))
    return at is not None and (time.time() if now is None else now) >= at


def address_of(target: str) -> str:
    """The engine's address as a keeper takes it: a path, or host:port."""
    for scheme in ("unix://", "http://", "tcp://"):
        target = target.removeprefix(scheme)
    return target.rstrip("/")


def begin_keeper(folder: Path, address: str, base: str, condition: str, grace: float, pipe: int = -1) -> Any:
    """Start the process that ends the container in time; `finish_keeper` waits until it listens."""
    import subprocess

    program = str(Path(__file__).with_name("keeper.py"))
    command = [sys.executable, "-I", "-S", program, address, base, condition, str(folder), repr(grace), str(pipe)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(pipe,) if pipe >= 0 else (),
        start_new_session=True,
        cwd="/",
    )


def finish_keeper(folder: Path, child: Any) -> None:
    with child.stdout:
        ready = child.stdout.readline()
    name = name_of(child.pid)
    _children.append(child)
    for old in _children[:]:
        if old.poll() is not None:
            _children.remove(old)
    if not ready:
        raise StateError("the process that keeps the time to live does not start", value=str(folder))
    if name is not None:  # or the container has ended already, and its keeper with it
        write(folder, "keeper", msgspec.json.encode(name).decode())


_children: list[Any] = []  # to be reaped when they end


def keeper_of(folder: Path) -> ProcessName | None:
    text = read(folder, "keeper")
    if not text:
        return None
    try:
        found = _NAME.decode(text)
    except msgspec.DecodeError:
        return None
    return None if absent(found) else found


def nudge(keeper: ProcessName) -> bool:
    """Make a keeper look at the deadline again; False if it is gone."""
    try:
        fd = os.pidfd_open(keeper.pid)
    except ProcessLookupError:
        return False
    try:
        if name_of(keeper.pid) != keeper:
            return False
        signal.pidfd_send_signal(fd, signal.SIGHUP)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True

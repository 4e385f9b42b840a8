"""What dibs writes beside a container, in the folder of its sandbox, and the process that keeps its time.

    init      the container's first process, by its full name; there since the start
    record    its shim and its control groups, by which `absence` proves that it is gone
    gone      that dibs has proved it gone past the engine, why, and when: "stopped 1700000000.5"
    ending    why dibs asked for the end, and when: "stopped 1700000000.5"
    expiry    when its time to live is over: in seconds since the epoch, for people, and since the machine's start,
              which is what counts (that clock is never set); or "none"
    keeper    the process that ends it then

`backend` uses it. The engine says whether a container runs; what it says of an end counts once its processes are gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from dibs.backends.engines.cgroups import groups_of
from dibs.backends.port import ExitReason, Handle
from dibs.descriptors import closing
from dibs.errors import StateError
from dibs.home import no_room
from dibs.process import ProcessName, absent, boottime, name_of

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
        draft.unlink(missing_ok=True)
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> StateError:
    full = no_room(error)
    return StateError(
        f"the sandbox's folder cannot be written: {(error.strerror or str(error)).lower()}", field="folder",
        value=str(folder), code="DISK_FULL" if full else "", remedy="free some space" if full else "",
    )  # fmt: skip


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


class Record(msgspec.Struct, frozen=True):
    """What is around the first process of a container."""

    shim: ProcessName | None = None  # containerd's, or conmon: its parent
    groups: dict[str, str] = {}  # controller ("" for version 2) → folder of the container's control group


_RECORD = msgspec.json.Decoder(Record)


def remember_init(folder: Path, pid: int, container: str) -> ProcessName | None:
    """The container runs. Without a process that is visible from here, that alone is kept."""
    found = name_of(pid) if pid > 0 else None
    if found is not None:
        record = Record(_parent(pid), groups_of(pid, container) if container else {})
        write(folder, "record", msgspec.json.encode(record).decode())
    write(folder, "init", msgspec.json.encode(found).decode())  # last: the keeper waits for it
    return found


def _parent(pid: int) -> ProcessName | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None  # it has ended
    return name_of(parent) if parent > 1 else None


def record_of(folder: Path) -> Record | None:
    text = read(folder, "record")
    try:
        return _RECORD.decode(text) if text else None
    except msgspec.DecodeError as error:
        raise StateError(f"a file of the sandbox is damaged: {error}", value=str(folder / "record")) from error


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
    """Say why the end is asked for; the first who does is heard. A folder that is gone needs no reason, and on a full
    disk the end matters more than its reason."""
    path = folder / "ending"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except (FileExistsError, FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if no_room(error):
            return
        raise _unwritable(folder, error) from error
    try:
        os.write(fd, f"{reason} {time.time()!r}".encode())
    except OSError as error:
        path.unlink(missing_ok=True)  # who asks next may have room for it
        if not no_room(error):
            raise _unwritable(folder, error) from error
    finally:
        os.close(fd)


def ending(folder: Path) -> tuple[ExitReason, float] | None:
    reason, _, at = read(folder, "ending").partition(" ")
    try:
        return (ExitReason(reason), float(at)) if reason else None
    except ValueError:
        return None  # it is being written: the end is not there yet


def note_gone(folder: Path, reason: ExitReason) -> tuple[ExitReason, float]:
    """Its processes are proved gone, whatever the engine says of it: why, and when. Without room for a note that is
    proved again the next time."""
    proved = reason, time.time()
    try:
        write(folder, "gone", f"{reason} {proved[1]!r}")
    except StateError as error:
        if error.code != "DISK_FULL":
            raise
    return proved


def gone(folder: Path) -> tuple[ExitReason, float] | None:
    reason, _, at = read(folder, "gone").partition(" ")
    return (ExitReason(reason), float(at)) if reason else None


# --- its time


def set_deadline(folder: Path, at: float | None) -> None:
    """`at`: in seconds since the epoch, as the clock stands now. Whether that is set later does not matter."""
    write(folder, "expiry", "none" if at is None else f"{at!r} {boottime() + at - time.time()!r}")


def deadline(folder: Path) -> float | None:
    """In seconds since the machine's start."""
    text = read(folder, "expiry").strip()
    if not text or text == "none":
        return None
    try:
        words = [float(word) for word in text.split()]
        if len(words) == 1:  # of an older dibs
            set_deadline(folder, words[0])
        return boottime() + words[0] - time.time() if len(words) == 1 else words[1]
    except (ValueError, IndexError) as error:
        raise StateError("the time to live cannot be read", value=str(folder / "expiry")) from error


def overdue(handle: Handle, now: float | None = None) -> bool:
    """Whether its time to live is over. Who finds it so while it runs ends it: its keeper may have been killed.

    `now`: in seconds since the machine's start.
    """
    at = deadline(folder_of(handle))
    return at is not None and (boottime() if now is None else now) >= at


def address_of(target: str) -> str:
    """The engine's address as a keeper takes it: a path, or host:port."""
    for scheme in ("unix://", "http://", "tcp://"):
        target = target.removeprefix(scheme)
    return target.rstrip("/")


# --- its keeper


class Starting(msgspec.Struct, frozen=True):
    """A keeper that has been started, and the pipe on which it says that it listens."""

    pid: int
    ready: int


# By import rather than as a script, so that the compiled file is used.
_BOOT = "import sys;sys.path.append(sys.argv.pop(1));import ttl_daemon;ttl_daemon.main()"
_clients: dict[str, int] = {}  # folder → the end of a pipe that the keeper shall listen to


def offer_client(folder: Path) -> int:
    """The end of a pipe that a client holds: the keeper of the container that is about to start gets the other one."""
    theirs, ours = os.pipe()
    _clients[str(folder)] = theirs
    return ours


def take_client(folder: Path) -> int:
    """The keeper's end; -1 if there is none, or it was taken."""
    return _clients.pop(str(folder), -1)


def begin_keeper(folder: Path, address: str, base: str, condition: str, grace: float, pipe: int = -1) -> Starting:
    """Start the process that ends the container in time; `finish_keeper` waits until it listens."""
    here = str(Path(__file__).parent)
    inside = 3 if pipe >= 0 else -1
    command = [sys.executable, "-I", "-S", "-c", _BOOT, here]
    command += [address, base, condition, str(folder), repr(grace), str(inside)]
    ready, theirs = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    actions = [
        (os.POSIX_SPAWN_DUP2, nothing, 0),
        (os.POSIX_SPAWN_DUP2, theirs, 1),
        (os.POSIX_SPAWN_DUP2, nothing, 2),
        *([(os.POSIX_SPAWN_DUP2, pipe, inside)] if pipe >= 0 else []),
        *closing(4 if pipe >= 0 else 3),
    ]
    try:
        pid = os.posix_spawn(sys.executable, command, {"PATH": os.defpath}, file_actions=actions, setsid=True)
    except OSError as error:
        os.close(ready)
        reason = f"the process that keeps the time to live cannot be started: {error.strerror}"
        raise StateError(reason, value=str(folder)) from error
    finally:
        os.close(theirs)
        os.close(nothing)
    return Starting(pid, ready)


def finish_keeper(folder: Path, starting: Starting) -> None:
    try:
        ready = os.read(starting.ready, 64)
    finally:
        os.close(starting.ready)
    name = name_of(starting.pid)
    _children.add(starting.pid)
    for pid in list(_children):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                _children.discard(pid)
        except ChildProcessError:
            _children.discard(pid)
    if not ready:
        raise StateError("the process that keeps the time to live does not start", value=str(folder))
    if name is not None:  # or the container has ended already, and its keeper with it
        write(folder, "keeper", msgspec.json.encode(name).decode())


_children: set[int] = set()  # to be reaped when they end


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

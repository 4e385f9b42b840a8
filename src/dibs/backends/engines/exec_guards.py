"""Further commands in containers do not outlive the process that asked for them, also if it is killed.

An engine goes on with a command whose client is gone. `exec` enters each command here before it is started, and
takes it out when its client has seen the end or closed the conversation. A guard (`exec_guard`), started with the first
command of this process, reads that; when this process is gone it tells what is left, as a terminal that is closed
would: the command may go on if it wants to, as on `local`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

import msgspec

from dibs.backends.port import Handle
from dibs.descriptors import closing
from dibs.errors import DibsError, StateError
from dibs.home import Home

# By import rather than as a script, so that the compiled file is used.
_LIGHT = "import sys;sys.path.append(sys.argv.pop(1));import exec_guard;exec_guard.main()"
_FULL = (
    "import sys;sys.path.insert(0,sys.argv[1]);"
    "from dibs.backends.engines.exec_guards import hang_up;hang_up(sys.argv[2:])"
)


class Entry(msgspec.Struct, frozen=True):
    """A command in a container, for another process."""

    mark: str
    path: str  # of the command at the engine
    address: str  # of the engine
    state: str  # folder of the home
    config: str
    handle: Handle


class _Guards:
    """The guard of this process, if it needs one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, bytes] = {}
        self._pipe = -1
        self._owner = 0  # the process that started the guard: a fork of it has none

    def enter(self, entry: Entry) -> None:
        line = b"+" + entry.mark.encode() + b" " + msgspec.json.encode(entry) + b"\n"
        with self._lock:
            self._be_here()
            self._entries[entry.mark] = line
            if not self._tell(line):
                self._start()

    def leave(self, mark: str) -> None:
        with self._lock:
            self._be_here()
            if self._entries.pop(mark, None) is not None:
                self._tell(f"-{mark}\n".encode())

    def _be_here(self) -> None:
        """What was forked has begun nothing yet."""
        if self._owner == os.getpid():
            return
        if self._pipe >= 0:
            os.close(self._pipe)  # else the guard would not notice the end of the one that forked us
        self._owner, self._pipe = os.getpid(), -1
        self._entries.clear()

    def _tell(self, line: bytes) -> bool:
        """False if there is no guard, or it was killed."""
        if self._pipe < 0:
            return False
        try:
            while line:
                line = line[os.write(self._pipe, line) :]
        except BrokenPipeError:
            return False
        return True

    def _start(self) -> None:
        """Start a guard, and tell it of everything that runs."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        package = Path(__file__).parent
        theirs, ours = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, one, number) for number, one in enumerate((theirs, nothing, nothing))]
        command = [sys.executable, "-I", "-S", "-c", _LIGHT, str(package), _FULL, str(package.parents[2])]
        try:
            os.posix_spawn(
                sys.executable, command, {"PATH": os.defpath}, file_actions=[*actions, *closing()], setsid=True
            )
        except OSError as error:
            os.close(ours)
            reason = f"the process that ends commands with their client cannot be started: {error.strerror}"
            raise StateError(reason, field="command") from error
        finally:
            os.close(theirs)
            os.close(nothing)
        self._pipe = ours
        for line in self._entries.values():
            self._tell(line)


_guards = _Guards()


def enter(entry: Entry) -> None:
    """Before the command is started. Raises StateError if there can be no guard."""
    _guards.enter(entry)


def leave(mark: str) -> None:
    """Its client has seen its end, or has ended it itself."""
    _guards.leave(mark)


def hang_up(entries: list[str]) -> None:
    """In place of the guard, when the process that asked is gone. What cannot be reached any more has ended with its
    container, or is told of by the engine: there is no caller left to report to."""
    from dibs.backends.engines.docker import DockerBackend
    from dibs.backends.engines.exec import tell_of_hangup
    from dibs.backends.engines.podman import PodmanBackend

    for text in entries:
        entry = msgspec.json.decode(text.encode(), type=Entry)
        kind = DockerBackend if entry.handle.backend == "docker" else PodmanBackend
        backend = kind(Home(state=Path(entry.state), config=Path(entry.config)), entry.address)
        with contextlib.suppress(DibsError):
            tell_of_hangup(backend, entry.handle, entry.path, entry.mark)

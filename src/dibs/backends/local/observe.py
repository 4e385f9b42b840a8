"""Looking into a sandbox from outside.

`backend.observe` calls it while the command is held back, and whenever somebody asks later. Everything comes from the
kernel's view of the sandbox's processes (`dibs.backends.proc`), never from what was planned. What cannot be read is an
error, not an empty observation.
"""

from __future__ import annotations

import os
from typing import Literal

from dibs.backends import proc
from dibs.backends.port import NodeFact
from dibs.errors import BackendUnavailable

unreadable = proc.unreadable


def device_nodes(init: int) -> tuple[NodeFact, ...]:
    """Every device node below /dev that is not one of the standard ones."""
    try:
        return proc.device_nodes(init)
    except OSError as error:
        raise unreadable("its device nodes", error) from error


def environment(init: int) -> dict[str, str]:
    """The command's environment, as bubblewrap has it: what it was started with, and what it was told to add.

    Not the command's own copy, which it can change.
    """
    try:
        found = proc.variables(proc.words(init, "environ"))
        words = [os.fsdecode(word) for word in proc.words(init, "cmdline")]
    except OSError as error:
        raise unreadable("its environment", error) from error
    if "--" not in words:
        raise BackendUnavailable("the sandbox's init is not bubblewrap", code="OBSERVATION_FAILED")
    options = words[: words.index("--")]
    for i, word in enumerate(options):
        if word == "--setenv":
            found[options[i + 1]] = options[i + 2]
    return found


def mounts(init: int, base: set[str]) -> tuple[str, ...]:
    """Mount points other than those of the root itself, with `ro` or `rw`."""
    try:
        modes = proc.mount_modes(init)
    except OSError as error:
        raise unreadable("its mounts", error) from error
    kernel = tuple(f"{top}/" for top in proc.KERNEL)
    return tuple(sorted(f"{p} {mode}" for p, mode in modes.items() if p not in base and not p.startswith(kernel)))


def shared_memory(init: int) -> int:
    """How much fits into /dev/shm."""
    try:
        room = os.statvfs(f"/proc/{init}/root/dev/shm")
    except OSError as error:
        raise unreadable("its shared memory", error) from error
    return room.f_blocks * room.f_frsize


def isolation(init: int) -> dict[str, Literal["host", "own"]]:
    """Of each namespace, whether it is the one that dibs itself is in."""
    try:
        return proc.isolation(init)
    except OSError as error:
        raise unreadable("its namespaces", error) from error


def check_command(init: int, command: str, path: str, workdir: str) -> None:
    """Raise if the command could not be executed."""
    try:
        proc.check_command(init, command, path, workdir, lambda file: os.access(file, os.X_OK))
    except OSError as error:
        raise unreadable("its files", error) from error

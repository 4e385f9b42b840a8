"""Whether a process waits for its input, seen from outside.

Sessions of engines answer with it what the command line asks before it passes any input on: an engine takes all that
it is given, and never says what the command has read of it. A look costs a few reads of /proc. It must never claim that
a process waits for nothing when it cannot be looked at: that is None, and the caller sends as usual.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

from dibs.backends.proc import members

# System calls by number: those that read a descriptor, and those that wait for any of several to be readable.
_READING = {
    "x86_64": ({0, 17, 19, 275, 276, 40}, {7, 23, 232, 270, 271, 281, 426, 441}),  # read, readv, splice, tee, sendfile
    "aarch64": ({63, 65, 76, 77, 71}, {22, 72, 73, 426, 441}),
}


def waits_for_input(pid: int, ignoring: Callable[[int], bool]) -> bool | None:
    """Whether any process in the namespace of `pid` waits on what is that one's stdin. None: it cannot be known.

    `ignoring`: processes that do not count, such as a runtime that has yet to become the command.
    """
    calls = _READING.get(platform.machine())
    if calls is None or not os.path.exists("/proc/self/syscall"):
        return None
    try:
        stdin = os.readlink(f"/proc/{pid}/fd/0")
        processes = members(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended, or has closed its input
    except PermissionError:
        return None
    unseen = False
    for process in processes:
        try:
            tasks = [] if ignoring(process) else os.listdir(f"/proc/{process}/task")
            if any(_waits(process, int(task), stdin, *calls) for task in tasks):
                return True
        except PermissionError:
            unseen = True
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
    return None if unseen else False


def _waits(process: int, task: int, stdin: str, reading: set[int], waiting: set[int]) -> bool:
    with open(f"/proc/{process}/task/{task}/syscall") as file:
        words = file.read().split()
    if len(words) < 2 or not words[0].isdigit():
        return False  # it runs, or waits in no system call
    number, folder = int(words[0]), f"/proc/{process}/fd"
    if number in reading:
        # sendfile names its source second; the others first.
        source = int(words[2 if number in (40, 71) else 1], 16)
        return os.readlink(f"{folder}/{source}") == stdin
    return number in waiting and any(_leads(f"{folder}/{name}", stdin) for name in os.listdir(folder))


def _leads(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target
    except FileNotFoundError:
        return False

"""Freezing all processes of a sandbox.

The shim's. With a control group the kernel does it, else every process is stopped by a signal. Standard library only,
and little of it.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from dibs.backends.local.kernel import inside, status_field, wait_for, write
else:
    from kernel import inside, status_field, wait_for, write

SIGCONT, SIGSTOP = 18, 19
DEAD = ("Z", "X", "")  # it has ended, whether or not its parent has asked how


class Freezer:
    """`spec` is "v1:FOLDER" or "v2:FOLDER", or empty where there is no group to be had."""

    def __init__(self, spec: str, init: int) -> None:
        self.kind, _, self.folder = spec.partition(":")
        self.init = init
        self.frozen = False
        self.stopped: set[int] = set()

    def pids(self) -> list[int]:
        """With the init: just after the start it may not have made the command yet."""
        return [self.init, *inside(self.init)]

    def freeze(self) -> None:
        path = self.folder
        if path:
            self.gather()
            if self.kind == "v2":
                write(path + "/cgroup.freeze", "1")
                wait_for(path + "/cgroup.events", "frozen 1")
            else:
                write(path + "/freezer.state", "FROZEN")
                wait_for(path + "/freezer.state", "FROZEN")
        else:
            for _ in range(1000):  # a process may fork before it is stopped: repeat until no new one turns up
                states = {pid: status_field(pid, "State")[:1] for pid in self.pids()}
                # One that waits in the kernel with our signal pending cannot run either: so stands the parent of a
                # vfork whose child we have stopped.
                awake = [
                    pid
                    for pid, state in states.items()
                    if state not in ("T", "t", *DEAD) and not (state == "D" and pid in self.stopped)
                ]
                if not awake:
                    break
                for pid in awake:
                    try:
                        os.kill(pid, SIGSTOP)
                        self.stopped.add(pid)
                    except ProcessLookupError:
                        continue
                time.sleep(0.001)
            else:
                self.thaw()
                raise OSError(errno.EAGAIN, "the sandbox starts processes faster than they can be stopped")
        self.frozen = True

    def gather(self) -> None:
        """Bring every process of the sandbox into the freezer's group. Children are born where their parents are."""
        path = self.folder
        if not os.path.isdir(path):
            os.mkdir(path)
        for _ in range(1000):
            with open(path + "/cgroup.procs") as file:
                members = {int(line) for line in file}
            strangers = [pid for pid in self.pids() if pid not in members]
            # The dead are in no group's list, however often they are brought there.
            strangers = [pid for pid in strangers if status_field(pid, "State")[:1] not in DEAD]
            if not strangers:
                return
            for pid in strangers:
                try:
                    write(path + "/cgroup.procs", str(pid))
                except ProcessLookupError:
                    continue
        raise OSError(errno.EAGAIN, "the sandbox starts processes faster than they can be gathered")

    def thaw(self) -> None:
        path = self.folder
        if path:
            try:
                if self.kind == "v2":
                    write(path + "/cgroup.freeze", "0")
                else:
                    write(path + "/freezer.state", "THAWED")
            except FileNotFoundError:
                pass
        else:
            for pid in self.pids():
                try:
                    os.kill(pid, SIGCONT)
                except ProcessLookupError:
                    continue
            self.stopped.clear()
        self.frozen = False

"""Running one OCI hook outside of a sandbox.

`hooks` uses it in dibs, the shim for `poststop`. Standard library only, and little of it.
"""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import Iterable

SIGKILL = 9


class Hook:
    def __init__(self, path: str) -> None:
        self.path = path
        self.args: list[str] = []
        self.env: list[str] = []
        self.timeout = 0.0


def run_hook(hook: Hook, state: bytes, closing: Iterable[tuple[int, int]] = ()) -> str:
    """Run one hook to its end; the failure in words, or nothing.

    `closing`: file actions for descriptors that it must not inherit. The shim has none such.
    """
    reading, writing = os.pipe()
    os.write(writing, state)
    os.close(writing)
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, reading, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
        *closing,
    ]
    env = dict(item.partition("=")[::2] for item in hook.env)
    try:
        pid = os.posix_spawn(hook.path, hook.args or [hook.path], env, file_actions=actions)
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    finally:
        os.close(reading)
    fd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    late = not poller.poll(hook.timeout * 1000 if hook.timeout else None)
    if late:
        os.kill(pid, SIGKILL)
    os.close(fd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if late:
        return f"took longer than {hook.timeout:g} s"
    return f"ended with {code}" if code else ""

"""A user namespace that maps every id, for sandboxes that root makes.

bubblewrap by itself maps one id; then no other user exists inside, and no command can run as one. Root may map
them all. The ids are the same inside and outside, as engines have it too: what uid 1000 may do with a file of the host,
it may do inside, where the file is shown at all. A process stays the user that dibs made it, and further user
namespaces are forbidden.

A sandbox that shows the host's root has no capabilities: with power over files, root inside would read what the
host's other users keep to themselves. In a sandbox with a root of its own the files are the sandbox's, and root has
`FILE_POWERS` over them, as in a container.

The shim calls it, `bubblewrap` tries it out, in a gateway beside other threads. So the process that becomes the
namespace's first imports nothing: a thread that held the lock of that import is not there after the fork, and never
releases it. Like the shim this must import nothing of dibs.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import Callable

NEW_USER = 0x10000000

# What root may do to files in a sandbox with a root of its own: give them away (0), pass over their modes (1), change
# what it does not own (3), keep set-id bits (4). By number, and as bubblewrap calls them.
FILE_POWERS = {0: "CAP_CHOWN", 1: "CAP_DAC_OVERRIDE", 3: "CAP_FOWNER", 4: "CAP_FSETID"}


def identity(kind: str) -> str:
    """Every id that we have ourselves, mapped to itself."""
    with open(f"/proc/self/{kind}_map") as file:
        rows = [line.split() for line in file]
    return "".join(f"{first} {first} {count}\n" for first, _, count in rows)


def switch(uid: int, gid: int) -> None:
    """Become a user with one group; the powers are gone then, if it is not root. Further groups: see `lone`."""
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def lone() -> None:
    """Leave all further groups. Before anything else: some namespaces do not allow it."""
    os.setgroups([])


class UserNamespace:
    """Made in two steps, so that the slow one can go on beside something else: begun by `__init__`, had by `take`."""

    def __init__(self, uid: int = 0, gid: int = 0) -> None:
        self.owner = (uid, gid)
        unshare = _loaded_unshare()
        ours, theirs = os.pipe()
        waiting, self.go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(ours)
                os.close(self.go)
                _become_first(unshare, uid, gid, waiting, theirs)
                code = 0
            except OSError as error:
                code = error.errno or 1
            finally:
                os._exit(code)
        os.close(theirs)
        os.close(waiting)
        self.told = ours

    def take(self) -> int:
        """The descriptor of the namespace, mapped. Raises OSError."""
        try:
            fd = -1
            if os.read(self.told, 1):
                fd = os.open(f"/proc/{self.pid}/ns/user", os.O_RDONLY)
                for kind in ("uid", "gid"):
                    # In one write: the kernel takes no second one.
                    target = os.open(f"/proc/{self.pid}/{kind}_map", os.O_WRONLY)
                    os.write(target, identity(kind).encode())
                    os.close(target)
                os.write(self.go, b"m")
        except OSError:
            if fd >= 0:
                os.close(fd)
            raise
        finally:
            code = self.leave()
        if code:
            if fd >= 0:
                os.close(fd)
            raise OSError(code if code > 0 else errno.EPERM, "a user namespace with all ids cannot be made")
        return fd

    def leave(self) -> int:
        """End the process that has kept the namespace; its exit code."""
        for fd in (self.go, self.told):
            os.close(fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _loaded_unshare() -> Callable[[], None]:
    """Gives the calling process a user namespace, without an import at that time."""
    import _ctypes  # ctypes itself takes ten times as long to load

    class Integer(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001  # as ctypes makes c_int
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = Integer

    call = Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "unshare"))  # type: ignore[arg-type]

    def unshare() -> None:
        if call(NEW_USER) < 0:
            raise OSError(_ctypes.get_errno(), "unshare")

    return unshare


def _become_first(unshare: Callable[[], None], uid: int, gid: int, waiting: int, told: int) -> None:
    if uid or gid:
        lone()
        switch(uid, gid)
    unshare()
    os.write(told, b"u")
    if not os.read(waiting, 1):
        return
    # No process inside has CAP_SYS_RESOURCE, so it cannot be raised again.
    fd = os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY)
    os.write(fd, b"0")
    os.close(fd)

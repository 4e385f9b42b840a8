"""A session keyring of its own for everything in a sandbox.

Without one it has that of its caller, with the keys in it: Kerberos tickets, keys of encrypted folders. The
shim and `enter` call it. Like them it must import nothing of dibs, and little else.
"""

from __future__ import annotations

import errno
import os

KEYCTL = {"x86_64": 250, "aarch64": 219}
JOIN_SESSION_KEYRING = 1
# No keys in this kernel, or they are out of reach for us, and so for whatever we start.
NO_KEYS = (errno.ENOSYS, errno.EPERM, errno.EACCES)


_left: list[bool] = []  # whether this process has left the keyring of the session that dibs was started in


def join_own() -> None:
    """Leave the session's keyring for a new one. OSError if the user has too many keys already.

    A fork server has left it before: what it forks then stays in that one, which holds no key, rather than fail.
    """
    import _ctypes  # ctypes itself takes ten times as long to load

    number = KEYCTL[os.uname().machine]
    call = _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")  # type: ignore[arg-type]
    if _ctypes.call_function(call, (number, JOIN_SESSION_KEYRING, 0)) >= 0:
        _left.append(True)
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, JOIN_SESSION_KEYRING, None) < 0 and ctypes.get_errno() not in NO_KEYS and not _left:
        reason = "a session keyring of its own cannot be made (sysctl kernel.keys.maxkeys)"
        raise OSError(ctypes.get_errno(), f"{reason}: {os.strerror(ctypes.get_errno())}")

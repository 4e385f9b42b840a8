"""The fork server: an interpreter with `enter` and `shim` loaded, which makes one of them by a fork.

`fork_client` keeps one for a long-lived process: starting an interpreter takes longer than all that it then does.
A request is one message on descriptor 3: a letter (E or S) with the descriptors of the new process (its connection and,
where wanted, its stdin and stdout). It must stay alone in its process (no threads), must import nothing of dibs, and
must let go of a request's descriptors before it takes the next one, so that no two processes share any.

It ends when its owner does: the connection closes, or the owner's pidfd tells.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import gc
import os
import select
import sys

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from dibs.backends import tar_extract, tar_reader, tar_writer
    from dibs.backends.local import enter, keeper, keyring, seccomp, shim
    from dibs.backends.local.kernel import close_inherited
    from dibs.backends.local.wire import encode, frame
else:
    import enter
    import keeper
    import keyring
    import seccomp
    import shim
    import tar_extract
    import tar_reader
    import tar_writer
    from kernel import close_inherited
    from wire import encode, frame

MSG_CMSG_CLOEXEC = 0x40000000  # not in Python's module
SIGCHLD = 17
PR_SET_CHILD_SUBREAPER = 36
LOADED_EARLY = (tar_extract,)
PROGRAMS = {b"E": enter.serve, b"S": shim.main}
INT = 4


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            found += [int.from_bytes(data[i : i + INT], sys.byteorder) for i in range(0, len(data), INT)]
    return found


def give_birth(request: bytes, passed: list[int], ours: list[int]) -> None:
    """In the child: only its own descriptors, its own session, and the program."""
    code = 1
    try:
        _signal.signal(SIGCHLD, _signal.SIG_DFL)
        os.setsid()
        stdin, stdout = request[1:2] == b"i", request[1:2] == b"o"
        if stdin or stdout:
            os.dup2(passed[1], 0 if stdin else 1)
        for fd in ours:
            os.close(fd)
        if passed[0] != 3:
            os.dup2(passed[0], 3)
        for fd in passed:
            if fd > 3:
                os.close(fd)
        PROGRAMS[request[:1]]()
        code = 0
    except BaseException as error:  # noqa: BLE001  # the child of a fork: whatever it is, it must end here
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def answer(request: bytes, passed: list[int], ours: list[int]) -> None:
    """Acknowledge the request, so that the client does not repeat it, and carry it out."""
    try:
        os.write(passed[0], frame(b"B"))
        if os.fork() == 0:
            give_birth(request, passed, ours)
    except BrokenPipeError:
        return  # the client is gone already
    except OSError as error:
        os.write(passed[0], frame(b"F", encode(enter.failure_of(error, "fork"))))


def main() -> None:
    close_inherited(4)
    for number in keeper.IGNORED:
        _signal.signal(number, _signal.SIG_IGN)
    # No child has to be waited for: neither ours, nor what a killed one of them leaves. A sandbox does not end
    # before the last of its dead is buried.
    _signal.signal(SIGCHLD, _signal.SIG_IGN)
    enter.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    tar_reader.prepare()
    tar_writer.prepare()
    seccomp.program()
    keyring.join_own()
    line = _socket.socket(fileno=3)
    os.set_inheritable(3, False)
    poller = select.poll()
    poller.register(3, select.POLLIN)
    owner = -1
    try:
        owner = os.pidfd_open(os.getppid())
        poller.register(owner, select.POLLIN)
    except OSError:
        pass  # it is gone already, and the connection tells it
    gc.collect()
    gc.freeze()  # what is there now is never touched again, and so stays shared
    room = _socket.CMSG_SPACE(2 * INT)
    while not any(fd == owner for fd, _ in poller.poll()):
        request, ancillary, _, _ = line.recvmsg(16, room, MSG_CMSG_CLOEXEC)
        passed = descriptors(ancillary)
        if not request:
            return
        if passed and request[:1] in PROGRAMS:
            answer(request, passed, [3, *([owner] if owner >= 0 else [])])
        for fd in passed:
            os.close(fd)

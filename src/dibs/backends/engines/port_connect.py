"""A connection to a port inside a container.

Through the container's network namespace, where its process can be seen and entered: a thread of ours goes there, makes
the socket, and ends; a socket stays in the namespace that it was made in. It changes nothing for the other threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading

from dibs.errors import BackendUnavailable, NotFound

_NEWNET = 0x40000000
TIMEOUT = 10.0


def connect(pid: int, port: int) -> socket.socket:
    """A connection to 127.0.0.1, or ::1, as the process sees it."""
    found: list[socket.socket | OSError] = []

    def inside() -> None:
        try:
            _enter(pid)
            found.append(_dial(port))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=inside, name="dibs-connect")
    thread.start()
    thread.join()
    return _outcome(found[0], port)


def connect_to(address: str, port: int) -> socket.socket:
    """The same by an address that is reachable from here."""
    try:
        return _ready(socket.create_connection((address, port), TIMEOUT))
    except OSError as error:
        return _outcome(error, port)


def _outcome(found: socket.socket | OSError, port: int) -> socket.socket:
    if isinstance(found, socket.socket):
        return found
    if found.errno == errno.ECONNREFUSED:
        raise NotFound("nothing listens there", field="port", value=str(port)) from found
    reason = f"the sandbox's port cannot be reached: {(found.strerror or str(found)).lower()}"
    raise BackendUnavailable(reason, field="port", value=str(port), code="ENTER_FAILED") from found


def _enter(pid: int) -> None:
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def _dial(port: int) -> socket.socket:
    try:
        return _ready(socket.create_connection(("127.0.0.1", port), TIMEOUT))
    except ConnectionRefusedError:
        if not socket.has_ipv6:
            raise
        try:
            return _ready(socket.create_connection(("::1", port), TIMEOUT))
        except OSError:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)) from None


def _ready(sock: socket.socket) -> socket.socket:
    sock.settimeout(None)
    return sock

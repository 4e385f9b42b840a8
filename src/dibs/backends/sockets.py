"""TCP sockets of this host, by the kernel's own tables: who listens on a port, and which processes hold a socket.

Backends use it to publish ports and to tell a sandbox's servers from others on a shared network; the gateway, to tell
who is at the other end of a loopback connection. What cannot be read is an error, not an empty table.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterable

import msgspec

from dibs.backends.port import PublishedPort
from dibs.errors import Problem

_LISTENS = "0A"
_WILDCARDS = frozenset(("0.0.0.0", "::"))  # noqa: S104  # nothing is bound to them here


class Row(msgspec.Struct, frozen=True):
    """One socket of a table. An IPv4 address stands as such, also in the table of IPv6."""

    address: str
    port: int
    peer: str
    peer_port: int
    listens: bool
    inode: int


def rows(pid: str | int = "self") -> list[Row]:
    """All TCP sockets of a process' network. OSError if it cannot be read."""
    found: list[Row] = []
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}") as file:
                next(file, "")
                lines = file.readlines()
        except FileNotFoundError:
            if table == "tcp6":
                continue  # a kernel without IPv6
            raise
        for line in lines:
            words = line.split()
            (address, port), (peer, peer_port) = _endpoint(words[1]), _endpoint(words[2])
            found.append(Row(address, port, peer, peer_port, words[3] == _LISTENS, int(words[9])))
    return found


def _endpoint(text: str) -> tuple[str, int]:
    address, _, port = text.partition(":")
    return _address(address), int(port, 16)


def _address(text: str) -> str:
    """The kernel writes each word of four bytes as a number of this machine."""
    data = bytes.fromhex(text)
    if sys.byteorder == "little":
        data = b"".join(data[i : i + 4][::-1] for i in range(0, len(data), 4))
    if len(data) == 16 and data[:12] == bytes(10) + b"\xff\xff":
        data = data[12:]
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def listeners(port: int, pid: str | int = "self", addresses: Iterable[str] = ("127.0.0.1", "::1")) -> list[Row]:
    """The processes that a connection to a port of these addresses would reach."""
    wanted = {*addresses, *_WILDCARDS}
    return [row for row in rows(pid) if row.listens and row.port == port and row.address in wanted]


def held_by(pid: int) -> set[int]:
    """The sockets that a process has open, by inode. OSError if it cannot be read."""
    found = set()
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def holders(inode: int) -> list[int]:
    """The processes that have a socket open, as far as they can be seen."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if inode in held_by(int(name)):
                    found.append(int(name))
            except OSError:
                continue  # gone, or of another user
    return found


def owned(port: int, processes: Iterable[int], pid: str | int = "self") -> bool:
    """Whether all who listen at a port of the host's loopback are among these processes. OSError if it is not known.

    On the host's network a port may belong to any process, the gateway included. Without a listener it is False.
    """
    found = {row.inode for row in listeners(port, pid)}
    mine: set[int] = set()
    for process in processes:
        try:
            mine |= held_by(process)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return bool(found) and found <= mine


def unpublishable(ports: Iterable[PublishedPort]) -> list[Problem]:
    """Ports of the host that cannot be had now, each with the reason. Nothing listens on them meanwhile."""
    problems = []
    for one in ports:
        family = socket.AF_INET6 if ":" in one.address else socket.AF_INET
        where = f"{one.address} port {one.host_port}"
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind((one.address, one.host_port))
                sock.listen(1)  # only then a second one is refused
            except OSError as error:
                problems.append(_refused(one, where, error))
    return problems


def _refused(one: PublishedPort, where: str, error: OSError) -> Problem:
    said = f"{one.address}:{one.host_port}:{one.port}"
    if error.errno == errno.EADDRINUSE:
        remedy = f"publish another port of the host; `ss -ltnp sport = :{one.host_port}` shows who has this one"
        return Problem("PORT_IN_USE", "publish", said, f"{where} of the host is in use", remedy)
    if error.errno == errno.EACCES:
        reason = f"you may not listen on {where} of the host: ports below 1024 are root's"
        return Problem("PORT_NOT_ALLOWED", "publish", said, reason, "publish a port from 1024 on")
    if error.errno == errno.EADDRNOTAVAIL:
        return Problem("PUBLISH_INVALID", "publish", said, f"the host has no address {one.address}", "name one it has")
    reason = f"{where} of the host cannot be listened on: {(error.strerror or str(error)).lower()}"
    return Problem("PUBLISH_INVALID", "publish", said, reason, "publish another port")

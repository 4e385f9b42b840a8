"""Who is at the other end of a loopback connection: a program of this host, or something in a sandbox or container.

`auth` asks, where loopback needs no token. An address proves nothing: whatever shares the host's network calls from
127.0.0.1 too, and would be taken for the gateway's own user. So the kernel is asked which processes hold the other end
of the connection. It counts as this host's only if there is one that can be seen, all of them are in the gateway's own
namespaces, and none is the gateway itself, which makes connections for others (`proxy`). Everything else needs a token;
that also holds for programs of other users, where the gateway does not run as root.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from typing import Any

from dibs.backends import proc, sockets

_SAME = ("user", "pid", "mount", "network")
_BELIEVED = 5.0  # seconds; a socket's number is not given again within that time
_KEPT = 1024


class Neighbours:
    """Remembers, for a moment, what was found of a connection."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int, int], tuple[float, bool]] = OrderedDict()

    async def ours(self, client: Any, server: Any) -> bool:
        """Whether a connection comes from a program of this host. `client`, `server`: its ends, as ASGI has them."""
        if not client or not server or server[1] is None:
            return False
        return await asyncio.to_thread(self._look, str(client[0]), int(client[1]), int(server[1]))

    def _look(self, address: str, port: int, server_port: int) -> bool:
        inode = _other_end(address, port, server_port)
        if inode is None:
            return False
        key, now = (address, port, inode), time.monotonic()
        at, verdict = self._known.get(key, (0.0, False))
        if now - at > _BELIEVED:
            verdict = _is_ours(inode)
            self._known[key] = (now, verdict)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return verdict


def _other_end(address: str, port: int, server_port: int) -> int | None:
    """The caller's socket; None if it is gone, or in another network."""
    address = address.removeprefix("::ffff:")
    found = [
        row.inode
        for row in sockets.rows()
        if (row.address, row.port, row.peer_port) == (address, port, server_port) and row.inode
    ]
    return found[0] if len(found) == 1 else None


def _is_ours(inode: int) -> bool:
    holders = sockets.holders(inode)
    try:
        same = all(proc.isolation(pid)[name] == "host" for pid in holders for name in _SAME)
    except OSError:
        return False  # gone, or not ours to look at
    return bool(holders) and same and os.getpid() not in holders

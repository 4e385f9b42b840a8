"""Connections to a port of a sandbox, through the API server's port-forward.

One WebSocket carries one TCP connection: channel 0 is its data, channel 1 says why it failed. A thread moves the bytes
between it and a socket pair, one end of which the caller gets.
"""

from __future__ import annotations

import select
import socket
import threading
from typing import TYPE_CHECKING

from dibs.backends.kubernetes.exec_stream import NoShell
from dibs.backends.kubernetes.files import Files
from dibs.backends.port import Handle
from dibs.errors import NotFound
from dibs.http import query
from dibs.kube.client import PODS

if TYPE_CHECKING:
    from dibs.kube.channels import Channels

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PIECE = 1 << 15
_IDLE = 30.0  # seconds between two looks whether the caller is gone
_LISTENS = "0A"


class Forwarding(Files):
    """`connect`."""

    def connect(self, handle: Handle, port: int) -> socket.socket:
        pod = self.running(handle)
        if self._listens(handle, port) is False:
            raise NotFound("nothing listens on this port", field="port", value=str(port), code="PORT_CLOSED")
        path = PODS.path(self.namespace, pod.metadata.name, "portforward") + query(ports=port)
        channels = self.cluster().channels(path, _PROTOCOL, f"create pods/portforward in {self.namespace}")
        ours, theirs = socket.socketpair()
        threading.Thread(target=_carry, args=(channels, theirs), name="dibs-port-forward", daemon=True).start()
        return ours

    def _listens(self, handle: Handle, port: int) -> bool | None:
        """Whether something listens there; None where the image has nothing to find out with."""
        try:
            code, out, _ = self.run(handle, ("cat", "/proc/net/tcp", "/proc/net/tcp6"))
        except NoShell:
            return None
        if code == 127:
            return None
        for line in out.decode("ascii", "replace").splitlines():
            words = line.split()
            if len(words) > 3 and words[3] == _LISTENS and words[1].rpartition(":")[2] == f"{port:04X}":
                return True
        return False


def _carry(channels: Channels, sock: socket.socket) -> None:
    """Until both directions have ended. Each channel begins with two bytes that repeat the port."""
    begun: set[int] = set()
    poller = select.poll()
    poller.register(channels.fileno(), select.POLLIN)
    poller.register(sock.fileno(), select.POLLIN)
    sending = True
    try:
        while True:
            for channel, data in channels.receive(0):
                if channel not in begun:
                    begun.add(channel)
                    data = data[2:]  # noqa: PLW2901
                if channel == _ERROR and data:
                    return
                if channel == _DATA and data:
                    sock.sendall(data)
            if channels.over:
                return
            for descriptor, _ in poller.poll(_IDLE * 1000):
                if descriptor == sock.fileno() and sending:
                    data = sock.recv(_PIECE)
                    if not data:
                        return  # this protocol cannot say that one direction has ended
                    channels.send(_DATA, data)
    except OSError:
        return  # one of the ends is gone; the other is closed below
    finally:
        channels.close()
        sock.close()

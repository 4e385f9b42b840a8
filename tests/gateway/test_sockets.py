"""How the gateway's sockets are set."""

from __future__ import annotations

import socket

from dibs.gateway.server import Listener, bind
from dibs.settings import GatewaySettings


def test_no_part_of_an_answer_waits_for_an_acknowledgement() -> None:
    [listening] = bind([Listener("tcp", "127.0.0.1:0", "127.0.0.1", 0)], GatewaySettings())
    listening.listen()
    with listening, socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

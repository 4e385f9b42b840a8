"""Where the ranks of a job meet: the port of the rendezvous.

In a network of their own it is always the usual one. On the host's network other jobs, and anything else, may have it:
then a free one is chosen, in the transaction that books the ranks, so that two jobs of a ledger never choose the same.
Every user has a ledger of their own, and a rank takes a while before it listens: so the driver of a job also holds a
name for its port, an abstract socket, which all processes in that network see.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from dibs.errors import BackendUnavailable
from dibs.ledger.jobs import JobBook
from dibs.ledger.store import Ledger
from dibs.train.names import PORT
from dibs.workloads.booking import Order
from dibs.workloads.jobs.model import Status
from dibs.workloads.networks import settle

USUAL = PORT
_TRIED = 500  # ports above the usual one
_STATUS = msgspec.json.Decoder(Status)


class Port:
    """A chosen port. `hold`: keeps it from other jobs of this host, until it is released or this process ends."""

    def __init__(self, number: int, hold: socket.socket | None = None) -> None:
        self.number = number
        self._hold = hold

    def release(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None


def choose(ledger: Ledger, job_id: str, orders: Sequence[Order]) -> Port:
    """The port of a job's next attempt. Part of the transaction that books its ranks."""
    first = orders[0]
    network, _ = settle(first.spec, first.backend, gateway=first.who.gateway)
    if network != "host":
        return Port(USUAL)
    taken = {_STATUS.decode(row.status).port for row in JobBook(ledger).jobs(live_only=True) if row.id != job_id}
    for number in range(USUAL, USUAL + _TRIED):
        if number in taken or (hold := _held(number)) is None:
            continue
        if _free(number):
            return Port(number, hold)
        hold.close()
    raise BackendUnavailable(
        f"none of the ports {USUAL} to {USUAL + _TRIED - 1} is free", field="port", value=str(USUAL),
        code="NO_FREE_PORT", remedy="end what listens there, or ask for a private network",
    )  # fmt: skip


def _held(port: int) -> socket.socket | None:
    """The name of the port, for this process; None if another one has it."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.bind(f"\0dibs-rendezvous-{port}")
    except OSError:
        one.close()
        return None
    return one


def _free(port: int) -> bool:
    """Whether nothing listens there, at any address."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - to see what is taken
        try:
            with socket.socket(family, socket.SOCK_STREAM) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind((address, port))
        except OSError as error:
            if family == socket.AF_INET6 and error.errno not in (13, 98):
                continue  # there is no IPv6 here
            return False
    return True

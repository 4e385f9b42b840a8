"""The rules of the queue: which tickets count, which are skipped, which are void.

`world` and `booking` use them for fairness, `waiter` to find what can be served, `reconcile` to drop tickets. A ticket
is void when its deadline has passed, or when its process is proved gone: no process reads its doorbell any more, in any
pid namespace. While its process does not answer, it is skipped and kept.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

from dibs.doorbell import ring
from dibs.ledger.rows import Ticket, decoded
from dibs.ledger.store import Ledger
from dibs.ledger.tickets import ANSWER, RETURN
from dibs.process import ProcessName, absent, boot_id, boottime
from dibs.request.model import Request

_CHECKED = 64  # how many tickets are checked at a time
_STRAY = 60.0  # seconds after which a doorbell without a ticket is removed


@lru_cache(maxsize=4096)
def request_of(data: bytes) -> Request:
    """What a ticket waits for. Equal ones are one object, so that each is decided only once."""
    return decoded(Request, data, "request of a ticket")


def in_front(
    tickets: Sequence[Ticket], ahead: str | None, held_back: Callable[[Ticket], bool] | None = None
) -> list[Ticket]:
    """Those that count in front of a ticket, or of a caller that has none.

    A ticket that cannot be served now keeps its place, but does not block the others: that of a gateway that is away,
    of a process that was called and does not answer (it was stopped), one whose time is over, and one that its
    tenant's quota does not allow now (`held_back`).
    """
    found: list[Ticket] = []
    now, boot = boottime(), boot_id()
    away: dict[ProcessName, bool] = {}
    for ticket in tickets:
        if ticket.id == ahead:
            break
        if passed_over(ticket, boot, now) or (held_back is not None and held_back(ticket)):
            continue
        if ticket.sandbox_id is not None:
            if ticket.owner not in away:
                away[ticket.owner] = absent(ticket.owner)
            if away[ticket.owner]:
                continue
        found.append(ticket)
    return found


def passed_over(ticket: Ticket, boot: str, now: float) -> bool:
    """Whether it was called and did not answer, or its time is over."""
    remaining = ticket.remaining(boot, now)
    return ticket.silent_for(now) > (RETURN if ticket.kept else ANSWER) or (remaining is not None and remaining <= 0)


def void(ticket: Ticket, boot: str, now: float) -> str:
    """Why the place of a process can never be taken up again; empty if it may be. A queued sandbox's is kept."""
    if ticket.sandbox_id is not None:
        return ""
    remaining = ticket.remaining(boot, now)
    if remaining is not None and remaining <= 0:
        return "its time was over"
    if deserted(ticket) and (not ticket.kept or ticket.silent_for(now) > ticket.kept):
        return "its owner is gone"
    return ""


def deserted(ticket: Ticket) -> bool:
    """Whether the process that waited with it is proved gone."""
    return bool(ticket.wake and ring(ticket.wake, quietly=True) is False) or absent(ticket.owner)


def drop_void(ledger: Ledger) -> None:
    """Give the places back that will never be taken up again, and clear away what is left of them.

    In a long queue the first ones are checked, and some of the others: it is done at every start, by very many at once
    if very many wait, so each is checked often enough.
    """
    now, boot = boottime(), boot_id()
    tickets = ledger.tickets()
    checked = tickets
    if len(tickets) > _CHECKED:
        start = int.from_bytes(os.urandom(4)) % len(tickets)
        checked = [*tickets[: _CHECKED // 2], *tickets[start : start + _CHECKED // 2]]
    gone = {ticket.id: why for ticket in checked if (why := void(ticket, boot, now))}
    # A kept place is called when its process is gone: the time in which its client must be back counts from then on.
    kept = [one.id for one in checked if one.kept and one.called_at is None and one.id not in gone and deserted(one)]
    if gone or kept:
        with ledger.writing():
            ledger.call(kept)
            for ticket, why in gone.items():
                ledger.dequeue(ticket, why)
    if checked is tickets:
        _clear_away(ledger, {ticket.id for ticket in tickets if ticket.id not in gone})


def _clear_away(ledger: Ledger, waiting: set[str]) -> None:
    """Doorbells of the dead. Those of the living are left alone: a ticket is written only after its bell is there."""
    folder = ledger.home.queue
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in set(names) - waiting:
        path = folder / name
        with suppress(OSError):  # another process was faster, or it is another user's
            found = path.lstat()
            fresh = abs(time.time() - found.st_mtime) < _STRAY
            if not fresh and stat.S_ISFIFO(found.st_mode) and ring(str(path), quietly=True) is False:
                path.unlink()


def first_processes(tickets: Sequence[Ticket]) -> list[str]:
    """The tickets of the two processes that look after the queue for all that wait in processes of their own."""
    now, boot = boottime(), boot_id()
    return [one.id for one in tickets if one.wake and not passed_over(one, boot, now)][:2]

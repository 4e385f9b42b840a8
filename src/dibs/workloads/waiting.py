"""Waiting in the ledger's queue: first come, first served, and it says what it waits for.

A waiter holds a ticket that names its process; if the process dies, the ticket is void. It looks again when another
process has changed the ledger, or when one of those who hold devices is gone. Who has no process that can be watched (a
container of an engine, or whoever uses a device without dibs) is asked after now and then. Whoever stands far back
looks less often. An engine that goes away meanwhile is waited for too. Time is measured on a clock that does not jump.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from dibs.errors import BackendUnavailable, Problem, Timeout
from dibs.ledger.rows import encode
from dibs.ledger.store import Ledger
from dibs.plan.explanation import Fate
from dibs.plan.planner import Refusal
from dibs.process import ProcessName, absent, myself, username
from dibs.request.durations import show_duration
from dibs.request.spec import SandboxSpec
from dibs.workloads.reconcile import handle_of, reconcile
from dibs.workloads.registry import Registry

_SHORTEST = 0.03  # seconds between two looks of the first in the queue
_LONGEST = 1.0
_ASK = 0.5  # seconds between two questions of the first in the queue; an engine takes some time for its answer


class WaitNews(msgspec.Struct, frozen=True):
    """Where a waiter stands."""

    place: int
    length: int
    waits_for: str
    waited: float
    limit: float


class Waiting:
    """One waiter. A context manager: the ticket is given back however it ends."""

    def __init__(
        self, ledger: Ledger, registry: Registry, spec: SandboxSpec, on_wait: Callable[[WaitNews], None] | None
    ) -> None:
        self.ticket: str | None = None
        self._ledger = ledger
        self._registry = registry
        self._spec = spec
        self._tell = on_wait
        self._began = self._asked = time.monotonic()

    def __enter__(self) -> Waiting:
        if self._spec.wait_seconds is not None and self._spec.resources.wants_devices:
            with self._ledger.writing():
                request = encode(self._spec.resources).encode()
                self.ticket = self._ledger.enqueue(myself(), os.getuid(), username(), request)
        return self

    def __exit__(self, *_: object) -> None:
        if self.ticket is not None:
            with self._ledger.writing():
                self._ledger.dequeue(self.ticket, "gave up")

    def served(self) -> None:
        """The devices are booked; in the same transaction the ticket goes."""
        if self.ticket is not None:
            self._ledger.dequeue(self.ticket, "served")
            self.ticket = None

    def wait(self, refusal: Refusal) -> bool:
        """Until it may be worth while to ask again. Raises Timeout, with the last explanation, when time is up.

        True if the devices themselves are to be looked at again, not only the ledger.
        """
        limit = self._spec.wait_seconds or 0.0
        place, length = self._place()
        seen = self._ledger.changes_by_others()
        watched, unwatched = self._holders()
        outside = any(wish.count(Fate.EXTERNAL) for wish in refusal.wishes)
        ask = _ASK * place if outside or unwatched else limit
        pause = min(_SHORTEST * place, _LONGEST)
        told = 0.0
        while True:
            waited = time.monotonic() - self._began
            if waited >= limit:
                raise self._late(refusal.waits_for, place, length)
            if self._tell is not None and waited - told >= 0.0:
                self._tell(WaitNews(place, length, refusal.waits_for, waited, limit))
                told = waited + 1.0
            time.sleep(min(pause, limit - waited))
            if any(absent(process) for process in watched):
                reconcile(self._ledger, self._registry)
                return False
            if time.monotonic() - self._asked >= ask:
                self._asked = time.monotonic()
                if reconcile(self._ledger, self._registry) or outside:
                    return True
            if self._ledger.changes_by_others() != seen:
                return False

    def outlast(self, error: BackendUnavailable) -> None:
        """The devices would be there, but the engine is away: until it may be worth while to ask it again."""
        limit = self._spec.wait_seconds or 0.0
        waited = time.monotonic() - self._began
        place, length = self._place()
        waits_for = error.problems[0].reason
        if waited >= limit:
            raise self._late(waits_for, place, length) from error
        if self._tell is not None:
            self._tell(WaitNews(place, length, waits_for, waited, limit))
        time.sleep(min(_ASK, limit - waited))

    def _place(self) -> tuple[int, int]:
        """Our place in the queue, and its length."""
        tickets = [ticket.id for ticket in self._ledger.tickets()]
        return tickets.index(self.ticket) + 1 if self.ticket in tickets else len(tickets) + 1, len(tickets)

    def _holders(self) -> tuple[list[ProcessName], bool]:
        """The processes whose end may free something, and whether something is held that has none."""
        watched: list[ProcessName] = []
        unwatched = False
        for row in self._ledger.sandboxes(live_only=True):
            keeper = handle_of(row).keeper
            if row.state == "creating" and not row.origin:
                watched.append(row.owner)
            elif keeper is not None:
                watched.append(keeper)
            elif row.state != "queued":
                unwatched = True
        return watched, unwatched

    def _late(self, waits_for: str, place: int, length: int) -> Timeout:
        reason = f"not served in that time: number {place} of {length} in the queue, waiting for: {waits_for}"
        limit = show_duration(self._spec.wait_seconds or 0.0)
        return Timeout(Problem("WAIT_TIMEOUT", "wait", limit, reason, "wait longer, or ask for less"))

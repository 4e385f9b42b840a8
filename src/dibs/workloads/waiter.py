"""Waiting in the ledger's queue: first come, first served, with the reason for the wait.

Used by `service` for processes and for foreground runs through a gateway. A waiter sleeps on the doorbell of its ticket
with no file or connection open. A process that releases devices rings the first two. The first to wake up finds every
ticket that can be served now and rings those; a ticket that does not answer in time (its process was stopped) is
skipped until it does.

A ring can be lost with its sender, and not every holder reports its end. So the first in the queue watches the holders'
processes and polls the ledger every second or two. The others poll less often the further back they are: a few times a
second in total, however many wait.

Holders without a process to watch (an engine's container, or use outside dibs) are polled. An engine that disappears
meanwhile is waited for. Timeouts use the monotonic clock.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from dibs.devices.model import Inventory
from dibs.doorbell import Doorbell, ring
from dibs.errors import BackendUnavailable, Conflict, Problem, StateError, Timeout
from dibs.ledger.rows import Ticket, encode
from dibs.ledger.store import Ledger, new_id
from dibs.ledger.tickets import ANSWER
from dibs.plan.decision import Refusal
from dibs.plan.explanation import Fate
from dibs.process import ProcessName, absent, boot_id, boottime, myself
from dibs.request.durations import show_duration
from dibs.request.spec import SandboxSpec
from dibs.sandbox import SandboxState
from dibs.workloads.booking import Booking
from dibs.workloads.identity import Identity
from dibs.workloads.queue import deserted, drop_void, first_processes, in_front, passed_over, void
from dibs.workloads.reconcile import handle_of, reconcile
from dibs.workloads.registry import Registry

_WATCH = 0.05  # seconds between two looks of the first at the processes that hold devices
_ASK = 0.5  # seconds between two questions after holders without a process; an engine takes some time for its answer
_COMPARE = 5.0  # seconds after which the first compares the ledger with what is there, whatever it has seen
_LOOK = 1.5  # seconds after which the first looks at the ledger in any case
_RARELY = 60.0  # seconds between glances when nothing rings
_FRONT = 8  # how many at the head of the queue a glance checks
_BREATH = 0.02, 0.2  # seconds between two looks, however often it rings; twice as long each time it rings in vain


class WaitNews(msgspec.Struct, frozen=True):
    """Where a waiter stands."""

    place: int
    length: int
    waits_for: str
    waited: float
    limit: float
    frees_in: float | None = None  # seconds until what is wanted is free at the latest; None if no TTL promises it


class Waiting:
    """One waiter. A context manager: the ticket is given back however it ends."""

    tell_often = False  # whether news are told every second, also far back in the queue

    def __init__(
        self,
        ledger: Ledger,
        registry: Registry,
        spec: SandboxSpec,
        who: Identity,
        on_wait: Callable[[WaitNews], None] | None,
        *,
        ticket: str = "",
        kept: float = 0.0,
    ) -> None:
        """`ticket`: the id of the place, which is resumed if there is one. `kept`: see `Ticket`."""
        self.ticket: str | None = None
        self._wanted_ticket = ticket
        self._kept = kept
        self._ledger = ledger
        self._registry = registry
        self._spec = spec
        self._who = who
        self._tell = on_wait
        self._bell: Doorbell | None = None
        self._limit = spec.wait_seconds or 0.0
        self._began = self._asked = boottime()
        self._deadline = self._began + self._limit
        self._waits_for = ""
        self._free_at: float | None = None  # by the clock on the wall, as TTLs are
        self._place, self._length = 1, 1
        self._first = False  # whether we look after the queue
        self._called: list[Ticket] = []  # waiters that must answer before we look again
        self._breath = _BREATH[0]
        self._again = False  # whether to look once more before the first sleep

    def __enter__(self) -> Waiting:
        if self._wanted_ticket:
            self._resume()
        return self

    def _resume(self) -> None:
        """Go on with a place whose process is gone, if it is ours."""
        with self._ledger.writing():
            found = self._ledger.ticket(self._wanted_ticket)
            if found is None:
                return
            same = (found.uid, found.tenant) == (self._who.uid, self._who.tenant)
            request = encode(self._spec.resources).encode()
            if not same or found.request != request or found.sandbox_id is not None or not deserted(found):
                raise Conflict(
                    "this place in the queue is in use", field="ticket", value=found.id, code="TICKET_IN_USE",
                    remedy="ask with another id, or without one",
                )  # fmt: skip
            with suppress(FileNotFoundError):
                (self._ledger.home.queue / found.id).unlink()
            self._bell = Doorbell(self._ledger.home.queue / found.id, group=self._ledger.home.shared)
            self._ledger.take_over(found.id, myself(), str(self._bell.path))
        self.ticket = found.id
        remaining = found.remaining(boot_id(), self._began)
        if remaining is not None:
            self._deadline = self._began + remaining
            self._began = self._deadline - self._limit

    def leaves(self) -> bool:
        """Whether the place is kept for a client that comes back, rather than given up."""
        return False

    def __exit__(self, *_: object) -> None:
        try:
            if self.ticket is not None and not self.leaves():
                with self._ledger.writing():
                    self._ledger.dequeue(self.ticket, "gave up")
        finally:
            if self._bell is not None:
                self._bell.close()

    # -- looking ------------------------------------------------------------------------------------------------------

    def accept(self) -> None:
        """Whether this ticket may still be served: it exists, and its time is not over."""
        if self.ticket is None:
            return
        if boottime() >= self._deadline:
            raise self._late()
        found = self._ledger.ticket(self.ticket)
        if found is None:
            ticket, self.ticket = self.ticket, None
            raise Conflict(
                "the place in the queue was removed", field="wait", value=ticket, code="TICKET_REMOVED",
                remedy="ask again; `dibs queue` shows who waits",
            )  # fmt: skip

    def served(self) -> None:
        """The devices are booked; in the same transaction the ticket goes."""
        if self.ticket is not None:
            self._ledger.dequeue(self.ticket, "served")
            self.ticket = None

    # -- after a look that found nothing ----------------------------------------------------------------------------

    def queue(self, booking: Booking, inventory: Inventory) -> None:
        """Not served now: take a place in the queue if we have none; else answer, and call those that can be served.

        Very many may come at once, and all of them write: what is to be written is found out before.
        """
        if self.ticket is None:
            with self._ledger.writing():
                ticket = self._join()
            self._place, self._length = self._ledger.place(ticket)
            self._first = self._place == 1
            self._again = self._place <= _FRONT  # something may have been freed before we were in the queue
            return
        tickets = self._ledger.tickets()
        mine = next((place for place, one in enumerate(tickets) if one.id == self.ticket), None)
        if mine is None:
            self.accept()  # says that it was removed
            return
        self._place, self._length = mine + 1, len(tickets)
        self._first = first_processes(tickets)[:1] == [self.ticket]
        servable = [one for one in booking.next_in_queue(self._who, inventory) if one.id != self.ticket]
        before = in_front(tickets, self.ticket)
        # The second in line checks that the first is alive, whether or not it can be served.
        first = before if len(before) == 1 else []
        self._called = [*servable, *(one for one in first if one.id not in {known.id for known in servable})]
        fresh = [one for one in self._called if one.called_at is None]
        if fresh or tickets[mine].called_at is not None:
            with self._ledger.writing():
                self._ledger.answer(self.ticket)
                self._ledger.call([one.id for one in fresh])
        for one in fresh:
            if one.wake:
                ring(one.wake)

    def _join(self) -> str:
        ticket = self._wanted_ticket or new_id("tk")
        home = self._ledger.home
        try:
            self._bell = Doorbell(home.queue / ticket, group=home.shared)
        except OSError as error:
            raise StateError(
                f"no place in the queue can be made: {error.strerror}", field="wait", value=str(home.queue / ticket),
                code="DISK_FULL" if error.errno == errno.ENOSPC else "STATE_FOLDER_UNUSABLE",
                remedy="check the state folder, or ask without --wait",
            ) from error  # fmt: skip
        self.ticket = self._ledger.enqueue(
            myself(), self._who.uid, self._who.name, encode(self._spec.resources).encode(), tenant=self._who.tenant,
            wait_seconds=max(0.0, self._deadline - boottime()), ticket=ticket, wake=str(self._bell.path),
            kept=self._kept,
        )  # fmt: skip
        return self.ticket

    # -- between two looks ------------------------------------------------------------------------------------------

    def wait(self, refusal: Refusal) -> bool:
        """Until it may be worth while to ask again. Raises Timeout, with the last explanation, when time is up.

        True if the devices themselves are to be looked at again, not only the ledger.
        """
        assert self._bell is not None
        self._waits_for = refusal.waits_for
        self._free_at = expected_end(refusal, self._ledger) if self._first and self._tell is not None else None
        if self._again:
            self._again = False
            return False
        watched, unwatched = self._holders() if self._first else ([], False)
        outside = self._first and any(selector.count(Fate.EXTERNAL) for selector in refusal.selectors)
        ask = self._limit if not self._first else _ASK if outside or unwatched else _COMPARE
        self._ledger.rest()
        look = self._next_look()
        told = 0.0
        while True:
            now = boottime()
            if now >= self._deadline:
                raise self._late()
            if now >= told:
                told = now + self._news(now)
            until = min(self._deadline, look, told, now + _WATCH if self._first else look)
            if self._bell.wait(until - now):
                self._catch_breath()
                return False
            now = boottime()
            if any(absent(process) for process in watched):
                reconcile(self._ledger, self._registry)
                return False
            if now - self._asked >= ask:
                self._asked = now
                if reconcile(self._ledger, self._registry) or outside:
                    return True
                self._ledger.rest()
            if now >= look:
                self._breath = _BREATH[0]
                if self._first or self._called or self._wanted():
                    drop_void(self._ledger)
                    return False
                look = self._next_look()

    def _next_look(self) -> float:
        """When to look if it does not ring: not all at once, and those far back rarely."""
        if self._first:
            pause = _LOOK
        elif self._called:
            pause = ANSWER + 0.5
        else:
            pause = min(2 * self._place**1.5, _RARELY)
        return boottime() + pause * (1.0 - os.urandom(1)[0] / 1024)  # up to a quarter less

    def _wanted(self) -> bool:
        """A glance: whether one in front of us is not there any more, or we are one of the two that look after the
        queue."""
        assert self.ticket is not None
        self._place, self._length = self._ledger.place(self.ticket)
        front = self._ledger.tickets(_FRONT)
        self._ledger.rest()
        now, boot = boottime(), boot_id()
        if self._place < 1 or self.ticket in first_processes(front):
            return True
        return any(passed_over(one, boot, now) or void(one, boot, now) for one in front)

    def _catch_breath(self) -> None:
        assert self._bell is not None
        time.sleep(max(0.0, min(self._breath, self._deadline - boottime())))
        self._breath = min(self._breath * 2, _BREATH[1])
        self._bell.drain()

    def _news(self, now: float) -> float:
        """Say where we stand; the seconds until it is said again."""
        if self._tell is not None:
            waited = now - self._began
            left = None if self._free_at is None else max(0.0, self._free_at - time.time())
            self._tell(WaitNews(self._place, self._length, self._waits_for, waited, self._limit, left))
        return 1.0 if self.tell_often else min(max(1.0, self._place / 8), _RARELY)

    def outlast(self, error: BackendUnavailable) -> None:
        """The devices would be there, but the engine is away: until it may be worth while to ask it again."""
        with self._ledger.writing():
            self.accept()
            if self.ticket is None:
                self._join()
        self._place, self._length = self._ledger.place(self.ticket or "")
        self._waits_for = error.problems[0].reason
        now = boottime()
        if now >= self._deadline:
            raise self._late() from error
        self._news(now)
        time.sleep(min(_ASK, self._deadline - now))

    def _holders(self) -> tuple[list[ProcessName], bool]:
        """The processes whose end may free something, and whether something is held that has none."""
        watched: list[ProcessName] = []
        unwatched = False
        for row in self._ledger.sandboxes(live_only=True):
            keeper = handle_of(row).keeper
            if row.state is SandboxState.CREATING and not row.origin and row.owner is not None:
                watched.append(row.owner)
            elif keeper is not None:
                watched.append(keeper)
            elif row.state is not SandboxState.QUEUED:
                unwatched = True
        return watched, unwatched

    def _late(self) -> Timeout:
        if self.ticket is not None:
            self._place, self._length = self._ledger.place(self.ticket)
        place = f"number {max(self._place, 1)} of {max(self._length, 1)} in the queue"
        reason = f"not served in that time: {place}, waiting for: {self._waits_for}"
        return Timeout(
            Problem("WAIT_TIMEOUT", "wait", show_duration(self._limit), reason, "wait longer, or ask for less")
        )


def expected_end(refusal: Refusal, ledger: Ledger) -> float | None:
    """When enough of what is wanted will be free at the latest, by the TTLs of its holders.

    None where no TTL says so, and where something else than a lease is in the way.
    """
    ends = {row.id: row.expires_at for row in ledger.sandboxes(live_only=True)}
    by_device: dict[str, float | None] = {}
    for lease in ledger.leases(live_only=True):
        for device in lease.devices:
            by_device[device.id] = ends.get(lease.sandbox_id)
    latest = 0.0
    for selector in refusal.selectors:
        busy = [by_device.get(verdict.device) for verdict in selector.verdicts if verdict.fate is Fate.BUSY]
        wanted = len(busy) + selector.count(Fate.FREE, Fate.CHOSEN) if selector.wanted is None else selector.wanted
        missing = wanted - selector.count(Fate.FREE, Fate.CHOSEN)
        known = sorted(end for end in busy if end is not None)
        if missing > len(known):
            return None
        latest = max(latest, known[missing - 1]) if missing > 0 else latest
    return latest or None

"""The workers of a gateway: deliver accepted sandboxes, serve the queue, free ended ones.

Each gateway starts one. Some threads deliver (`deliver`). One thread watches: it reconciles the ledger with the
backends, serves the queue in order, enforces TTLs, and takes over what a dead gateway had accepted. All state is in the
ledger, so any gateway can do any of it, however often one is killed.

A delivery that waits for a scheduler is parked without a thread and retried later. A cluster's deliveries may be served
by gateways on several hosts: each writes heartbeats, and a gateway whose heartbeat stops loses its deliveries to
another one. The fence of the row keeps the former owner from continuing.

Every thread has a `Workloads` of its own.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from dibs.backends.port import Exit, ExitReason, Handle, Phase, Status
from dibs.devices.model import Inventory
from dibs.errors import BackendUnavailable, Conflict, DibsError, InvalidRequest, NotFound, Problem, Timeout, Unsupported
from dibs.ledger.rows import Ticket
from dibs.plan.decision import Refusal
from dibs.process import ProcessName, absent, boot_id, boottime, myself, pid_namespace
from dibs.request.durations import show_duration
from dibs.sandbox import Pending, Sandbox, SandboxId, SandboxState, decoder
from dibs.workloads.admission import GATEWAY, Admitted
from dibs.workloads.booking import Booking, Order
from dibs.workloads.delivery import Delivery, Run, ledger_away, withdraw
from dibs.workloads.engine_events import EVERYTHING, Listening
from dibs.workloads.identity import Identity
from dibs.workloads.reconcile import finish, handle_of, reconcile
from dibs.workloads.rendering import Prepared
from dibs.workloads.service import Workloads
from dibs.workloads.volumes import check_volumes

if TYPE_CHECKING:
    from dibs.workloads.jobs.keepers import Drivers

_LOG = logging.getLogger("dibs.dispatcher")
_QUICK = 0.05  # seconds between two looks while a caller waits
_CALM = 0.25
_BREATH = 0.02  # between two looks in any case: however often something changes, looking is not all that is done
_THOROUGH = 2.0  # and between two looks at everything, whether anything seems to have changed or not
_BURST = 4  # callers at once that make a burst
_POLITE = 0.5  # seconds that a delivery lets a burst go first
_SERVED_AT_ONCE = 64  # those further back in the queue are looked at when it is their turn

_SILENT = 15.0  # seconds without a sign of life after which what a gateway of another host delivers is taken over
_FORGOTTEN = 86_400.0  # seconds after which a sign of life is of no use to anybody

Work = tuple[Order, Prepared | None]


class Dispatcher:
    """Threads. `start`, then `submit` what was admitted; `stop` leaves running sandboxes alone."""

    def __init__(
        self,
        make: Callable[[], Workloads],
        *,
        workers: int = 4,
        on_ready: Callable[[Sandbox, float], None] | None = None,
        in_flight: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_ready` is told what was delivered, and how long that took; `in_flight` says how many callers wait for an
        answer: those go first."""
        self._make = make
        self._work: queue.Queue[Work | None] = queue.Queue()
        self._in_hand: set[str] = set()  # what this gateway is making, or about to
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._on_ready = on_ready
        self._in_flight = in_flight
        self._clock = clock
        self._parked: dict[str, tuple[float, Run]] = {}  # what waits for another party, and until when it is left alone
        self._beats: dict[ProcessName, tuple[int | None, float]] = {}  # of the watcher alone: since when each is silent
        self._living: dict[tuple[str, str], Handle] = {}  # of the watcher alone
        self._jobs: Drivers | None = None  # made when there is a first job
        self._threads = [threading.Thread(target=self._watch, name="dibs-watch", daemon=True)]
        self._threads += [
            threading.Thread(target=self._deliver_all, name=f"dibs-deliver-{number}", daemon=True)
            for number in range(workers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """What is being delivered is finished; what is only accepted is left to the next gateway."""
        self._stopping.set()
        self._wake.set()
        for _ in self._threads:
            self._work.put(None)
        until = time.monotonic() + timeout
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))

    def nudge(self) -> None:
        """Something has changed: look now."""
        self._wake.set()

    def submit(self, admitted: Admitted) -> None:
        """Deliver what was booked, or serve the queue for what waits."""
        if admitted.work is None:
            self.nudge()
            return
        self._hand_out(*admitted.work)

    @property
    def backlog(self) -> int:
        """How many accepted sandboxes wait for a hand."""
        return self._work.qsize()

    def _hand_out(self, order: Order, prepared: Prepared | None) -> None:
        with self._lock:
            if order.sandbox_id in self._in_hand:
                return
            self._in_hand.add(order.sandbox_id)
        self._work.put((order, prepared))

    # -- delivering -------------------------------------------------------------------------------------------------

    def _deliver_all(self) -> None:
        with self._make() as workloads:
            while (work := self._work.get()) is not None:
                if self._stopping.is_set():
                    return
                order, prepared = work
                self._let_answers_go_first()
                delivered = self._deliver(workloads, order, prepared)
                if order.sandbox_id in self._parked:
                    continue  # it stays in our hands
                with self._lock:
                    self._in_hand.discard(order.sandbox_id)
                if not delivered:
                    self._wake.set()  # its devices may be free again

    def _let_answers_go_first(self) -> None:
        """A burst of requests is answered before what they asked for is made, and before all sandboxes are looked at:
        an answer takes a millisecond, a sandbox keeps a processor busy for a hundred. Not for long: what was
        accepted is not put off by new requests."""
        until = time.monotonic() + _POLITE
        while self._in_flight() > _BURST and time.monotonic() < until and not self._stopping.wait(_BREATH):
            pass

    def _deliver(self, workloads: Workloads, order: Order, prepared: Prepared | None) -> bool:
        """Whether it runs now. Never raises: this thread goes on with the next one."""
        parked = self._parked.pop(order.sandbox_id, None)
        try:
            delivery = Delivery(workloads.home, workloads.ledger, workloads.registry)
            row = workloads.ledger.sandbox(order.sandbox_id)
            if row.state is SandboxState.STOPPING and not row.created:
                self._let_go(workloads, order)
            if row.state is not SandboxState.CREATING or row.fence != order.fence:
                return False  # it is past this already: whatever runs there now is not ours to touch
            if parked is not None:
                run = parked[1]
            else:
                run = Run(order, prepared) if prepared is not None else self._resume(workloads, delivery, order, row)
            waits = delivery.advance(run)
            if waits is not None:
                self._parked[order.sandbox_id] = (time.monotonic() + waits.pause, run)
                return False
            if self._on_ready is not None:
                row = workloads.sandbox(order.sandbox_id)
                self._on_ready(row, time.time() - row.created_at)
        except DibsError as error:
            # The sandbox has its end and its reasons in the ledger; the caller reads them there. If it is the ledger
            # that is away, the row stays as it is, and is taken up again (`_take_over`).
            data = {"sandbox": order.sandbox_id, "code": error.code, "reason": str(error)}
            _LOG.warning("sandbox not delivered", extra={"data": data})
        except Exception:  # noqa: BLE001 - the trace is in the log
            _LOG.exception("sandbox not delivered", extra={"data": {"sandbox": order.sandbox_id}})
        else:
            return True
        return False

    def _drive_parked(self) -> None:
        """Hand out again what has waited long enough for another party."""
        now = time.monotonic()
        for sandbox_id, (due, run) in list(self._parked.items()):
            if due <= now:
                self._parked[sandbox_id] = (float("inf"), run)  # until a thread has it
                self._work.put((run.order, run.prepared))

    def _let_go(self, workloads: Workloads, order: Order) -> None:
        """It was removed before it was its turn."""
        ledger = workloads.ledger
        order.backend.discard(_unfinished(workloads, order))
        with ledger.writing():
            if ledger.sandbox(order.sandbox_id).state == "stopping":
                withdraw(ledger, order.sandbox_id)

    def _resume(self, workloads: Workloads, delivery: Delivery, order: Order, row: Sandbox) -> Run:
        """What another gateway had begun."""
        try:
            prepared = Booking(workloads.home, workloads.ledger).again(order, workloads.inventory())
            return delivery.resume(order, prepared, row)
        except BaseException as error:
            if not ledger_away(error):
                delivery.fail(order.sandbox_id, error)
            raise

    # -- watching ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with self._make() as workloads, closing(Listening(workloads.registry, self.nudge)) as listening:
            seen, looked = -1, 0.0
            while not self._stopping.is_set():
                waiting = False
                self._let_answers_go_first()
                try:
                    seen, looked = self._look(workloads, listening, seen, looked)
                    waiting = any(ticket.sandbox_id for ticket in workloads.ledger.tickets())
                except DibsError as error:
                    # The ledger or an engine is away. Nothing is decided meanwhile; it is asked again.
                    _LOG.warning("cannot look: %s", error, extra={"data": {"code": error.code}})
                except Exception:  # noqa: BLE001 - without this thread nothing is ever freed again
                    _LOG.exception("cannot look")
                self._drive_parked()
                self._stopping.wait(_BREATH)
                self._wake.wait(_QUICK if waiting or self._parked else _CALM)

    def _look(self, workloads: Workloads, listening: Listening, seen: int, looked: float) -> tuple[int, float]:
        """One look; cheap if nothing has happened. Everything is compared only now and then, or if something is gone:
        with hundreds of sandboxes that is work which answers would wait for."""
        ledger = workloads.ledger
        nudged = self._wake.is_set()
        self._wake.clear()
        changes, now = ledger.changes_by_others(), time.monotonic()
        thorough = now - looked >= _THOROUGH
        heard = listening.heard()
        gone = self._any_gone(workloads, listening)
        if thorough or gone or heard:
            all_of_it = thorough or gone or EVERYTHING in heard
            reconcile(ledger, workloads.registry, None if all_of_it else heard)
            nudged = True
        if nudged or changes != seen:
            self._serve_queue(workloads)
            self._tend_jobs(workloads)
        if thorough:
            if ledger.clusters:
                self._beat(workloads)
                self._follow_moves(workloads)
            self._take_over(workloads)
            self._forget_values(workloads)
            self._end_overdue(workloads)
            looked = now
        return changes, looked

    def _tend_jobs(self, workloads: Workloads) -> None:
        """Drive the training jobs that this gateway has accepted, or that a dead process has left behind."""
        if self._jobs is None:
            if not workloads.ledger.any_jobs():
                return
            from dibs.workloads.jobs.keepers import Drivers

            self._jobs = Drivers(self._make, self._stopping.is_set)
        self._jobs.tend(workloads)

    def _any_gone(self, workloads: Workloads, listening: Listening) -> bool:
        """Whether the keeper of a sandbox has ended; those without one are their engine's, which is listened to. What a
        handle says is read once, it does not change."""
        known: dict[tuple[str, str], Handle] = {}
        for key in workloads.ledger.living():
            known[key] = self._living.get(key) or decoder(Handle).decode(key[1])
        self._living = known
        listening.follow(handle.backend for handle in known.values())
        return any(handle.keeper is not None and absent(handle.keeper) for handle in known.values())

    def _serve_queue(self, workloads: Workloads) -> None:
        ledger = workloads.ledger
        mine = [ticket for ticket in ledger.tickets() if ticket.sandbox_id is not None and ticket.owner == myself()]
        if not mine:
            return
        if any(ticket.called_at is not None for ticket in mine):
            with ledger.writing():
                for ticket in mine:
                    ledger.answer(ticket.id)
        booking = Booking(workloads.home, ledger, workloads.registry.settings.tenants)
        inventory = workloads.inventory()
        for ticket in mine[:_SERVED_AT_ONCE]:
            row = _row_of(workloads, ticket)
            if row is None:
                continue
            order = _order(workloads, row)
            try:
                if order.images is not None:
                    order.images.inspect_image(order.spec.image)
                check_volumes(order.backend, order.spec, order.who.tenant)
                work, late = self._serve(workloads, booking, order, inventory, ticket)
            except BackendUnavailable as error:
                if ledger_away(error):
                    raise
                work, late = None, _late(order, ticket, error.problems[0].reason)  # the engine may come back in time
            except (InvalidRequest, Unsupported) as error:  # of its image: those behind it must not wait for that
                work, late = None, f"{error.code}: {error}"
            if work is not None:
                self._hand_out(*work)
            elif late:
                Delivery(workloads.home, ledger).fail(row.id, _gave_up(row, late))

    def _serve(
        self, workloads: Workloads, booking: Booking, order: Order, inventory: Inventory, ticket: Ticket
    ) -> tuple[Work | None, str]:
        """What is to be made now; or why there is no use in waiting any longer, empty if there is."""
        ledger = workloads.ledger
        with ledger.writing():
            row = _row_of(workloads, ticket)
            if row is None:
                return None, ""
            plans = booking.decide([order], inventory, ticket.id, waits=True)
            if isinstance(plans, Refusal):
                return None, _hopeless(plans) or _late(order, ticket, plans.waits_for)
            if late := _late(order, ticket, "its turn, which came too late"):
                return None, late
            try:
                [booked] = booking.lease(booking.enter([order], plans, inventory, queued=row))
            except BackendUnavailable:
                raise
            except DibsError as error:
                return None, f"{error.code}: {error}"
            return (order, booked.prepared), ""

    def _beat(self, workloads: Workloads) -> None:
        """Give a sign of life, and note since when the others have given none. Only whether their numbers change
        counts: clocks of two hosts do not agree."""
        ledger, now, before = workloads.ledger, self._clock(), self._beats
        with ledger.writing():
            ledger.beat(myself())
            ledger.forget_beats(time.time() - _FORGOTTEN)
        beats = ledger.beats()
        self._beats = {}
        for row in ledger.sandboxes(
            live_only=True, states=(SandboxState.QUEUED, SandboxState.CREATING, SandboxState.STOPPING)
        ):
            if row.domain and row.owner is not None:
                number = beats.get(row.owner)
                known = before.get(row.owner)
                self._beats[row.owner] = known if known is not None and known[0] == number else (number, now)

    def _gone(self, row: Sandbox) -> bool:
        """Whether its owner will not go on with it: it is proved gone, or it is on another host or in another
        container, has given no sign of life for long, and what it delivers can be delivered from here as well."""
        if row.owner is None or absent(row.owner):
            return True
        silent = row.owner in self._beats and self._clock() - self._beats[row.owner][1] > _SILENT
        visible = row.owner.boot == boot_id() and row.owner.pid_namespace == pid_namespace()
        return silent and bool(row.domain) and not visible

    def _take_over(self, workloads: Workloads) -> None:
        """Go on with what a gateway had accepted, and did not finish because it died."""
        ledger = workloads.ledger
        with self._lock:
            in_hand = set(self._in_hand)  # before the look: what is finished meanwhile is still read as unfinished
        for row in ledger.sandboxes(
            live_only=True, states=(SandboxState.QUEUED, SandboxState.CREATING, SandboxState.STOPPING)
        ):
            if row.id in in_hand or (row.state is SandboxState.STOPPING and row.created and not row.domain):
                continue
            if row.origin != GATEWAY:
                if row.state is SandboxState.CREATING and row.domain and self._gone(row):
                    self._void(workloads, row)
                continue
            if (
                row.state is SandboxState.CREATING
                and row.owner == myself()
                and time.time() - row.created_at < _THOROUGH
            ):
                continue  # just admitted: the process that did so is about to submit it
            if row.owner != myself():
                if not self._gone(row):
                    continue
                with ledger.writing():
                    if not ledger.adopt(row.id, row.owner, myself()):
                        continue  # another gateway was faster
                row = ledger.sandbox(row.id)  # noqa: PLW2901 - its fence has moved
            if row.state is SandboxState.STOPPING and row.created:
                workloads.stop(row.id, 0.0)
            elif row.state is not SandboxState.QUEUED:
                self._hand_out(_order(workloads, row), None)
            else:
                self._wake.set()

    def _void(self, workloads: Workloads, row: Sandbox) -> None:
        """What a `dibs` process of another host had begun, which has gone silent: it ends with its creator."""
        ledger = workloads.ledger
        with ledger.writing():
            if not ledger.adopt(row.id, row.owner, myself()):
                return
        workloads.backend_of(row).discard(handle_of(row))
        gone = Exit(1, ExitReason.NOT_STARTED, detail="its creator went away", at=time.time())
        finish(ledger, workloads.registry, ledger.sandbox(row.id), Status(Phase.ABSENT, gone))

    def _forget_values(self, workloads: Workloads) -> None:
        """A gateway died right after it had let the command go: what it kept for a second try goes now."""
        for row in workloads.ledger.sandboxes(live_only=True, states=(SandboxState.RUNNING, SandboxState.PAUSED)):
            if not row.accepted or row.id in self._in_hand or not (row.orphaned or row.owner == myself()):
                continue
            if workloads.backend_of(row).status(handle_of(row)).phase in (Phase.RUNNING, Phase.PAUSED):
                with workloads.ledger.writing():
                    workloads.ledger.forget_pending(row.id)

    def _follow_moves(self, workloads: Workloads) -> None:
        """A cluster may put what runs elsewhere."""
        for row in workloads.ledger.sandboxes(live_only=True, states=(SandboxState.RUNNING,)):
            if row.domain:
                try:
                    Delivery(workloads.home, workloads.ledger).follow(row, workloads.backend_of(row))
                except (NotFound, Conflict, BackendUnavailable) as error:
                    # It has ended, which the next comparison finds; or its cluster is away.
                    _LOG.info("not followed: %s", error, extra={"data": {"sandbox": row.id}})

    def _end_overdue(self, workloads: Workloads) -> None:
        """A sandbox ends itself when its time is over. If the process responsible for that was killed, we end it."""
        for row in workloads.ledger.sandboxes(live_only=True, states=(SandboxState.RUNNING, SandboxState.PAUSED)):
            if row.expires_at is not None and time.time() > row.expires_at + _THOROUGH:
                workloads.expire(row.id)


def _unfinished(workloads: Workloads, order: Order) -> Handle:
    return Handle(order.backend.name, order.sandbox_id, str(workloads.home.sandbox(order.sandbox_id)))


def _row_of(workloads: Workloads, ticket: Ticket) -> Sandbox | None:
    """None if it does not wait any longer."""
    try:
        row = workloads.ledger.sandbox(ticket.sandbox_id or "")
    except NotFound:
        return None
    return row if row.state is SandboxState.QUEUED else None


def _order(workloads: Workloads, row: Sandbox) -> Order:
    """What was accepted, from the ledger."""
    pending = row.pending or Pending()
    annotations: Mapping[str, str] = row.annotations
    return Order(
        spec=pending.spec,
        backend=workloads.backend_of(row),
        sandbox_id=SandboxId(row.id),
        who=Identity(name=row.username, uid=row.uid, tenant=row.tenant, remote=pending.remote),
        base_env=pending.base_env,
        origin=GATEWAY,
        annotations=annotations,
        fence=row.fence,
    )


def _hopeless(refusal: Refusal) -> str:
    """Why waiting does not help; empty if it may."""
    return "" if refusal.waitable else "\n".join(str(problem) for problem in refusal.problems)


def _late(order: Order, ticket: Ticket, waits_for: str) -> str:
    """Why it need not wait any longer; empty if it may."""
    limit = order.spec.wait_seconds or 0.0
    remaining = ticket.remaining(boot_id(), boottime())
    if remaining is None:  # it has waited since before the machine was restarted: only the wall clock knows how long
        remaining = ticket.created_at + limit - time.time()
    return "" if remaining > 0 else f"not served within {show_duration(limit)}, waiting for: {waits_for}"


def _gave_up(row: Sandbox, reason: str) -> Timeout:
    return Timeout(Problem("WAIT_TIMEOUT", "wait", row.name, reason, "wait longer, or ask for less"))

"""The delivery of a booked sandbox, step by step. The guarantees of dibs rest on the order of these steps.

`service` drives it for a `dibs` process, `dispatcher` for a gateway, `groups` for several sandboxes at once.

    booked     the sandbox and its lease are in the ledger
    created    the sandbox exists; where the backend can hold the command back, it does not run yet
    placed     the devices are known: immediately if this ledger booked them, later if a scheduler decides
    proved     the sandbox was observed from outside and its receipt written. A difference ends it with
               DELIVERY_MISMATCH; a device that a foreign container took meanwhile ends it with DEVICES_BUSY
    started    only now the command runs. An engine cannot hold it back: there the handle is written before the start,
               and the observation follows immediately.

Progress is stored in the ledger. A step that must wait for a scheduler raises `NotYet` and occupies no thread: any
process that serves the ledger tries it again later. A crash between two steps leaves a booking that reconciliation
proves void, a sandbox that it finds again, or a delivery that is resumed. A delivery can be cancelled before each step:
a sandbox that is no longer `creating`, or whose `fence` has moved on to another process, is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from dibs.backends.port import (
    Backend,
    Exit,
    ExitReason,
    Expectation,
    Handle,
    Observation,
    Phase,
    PlacedDevice,
    Placement,
    Scheduler,
    Session,
    scheduler_of,
)
from dibs.devices.model import Device
from dibs.errors import BackendUnavailable, Busy, Conflict, DeliveryMismatch, DibsError, NoMatch, Problem, Timeout
from dibs.home import Home
from dibs.ledger.rows import LeasedDevice
from dibs.ledger.store import Ledger
from dibs.process import myself
from dibs.receipt import Receipt
from dibs.request.durations import show_duration
from dibs.sandbox import Sandbox, SandboxId, SandboxState, Step
from dibs.workloads import orphans
from dibs.workloads.booking import Order
from dibs.workloads.quotas import least_gpus
from dibs.workloads.receipt import differences, moved, not_started, write_receipt
from dibs.workloads.registry import Registry
from dibs.workloads.rendering import Prepared
from dibs.workloads.world import taken_meanwhile

_AT_ONCE = 8  # sandboxes that a backend works on at the same time
_TRIES = 3  # to set up a sandbox on a host that changes meanwhile
_ENDING = 10.0  # seconds in which a workload that is ending has ended, and its backend says so: a kubelet may take some
_PAUSE = 0.02, 2.0  # seconds between two questions to a scheduler: at first, and in the end
_AWAY = ("CLUSTER_UNREACHABLE", "CLUSTER_OVERLOADED")  # codes of a cluster that may be back in a moment


class NotYet(msgspec.Struct, frozen=True):
    """A step waits for another party, and why. Drive it again after the pause."""

    reason: str
    pause: float


class Run:
    """A delivery that this process drives. What another one needs to go on with it is in the ledger."""

    def __init__(
        self,
        order: Order,
        prepared: Prepared,
        attach: Callable[[Handle], Session] | None = None,
        *,
        step: Step = Step.BOOKED,
        handle: Handle | None = None,
        wave: int = 0,
    ) -> None:
        """`attach`: how a foreground session is opened, if not by the backend; only where the command is held. `wave`:
        of several, those with a higher number are started after the others."""
        self.order = order
        self.prepared = prepared
        self.step = step
        self.handle = handle
        self.session: Session | None = None
        self.receipt: Receipt | None = None
        self.observed: Observation | None = None
        self.wave = wave
        self.ahead: BaseException | Literal["todo", "done"] = "todo"  # the work of the next step, if done in a thread
        self._attach = attach
        self.tries = _TRIES
        self.given_up = False
        self.started = False  # its scheduler says so
        self.pause = _PAUSE[0]

    @property
    def backend(self) -> Backend:
        return self.order.backend

    def open(self, handle: Handle) -> None:
        """In the foreground: attached before the start, so that no output is missed."""
        if self.prepared.workload.foreground and self.session is None:
            self.session = (self._attach or self.backend.attach)(handle)


class Delivery:
    """The steps, on one open ledger."""

    def __init__(self, home: Home, ledger: Ledger, registry: Registry | None = None) -> None:
        """`registry`: with the engines whose containers may take a device between the plan and the start."""
        self._home = home
        self._ledger = ledger
        self._registry = registry

    def deliver(
        self, order: Order, prepared: Prepared, attach: Callable[[Handle], Session] | None = None
    ) -> Session | None:
        """Drive it to the end in this thread; the session, in the foreground."""
        run = Run(order, prepared, attach)
        self.deliver_all([run])
        return run.session

    def deliver_all(self, runs: Sequence[Run]) -> None:
        """Drive several to the end, all or none: create all, prove all, start all. Backends work on several at once;
        the ledger is written in this thread. If one fails, what was done of the others is undone too, and its reason is
        raised."""
        phases: tuple[Step, ...] = (Step.PLACED, Step.PROVED, Step.STARTED) if len(runs) > 1 else (Step.STARTED,)
        try:
            for until in phases:
                waiting = list(runs)
                for several in _at_once(runs, until):
                    self._work_ahead(several)
                    if any(isinstance(run.ahead, BaseException) for run in several):
                        break  # those after them are not begun; the reason is raised in its step
                while waiting:
                    pauses = {run: waits.pause for run in waiting if (waits := self.advance(run, until)) is not None}
                    waiting = list(pauses)
                    if waiting:
                        with self._ledger.writing():
                            self._ledger.beat(myself())
                        self._ledger.rest()
                        self._until_something_changes(waiting, min(pauses.values()))
        except BaseException as error:
            for run in runs:
                self.give_up(run, error)
            raise

    def _work_ahead(self, runs: Sequence[Run]) -> None:
        """What backends have to do for the next step of each, side by side. It touches no ledger; what came of it is
        recorded when the step is taken."""
        works = {Step.BOOKED: self._make, Step.PLACED: self._show, Step.PROVED: self._let_run}

        def work(run: Run) -> None:
            try:
                works[run.step](run)
                run.ahead = "done"
            except BaseException as error:  # noqa: BLE001 - raised in its step
                run.ahead = error

        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(runs), _AT_ONCE)) as threads:
            list(threads.map(work, runs))

    def _work(self, run: Run, work: Callable[[Run], None]) -> None:
        """The work of a step: now, unless it was done ahead."""
        came, run.ahead = run.ahead, "todo"
        if isinstance(came, BaseException):
            raise came
        if came == "todo":
            work(run)

    def _until_something_changes(self, waiting: Sequence[Run], pause: float) -> None:
        run = waiting[0]
        scheduler = run.order.scheduler
        if len(waiting) > 1 or scheduler is None or run.handle is None:
            time.sleep(pause)
            return
        try:
            scheduler.await_change(run.handle, pause)
        except BackendUnavailable:
            time.sleep(pause)

    def resume(self, order: Order, prepared: Prepared, row: Sandbox) -> Run:
        """What another process had begun. A scheduler still has it; anywhere else nothing of it may be left."""
        handle = row.handle if order.scheduler is not None else None
        if handle is not None and order.backend.status(handle).phase is not Phase.ABSENT:
            return Run(order, prepared, step=Step.CREATED, handle=handle)
        order.backend.discard(Handle(order.backend.name, order.sandbox_id, str(self._home.sandbox(order.sandbox_id))))
        return Run(order, prepared)

    def advance(self, run: Run, until: Step = Step.STARTED) -> NotYet | None:
        """Go as far as it goes without waiting; None when it has come to `until`. If a step fails, what was done is
        undone, and the reason is raised."""
        steps: dict[Step, Callable[[Run], NotYet | None]] = {
            Step.BOOKED: self._create,
            Step.CREATED: self._place,
            Step.PLACED: self._prove,
            Step.PROVED: self._start,
        }
        try:
            while run.step not in (until, Step.STARTED):
                try:
                    waits = steps[run.step](run)
                except BackendUnavailable as error:
                    waits = self._away(run, error)
                if waits is not None:
                    return waits
        except BaseException as error:
            self.give_up(run, error)
            raise
        return None

    def give_up(self, run: Run, error: BaseException) -> None:
        """Undo what was done of a delivery that cannot go on."""
        if run.given_up:
            return
        run.given_up = True
        if run.session is not None:
            run.session.close()
        self.abandon(run.order, run.handle, error)

    # -- the steps --------------------------------------------------------------------------------------------------

    def _make(self, run: Run) -> None:
        workload, images = run.prepared.workload, run.order.images
        # One form: it is sent, recorded, and compared with what is seen.
        final = run.prepared.realisation
        if images is not None:
            final = images.finalise(workload, final)
            run.prepared = msgspec.structs.replace(run.prepared, realisation=final)
        run.handle = run.backend.create(workload, final, run.prepared.folder)

    def _create(self, run: Run) -> None:
        order = run.order
        try:
            self._work(run, self._make)
        except BackendUnavailable:
            if not self._again(run):
                raise
            return
        assert run.handle is not None  # it was made
        if not run.backend.holds:
            with self._ledger.writing():
                self._ledger.record_handle(order.sandbox_id, run.handle, order.fence)
        run.step = Step.CREATED

    def _place(self, run: Run) -> NotYet | None:
        scheduler, wanted = run.order.scheduler, run.prepared.workload.delegated
        if scheduler is None:
            run.step = Step.PLACED
            return None
        assert run.handle is not None  # it was created
        run.open(run.handle)  # it may run, and end, at any time from now on
        try:
            found = scheduler.placement(run.handle)
        except BackendUnavailable as error:
            found = Placement("pending", error.problems[0].reason)  # the scheduler has it, reachable from here or not
        if found.state == "refused":
            remedy = "ask for something that the cluster has; its scheduler will not try this again"
            raise NoMatch(Problem("PLACEMENT_REFUSED", *_asked(run), found.reason, remedy))
        if found.state == "pending":
            return self._pending(run, found)
        count = 0 if wanted is None else least_gpus(wanted)
        # One that has ended may have given its devices back already.
        given = len(found.devices) + len(found.unreported)
        if given != count and run.backend.status(run.handle).phase is not Phase.EXITED:
            reason = f"the scheduler has given {given} devices on {found.node}"
            raise DeliveryMismatch(Problem("DELIVERY_MISMATCH", *_asked(run), reason, "ask its administrator"))
        run.prepared = placed(run.prepared, scheduler, found)
        run.started = found.started
        try:
            self._bind(run, found)
        except Busy:
            # A scheduler gives a device away again as soon as its pod has ended; the ledger may not know that yet.
            if not self._holders_are_gone(run, scheduler, found):
                raise
            self._bind(run, found)
        run.step = Step.PLACED
        return None

    def _bind(self, run: Run, found: Placement) -> None:
        with self._ledger.writing():
            self._ledger.tell_placement(run.order.sandbox_id, Step.PLACED, "", run.order.fence)
            self._ledger.bind(run.order.sandbox_id, found.node, tuple(map(_leased, found.devices)))

    def _holders_are_gone(self, run: Run, scheduler: Scheduler, found: Placement) -> bool:
        """Compare the holders of these devices with what is there; whether one of them has ended."""
        from dibs.workloads.reconcile import reconcile

        if self._registry is None:
            return False
        given = {one.id for one in found.devices}
        holders = {
            lease.sandbox_id
            for lease in self._ledger.leases(live_only=True)
            if lease.domain == scheduler.domain and given & {device.id for device in lease.devices}
        }
        holders.discard(run.order.sandbox_id)
        return bool(holders) and bool(reconcile(self._ledger, self._registry, holders))

    def _away(self, run: Run, error: BackendUnavailable) -> NotYet:
        """A cluster that cannot be reached has lost nothing, and its steps can be taken again: what a gateway has
        accepted, or what is with the scheduler already, waits for it. Anything else is raised."""
        accepted = run.handle is not None or bool(run.order.origin)
        if run.order.scheduler is None or error.code not in _AWAY or not accepted:
            raise error
        return self._pending(run, Placement("pending", error.problems[0].reason))

    def _pending(self, run: Run, found: Placement) -> NotYet:
        order = run.order
        with self._ledger.writing():
            self._ledger.tell_placement(order.sandbox_id, run.step, found.reason, order.fence)
        asked = order.spec.wait_seconds
        scheduler = run.order.scheduler
        assert scheduler is not None  # it has said why
        limit = scheduler.patience if asked is None else asked
        if time.time() - self._ledger.sandbox(order.sandbox_id).created_at >= limit:
            reason = f"not placed within {show_duration(limit)}, the scheduler says: {found.reason}"
            raise Timeout(Problem("WAIT_TIMEOUT", "wait", order.spec.name, reason, "wait longer, or ask for less"))
        run.pause = min(run.pause * 2, _PAUSE[1])
        return NotYet(found.reason, run.pause)

    def _show(self, run: Run) -> None:
        backend, handle = run.backend, run.handle
        assert handle is not None  # it was created
        if not backend.holds:
            run.open(handle)
            # One that was resumed may have been started.
            if run.order.scheduler is None or (not run.started and backend.status(handle).phase is Phase.HELD):
                backend.start(handle)
        run.observed = _look(backend, handle, run.prepared.realisation.expectation)

    def _prove(self, run: Run) -> None:
        order, handle = run.order, run.handle
        assert handle is not None  # it was created
        try:
            self._work(run, self._show)
            assert run.observed is not None  # it was looked at
            run.receipt = self._written(order, run.prepared, run.observed)
            if order.scheduler is None:
                self._check_not_taken(order, run.prepared, handle)
        except (BackendUnavailable, DeliveryMismatch):
            if not self._again(run):
                raise
            return
        with self._ledger.writing():
            ttl = run.prepared.workload.ttl_seconds
            self._ledger.attach(
                order.sandbox_id,
                handle=handle,
                receipt=run.receipt,
                expires_at=None if ttl is None else time.time() + ttl,
                fence=order.fence,
            )
        run.step = Step.PROVED

    def _check_not_taken(self, order: Order, prepared: Prepared, handle: Handle) -> None:
        """Raises Busy if a container that dibs did not start has taken a device since it was planned. Where the command
        is held back it has not run; what an engine has started is ended."""
        if self._registry is None or not prepared.devices:
            return
        problems = taken_meanwhile(
            self._registry, self._ledger, prepared.devices, order.who, handle, simulated=prepared.simulated
        )
        if problems:
            raise Busy(problems)

    def _again(self, run: Run) -> bool:
        """The host may have changed under it, say by a mount: then it is made anew, while it is held back."""
        run.tries -= 1
        images = run.order.images
        changes = images is not None and images.outdated(run.prepared.realisation)
        if not (run.tries and run.backend.holds and changes):
            return False
        if run.handle is not None:
            run.backend.stop(run.handle, 0.0)
            run.backend.delete(run.handle)
            run.handle = None
        run.step = Step.BOOKED
        return True

    def _let_run(self, run: Run) -> None:
        assert run.handle is not None  # it was created
        if run.backend.holds:
            run.open(run.handle)
            run.backend.start(run.handle)

    def _start(self, run: Run) -> None:
        """Let the command run, where it was held back. If that fails, its receipt says so."""
        order = run.order
        assert run.handle is not None  # it was created
        if run.backend.holds:
            try:
                self._work(run, self._let_run)
            except DibsError as error:
                assert run.receipt is not None  # it was proved
                with suppress(DibsError), self._ledger.writing():  # why it did not start matters more than the books
                    self._ledger.keep_receipt(order.sandbox_id, not_started(run.receipt, error.problems))
                raise
        run.step, run.ahead = Step.STARTED, "todo"
        if order.origin:
            # It runs: that the ledger is away now ends nothing. A gateway forgets the values later.
            with suppress(BackendUnavailable), self._ledger.writing():
                self._ledger.forget_pending(order.sandbox_id)

    def _written(self, order: Order, prepared: Prepared, observed: Observation) -> Receipt:
        """The receipt; raises DeliveryMismatch, with the receipt kept, if not everything is as planned.

        What was seen counts, even if the command has ended since.
        """
        realisation = prepared.realisation
        problems = differences(realisation.expectation, observed)
        receipt = write_receipt(
            order.spec, prepared.workload, prepared.devices, realisation, observed, problems, at=time.time(),
            simulated=prepared.simulated, notes=prepared.notes, told_env=prepared.told_env, shares=prepared.shares,
        )  # fmt: skip
        if problems:
            with self._ledger.writing():
                self._ledger.keep_receipt(order.sandbox_id, receipt)
            started = "" if order.backend.holds else "its command had been started, and was ended; "
            remedy = f"{started}run `dibs doctor`" if started else "the command was not started; run `dibs doctor`"
            raise DeliveryMismatch([msgspec.structs.replace(problem, remedy=remedy) for problem in problems])
        return receipt

    # -- afterwards -------------------------------------------------------------------------------------------------

    def follow(self, row: Sandbox, backend: Backend) -> None:
        """See where a running sandbox of a cluster is. One that was moved is booked and looked at where it is now; if
        it does not have there what it was promised, it ends."""
        scheduler = scheduler_of(backend)
        handle, receipt = row.handle, row.receipt
        if scheduler is None or handle is None or receipt is None:
            return
        found = scheduler.placement(handle)
        devices = tuple(map(_leased, found.devices))
        leases = self._ledger.leases(sandbox_id=row.id)
        if found.state != "bound" or all((one.node, one.devices) == (found.node, devices) for one in leases):
            return
        seen, nodes = backend.observe(handle).nodes, scheduler.nodes(found)
        expected = Expectation(nodes=nodes) if nodes is not None else Expectation(open=("nodes",))
        problems = differences(expected, Observation(nodes=seen))
        if len(found.devices) != sum(len(one.devices) for one in leases) or problems:
            reason = f"{len(seen)} devices are seen on {found.node}, where its cluster has moved it"
            error = DeliveryMismatch(problems or [Problem("DELIVERY_MISMATCH", "gpu", row.name, reason)])
            backend.stop(handle, 0.0)
            self.fail(row.id, error)
            return
        note = f"moved to {found.node} by the scheduler of {scheduler.domain}"
        with self._ledger.writing():
            self._ledger.bind(row.id, found.node, devices)
            self._ledger.keep_receipt(row.id, moved(receipt, _devices(scheduler, found), seen, note))

    # -- undoing ----------------------------------------------------------------------------------------------------

    def abandon(self, order: Order, handle: Handle | None, error: BaseException) -> None:
        """Undo a creation that failed. The booking goes only when the workload is proved gone.

        If that cannot be done now, the next reconciliation does it: what is told is why there is no sandbox.
        """
        try:
            self._undo(order, handle, error)
        except DibsError as second:
            error.add_note(f"and it could not be cleaned up yet: {second}")
            with suppress(DibsError), self._ledger.writing():  # it may be the ledger itself that cannot be reached
                self._ledger.note("sandbox.leftover", sandbox_id=order.sandbox_id, detail=str(second))

    def _undo(self, order: Order, handle: Handle | None, error: BaseException) -> None:
        backend = order.backend
        if ledger_away(error):
            if order.origin and order.scheduler is not None:
                return  # the scheduler has it, and it is resumed when the ledger is back
        elif self._ledger.sandbox(order.sandbox_id).fence != order.fence:
            return  # another process delivers it by now, and what is there is its
        if handle is not None:
            backend.stop(handle, 0.0)
            status = backend.status(handle)
            if status.phase not in (Phase.EXITED, Phase.ABSENT):
                return  # not proved: the next reconciliation frees it
        else:
            backend.discard(Handle(backend.name, order.sandbox_id, str(self._home.sandbox(order.sandbox_id))))
        ends = not (order.origin and ledger_away(error))  # else it was accepted, and is made when the ledger is back
        if ends and isinstance(error, BackendUnavailable):
            self._expect(order, handle)  # the engine may have been killed while it did what it was asked for
        try:
            if handle is not None:
                backend.delete(handle)  # before the end is told: `remove` waits for that, and then deletes as well
        except BackendUnavailable:
            if ends:
                # No process of it is left, but its engine is away and still has a container that could be started. The
                # note comes first: without it the container would be left to itself, and so the sandbox is not ended.
                ends = False
                self._expect(order, handle)
                ends = True
            raise
        finally:
            if ends:
                self.fail(order.sandbox_id, error)

    def _expect(self, order: Order, handle: Handle | None) -> None:
        backend, folder = order.backend, str(self._home.sandbox(order.sandbox_id))
        if not backend.holds and order.scheduler is None:
            orphans.expect(self._home, handle or Handle(backend.name, order.sandbox_id, folder))

    def fail(self, sandbox_id: SandboxId, error: BaseException) -> None:
        """Record why there is no sandbox, and free what it had."""
        if self._ledger.sandbox(sandbox_id).state is SandboxState.STOPPING:
            with self._ledger.writing():
                withdraw(self._ledger, sandbox_id)
            return
        code = error.code if isinstance(error, DibsError) else type(error).__name__
        detail = f"{code}: {error}"
        result = Exit(1, ExitReason.NOT_STARTED, detail=detail, at=time.time())
        with self._ledger.writing():
            self._ledger.end(sandbox_id, SandboxState.FAILED, exit=result, reason=detail.splitlines()[0])


def _at_once(runs: Sequence[Run], until: Step) -> list[list[Run]]:
    """Which of several are worked on at once, and in which order the others follow."""
    if len(runs) == 1 or any(run.order.scheduler is not None for run in runs):
        return []
    if until is Step.PLACED:
        first = runs[0].prepared.workload
        if first.peers is not None and first.network != "host":
            return [list(runs[:1]), list(runs[1:])]  # the others join the network that comes with the first
        return [list(runs)]
    waves = sorted({run.wave for run in runs})
    return [[run for run in runs if run.wave == wave] for wave in waves]


def _look(backend: Backend, handle: Handle, expected: Expectation) -> Observation:
    """What is seen of a workload: nothing, if its command was not held and ended before it could be looked at."""
    try:
        return backend.observe(handle)
    except Conflict:
        if backend.holds or backend.wait(handle, _ENDING).phase is not Phase.EXITED:
            raise
        return Observation(unseen=("nodes", "env", "mounts", "limits", "isolation", *expected.process))


def _asked(run: Run) -> tuple[str, str]:
    """The field that a scheduler has decided on, and its value."""
    wanted = run.prepared.workload.delegated
    return wanted.written() if wanted is not None else ("sandbox", run.order.spec.name)


def ledger_away(error: BaseException) -> bool:
    """Whether this says nothing of the sandbox, only that the books cannot be reached now."""
    return isinstance(error, BackendUnavailable) and error.code == "LEDGER_UNREACHABLE"


def withdraw(ledger: Ledger, sandbox_id: SandboxId) -> bool:
    """A sandbox that was removed before it ran, and of which nothing is left; part of the caller's transaction. False
    if its end was recorded before."""
    result = Exit(0, ExitReason.STOPPED, detail="removed before it ran", at=time.time())
    return ledger.end(sandbox_id, SandboxState.EXITED, exit=result, reason=result.detail)


def placed(prepared: Prepared, scheduler: Scheduler, placement: Placement) -> Prepared:
    """The same, now that the scheduler has decided: with its devices, and with what must be seen of them."""
    realisation, nodes = prepared.realisation, scheduler.nodes(placement)
    expectation = msgspec.structs.replace(
        realisation.expectation,
        nodes=nodes or (),
        open=realisation.expectation.open if nodes is not None or not (placement.devices or placement.unreported)
        else (*realisation.expectation.open, "nodes"),
    )  # fmt: skip
    return msgspec.structs.replace(
        prepared,
        realisation=msgspec.structs.replace(realisation, expectation=expectation),
        devices=_devices(scheduler, placement),
        notes=(
            *prepared.notes,
            f"placed on {placement.node} by the scheduler of {scheduler.domain}",
            *(
                f"not reported by {placement.node}: which {placement.unreported.count(name)} of {name} it has given"
                for name in dict.fromkeys(placement.unreported)
            ),
        ),
    )  # fmt: skip


def _devices(scheduler: Scheduler, placement: Placement) -> tuple[Device, ...]:
    return tuple(
        Device(
            driver=scheduler.domain, pool=placement.node, name=one.id, vendor="", model=one.model, uuid=one.uuid,
            capacity={} if one.memory is None else {"memory": one.memory}, attachment=one.attachment,
        )
        for one in placement.devices
    )  # fmt: skip


def _leased(device: PlacedDevice) -> LeasedDevice:
    return LeasedDevice(device.id, device.model, device.uuid, None, device.memory, (device.id,))

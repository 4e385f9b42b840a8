"""The delivery of what was booked: create, prove, start. The promise of dibs is the order of these lines.

`service` calls it for a `dibs` process of its own, `dispatcher` for a gateway. `booking` comes before it.

    create    everything is made ready; where the backend can hold the command back, it does not run yet
    prove     a look from outside, and the receipt; a difference ends it with DELIVERY_MISMATCH. A device that a
              container started by hand has taken since the plan ends it with DEVICES_BUSY
    start     only now the command runs. Where it cannot be held back (an engine), the handle is written before the
              start, and the look comes right after it.

A crash between any two lines leaves a booking that reconciliation proves void, or a sandbox that it finds again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from dibs.backends.port import Backend, Exit, Expectation, Handle, Observation, Phase, Session
from dibs.errors import BackendUnavailable, Busy, Conflict, DeliveryMismatch, DibsError
from dibs.home import Home
from dibs.ledger.rows import SandboxId, encode
from dibs.ledger.store import Ledger
from dibs.workloads.booking import Order
from dibs.workloads.receipt import differences, not_started, write_receipt
from dibs.workloads.registry import Registry
from dibs.workloads.rendering import Prepared
from dibs.workloads.world import taken_meanwhile

_TRIES = 3  # to set up a sandbox on a host that changes meanwhile
_ENDING = 1.0  # seconds in which a process that is ending has ended


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
        """Create, prove, start. In the foreground: attached before the start, so that no output is missed.

        `attach`: how, if not by the backend itself; only for one that holds the command back.
        """
        backend, workload = order.backend, prepared.workload
        sandbox_id = order.sandbox_id
        handle: Handle | None = None
        session: Session | None = None
        tries = _TRIES
        try:
            while True:
                # One form: it is sent, recorded, and compared with what is seen.
                final = backend.finalise(workload, prepared.realisation)
                prepared = msgspec.structs.replace(prepared, realisation=final)
                try:
                    handle = backend.create(workload, final, prepared.folder)
                    if not backend.holds:
                        with self._ledger.writing():
                            self._ledger.record_handle(sandbox_id, encode(handle).encode())
                        session = backend.attach(handle) if workload.foreground else None
                        backend.start(handle)
                    receipt = self._prove(order, prepared, _look(backend, handle, final.expectation))
                    self._check_not_taken(order, prepared)
                    break
                except (BackendUnavailable, DeliveryMismatch):
                    # The host may have changed under it, say by a mount: then it is made anew, while it is held back.
                    tries -= 1
                    if not (tries and backend.holds and backend.outdated(final)):
                        raise
                    if handle is not None:
                        backend.stop(handle, 0.0)
                        backend.delete(handle)
                        handle = None
            with self._ledger.writing():
                ttl = workload.ttl_seconds
                self._ledger.attach(
                    sandbox_id,
                    handle=encode(handle).encode(),
                    receipt=receipt,
                    expires_at=None if ttl is None else time.time() + ttl,
                )
            if backend.holds:
                session = (attach or backend.attach)(handle) if workload.foreground else None
                self._start(order, handle, receipt)
        except BaseException as error:
            if session is not None:
                session.close()
            self.abandon(order, handle, error)
            raise
        if order.origin:
            # It runs: that the ledger is away now ends nothing. A gateway forgets the values later.
            with suppress(BackendUnavailable), self._ledger.writing():
                self._ledger.forget_pending(sandbox_id)
        return session

    def _check_not_taken(self, order: Order, prepared: Prepared) -> None:
        """Raises Busy if a container that dibs did not start has taken a device since it was planned. Where the command
        is held back it has not run; what an engine has started is ended."""
        if self._registry is None or not prepared.devices:
            return
        problems = taken_meanwhile(
            self._registry, self._ledger, prepared.devices, order.who, simulated=prepared.simulated
        )
        if problems:
            raise Busy(problems)

    def _start(self, order: Order, handle: Handle, receipt: bytes) -> None:
        """Let the command run. If that fails, its receipt says so."""
        try:
            order.backend.start(handle)
        except DibsError as error:
            with suppress(DibsError), self._ledger.writing():  # why it did not start matters more than the books
                self._ledger.keep_receipt(order.sandbox_id, not_started(receipt, error.problems))
            raise

    def _prove(self, order: Order, prepared: Prepared, observed: Observation) -> bytes:
        """The receipt; raises DeliveryMismatch, with the receipt kept, if not everything is as planned.

        What was seen counts, even if the command has ended since.
        """
        realisation = prepared.realisation
        problems = differences(realisation.expectation, observed)
        receipt = encode(write_receipt(
            order.spec, prepared.workload, prepared.devices, realisation, observed, problems, at=time.time(),
            simulated=prepared.simulated, notes=prepared.notes, told_env=prepared.told_env, shares=prepared.shares,
        )).encode()  # fmt: skip
        if problems:
            with self._ledger.writing():
                self._ledger.keep_receipt(order.sandbox_id, receipt)
            started = "" if order.backend.holds else "its command had been started, and was ended; "
            remedy = f"{started}run `dibs doctor`" if started else "the command was not started; run `dibs doctor`"
            raise DeliveryMismatch([msgspec.structs.replace(problem, remedy=remedy) for problem in problems])
        return receipt

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
        if handle is not None:
            backend.stop(handle, 0.0)
            status = backend.status(handle)
            if status.phase not in (Phase.EXITED, Phase.ABSENT):
                return  # not proved: the next reconciliation frees it
        else:
            backend.discard(Handle(backend.name, order.sandbox_id, str(self._home.sandbox(order.sandbox_id))))
        try:
            if handle is not None:
                backend.delete(handle)  # before the end is told: `remove` waits for that, and then deletes as well
        finally:
            if not (order.origin and ledger_away(error)):  # else it was accepted, and is made when the ledger is back
                self.fail(order.sandbox_id, error)

    def fail(self, sandbox_id: SandboxId, error: BaseException) -> None:
        """Record why there is no sandbox, and free what it had."""
        if self._ledger.sandbox(sandbox_id).state == "stopping":
            with self._ledger.writing():
                withdraw(self._ledger, sandbox_id)
            return
        code = error.code if isinstance(error, DibsError) else type(error).__name__
        detail = f"{code}: {error}"
        result = Exit(1, "not-started", detail=detail, at=time.time())
        with self._ledger.writing():
            self._ledger.end(sandbox_id, "failed", exit=encode(result).encode(), reason=detail.splitlines()[0])


def _look(backend: Backend, handle: Handle, expected: Expectation) -> Observation:
    """What is seen of a workload: nothing, if its command was not held and ended before it could be looked at."""
    try:
        return backend.observe(handle)
    except Conflict:
        if backend.holds or backend.wait(handle, _ENDING).phase is not Phase.EXITED:
            raise
        return Observation(unseen=("nodes", "env", "mounts", "limits", "isolation", *expected.process))


def ledger_away(error: BaseException) -> bool:
    """Whether this says nothing of the sandbox, only that the books cannot be reached now."""
    return isinstance(error, BackendUnavailable) and error.code == "LEDGER_UNREACHABLE"


def withdraw(ledger: Ledger, sandbox_id: SandboxId) -> None:
    """A sandbox that was removed before it ran, and of which nothing is left; part of the caller's transaction."""
    result = Exit(0, "stopped", detail="removed before it ran", at=time.time())
    ledger.end(sandbox_id, "exited", exit=encode(result).encode(), reason=result.detail)

"""The making of a sandbox: book, create, prove, start. The promise of dibs is the order of these lines.

`service` calls it for a `dibs` process of its own, `admission` and `dispatcher` for a gateway.

    book      one transaction: plan, render, enter the sandbox and its lease. Or a refusal, and nothing has changed.
    deliver   create, look from outside, write the receipt, attach; a difference ends it with DELIVERY_MISMATCH.
              Where the backend can hold the command back, it runs only after all that. Where it cannot (an engine),
              the handle is written first, and the look comes right after the start.

A crash between any two lines leaves a booking that reconciliation proves void, or a sandbox that it finds again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec

from dibs.backends.port import Backend, Exit, Expectation, Handle, Observation, Phase, Session
from dibs.devices.model import Device, Inventory
from dibs.errors import BackendUnavailable, Conflict, DeliveryMismatch, DibsError, QuotaExceeded, StateError
from dibs.home import Home
from dibs.ledger.rows import LeasedDevice, SandboxId, SandboxRow, Share, Ticket, encode
from dibs.ledger.store import Ledger
from dibs.plan.planner import DevicePlan, Refusal, plan_devices, servable
from dibs.plan.quick import Free
from dibs.process import myself
from dibs.request.spec import SandboxSpec
from dibs.settings import Quota
from dibs.workloads.identity import Identity
from dibs.workloads.queue import in_front, request_of
from dibs.workloads.quotas import Holding, held_by, least_gpus, over_quota
from dibs.workloads.receipt import HIDDEN, differences, not_started, write_receipt
from dibs.workloads.rendering import Prepared, prepare
from dibs.workloads.world import world_of

_TRIES = 3  # to set up a sandbox on a host that changes meanwhile
_ENDING = 1.0  # seconds in which a process that is ending has ended


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made, for whom, and how it is remembered."""

    spec: SandboxSpec
    backend: Backend
    sandbox_id: SandboxId
    who: Identity
    base_env: Mapping[str, str] = {}
    foreground: bool = False
    origin: Literal["", "gateway"] = ""  # "gateway": whoever serves the ledger next finishes what was begun
    annotations: Mapping[str, str] = {}


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a gateway must remember of an accepted sandbox until it runs: the values that are kept nowhere else."""

    spec: SandboxSpec
    base_env: dict[str, str] = {}
    afar: bool = False


class Creation:
    """The steps, on one open ledger."""

    def __init__(self, home: Home, ledger: Ledger, tenants: Mapping[str, Quota] | None = None) -> None:
        """`tenants`: what each may hold at once."""
        self._home = home
        self._ledger = ledger
        self._tenants = tenants or {}
        self._booking = False
        self._free: Free | None = None  # of one `booking`

    # -- booking ----------------------------------------------------------------------------------------------------

    @contextmanager
    def booking(self) -> Iterator[None]:
        """One transaction for several bookings: what is free is looked up once."""
        with self._ledger.writing():
            self._booking = True
            try:
                yield
            finally:
                self._booking, self._free = False, None

    def decide(
        self, order: Order, inventory: Inventory, ticket: str | None, *, waits: bool = False
    ) -> DevicePlan | Refusal:
        """Whether it can be booked now: the devices are there, and its tenant may hold them. Everything that books goes
        through here, in the transaction of the booking.

        Raises QuotaExceeded; but what `waits` already goes on waiting until its tenant has given something back.
        """
        decision = self.plan(order, inventory, ticket)
        refused = isinstance(decision, Refusal)
        quota = self._tenants.get(order.who.tenant)
        if quota is None or (waits and refused):
            return decision
        wants = order.spec.resources
        gpus = least_gpus(wants) if isinstance(decision, Refusal) else len(decision.devices)
        has = held_by(self._ledger, order.who.tenant, but=order.sandbox_id)
        problems = over_quota(has, order.who.tenant, quota, wants, gpus)
        if not problems:
            return decision
        if not waits:
            raise QuotaExceeded(problems)
        ever = not over_quota(Holding(), order.who.tenant, quota, wants, gpus)
        words = "; ".join(f"{problem.reason} ({problem.field})" for problem in problems)
        return Refusal(tuple(problems), (), "QuotaExceeded", waitable=ever, waits_for=words)

    def next_in_queue(self, who: Identity, inventory: Inventory) -> list[Ticket]:
        """Those who wait and could be served now, first come first."""
        world = world_of(self._home, self._ledger, inventory, who, ahead="")
        waiting = in_front(self._ledger.tickets(), None, self._held_back())
        return [waiting[place] for place in servable([request_of(one.request) for one in waiting], world)]

    def _held_back(self) -> Callable[[Ticket], bool] | None:
        """Whether a tenant's quota keeps one who waits from being served now; then it holds up nobody else."""
        if not self._tenants:
            return None
        holdings: dict[str, Holding] = {}

        def over(ticket: Ticket) -> bool:
            quota = self._tenants.get(ticket.tenant)
            if quota is None:
                return False
            if ticket.tenant not in holdings:
                holdings[ticket.tenant] = held_by(self._ledger, ticket.tenant)
            wants, has = request_of(ticket.request), holdings[ticket.tenant]
            if ticket.sandbox_id is not None:
                has = has.without(wants)
            return bool(over_quota(has, ticket.tenant, quota, wants, least_gpus(wants)))

        return over

    def plan(self, order: Order, inventory: Inventory, ticket: str | None) -> DevicePlan | Refusal:
        """`ticket`: our place in the queue, if we wait there. In one `booking` it is always the same inventory."""
        if order.spec.resources.wants_devices:
            free = self._free or self._plainly_free(inventory, ticket)
            if free is not None and (devices := free.first(order.spec.resources)) is not None:
                return DevicePlan(devices)
        held_back = self._held_back()
        world = world_of(self._home, self._ledger, inventory, order.who, ahead=ticket, held_back=held_back)
        return plan_devices(order.spec.resources, world)

    def _plainly_free(self, inventory: Inventory, ticket: str | None) -> Free | None:
        """What the short way chooses from, where nobody waits in front, and nothing is shared or tainted."""
        ledger = self._ledger
        if in_front(ledger.tickets(), ticket, self._held_back()) or ledger.any_shares() or ledger.taints():
            return None
        free = Free(inventory, ledger.held_units())
        if self._booking:
            self._free = free
        return free

    def prepare(self, order: Order, plan: DevicePlan, inventory: Inventory) -> Prepared:
        return prepare(
            order.spec, order.backend, order.sandbox_id, plan, inventory, self._home, order.base_env, order.foreground,
            private=order.who.afar, owner=order.who.uid, tenant=order.who.tenant,
            gateway=bool(order.origin) or order.who.gateway,
        )  # fmt: skip

    def enter(self, order: Order, *, state: str, simulated: bool = False, name: str = "") -> SandboxRow:
        """Write the sandbox into the ledger; part of the caller's transaction."""
        pending = None
        if order.origin:
            pending = msgspec.json.encode(Pending(order.spec, dict(order.base_env), order.who.afar))
        row = SandboxRow(
            id=order.sandbox_id,
            name=name or order.spec.name or order.sandbox_id,
            backend=order.backend.name,
            state=state,  # type: ignore[arg-type]  # one of two literals
            uid=order.who.uid,
            username=order.who.name,
            tenant=order.who.tenant,
            owner=myself(),
            spec=encode(_without_values(order.spec)).encode(),
            folder=str(self._home.sandbox(order.sandbox_id)),
            created_at=time.time(),
            simulated=simulated,
            labels=dict(order.spec.labels),
            annotations=dict(order.annotations),
            origin=order.origin,
            pending=pending,
        )
        self._ledger.add_sandbox(row)
        return row

    def lease(self, prepared: Prepared) -> tuple[LeasedDevice, ...]:
        """Book its devices; part of the caller's transaction."""
        if not prepared.devices:
            return ()
        leased = tuple(_leased(device, prepared.shares.get(device.id)) for device in prepared.devices)
        self._ledger.reserve(SandboxId(prepared.workload.id), leased)
        if prepared.shares:
            self._free = None  # from now on something is shared
        elif self._free is not None:
            self._free.take(prepared.devices)
        return leased

    def wait(self, order: Order) -> SandboxRow:
        """Enter a sandbox that waits, and its place in the queue; part of the caller's transaction."""
        row = self.enter(order, state="queued")
        request = encode(order.spec.resources).encode()
        self._ledger.enqueue(
            myself(), order.who.uid, order.who.name, request, sandbox_id=order.sandbox_id, tenant=order.who.tenant,
            wait_seconds=order.spec.wait_seconds,
        )  # fmt: skip
        self._free = None  # whoever comes next waits behind it
        return row

    def again(self, order: Order, inventory: Inventory) -> Prepared:
        """The same once more, for devices that are leased already: what a gateway had begun when it was killed."""
        plan = DevicePlan()
        for lease in self._ledger.leases(sandbox_id=order.sandbox_id):
            here: dict[str, Device] = {device.id: device for device in inventory.devices}
            gone = [device.id for device in lease.devices if device.id not in here]
            if gone:
                reason = "a leased device is no longer there"
                raise StateError(reason, field="device", value=", ".join(gone), code="DEVICE_GONE")
            shares = {device.id: device.share for device in lease.devices if device.share is not None}
            plan = DevicePlan(tuple(here[device.id] for device in lease.devices), (), shares)
        return self.prepare(order, plan, inventory)

    # -- delivering -------------------------------------------------------------------------------------------------

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


def _without_values(spec: SandboxSpec) -> SandboxSpec:
    """What is kept of a request: the names of its variables, not their values."""
    return msgspec.structs.replace(spec, env=dict.fromkeys(spec.env, HIDDEN))


def _leased(device: Device, share: Share | None) -> LeasedDevice:
    return LeasedDevice(
        device.id,
        device.model,
        device.uuid,
        device.index,
        device.memory,
        device.booked_units,
        device.simulated,
        share,
        device.marks,
    )

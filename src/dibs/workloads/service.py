"""The use cases: create, inspect, control and remove sandboxes, and explain. `cli` and `sdk` call nothing else.

`booking` assigns devices, `delivery` creates and starts the sandbox, `admission` accepts one for a gateway. Every call
acts for an `identity`: the user of this process, or a caller that a gateway has authenticated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from dibs.backends.port import (
    Backend,
    CopiesFiles,
    Exec,
    ExecutesCommands,
    Expires,
    ForwardsPorts,
    Handle,
    KeepsTime,
    LogRecord,
    MeasuresUsage,
    Pauses,
    Phase,
    Session,
    Status,
    Usage,
    must,
)
from dibs.devices.model import Device, Inventory
from dibs.doorbell import ring
from dibs.errors import BackendUnavailable, Conflict, NotFound, StateError, Timeout
from dibs.home import Home, find_home
from dibs.ledger.rows import Event, Lease, Taint, Ticket
from dibs.ledger.store import Ledger, new_id
from dibs.plan.device_state import DeviceState
from dibs.process import absent, myself
from dibs.receipt import Receipt
from dibs.sandbox import Sandbox, SandboxId, SandboxState
from dibs.workloads.identity import Identity, this_process
from dibs.workloads.reconcile import finish, handle_of, reconcile, room_or_later
from dibs.workloads.registry import Registry
from dibs.workloads.world import look_around, started_by_dibs, states_of, world_of

if TYPE_CHECKING:  # making a sandbox is loaded when one is made: most commands only look
    import socket

    from dibs.plan.explanation import Explanation
    from dibs.request.spec import SandboxSpec
    from dibs.workloads.booking import Booked, Order
    from dibs.workloads.waiter import Waiting, WaitNews

_PATIENCE = 60.0  # seconds to wait until the process that makes a sandbox has let go of it
_OLD = 5.0  # seconds after which what was seen of the devices is looked at again
_LET_GO = 30.0  # seconds that a command gets to be started after its sandbox was proved
_SETTLE = 5.0  # seconds that a keeper gets to go away after its workload has ended


class Client(Protocol):
    """The party that waits for a sandbox: this process, or a caller who listens to a gateway."""

    def waiting(self, workloads: Workloads, order: Order) -> Waiting:
        """A place in the queue, should one be needed."""
        ...

    def note(self, text: str) -> None: ...

    def attach(self, order: Order) -> Callable[[Handle], Session] | None:
        """How a foreground session is opened, if not by the backend itself."""
        ...


class OwnProcess:
    """The client that is this process."""

    def __init__(self, on_wait: Callable[[WaitNews], None] | None, on_note: Callable[[str], None] | None) -> None:
        self._on_wait = on_wait
        self._on_note = on_note

    def waiting(self, workloads: Workloads, order: Order) -> Waiting:
        from dibs.workloads.waiter import Waiting

        return Waiting(workloads.ledger, workloads.registry, order.spec, order.who, self._on_wait)

    def note(self, text: str) -> None:
        if self._on_note is not None:
            self._on_note(text)

    def attach(self, order: Order) -> None:  # noqa: ARG002
        return None


class Workloads:
    """The service of one installation. Cheap to make; use it from one thread, or make one per thread."""

    def __init__(
        self,
        home: Home | None = None,
        *,
        identity: Identity | None = None,
        registry: Registry | None = None,
        compare: bool = True,
    ) -> None:
        """`compare`: False where another one compares the ledger with what is really there: a gateway's watcher does
        it for all of its threads."""
        self.home = home or find_home()
        self.identity = identity or this_process()
        self.registry = registry or Registry(self.home)
        self._compare = compare
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """The open ledger; opened, and compared with what is really there, on first use."""
        if self._ledger is None:
            settings, clusters = self.registry.settings, self.registry.clusters
            self._ledger = Ledger(self.home, settings.ledger or None, clusters)
            if self._compare:
                with room_or_later():
                    reconcile(self._ledger, self.registry)
                self._keep_jobs(self._ledger)
        return self._ledger

    def _keep_jobs(self, ledger: Ledger) -> None:
        """A training job whose driver was killed gets another one."""
        if ledger.any_jobs():
            from dibs.workloads.jobs.keepers import ensure

            ensure(self.home, ledger)

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def __enter__(self) -> Workloads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def seen_by(self, identity: Identity) -> Workloads:
        """The same service on behalf of another identity: a gateway's caller. It shares the open ledger."""
        self.ledger  # noqa: B018  # opened here, so that all views share it
        view = Workloads(self.home, identity=identity, registry=self.registry)
        view._ledger = self._ledger
        return view

    # -- looking ----------------------------------------------------------------------------------------------------

    def inventory(self) -> Inventory:
        return look_around(self.home, self.ledger, self.registry)

    def started_by_dibs(self) -> Callable[[int], bool]:
        return started_by_dibs(self.ledger)

    def devices(self) -> tuple[Inventory, list[DeviceState]]:
        inventory = self.inventory()
        world = world_of(self.home, self.ledger, inventory, self.identity, ahead=None)
        return inventory, states_of(world)

    def taint(self, name: str, taint: Taint) -> Device:
        """Say that a device is not to be given away (or, with effect None, just say something about it)."""
        device = self._device(name)
        with self.ledger.writing():
            self.ledger.taint(device.id, msgspec.structs.replace(taint, username=self.identity.name))
        return device

    def untaint(self, name: str, key: str) -> int:
        """Take the taints of a key off a device, or all of them; how many there were."""
        device = self._device(name)
        with self.ledger.writing():
            return self.ledger.untaint(device.id, key)

    def _device(self, name: str) -> Device:
        found = self.inventory().find(name)
        if len(found) != 1:
            remedy = "`dibs gpus -o wide` shows all names"
            raise NotFound("no device, or several, answer to it", field="device", value=name, remedy=remedy)
        return found[0]

    @property
    def _tenant(self) -> str | None:
        """The tenant that is looked at; None for all of them."""
        return None if self.identity.sees_all else self.identity.tenant

    def sandboxes(self, *, all: bool = False) -> list[Sandbox]:  # noqa: A002
        return self.ledger.sandboxes(live_only=not all, tenant=self._tenant)

    def recent(self, limit: int, *, all: bool = False) -> tuple[list[Sandbox], list[Lease], int]:  # noqa: A002
        """The newest sandboxes, newest first (0: every one of them), their leases, and how many there are in all."""
        most = limit if limit > 0 else -1
        rows, total = self.ledger.page(tenant=self._tenant, live_only=not all, limit=most)
        if limit > 0:
            return rows, self.ledger.leases_of([row.id for row in rows]), total
        return rows, self.leases(all=all), total

    def page(
        self, *, states: Sequence[str] = (), labels: Mapping[str, str] | None = None, offset: int = 0, limit: int = 100
    ) -> tuple[list[Sandbox], int]:
        """A part of the sandboxes, newest first, and how many there are in all."""
        return self.ledger.page(
            tenant=self._tenant, states=states or None, labels=labels or {}, offset=offset, limit=limit
        )

    def sandbox(self, reference: str) -> Sandbox:
        """Raises NotFound also for what the caller may not see."""
        return self.ledger.sandbox(reference, tenant=self._tenant, uid=self.identity.uid)

    def leases(self, *, all: bool = False) -> list[Lease]:  # noqa: A002
        return [lease for lease in self.ledger.leases(live_only=not all) if self.identity.sees(lease.tenant)]

    def queue(self) -> list[Ticket]:
        return self.ledger.tickets()

    def remove_ticket(self, ticket: str) -> Ticket:
        """Remove a ticket from the queue: its client is told, a queued sandbox is removed."""
        found = self.ledger.ticket(ticket)
        if found is None or not self.identity.sees(found.tenant):
            raise NotFound(
                "there is no such ticket in the queue", field="ticket", value=ticket, code="TICKET_NOT_FOUND",
                remedy="`dibs queue` shows who waits",
            )  # fmt: skip
        if found.sandbox_id is not None and found.sandbox_id.startswith("job-"):
            from dibs.workloads.jobs.service import Jobs

            Jobs(self).delete(found.sandbox_id, wait=False)
            return found
        if found.sandbox_id is not None:
            self.remove(found.sandbox_id)
            return found
        if not self.identity.touches(found):
            raise Conflict(
                f"it belongs to {found.username}", field="ticket", value=ticket, code="NOT_YOURS",
                remedy=f"ask {found.username}, or root",
            )  # fmt: skip
        with self.ledger.writing():
            self.ledger.dequeue(ticket, f"removed by {self.identity.name}")
        ring(found.wake)
        return found

    def events(self, reference: str | None = None) -> list[Event]:
        return self.ledger.events(sandbox_id=self.sandbox(reference).id if reference else None)

    def receipt(self, reference: str) -> Receipt:
        row = self.sandbox(reference)
        if row.receipt is None:
            raise NotFound(
                "there is no receipt: nothing was delivered", field="sandbox", value=row.name, code="NO_RECEIPT",
                remedy=f"it is {row.state}" + (f": {row.reason}" if row.reason else ""),
            )  # fmt: skip
        return row.receipt

    def explain(self, spec: SandboxSpec) -> Explanation:
        """What would happen, on each backend and to each device. Nothing is created."""
        from dibs.workloads.explain import explain_request

        if spec.image and not self.identity.sees_all:
            from dibs.workloads.images import check_image

            for engine in self.registry.shared_engines():
                with suppress(BackendUnavailable):  # it is explained why that one cannot be used
                    check_image(self.ledger, engine, self.identity, spec.image)
        inventory = self.inventory()
        world = world_of(self.home, self.ledger, inventory, self.identity, ahead=None)
        return explain_request(spec, world, self.registry, queue_length=len(self.ledger.tickets()), who=self.identity)

    # -- creating ---------------------------------------------------------------------------------------------------

    def create(
        self,
        spec: SandboxSpec,
        *,
        base_env: Mapping[str, str] | None = None,
        on_wait: Callable[[WaitNews], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """A running sandbox with everything that was asked for, or a DibsError and nothing changed."""
        client = OwnProcess(on_wait, on_note)
        sandbox_id, _ = self.make(spec, client, base_env=base_env or {}, foreground=False)
        return self.sandbox(sandbox_id)

    def launch(
        self,
        spec: SandboxSpec,
        *,
        base_env: Mapping[str, str] | None = None,
        on_wait: Callable[[WaitNews], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> tuple[Sandbox, Session]:
        """As `create`, for the foreground: attached before the command starts, and ended when we go away."""
        client = OwnProcess(on_wait, on_note)
        sandbox_id, session = self.make(spec, client, base_env=base_env or {}, foreground=True)
        assert session is not None  # foreground
        return self.sandbox(sandbox_id), session

    def make(
        self, spec: SandboxSpec, client: Client, *, base_env: Mapping[str, str], foreground: bool
    ) -> tuple[SandboxId, Session | None]:
        """Book and deliver for a client that waits for it; in the foreground with a session."""
        from dibs.workloads.booking import Order
        from dibs.workloads.delivery import Delivery
        from dibs.workloads.explain import choose

        backend, spec = choose(spec, self.registry, self.identity.uid)
        order = Order(
            spec=spec, backend=backend, sandbox_id=SandboxId(new_id("sb")), who=self.identity, base_env=base_env,
            foreground=foreground,
        )  # fmt: skip
        [booked] = self.reserve([order], client.waiting(self, order))
        for note in booked.prepared.notes:
            client.note(note)
        session = Delivery(self.home, self.ledger, self.registry).deliver(order, booked.prepared, client.attach(order))
        return order.sandbox_id, session

    def reserve(self, orders: Sequence[Order], waiter: Waiting) -> tuple[Booked, ...]:
        """Book all that is ordered, now or when it is the waiter's turn; or raise with every reason."""
        from dibs.plan.decision import Refusal
        from dibs.workloads.booking import Booking
        from dibs.workloads.delivery import ledger_away

        booking = Booking(self.home, self.ledger, self.registry.settings.tenants)
        spec = orders[0].spec
        waits = spec.wait_seconds is not None and spec.resources.wants_devices
        here = waits or orders[0].scheduler is None  # else no device of this host is looked for
        inventory, looked = self.inventory() if here else Inventory(()), time.monotonic()
        fresh, compared = True, False
        with waiter as waiting:
            while True:
                decision: object = None
                try:
                    if fresh:
                        booking.check(orders[0])
                    waiting.accept()
                    queued = waiting.ticket is not None
                    if waits:  # most who wait are not served at a look: they do not stand in the way of who writes
                        decision = booking.decide(orders, inventory, waiting.ticket, waits=queued)
                    if fresh and not isinstance(decision, Refusal):
                        with self.ledger.writing():
                            waiting.accept()
                            booked = booking.book(orders, inventory, waiting.ticket, waits=queued)
                            if not isinstance(booked, Refusal):
                                waiting.served()
                                return booked
                            decision = booked
                    if waits and isinstance(decision, Refusal) and decision.waitable:
                        waiting.queue(booking, inventory)
                except BackendUnavailable as error:
                    if error.code == "LEDGER_INCOMPLETE" and not compared:
                        compared = True
                        reconcile(self.ledger, self.registry)
                        continue
                    if not waits or ledger_away(error):
                        raise
                    waiting.outlast(error)
                    inventory, looked, fresh = self.inventory(), time.monotonic(), True
                    continue
                if isinstance(decision, Refusal) and (decision.waitable or fresh):
                    if spec.wait_seconds is None or not decision.waitable:
                        raise decision.to_error()
                    # Many may wait, and few of them are served: most look at the ledger only.
                    fresh = waiting.wait(decision) or time.monotonic() - looked > _OLD
                else:
                    fresh = True
                if fresh:
                    inventory, looked = self.inventory(), time.monotonic()

    # -- looking after ----------------------------------------------------------------------------------------------

    def _live(self, reference: str, *states: str, owned: bool = True) -> tuple[Sandbox, Backend, Handle]:
        row = self.sandbox(reference)
        if owned:
            self._mine(row)
        if states and row.state not in states:
            ended = f" ({row.reason})" if row.reason else ""
            paused = row.state is SandboxState.PAUSED and SandboxState.RUNNING in states
            resume = f": dibs sandbox resume {row.name}" if paused else ""
            raise Conflict(
                f"the sandbox is {row.state}{ended}", field="sandbox", value=row.name, code="WRONG_STATE",
                remedy=f"this needs one that is {' or '.join(states)}{resume}",
            )  # fmt: skip
        return row, self.backend_of(row), handle_of(row)

    def _running(self, reference: str) -> tuple[Sandbox, Backend, Handle]:
        """One whose command runs. The ledger says so once it is proved, a moment before a gateway lets it go."""
        row, backend, handle = self._live(reference, "running")
        late = time.monotonic() + _LET_GO
        while row.accepted and backend.status(handle).phase is Phase.HELD and time.monotonic() < late:
            time.sleep(0.02)
            row, backend, handle = self._live(reference, "running")
        return row, backend, handle

    def backend_of(self, row: Sandbox) -> Backend:
        return self.registry.get(row.backend, row.uid)

    def _mine(self, row: Sandbox) -> None:
        """On a shared ledger every user sees everything, but only the owner (and root) may change a sandbox."""
        if not self.identity.touches(row):
            remedy = f"ask {row.username}, or root"
            raise Conflict(
                f"it belongs to {row.username}", field="sandbox", value=row.name, code="NOT_YOURS", remedy=remedy
            )

    def attach(self, reference: str) -> Session:
        _, backend, handle = self._live(reference, "running", "paused")
        return backend.attach(handle)

    def exec(self, reference: str, command: Exec) -> Session:
        _, backend, handle = self._running(reference)
        return must(backend, ExecutesCommands).exec(handle, command)

    def logs(self, reference: str, *, follow: bool = False) -> Iterator[LogRecord]:
        """With `follow` until the workload has ended. Its end is in the ledger before the reader is told of it."""
        row, backend, handle = self._live(reference)
        records = (record for record in backend.logs(handle, follow=follow) if record.data)
        return self._to_the_end(row.id, records) if follow else records

    def _to_the_end(self, sandbox_id: SandboxId, records: Iterator[LogRecord]) -> Iterator[LogRecord]:
        yield from records
        self.settle(sandbox_id)

    def copy_in(self, reference: str, archive: Iterator[bytes], path: str) -> None:
        _, backend, handle = self._running(reference)
        must(backend, CopiesFiles).copy_in(handle, archive, path)

    def copy_out(self, reference: str, path: str) -> Iterator[bytes]:
        _, backend, handle = self._running(reference)
        return must(backend, CopiesFiles).copy_out(handle, path)

    def pause(self, reference: str) -> None:
        row, backend, handle = self._running(reference)
        must(backend, Pauses).pause(handle)
        with self.ledger.writing():
            self.ledger.set_state(row.id, SandboxState.PAUSED, expected=(SandboxState.RUNNING,))

    def resume(self, reference: str) -> None:
        row, backend, handle = self._live(reference, "paused")
        must(backend, Pauses).resume(handle)
        with self.ledger.writing():
            self.ledger.set_state(row.id, SandboxState.RUNNING, expected=(SandboxState.PAUSED,))

    def stop(self, reference: str, grace_seconds: float | None = None) -> Sandbox:
        """Ask, then force; the devices are free when this returns. Stopping an ended sandbox changes nothing."""
        row, backend, handle = self._live(reference)
        if not row.live:
            return row
        if not row.created or row.state is SandboxState.CREATING:
            return self._withdraw(row, backend)
        if row.state is not SandboxState.STOPPING:
            try:
                with self.ledger.writing():
                    self.ledger.set_state(
                        row.id, SandboxState.STOPPING, expected=(SandboxState.RUNNING, SandboxState.PAUSED)
                    )
            except StateError as error:
                if error.code != "DISK_FULL":
                    raise  # that it is about to end is not worth its life: that it has ended is written below
        grace = row.spec.grace_seconds if grace_seconds is None else grace_seconds
        backend.stop(handle, grace)
        return self.settle(row.id)

    def _withdraw(self, row: Sandbox, backend: Backend) -> Sandbox:
        """End a sandbox that does not run yet. The process that makes it is told, and lets go; it is waited for."""
        from dibs.workloads.delivery import withdraw

        if row.origin and row.state is SandboxState.CREATING and not row.orphaned:
            with self.ledger.writing():
                if self.sandbox(row.id).state == "creating":
                    self.ledger.set_state(row.id, SandboxState.STOPPING, expected=(SandboxState.CREATING,))
        elif row.state is SandboxState.QUEUED or (row.origin and row.orphaned):
            if row.state is not SandboxState.QUEUED:
                backend.discard(handle_of(row))
            with self.ledger.writing():
                if self.sandbox(row.id).state == row.state:
                    withdraw(self.ledger, row.id)
        deadline = time.monotonic() + _PATIENCE
        pause = 0.002
        while (now := self.sandbox(row.id)).live and not now.created and time.monotonic() < deadline:
            if now.state != row.state and now.state is SandboxState.CREATING:
                return self._withdraw(now, backend)  # its turn came between the two looks
            if now.state is not SandboxState.STOPPING:
                raise Conflict(
                    "the sandbox is still being created", field="sandbox", value=row.name, code="STILL_CREATING",
                    remedy="try again",
                )  # fmt: skip
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        return self.stop(row.id, 0.0) if now.live and now.created else now

    def renew(self, reference: str, at: float | None) -> Sandbox:
        """Give a live sandbox another end, in seconds since the epoch; None: none."""
        row, backend, handle = self._live(reference, "running", "paused")
        must(backend, Expires).set_expiry(handle, at)
        with self.ledger.writing():
            self.ledger.set_expiry(row.id, at)
        return self.sandbox(row.id)

    def expire(self, reference: str) -> Sandbox:
        """End a sandbox whose time to live is over, and whose keeper cannot see to that any more.

        A keeper that lives counts by a clock that does not jump.
        """
        row, backend, handle = self._live(reference)
        if handle.keeper is not None and not absent(handle.keeper):
            return row
        if isinstance(backend, KeepsTime):
            late = backend.overdue(handle)
        else:
            late = row.expires_at is not None and row.expires_at <= time.time()
        if row.live and late:
            backend.stop(handle, row.spec.grace_seconds)
        return self.settle(row.id)

    def relabel(self, reference: str, change: Mapping[str, str | None]) -> Sandbox:
        """Add, change and (with None) remove labels; two at once do not undo each other."""
        row, _, _ = self._live(reference)
        with self.ledger.writing():
            labels = {**self.sandbox(row.id).labels, **{k: v for k, v in change.items() if v is not None}}
            for name in (name for name, value in change.items() if value is None):
                labels.pop(name, None)
            self.ledger.set_labels(row.id, labels)
        return self.sandbox(row.id)

    def check_running(self, reference: str) -> None:
        """Raises if the sandbox is not there, not the caller's, or does not run."""
        self._live(reference, "running")

    def connect(self, reference: str, port: int) -> socket.socket:
        """A connection to a port of the sandbox's own loopback."""
        _, backend, handle = self._running(reference)
        return must(backend, ForwardsPorts).connect(handle, port)

    def usage(self, reference: str) -> Usage:
        _, backend, handle = self._live(reference, "running", "paused")
        return must(backend, MeasuresUsage).usage(handle)

    def wait(self, reference: str, timeout: float | None = None) -> Sandbox:
        """Until the sandbox has ended. Raises Timeout if it has not by then; it runs on."""
        row, backend, handle = self._live(reference)
        if not row.live:
            return row
        status = backend.wait(handle, timeout)
        if status.phase not in (Phase.EXITED, Phase.ABSENT):
            raise Timeout("the sandbox still runs", field="sandbox", value=row.name, remedy="wait longer, or stop it")
        return self.settle(row.id)

    def settle(self, reference: str) -> Sandbox:
        """After the end of a workload: see that it is really gone, then free its devices."""
        row, backend, handle = self._live(reference)
        deadline = time.monotonic() + _SETTLE
        pause = 0.001
        while row.live:
            status: Status = backend.status(handle)
            gone = status.phase in (Phase.EXITED, Phase.ABSENT)
            if gone and (handle.keeper is None or handle.keeper == myself() or absent(handle.keeper)):
                finish(self.ledger, self.registry, row, status)
                break
            if time.monotonic() > deadline:
                break  # not proved; a later reconciliation does it
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return self.sandbox(row.id)

    def remove(self, reference: str, grace_seconds: float | None = None) -> Sandbox:
        """Stop it if it runs, and remove its files. The receipt stays in the ledger."""
        row = self.stop(reference, grace_seconds)
        if row.live:
            raise Conflict("the sandbox does not end", field="sandbox", value=row.name, remedy="see `dibs doctor`")
        backend = self.backend_of(row)
        # Without a handle it was never finished: whatever may be left of it is found by its name.
        (backend.discard if not row.created else backend.delete)(handle_of(row))
        return row

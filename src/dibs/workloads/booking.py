"""The booking: check, plan, quota, book. The only place where devices are assigned, in one transaction or not at all.

`service` books for a `dibs` process and for foreground runs through a gateway, `admission` for requests that a gateway
answers immediately, `dispatcher` for those that waited in the queue. `delivery` creates what was booked.

    check     slow checks, before the transaction: inspects the image, and whether the tenant may use it
    plan      which devices each sandbox gets, or every reason why not
    quota     whether the tenant may hold that many
    book      writes the sandboxes and their leases

A group is booked as one request for the sum of its members' devices: all members get theirs, or none does. Nothing is
created here, and liveness is decided elsewhere (`reconcile`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from dibs.backends.port import Backend, Peers, PreparesImages, Scheduler, scheduler_of
from dibs.devices.model import Device, Inventory
from dibs.errors import QuotaExceeded, StateError
from dibs.home import Home
from dibs.ledger.rows import LeasedDevice, Share, Ticket, encode
from dibs.ledger.store import Ledger
from dibs.plan.decision import DevicePlan, Refusal
from dibs.plan.devices import assign, plan_devices, servable
from dibs.plan.quick import Free
from dibs.plan.selectors import misfit
from dibs.process import myself
from dibs.request.model import GpuSelector, Request
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Parts, Pending, Sandbox, SandboxId, SandboxState
from dibs.settings import Quota
from dibs.workloads.identity import Identity
from dibs.workloads.queue import in_front, request_of
from dibs.workloads.quotas import Holding, held_by, least_gpus, over_quota
from dibs.workloads.receipt import HIDDEN
from dibs.workloads.rendering import Prepared, prepare
from dibs.workloads.volumes import check_volumes
from dibs.workloads.world import world_of


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made, for whom, and how it is remembered."""

    spec: SandboxSpec
    backend: Backend
    sandbox_id: SandboxId
    who: Identity
    base_env: Mapping[str, str] = {}
    foreground: bool = False
    origin: Literal["", "gateway"] = ""  # "gateway": any gateway on this ledger finishes what was begun
    annotations: Mapping[str, str] = {}
    fence: int = 0  # of the row: see `Sandbox`
    group: str = ""
    rank: int = 0
    group_env: Mapping[str, str] = {}  # what a member is told of its group
    peers: Peers | None = None  # whom it meets in its network
    # What the backend offers, filled in here: a scheduler, which then decides on devices; verbs for images.
    scheduler: Scheduler | None = None
    images: PreparesImages | None = None

    def __post_init__(self) -> None:
        backend = self.backend
        msgspec.structs.force_setattr(self, "scheduler", scheduler_of(backend))
        msgspec.structs.force_setattr(self, "images", backend if isinstance(backend, PreparesImages) else None)


class Entered(msgspec.Struct, frozen=True):
    """A sandbox whose row is in the ledger; its devices are booked next, in the same transaction."""

    order: Order
    row: Sandbox
    prepared: Prepared


class Booked(Entered, frozen=True):
    """A sandbox that is in the ledger with its devices, and is to be delivered."""

    devices: tuple[LeasedDevice, ...] = ()


class Booking:
    """The steps, on one open ledger."""

    def __init__(self, home: Home, ledger: Ledger, tenants: Mapping[str, Quota] | None = None) -> None:
        """`tenants`: what each may hold at once."""
        self._home = home
        self._ledger = ledger
        self._tenants = tenants or {}
        self._several = False
        self._free: Free | None = None  # of one `transaction`

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction for several bookings: what is free is looked up once."""
        with self._ledger.writing():
            self._several = True
            try:
                yield
            finally:
                self._several, self._free = False, None

    # -- the steps --------------------------------------------------------------------------------------------------

    def check(self, order: Order) -> None:
        """What has to be found out of the image, and whether it may be used; whether the volumes are there. Asks the
        engine: not in a transaction."""
        if order.images is not None:
            order.images.inspect_image(order.spec.image)
        check_volumes(order.backend, order.spec, order.who.tenant)
        if order.spec.image:
            from dibs.workloads.images import check_image

            check_image(self._ledger, order.backend, order.who, order.spec.image)

    def book(
        self, orders: Sequence[Order], inventory: Inventory, ticket: str | None, *, waits: bool
    ) -> tuple[Booked, ...] | Refusal:
        """Book all of them or none; part of the caller's transaction, which an exception must undo.

        `ticket`: our place in the queue, if we wait there. `waits`: see `decide`.
        """
        plans = self.decide(orders, inventory, ticket, waits=waits)
        return plans if isinstance(plans, Refusal) else self.lease(self.enter(orders, plans, inventory))

    def enter(
        self,
        orders: Sequence[Order],
        plans: Sequence[DevicePlan],
        inventory: Inventory,
        *,
        queued: Sandbox | None = None,
    ) -> tuple[Entered, ...]:
        """Render and write down what was decided. If this raises a refusal of a single order, nothing was written, so
        that several orders can share a transaction. `queued`: the row of a single order that has waited."""
        ready = [(order, self._prepare(order, plan, inventory)) for order, plan in zip(orders, plans, strict=True)]
        if queued is not None:
            self._ledger.book_queued(queued.id)
            return tuple(Entered(order, queued, prepared) for order, prepared in ready)
        return tuple(
            Entered(order, self._add(order, state=SandboxState.CREATING, simulated=prepared.simulated), prepared)
            for order, prepared in ready
        )

    def lease(self, entered: Sequence[Entered]) -> tuple[Booked, ...]:
        """Book the devices of what was entered. Raises Busy if another has one of them by now."""
        return tuple(Booked(one.order, one.row, one.prepared, self._lease(one)) for one in entered)

    def queue(self, order: Order) -> Sandbox:
        """Enter a sandbox that waits, and its place in the queue; part of the caller's transaction."""
        row = self._add(order, state=SandboxState.QUEUED)
        request = encode(order.spec.resources).encode()
        self._ledger.enqueue(
            myself(), order.who.uid, order.who.name, request, sandbox_id=order.sandbox_id, tenant=order.who.tenant,
            wait_seconds=order.spec.wait_seconds,
        )  # fmt: skip
        self._free = None  # the next one waits behind it
        return row

    def again(self, order: Order, inventory: Inventory) -> Prepared:
        """The same once more, for devices that are leased already: what a gateway had begun when it was killed."""
        plan = DevicePlan()
        for lease in self._ledger.leases(sandbox_id=order.sandbox_id):
            if lease.kind != "booked":
                continue  # its scheduler knows which devices it has
            here: dict[str, Device] = {device.id: device for device in inventory.devices}
            gone = [device.id for device in lease.devices if device.id not in here]
            if gone:
                reason = "a leased device is no longer there"
                raise StateError(reason, field="device", value=", ".join(gone), code="DEVICE_GONE")
            shares = {device.id: device.share for device in lease.devices if device.share is not None}
            plan = DevicePlan(tuple(here[device.id] for device in lease.devices), (), shares)
        return self._prepare(order, plan, inventory)

    # -- deciding ---------------------------------------------------------------------------------------------------

    def decide(
        self, orders: Sequence[Order], inventory: Inventory, ticket: str | None = None, *, waits: bool = False
    ) -> tuple[DevicePlan, ...] | Refusal:
        """Whether they can be booked now: the devices are there, and their tenant may hold them. Writes nothing.

        Raises QuotaExceeded; but what `waits` already goes on waiting until its tenant has given something back.
        """
        who, request = orders[0].who, together([order.spec.resources for order in orders])
        scheduler = orders[0].scheduler
        decision = DevicePlan() if scheduler is not None else self._plan(request, who, inventory, ticket)
        refused = isinstance(decision, Refusal)
        quota = self._tenants.get(who.tenant)
        if quota is not None and not (waits and refused):
            chosen = () if isinstance(decision, Refusal) else decision.devices
            gpus = len(chosen) or least_gpus(request)
            has = held_by(self._ledger, who.tenant, but={order.sandbox_id for order in orders})
            problems = over_quota(has, who.tenant, quota, request, gpus, sandboxes=len(orders))
            if problems and not waits:
                raise QuotaExceeded(problems)
            if problems:
                ever = not over_quota(Holding(), who.tenant, quota, request, gpus, sandboxes=len(orders))
                words = "; ".join(f"{problem.reason} ({problem.field})" for problem in problems)
                return Refusal(tuple(problems), (), "QuotaExceeded", waitable=ever, waits_for=words)
        if isinstance(decision, Refusal):
            return decision
        if scheduler is not None:
            return (decision,) * len(orders)
        return divide(decision, [order.spec.resources for order in orders])

    def next_in_queue(self, who: Identity, inventory: Inventory) -> list[Ticket]:
        """Those who wait and could be served now, first come first."""
        world = world_of(self._home, self._ledger, inventory, who, ahead="")
        waiting = in_front(self._ledger.tickets(), None, self._held_back())
        return [waiting[place] for place in servable([request_of(one.request) for one in waiting], world)]

    def rehearse(self, order: Order, inventory: Inventory) -> None:
        """Plan and render, and write nothing: what is loaded and found out on the way is there for the first caller."""
        decision = self._plan(order.spec.resources, order.who, inventory, None)
        if not isinstance(decision, Refusal):
            self._prepare(order, decision, inventory)

    def _plan(self, request: Request, who: Identity, inventory: Inventory, ticket: str | None) -> DevicePlan | Refusal:
        """In one `transaction` it is always the same inventory."""
        if request.wants_devices:
            free = self._free or self._plainly_free(inventory, ticket)
            if free is not None and (devices := free.first(request)) is not None:
                return DevicePlan(devices)
        world = world_of(self._home, self._ledger, inventory, who, ahead=ticket, held_back=self._held_back())
        return plan_devices(request, world)

    def _plainly_free(self, inventory: Inventory, ticket: str | None) -> Free | None:
        """What the short way chooses from, where no one waits in front, and nothing is shared or tainted."""
        ledger = self._ledger
        if in_front(ledger.tickets(), ticket, self._held_back()) or ledger.any_shares() or ledger.taints():
            return None
        free = Free(inventory, ledger.held_units())
        if self._several:
            self._free = free
        return free

    def _held_back(self) -> Callable[[Ticket], bool] | None:
        """Whether a tenant's quota keeps a ticket from being served now; then it holds up no other."""
        if not self._tenants:
            return None
        holdings: dict[str, Holding] = {}
        queued: set[str] = set()

        def over(ticket: Ticket) -> bool:
            quota = self._tenants.get(ticket.tenant)
            if quota is None:
                return False
            if ticket.tenant not in holdings:
                holdings[ticket.tenant] = held_by(self._ledger, ticket.tenant)
                queued.update(row.id for row in self._ledger.sandboxes(live_only=True, tenant=ticket.tenant))
            wants, has = request_of(ticket.request), holdings[ticket.tenant]
            if ticket.sandbox_id in queued:  # a job has no sandbox before its turn, and is not among what is held
                has = has.without(wants)
            return bool(over_quota(has, ticket.tenant, quota, wants, least_gpus(wants), sandboxes=wants.members))

        return over

    # -- writing ----------------------------------------------------------------------------------------------------

    def _prepare(self, order: Order, plan: DevicePlan, inventory: Inventory) -> Prepared:
        return prepare(
            order.spec, order.backend, order.sandbox_id, plan, inventory, self._home, order.base_env, order.foreground,
            private=order.who.remote, owner=order.who.uid, tenant=order.who.tenant,
            gateway=bool(order.origin) or order.who.gateway, group_env=order.group_env, peers=order.peers,
        )  # fmt: skip

    def _add(self, order: Order, *, state: SandboxState, simulated: bool = False) -> Sandbox:
        pending, scheduler = None, order.scheduler
        if order.origin:
            pending = Pending(order.spec, dict(order.base_env), order.who.remote)
        row = Sandbox(
            id=order.sandbox_id,
            name=order.spec.name or order.sandbox_id,
            backend=order.backend.name,
            state=state,
            uid=order.who.uid,
            username=order.who.name,
            tenant=order.who.tenant,
            owner=myself(),
            parts=Parts(spec=_without_values(order.spec), pending=pending),
            folder=str(self._home.sandbox(order.sandbox_id)),
            created_at=time.time(),
            simulated=simulated,
            labels=dict(order.spec.labels),
            annotations=dict(order.annotations),
            origin=order.origin,
            domain=scheduler.domain if scheduler is not None else "",
            group=order.group,
            rank=order.rank,
        )
        self._ledger.add_sandbox(row)
        return row

    def _lease(self, entered: Entered) -> tuple[LeasedDevice, ...]:
        prepared, scheduler = entered.prepared, entered.order.scheduler
        if scheduler is not None and prepared.workload.delegated is not None:
            self._ledger.delegate(entered.row.id, scheduler.domain, prepared.workload.delegated.flags())
            return ()
        if not prepared.devices:
            return ()
        leased = tuple(_leased(device, prepared.shares.get(device.id)) for device in prepared.devices)
        self._ledger.reserve(SandboxId(prepared.workload.id), leased)
        if prepared.shares:
            self._free = None  # from now on something is shared
        elif self._free is not None:
            self._free.take(prepared.devices)
        return leased


def together(requests: Sequence[Request]) -> Request:
    """What the members of a group want as one: the queue and the plan see a group as this."""
    if len(requests) == 1:
        return requests[0]
    wanting = [request for request in requests if request.wants_devices]
    amounts: dict[str, Any] = {"members": len(requests)}
    for name in ("cpu_millis", "memory_bytes", "pids"):
        values = [getattr(request, name) for request in requests]
        amounts[name] = None if None in values else sum(values)  # one without a limit may take any amount
    if any(request.needs_allocator or request.devices for request in wanting):
        return Request(parts=tuple(_devices_only(request) for request in wanting), **amounts)
    counts: dict[GpuSelector, int] = {}
    for request in wanting:
        for selector in request.gpus:
            kind = msgspec.structs.replace(selector, count=0)
            counts[kind] = counts.get(kind, 0) + int(selector.count)
    gpus = tuple(msgspec.structs.replace(kind, count=count) for kind, count in counts.items())
    return Request(gpus=gpus, allow_busy=any(request.allow_busy for request in requests), **amounts)


def _devices_only(request: Request) -> Request:
    return msgspec.structs.replace(request, cpu_millis=None, memory_bytes=None, pids=None)


def divide(plan: DevicePlan, requests: Sequence[Request]) -> tuple[DevicePlan, ...]:
    """The plan of a whole group as the plans of its members, each with devices that fit each of its selectors."""
    if len(requests) == 1:
        return (plan,)
    if plan.parts:
        parts = iter(plan.parts)
        return tuple(_part(plan, set(next(parts)) if request.wants_devices else set()) for request in requests)
    selectors = [selector for request in requests for selector in request.gpus]
    fitting = [[device for device in plan.devices if not misfit(selector, device)[0]] for selector in selectors]
    groups = assign([(int(selector.count), devices) for selector, devices in zip(selectors, fitting, strict=True)])
    if groups is None:  # the whole was planned for the same selectors
        raise AssertionError("a plan for a group cannot be divided among its members")
    chosen = iter(groups)
    return tuple(
        _part(plan, {device.id for _ in request.gpus for device in next(chosen)}) for request in requests
    )  # fmt: skip


def _part(plan: DevicePlan, mine: set[str]) -> DevicePlan:
    devices = tuple(device for device in plan.devices if device.id in mine)
    shares = {name: share for name, share in plan.shares.items() if name in mine}
    return DevicePlan(devices, plan.selectors, shares)


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

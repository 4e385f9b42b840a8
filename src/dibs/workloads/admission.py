"""Admission at a gateway: a request is checked, planned and booked within milliseconds, before the gateway answers.

Called by the handlers of a gateway, on the `Workloads` of their thread. An accepted request is stored in the ledger
with everything needed to create it (`Pending`), so it outlives the gateway: the next one on that ledger continues.

    booked    'creating': the devices are leased; the dispatcher delivers it
    waiting   'queued': a place in the queue, if the request says that it may wait; the dispatcher serves the queue
    refused   a DibsError with all reasons, and nothing has changed
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dibs.backends.installed import ON_HOST, declared
from dibs.backends.mounts import real
from dibs.devices.model import Inventory
from dibs.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    DibsError,
    InvalidRequest,
    NoMatch,
    NotFound,
    Problem,
    QuotaExceeded,
    Unhealthy,
    Unsupported,
)
from dibs.ledger.idempotency import Idempotency
from dibs.ledger.rows import LeasedDevice, encode
from dibs.ledger.store import new_id
from dibs.plan.decision import Refusal
from dibs.request.durations import show_duration
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Sandbox, SandboxId
from dibs.workloads import networks
from dibs.workloads.booking import Booking, Entered, Order
from dibs.workloads.delivery import ledger_away
from dibs.workloads.explain import backend_problems, choose
from dibs.workloads.reconcile import reconcile
from dibs.workloads.rendering import Prepared
from dibs.workloads.service import Workloads

GATEWAY: Literal["gateway"] = "gateway"
REFUSALS = (InvalidRequest, Unsupported, NoMatch, Busy, Unhealthy, QuotaExceeded, Conflict, NotFound)


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a sandbox, made by the identity of `workloads`."""

    workloads: Workloads
    spec: SandboxSpec
    base_env: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    idempotency_key: str = ""

    def digest(self) -> str:
        return hashlib.sha256(encode([self.spec, self.annotations]).encode()).hexdigest()


def asks_no_engine(asking: Asking) -> bool:
    """Whether it is admitted without a word to a container engine, which may take its time."""
    spec, registry = asking.spec, asking.workloads.registry
    first = next(registry.candidates(spec.backend, asking.workloads.identity.uid))
    if declared(first.name).inspects_images:
        return False
    return spec.backend != "auto" or not backend_problems(spec, first, registry)


class Admitted(msgspec.Struct, frozen=True):
    """An accepted sandbox. `work` is there if it can be delivered at once; `again` if it was accepted before."""

    row: Sandbox
    work: tuple[Order, Prepared] | None = None
    again: bool = False
    devices: tuple[LeasedDevice, ...] = ()


def _admit(asking: Asking) -> Admitted:
    """Accept one, or raise with every reason."""
    checked = _check(asking)
    if isinstance(checked, Admitted):
        return checked
    booking, inventory = _booking(asking.workloads), asking.workloads.inventory()
    with booking.transaction():
        return _book(booking, checked, _enter(booking, checked, inventory))


def admit_all(asked: Sequence[Asking]) -> list[Admitted | Exception]:
    """Accept several in one transaction, on one ledger: each gets its own answer, in the order they are given.

    Looking at the devices, finding what is free and committing are done once for all of them. A refusal counts if it
    came before anything was written for that request. Should anything else happen, nothing has changed, and
    each is admitted by itself; unless the ledger is away: then it is not known what was committed, and all are told so.
    """
    if len(asked) == 1:
        return [_alone(asked[0])]
    answers: dict[int, Admitted | Exception] = {}
    orders: dict[int, _Checked] = {}
    for number, asking in enumerate(asked):
        try:
            checked = _check(asking)
        except DibsError as error:
            answers[number] = error
        else:
            if isinstance(checked, Admitted):
                answers[number] = checked
            else:
                orders[number] = checked
    if orders:
        try:
            answers |= _book_all(orders)
        except Exception as error:  # noqa: BLE001 - nothing has changed; each says what is wrong with it
            away = ledger_away(error)
            answers |= {number: error if away else _alone(asked[number]) for number in orders}
    return [answers[number] for number in range(len(asked))]


def rehearse(workloads: Workloads) -> None:
    """Go through an admission once as a rehearsal: nothing is written. What is found out and loaded on that way the
    first one who asks need not wait for."""
    backend, spec = choose(SandboxSpec(backend=ON_HOST), workloads.registry, workloads.identity.uid)
    order = Order(spec=spec, backend=backend, sandbox_id=SandboxId("rehearsal"), who=workloads.identity)
    Booking(workloads.home, workloads.ledger).rehearse(order, workloads.inventory())


def _booking(workloads: Workloads) -> Booking:
    return Booking(workloads.home, workloads.ledger, workloads.registry.settings.tenants)


def _alone(asking: Asking) -> Admitted | Exception:
    try:
        return _admit(asking)
    except BackendUnavailable as error:
        return _after_adoption(asking) if error.code == "LEDGER_INCOMPLETE" else error
    except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
        return error


def _after_adoption(asking: Asking) -> Admitted | Exception:
    """The ledger has forgotten what lives (a database was restarted, or restored): that is entered again first."""
    try:
        reconcile(asking.workloads.ledger, asking.workloads.registry)
        return _admit(asking)
    except Exception as error:  # noqa: BLE001 - as above
        return error


def _book_all(orders: Mapping[int, _Checked]) -> dict[int, Admitted | Exception]:
    answers: dict[int, Admitted | Exception] = {}
    workloads = next(iter(orders.values())).asking.workloads
    booking, inventory = _booking(workloads), workloads.inventory()
    with booking.transaction():
        for number, checked in orders.items():
            try:
                entered = _enter(booking, checked, inventory)
            except REFUSALS as error:
                answers[number] = error
            else:
                answers[number] = _book(booking, checked, entered)
    return answers


class _Checked(msgspec.Struct, frozen=True):
    """What can be said without the devices has been said."""

    asking: Asking
    order: Order
    digest: str


def _check(asking: Asking) -> _Checked | Admitted:
    workloads, spec = asking.workloads, asking.spec
    who, digest = workloads.identity, asking.digest() if asking.idempotency_key else ""
    if asking.idempotency_key:
        known = Idempotency(workloads.ledger).recall(who.tenant, asking.idempotency_key, digest)
        if known is not None:
            return Admitted(workloads.sandbox(known), again=True)
    spec = check_reach(workloads, spec)
    backend, spec = choose(spec, workloads.registry, who.uid)
    order = Order(
        spec=spec, backend=backend, sandbox_id=SandboxId(new_id("sb")), who=who, base_env=asking.base_env,
        origin=GATEWAY, annotations=asking.annotations,
    )  # fmt: skip
    _booking(workloads).check(order)
    return _Checked(asking, order, digest)


def _enter(booking: Booking, checked: _Checked, inventory: Inventory) -> Admitted | Entered:
    """Decide, and write the sandbox down; part of a transaction. If it raises one of REFUSALS, nothing was written."""
    asking, order = checked.asking, checked.order
    workloads, who, spec = asking.workloads, order.who, order.spec
    if asking.idempotency_key:  # another request with this key may have been faster
        known = Idempotency(workloads.ledger).recall(who.tenant, asking.idempotency_key, checked.digest)
        if known is not None:
            return Admitted(workloads.sandbox(known), again=True)
    plans = booking.decide([order], inventory)
    if not isinstance(plans, Refusal):
        return booking.enter([order], plans, inventory)[0]
    if spec.wait_seconds is None or not plans.waitable:
        raise plans.to_error()
    return Admitted(booking.queue(order))


def _book(booking: Booking, checked: _Checked, entered: Admitted | Entered) -> Admitted:
    """What belongs to an entered sandbox, in the same transaction: its devices, the key it was asked for with."""
    if isinstance(entered, Admitted) and entered.again:
        return entered
    key, workloads = checked.asking.idempotency_key, checked.asking.workloads
    if key:
        Idempotency(workloads.ledger).remember(workloads.identity.tenant, key, checked.digest, entered.row.id)
    if isinstance(entered, Admitted):
        return entered
    [booked] = booking.lease([entered])
    return Admitted(booked.row, (booked.order, booked.prepared), devices=booked.devices)


def check_reach(workloads: Workloads, spec: SandboxSpec) -> SandboxSpec:
    """A remote caller gets no folder of the host but those that the configuration names.

    The answer has the real path of each source, which is what was checked: mounting it follows no link any more.
    """
    settings = workloads.registry.settings
    problems: list[Problem] = []
    longest = settings.gateway.max_sandbox_ttl
    if longest is not None and (spec.ttl_seconds is None or spec.ttl_seconds > longest):
        said = "" if spec.ttl_seconds is None else show_duration(spec.ttl_seconds)
        reason = f"this gateway lets a sandbox live for {show_duration(longest)} at most"
        problems.append(Problem("TTL_TOO_LONG", "ttl", said, reason, f"say ttl {show_duration(longest)} or less"))
    problems += networks.not_given(spec, settings.gateway)
    if workloads.identity.remote:
        if spec.root != "host":
            remedy = f"name an image; there are {', '.join(workloads.registry.images)}"
            reason = "it is a path of the gateway's host"
            problems.append(Problem("ROOT_NOT_ALLOWED", "root", spec.root, reason, remedy))
        if spec.image.startswith("/"):
            problems.append(
                Problem("IMAGE_NOT_ALLOWED", "image", spec.image, "it is a path of the gateway's host", "name an image")
            )
        resolved = [msgspec.structs.replace(mount, source=real(mount.source)) for mount in spec.mounts]
        for mount, found in zip(spec.mounts, resolved, strict=True):
            if not any(_below(found.source, allowed) for allowed in settings.mounts_allow):
                allowed = ", ".join(settings.mounts_allow) or "none"
                reason = "the gateway does not share this folder of its host"
                problems.append(Problem("MOUNT_NOT_ALLOWED", "mounts", mount.source, reason, f"it shares: {allowed}"))
        spec = msgspec.structs.replace(spec, mounts=tuple(resolved))
    if problems:
        raise InvalidRequest(problems)
    return spec


def _below(real: str, folder: str) -> bool:
    """`real` has no links left, and none is followed: it may have been exchanged for one since."""
    shared = os.path.realpath(folder)
    return real == shared or real.startswith(shared.rstrip("/") + "/")


def waiting_for(workloads: Workloads, row: Sandbox) -> dict[str, Any]:
    """What a queued sandbox waits for, now: its place, the length of the queue, and why it waits."""
    ledger = workloads.ledger
    tickets = ledger.tickets()
    mine = next((ticket for ticket in tickets if ticket.sandbox_id == row.id), None)
    if mine is None or row.pending is None:
        return {}
    order = Order(
        spec=row.pending.spec,
        backend=workloads.backend_of(row),
        sandbox_id=row.id,
        who=workloads.identity,
        origin=GATEWAY,
    )
    decision = _booking(workloads).decide([order], workloads.inventory(), mine.id, waits=True)
    if isinstance(decision, Refusal):
        waits_for = decision.waits_for
    else:
        there = order.backend.available()
        waits_for = "it is served now" if there.ok else there.reason
    place = [ticket.id for ticket in tickets].index(mine.id) + 1
    return {"place": place, "length": len(tickets), "waits_for": waits_for}

"""How a gateway accepts a sandbox: everything is checked, decided and booked before it answers, within milliseconds.

Called by the handlers of a gateway, on the `Workloads` of their thread. What is accepted stands in the ledger with all
that is needed to make it (`Pending`), so it outlives the gateway: whoever serves the ledger next goes on with it.

    booked    'creating': the devices are leased; the dispatcher delivers it
    waiting   'queued': a place in the queue, if the request says that it may wait; the dispatcher serves the queue
    refused   a DibsError with all reasons, and nothing has changed
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dibs.errors import InvalidRequest, Problem
from dibs.ledger.idempotency import Idempotency
from dibs.ledger.rows import SandboxId, SandboxRow, encode
from dibs.ledger.store import new_id
from dibs.plan.planner import Refusal
from dibs.process import myself
from dibs.request.durations import show_duration
from dibs.request.model import ALL
from dibs.request.spec import SandboxSpec
from dibs.workloads.creation import Creation, Order, Pending
from dibs.workloads.explain import choose
from dibs.workloads.quotas import check_quota
from dibs.workloads.rendering import Prepared
from dibs.workloads.service import Workloads

GATEWAY: Literal["gateway"] = "gateway"


class Admitted(msgspec.Struct, frozen=True):
    """An accepted sandbox. `work` is there if it can be delivered at once; `again` if it was accepted before."""

    row: SandboxRow
    work: tuple[Order, Prepared] | None = None
    again: bool = False


def admit(
    workloads: Workloads,
    spec: SandboxSpec,
    *,
    base_env: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    idempotency_key: str = "",
) -> Admitted:
    """Accept a sandbox for the identity of `workloads`, or raise with every reason."""
    who, ledger, registry = workloads.identity, workloads.ledger, workloads.registry
    digest = hashlib.sha256(encode([spec, annotations or {}]).encode()).hexdigest()
    keys = Idempotency(ledger)
    if idempotency_key:
        known = keys.recall(who.tenant, idempotency_key, digest)
        if known is not None:
            return Admitted(workloads.sandbox(known), again=True)
    check_reach(workloads, spec)
    backend, spec = choose(spec, registry, who.uid)
    order = Order(
        spec=spec, backend=backend, sandbox_id=SandboxId(new_id("sb")), who=who, base_env=base_env or {},
        origin=GATEWAY, annotations=annotations or {},
    )  # fmt: skip
    creation = Creation(workloads.home, ledger)
    inventory = workloads.inventory()
    quota = registry.settings.tenants.get(who.tenant)
    prepared: Prepared | None = None
    with ledger.writing():
        if idempotency_key:
            known = keys.recall(who.tenant, idempotency_key, digest)  # somebody may have been faster
            if known is not None:
                return Admitted(workloads.sandbox(known), again=True)
        decision = creation.plan(order, inventory, None)
        waits = isinstance(decision, Refusal) and spec.wait_seconds is not None and decision.waitable
        if quota is not None:
            gpus = least_gpus(spec) if isinstance(decision, Refusal) else len(decision.devices)
            check_quota(ledger, who.tenant, quota, spec, gpus)
        if not isinstance(decision, Refusal):
            prepared = creation.prepare(order, decision, inventory)
            creation.enter(order, state="creating", simulated=prepared.simulated)
            creation.lease(prepared)
        elif waits:
            creation.enter(order, state="queued")
            request = encode(spec.resources).encode()
            ledger.enqueue(myself(), who.uid, who.name, request, sandbox_id=order.sandbox_id)
        else:
            raise decision.to_error()
        if idempotency_key:
            keys.remember(who.tenant, idempotency_key, digest, order.sandbox_id)
    row = workloads.sandbox(order.sandbox_id)
    return Admitted(row, (order, prepared) if prepared is not None else None)


def least_gpus(spec: SandboxSpec) -> int:
    """How many devices a request will have at the least, when it is served."""
    counted = sum(1 if wish.count == ALL else int(wish.count) for wish in spec.resources.gpus)
    return counted + len(spec.resources.devices)


def check_reach(workloads: Workloads, spec: SandboxSpec) -> None:
    """Who comes from afar gets no folder of the host but those that the configuration names."""
    settings = workloads.registry.settings
    problems: list[Problem] = []
    longest = settings.gateway.max_sandbox_ttl
    if longest is not None and (spec.ttl_seconds is None or spec.ttl_seconds > longest):
        said = "" if spec.ttl_seconds is None else show_duration(spec.ttl_seconds)
        reason = f"this gateway lets a sandbox live for {show_duration(longest)} at most"
        problems.append(Problem("TTL_TOO_LONG", "ttl", said, reason, f"say ttl {show_duration(longest)} or less"))
    if workloads.identity.afar:
        if spec.root != "host":
            remedy = f"name an image; there are {', '.join(workloads.registry.images)}"
            reason = "it is a path of the gateway's host"
            problems.append(Problem("ROOT_NOT_ALLOWED", "root", spec.root, reason, remedy))
        if spec.image.startswith("/"):
            problems.append(
                Problem("IMAGE_NOT_ALLOWED", "image", spec.image, "it is a path of the gateway's host", "name an image")
            )
        for mount in spec.mounts:
            if not any(_below(mount.source, allowed) for allowed in settings.mounts_allow):
                allowed = ", ".join(settings.mounts_allow) or "none"
                reason = "the gateway does not share this folder of its host"
                problems.append(Problem("MOUNT_NOT_ALLOWED", "mounts", mount.source, reason, f"it shares: {allowed}"))
    if problems:
        raise InvalidRequest(problems)


def _below(path: str, folder: str) -> bool:
    """With every link followed: a link in a shared folder leads nowhere else."""
    real, shared = os.path.realpath(path), os.path.realpath(folder)
    return real == shared or real.startswith(shared.rstrip("/") + "/")


def waiting_for(workloads: Workloads, row: SandboxRow) -> dict[str, Any]:
    """What a queued sandbox waits for, now: its place, the length of the queue, and the planner's words."""
    ledger = workloads.ledger
    tickets = ledger.tickets()
    mine = next((ticket for ticket in tickets if ticket.sandbox_id == row.id), None)
    if mine is None or row.pending is None:
        return {}
    pending = msgspec.json.decode(row.pending, type=Pending)
    order = Order(
        spec=pending.spec, backend=workloads.backend_of(row), sandbox_id=row.id, who=workloads.identity, origin=GATEWAY
    )
    decision = Creation(workloads.home, ledger).plan(order, workloads.inventory(), mine.id)
    waits_for = decision.waits_for if isinstance(decision, Refusal) else "it is served now"
    place = [ticket.id for ticket in tickets].index(mine.id) + 1
    return {"place": place, "length": len(tickets), "waits_for": waits_for}

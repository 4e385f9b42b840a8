"""What a tenant may hold at once. `booking` counts it from the ledger inside the transaction that books, so that it
cannot be overdrawn by two requests at the same time, nor by one that has waited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dibs.errors import Problem, quoted
from dibs.ledger.store import Ledger
from dibs.quantity import NANO, Quantity
from dibs.request.model import ALL, Request
from dibs.settings import Quota


class Holding(msgspec.Struct):
    """What a tenant has. A sandbox that waits counts too, apart from the GPUs that it does not have yet. A training job
    that waits does not: it may be queued beyond the quota, and two of them must not keep each other from running."""

    sandboxes: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    gpus: int = 0

    def without(self, queued: Request) -> Holding:
        """The same, apart from one sandbox that is queued."""
        cpu, memory = queued.cpu_millis or 0, queued.memory_bytes or 0
        return Holding(self.sandboxes - 1, self.cpu_millis - cpu, self.memory_bytes - memory, self.gpus)


def held_by(ledger: Ledger, tenant: str, *, but: Collection[str] = ()) -> Holding:
    """`but`: sandboxes that are not counted, because they are those in question."""
    holding = Holding()
    asked: dict[str, int] = {}
    for row in ledger.sandboxes(live_only=True, tenant=tenant):
        if row.id in but:
            continue
        request = row.spec.resources
        holding.sandboxes += 1
        holding.cpu_millis += request.cpu_millis or 0
        holding.memory_bytes += request.memory_bytes or 0
        asked[row.id] = least_gpus(request)
    holding.gpus = sum(
        # A scheduler may not have given them yet, or its node may not say which.
        len(lease.devices) if lease.kind == "booked" else max(len(lease.devices), asked.get(lease.sandbox_id, 0))
        for lease in ledger.leases()
        if lease.tenant == tenant and lease.sandbox_id not in but
    )
    return holding


def over_quota(
    has: Holding, tenant: str, quota: Quota, wants: Request, gpus: int, *, sandboxes: int = 1
) -> list[Problem]:
    """Everything that would be too much for a tenant who `has` something. `gpus`: how many it would get now;
    `sandboxes`: how many they are for."""
    rows = (
        ("sandboxes", quota.sandboxes, has.sandboxes, sandboxes, str),
        ("cpu", quota.cpu_millis, has.cpu_millis, wants.cpu_millis, _processors),
        ("memory", quota.memory_bytes, has.memory_bytes, wants.memory_bytes, _memory),
        ("gpu", quota.gpus, has.gpus, gpus, str),
    )
    problems: list[Problem] = []
    for field, limit, held, wanted, show in rows:
        if limit is None:
            continue
        if wanted is None:
            reason = (
                f"the tenant {quoted(tenant)} has a quota on {field}, so each sandbox must say how much it may take"
            )
            problems.append(Problem("QUOTA_NEEDS_LIMIT", field, "", reason, f"say {field} in the request"))
        elif held + wanted > limit:
            reason = f"the tenant {quoted(tenant)} holds {show(held)} of {show(limit)}"
            remedy = "end something first, or ask for less"
            problems.append(Problem("QUOTA_EXCEEDED", field, show(wanted), reason, remedy))
    return problems


def least_gpus(request: Request) -> int:
    """How many devices a request will have at the least, when it is served."""
    if request.parts:
        return sum(map(least_gpus, request.parts))
    if request.claim is not None:
        return sum(_least(one) for one in request.claim["devices"]["requests"])
    return sum(1 if selector.count == ALL else int(selector.count) for selector in request.gpus) + len(request.devices)


def _least(request: Mapping[str, Any]) -> int:
    """Of one request of a claim: of several that it may be served by, the one that takes least."""
    alternatives = request.get("firstAvailable")
    if alternatives:
        return min(_least(one) for one in alternatives)
    exact = request.get("exactly") or request
    return 1 if exact.get("allocationMode") == "All" else int(exact.get("count") or 1)


def _processors(millis: int) -> str:
    return f"{millis / 1000:g}"


def _memory(amount: int) -> str:
    return str(Quantity(amount * NANO, binary=True))

"""What a tenant may hold at once. Counted from the ledger inside the transaction that books, so that it cannot be
overdrawn by two requests at the same time.
"""

from __future__ import annotations

import msgspec

from dibs.errors import Problem, QuotaExceeded
from dibs.ledger.store import Ledger
from dibs.quantity import NANO, Quantity
from dibs.request.spec import SandboxSpec
from dibs.settings import Quota


class Holding(msgspec.Struct):
    """What a tenant has. Whoever waits counts too, apart from the GPUs that he does not have yet."""

    sandboxes: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    gpus: int = 0


def held_by(ledger: Ledger, tenant: str) -> Holding:
    holding = Holding()
    for row in ledger.sandboxes(live_only=True, tenant=tenant):
        request = msgspec.json.decode(row.spec, type=SandboxSpec).resources
        holding.sandboxes += 1
        holding.cpu_millis += request.cpu_millis or 0
        holding.memory_bytes += request.memory_bytes or 0
    holding.gpus = sum(len(lease.devices) for lease in ledger.leases() if lease.tenant == tenant)
    return holding


def check_quota(ledger: Ledger, tenant: str, quota: Quota, spec: SandboxSpec, gpus: int) -> None:
    """Raises QuotaExceeded with everything that would be too much. `gpus`: how many it would get now."""
    has, wants = held_by(ledger, tenant), spec.resources
    rows = (
        ("sandboxes", quota.sandboxes, has.sandboxes, 1, str),
        ("cpu", quota.cpu_millis, has.cpu_millis, wants.cpu_millis, _processors),
        ("memory", quota.memory_bytes, has.memory_bytes, wants.memory_bytes, _memory),
        ("gpu", quota.gpus, has.gpus, gpus, str),
    )
    problems: list[Problem] = []
    for field, limit, held, wanted, show in rows:
        if limit is None:
            continue
        if wanted is None:
            reason = f"the tenant {tenant!r} has a quota on {field}, so each sandbox must say how much it may take"
            problems.append(Problem("QUOTA_NEEDS_LIMIT", field, "", reason, f"say {field} in the request"))
        elif held + wanted > limit:
            reason = f"the tenant {tenant!r} holds {show(held)} of {show(limit)}"
            remedy = "end something first, or ask for less"
            problems.append(Problem("QUOTA_EXCEEDED", field, show(wanted), reason, remedy))
    if problems:
        raise QuotaExceeded(problems)


def _processors(millis: int) -> str:
    return f"{millis / 1000:g}"


def _memory(amount: int) -> str:
    return str(Quantity(amount * NANO, binary=True))

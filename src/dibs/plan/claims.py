"""Planning a request that is a claim: the DRA allocator decides, on the devices that dibs found.

Called by `devices` for what the short forms cannot say (`--claim`, `--where`), with the same answer types. The
allocator does not know about holders, use outside dibs or the queue: such devices are passed to it as "in use", with
the reason that the user will read. If a claim cannot be satisfied, it is solved again as if no device were in use. If
that succeeds, waiting helps; if not, no device here will ever satisfy it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dibs import claims
from dibs.cel.quantity import NANO
from dibs.claims import Allocated, Allocator, BadClaim, BadPool, GaveUp, Node, ResourceClaim
from dibs.claims.capacity import quantity
from dibs.claims.slices import DeviceTaint
from dibs.devices.slices import device_of, in_use, published_id, slices_of
from dibs.errors import Problem
from dibs.ledger.rows import Share
from dibs.plan.decision import DevicePlan, Refusal, World
from dibs.plan.device_state import held_by, used_outside
from dibs.plan.explanation import Fate, SelectorExplanation, Verdict
from dibs.plan.refusal import listed
from dibs.request.claim import claim_of

if TYPE_CHECKING:
    from dibs.devices.model import Device
    from dibs.request.model import Request

_FATES = {
    "class-selector": Fate.NO_MATCH,
    "selector": Fate.NO_MATCH,
    "other-node": Fate.NO_MATCH,
    "binding-conditions": Fate.CANNOT,
    "in-use": Fate.BUSY,
    "taken": Fate.TAKEN,
    "taint": Fate.TAINTED,
    "capacity": Fate.BUSY,
    "counters": Fate.BUSY,
    "constraint": Fate.NO_MATCH,
}
_WORDS = {
    "class-selector": "not of the class: {}",
    "selector": "the selector says no: {}",
    "taint": "tainted: {}",
    "capacity": "too little is left: {}",
    "counters": "a part of it, or the whole of which it is a part, is held",
    "constraint": "breaks a constraint: {}",
    "taken": "given to another part of this request",
}


def decide_claim(request: Request, world: World, blocked: Mapping[str, str]) -> DevicePlan | Refusal:
    """Solve the request's claim. The decision, with the fate of every device."""
    wanted = [
        claims.from_builtins(claim_of(part, f"request-{number}"), ResourceClaim)
        for number, part in enumerate(request.parts or (request,))
    ]
    prepared = _prepared(world)
    node = Node(world.node)
    taken = _taken(request, world, blocked)
    allocator = Allocator(prepared, world.classes(), taken)
    try:
        outcome = allocator.allocate(node, wanted)
    except (BadClaim, BadPool, GaveUp) as failure:
        field = "where" if request.where else "claim"
        remedy = "correct the expression" if isinstance(failure, BadClaim) else "ask for less at once"
        code = "CLAIM_GAVE_UP" if isinstance(failure, GaveUp) else "CLAIM_UNSOLVABLE"
        problem = Problem(code, field, request.flags(), str(failure), remedy)
        return Refusal((problem,), (), "InvalidRequest", waitable=False)
    selectors = tuple(_selector(one, world, taken) for one in outcome.explanation.requests)
    if outcome.results is None:
        unheld = in_use(world.inventory, {})
        waitable = Allocator(prepared, world.classes(), unheld).allocate(node, wanted).results is not None
        return _refusal(request, selectors, outcome.explanation, waitable)
    given: dict[str, Device] = {}
    shares: dict[str, Share] = {}
    parts: list[tuple[str, ...]] = []
    for one in outcome.results:
        results = one.devices.results
        mine = device_of(results, world.inventory)
        parts.append(tuple(device.id for device in mine))
        for result, device in zip(results, mine, strict=True):
            given[device.id] = device
            if result.share_id is not None:
                consumed = {name: quantity(amount).nanos for name, amount in result.consumed_capacity.items()}
                shares[device.id] = Share(result.share_id, consumed)
    if sum(map(len, parts)) != len(given):
        # Two parts of a group would share one device, and its booking could not say whose share is whose.
        reason = "several of the group would get shares of one device"
        remedy = "ask for whole devices, or start the sandboxes one by one"
        problem = Problem("CLAIM_UNSOLVABLE", "claim", request.flags(), reason, remedy)
        return Refusal((problem,), selectors, "InvalidRequest", waitable=False)
    return DevicePlan(tuple(given.values()), selectors, shares, tuple(parts) if request.parts else ())


_KEPT: list[tuple[object, str, object, claims.Inventory]] = []  # the last few, newest first


def _prepared(world: World) -> claims.Inventory:
    """Slices and what selectors said about them, kept as long as neither devices nor taints change."""
    devices, taints = world.inventory.devices, dict(world.taints)
    for known, node, known_taints, prepared in _KEPT:
        if known is devices and node == world.node and known_taints == taints:
            return prepared
    extra = {
        device: [DeviceTaint(key=one.key, value=one.value, effect=one.effect) for one in items]
        for device, items in taints.items()
    }
    made = claims.Inventory(slices_of(world.inventory, node=world.node, taints=extra))
    _KEPT.insert(0, (devices, world.node, taints, made))
    del _KEPT[4:]
    return made


def _taken(request: Request, world: World, blocked: Mapping[str, str]) -> Allocated:
    """What the allocator must not give, each with the words for a person."""
    reasons = {device: held_by(holder, world.now) for device, holder in world.leased.items()}
    for device in world.inventory.devices:
        if device.id in reasons:
            continue
        if device.used_by and not request.allow_busy:
            reasons[device.id] = used_outside(device)
        elif device.id in blocked:
            reasons[device.id] = blocked[device.id]
    state = in_use(world.inventory, reasons)
    shared = [(published_id(d), world.shares[d.id]) for d in world.inventory.devices if d.id in world.shares]
    state.shared = {device: ", ".join(holder.sandbox_name for holder in use.holders) for device, use in shared}
    state.consumed = {device: dict(use.consumed) for device, use in shared}
    for device in world.inventory.devices:
        if device.shareable and device.id in reasons:
            # Who has a shareable card whole has all of its capacity: that is how the allocator sees it.
            state.consumed[published_id(device)] = {name: amount * NANO for name, amount in device.capacity.items()}
    return state


def _selector(one: claims.RequestExplanation, world: World, taken: Allocated) -> SelectorExplanation:
    devices = {str(published_id(device)): device for device in world.inventory.devices}
    reasons = {str(device): reason for device, reason in taken.devices.items()}
    verdicts = [Verdict(devices[device].id, Fate.CHOSEN) for device in one.given]
    for fallen in one.fell:
        device = devices[fallen.device]
        fate = _FATES.get(fallen.reason, Fate.NO_MATCH)
        reason = _WORDS.get(fallen.reason, fallen.reason + ": {}").format(fallen.detail or "")
        if fallen.reason == "in-use":
            reason = reasons.get(fallen.device, fallen.detail)
        elif fallen.reason == "capacity" and device.id in world.shares:
            holders = ", ".join(held_by(holder, world.now) for holder in world.shares[device.id].holders)
            reason = f"too little of it is left: shares are {holders}"
        elif fallen.reason == "capacity":
            fate = Fate.NO_MATCH
        elif fallen.reason == "taint" and device.cdi is None:
            fate, reason = Fate.CANNOT, device.unattachable
        elif fallen.reason == "taint" and not device.health.ok:
            fate, reason = Fate.UNHEALTHY, device.health.reason
        verdicts.append(Verdict(device.id, fate, reason.rstrip(": "), 1.0 if fate is Fate.NO_MATCH else 0.0))
    return SelectorExplanation(f"{one.request} ({one.device_class})", one.wanted, tuple(verdicts))


def _refusal(
    request: Request, selectors: tuple[SelectorExplanation, ...], explanation: claims.Explanation, waitable: bool
) -> Refusal:
    field = "where" if request.where else "claim"
    kept_back = {
        v.device for selector in selectors for v in selector.verdicts if v.fate in (Fate.TAINTED, Fate.UNHEALTHY)
    }
    problems = []
    for selector, one in zip(selectors, explanation.requests, strict=True):
        wanted = "all" if one.wanted is None else str(one.wanted)
        free = selector.count(Fate.FREE, Fate.CHOSEN)
        reason = f"{one.request}: {one.selected} of {one.seen} devices match, {wanted} wanted"
        waiting = listed(selector, Fate.BUSY, Fate.EXTERNAL, Fate.QUEUED, Fate.TAINTED, Fate.UNHEALTHY, Fate.CANNOT)
        reason += f", {free} of them free: {waiting}" if waiting else ""
        if one.nearest is not None and not waiting:
            miss = one.nearest
            reason += f"; nearest miss: {miss.device.rpartition('/')[2]}, {miss.detail or miss.reason}"
        if waitable:
            code, remedy = "DEVICES_BUSY", "wait for it with --wait 10m"
        elif kept_back:
            code = "DEVICES_TAINTED"
            remedy = "tolerate the taint in a claim, or take it off with `dibs gpus untaint`"
        else:
            code, remedy = "NO_MATCHING_DEVICE", "`dibs explain` says why for each device"
        problems.append(Problem(code, field, request.flags(), reason, remedy))
    waits_for = "; ".join(problem.reason for problem in problems) if waitable else ""
    error = "Busy" if waitable else "Unsupported" if kept_back else "NoMatch"
    return Refusal(tuple(problems), selectors, error, waitable, waits_for)

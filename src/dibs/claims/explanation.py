"""Why a decision went as it did: per request, what happened to each device.

Filled from what the search noted while it decided; nothing is decided again. It is data: `plan` and the command line
turn it into words. `reason` codes are public:

    class-selector, selector      a selector of the class or the request said no
    other-node                    published for other nodes
    binding-conditions            needs binding conditions, which are switched off
    in-use                        held (the detail says by whom)
    taken                         given to another request of the same call
    capacity, counters, counters-off, compatibility-groups, node-operations, taint, constraint
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dibs.claims.identity import DeviceId
from dibs.claims.inventory import BINDING_OFF, CLASS_SELECTOR, OTHER_NODE, REQUEST_SELECTOR

if TYPE_CHECKING:
    from dibs.claims.attempt import Attempt
    from dibs.claims.inventory import Rejection, Selection, World
    from dibs.claims.wanted import Wanted

ALLOCATED = "allocated"
UNSATISFIABLE = "unsatisfiable"
UNDECIDED = "undecided"  # an error, the budget or a cancellation stopped it

_STAGES = {
    BINDING_OFF: "binding-conditions",
    CLASS_SELECTOR: "class-selector",
    REQUEST_SELECTOR: "selector",
    OTHER_NODE: "other-node",
}
# How close to being given a device was when it fell: the later the check, the nearer the miss.
_CLOSENESS = {
    reason: rank
    for rank, reason in enumerate(
        (
            "binding-conditions",
            "class-selector",
            "selector",
            "other-node",
            "capacity",
            "node-operations",
            "counters-off",
            "taint",
            "compatibility-groups",
            "counters",
            "constraint",
            "in-use",
            "taken",
        )
    )
}


class Verdict(msgspec.Struct, frozen=True):
    """Why one device was not given to one request."""

    device: str
    reason: str
    detail: str = ""


class RequestExplanation(msgspec.Struct, frozen=True):
    """What happened to one request, or one alternative. `wanted` is unset for all devices."""

    claim: str
    request: str
    device_class: str
    wanted: int | None
    seen: int  # devices looked at
    of_class: int  # of these, of the class
    selected: int  # of these, passed the request's own selectors
    free: int  # of these, not held
    given: tuple[str, ...]
    fell: tuple[Verdict, ...]
    nearest: Verdict | None  # the one that came closest, where nothing was selected or nothing was left

    @property
    def tally(self) -> dict[str, int]:
        """How many devices fell for each reason."""
        counts: dict[str, int] = {}
        for verdict in self.fell:
            counts[verdict.reason] = counts.get(verdict.reason, 0) + 1
        return counts


class PoolTrouble(msgspec.Struct, frozen=True):
    """A pool whose devices could not be used, and why."""

    pool: str
    reason: str


class Explanation(msgspec.Struct, frozen=True):
    outcome: str
    steps: int
    requests: tuple[RequestExplanation, ...]
    pools: tuple[PoolTrouble, ...] = ()
    note: str = ""  # what could be said about all requests together


def explain(
    outcome: str,
    steps: int,
    world: World,
    attempt: Attempt,
    groups: Sequence[Sequence[Wanted]],
    note: str = "",
) -> Explanation:
    """Put what was noted into its final form."""
    given: dict[int, list[str]] = {}
    for claim in attempt.given:
        for one in claim:
            given.setdefault(id(one.wanted), []).append(str(one.candidate.id))
    troubles = tuple(
        PoolTrouble(str(pool), pool.invalid or "incomplete: not all of its slices are published")
        for _, pool in world.unusable
    )
    requests = tuple(
        _request(world, attempt, wanted, tuple(given.get(id(wanted), ()))) for group in groups for wanted in group
    )
    return Explanation(outcome, steps, requests, troubles, note)


def _request(world: World, attempt: Attempt, wanted: Wanted, given: tuple[str, ...]) -> RequestExplanation:
    selection, candidates = wanted.selection, world.candidates
    fell: list[Verdict] = []
    best: tuple[tuple[int, int], Verdict] | None = None
    not_of_class = selected = free = 0
    held = attempt.allocated.devices
    found = set(selection.found)
    for position in range(selection.scanned):
        device: DeviceId = candidates[position].id
        if position in found:
            selected += 1
            free += device not in held
            noted = wanted.fell.get(position)
            if noted is None or str(device) in given:
                continue
            verdict, order = Verdict(str(device), *noted), 0
        else:
            rejection = selection.rejected[position]
            not_of_class += rejection[0] < REQUEST_SELECTOR
            verdict, order = Verdict(str(device), _STAGES[rejection[0]], _detail(selection, rejection)), rejection[1]
        fell.append(verdict)
        rank = (_CLOSENESS[verdict.reason], order)
        if best is None or rank > best[0]:
            best = (rank, verdict)
    missing = wanted.need > len(given) or wanted.everything
    return RequestExplanation(
        claim=wanted.claim,
        request=wanted.name,
        device_class=wanted.device_class.metadata.name,
        wanted=None if wanted.everything else wanted.need,
        seen=selection.scanned,
        of_class=selection.scanned - not_of_class,
        selected=selected,
        free=free,
        given=given,
        fell=tuple(fell),
        nearest=best[1] if best is not None and missing and not given else None,
    )


def _detail(selection: Selection, rejection: Rejection) -> str:
    stage, index = rejection
    if stage == CLASS_SELECTOR:
        return selection.of_class[index].text
    if stage == REQUEST_SELECTOR:
        return selection.of_request[index].text
    return ""

"""Why something waits, as data: `pending` fills it in, the command line prints it. Codes are public.

On devices: NO_DEVICES, DEVICE_NO_MATCH, DEVICE_IN_USE, DEVICE_TAINTED, DEVICE_COUNTERS_USED_UP, DEVICE_CAPACITY_SHORT,
DEVICE_CONSTRAINT, DEVICES_TOGETHER, DEVICE_UNUSABLE, CLASS_MISSING, SELECTOR_FAILS, CLAIM_UNDECIDABLE, POOL_UNUSABLE,
CLAIM_ELSEWHERE. On nodes: NODE_NOT_SELECTED, NODE_AFFINITY, NODE_TAINTED, NODE_CORDONED, RESOURCE_SHORT,
RESOURCE_UNKNOWN, NO_NODES. On the object itself: TEMPLATE_MISSING, CLAIM_MISSING, CLAIM_UNUSED,
CLAIM_BEING_DELETED, CLAIM_WAITS_FOR_POD, ALLOCATED, GATED, SCHEDULER_SILENT, GANG_SHORT, GANG_UNKNOWN, QUOTA,
NOT_CREATED, ON_ITS_NODE, RUNNING, ENDED, NOTHING_AGAINST_IT.
"""

from __future__ import annotations

import msgspec

from dibs.claims.explanation import Explanation
from dibs.errors import Problem


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that stands against it."""

    code: str
    text: str
    remedy: str = ""


class NodeVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node: nothing against it, or all that is. `devices`: per device, what the allocator noted."""

    node: str
    reasons: tuple[Reason, ...] = ()
    devices: tuple[Explanation, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.reasons


class Words(msgspec.Struct, frozen=True, omit_defaults=True):
    """What Kubernetes itself says, verbatim."""

    source: str  # PodScheduled, or event
    reason: str
    message: str
    at: str = ""


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole answer for one pod or claim."""

    cluster: str
    kind: str
    namespace: str
    name: str
    state: str  # pending, bound, running, ended, allocated, not created
    since: str = ""
    reasons: tuple[Reason, ...] = ()  # the answer in short: of the object itself, or of the node that comes nearest
    nearest: str = ""
    words: tuple[Words, ...] = ()
    nodes: tuple[NodeVerdict, ...] = ()
    not_judged: tuple[str, ...] = ()
    unreadable: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        return self.state in ("pending", "not created")

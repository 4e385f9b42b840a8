"""Why an allocation stopped without an answer. Raised by `allocator`, `pools` and what they call.

    InvalidRequest ── BadClaim      a claim, class or selector that can never be decided: change it
    BackendUnavailable ── BadPool   the published devices are incomplete or contradict themselves: try again later
    Timeout ─┬─ GaveUp              the step budget is used up
             └─ Cancelled           the caller's callback said stop

"Nothing fits" is no failure: it is an outcome without results. Each failure carries the explanation as far as it got.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.errors import BackendUnavailable, InvalidRequest, Timeout

if TYPE_CHECKING:
    from dibs.claims.explanation import Explanation


class BadClaim(InvalidRequest):
    default_code = "CLAIM_INVALID"
    explanation: Explanation | None = None


class BadPool(BackendUnavailable):
    default_code = "POOL_INVALID"
    explanation: Explanation | None = None


class GaveUp(Timeout):
    default_code = "ALLOCATION_GAVE_UP"
    explanation: Explanation | None = None


class Cancelled(Timeout):
    default_code = "ALLOCATION_CANCELLED"
    explanation: Explanation | None = None

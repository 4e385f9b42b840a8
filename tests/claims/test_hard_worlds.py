"""Worlds with few devices and very many ways to hand them out are decided, as by a search that tries every way."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.claims import hard
from tests.claims.worlds import HOST, allocator, claims

from dibs.claims.claim import AllocationResult
from dibs.claims.deadends import DeadEnds
from dibs.claims.failures import BadClaim, GaveUp
from dibs.claims.features import Features

FEW = 400_000  # steps; without dead ends some of these worlds take millions
_UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # a smaller one is no clearer, and finding it takes minutes


def decided(seed: int, kind: str, count: int, budget: int) -> tuple[AllocationResult, ...] | str | None:
    """What is given; None where nothing can be, an error's words where the claim is at fault."""
    slices, wanted = hard.world(seed, kind, count)
    try:
        asked = allocator(slices, features=Features.everything())
        outcome = asked.allocate(HOST, claims(*wanted), budget=budget, new_share_id=lambda: "share")
    except BadClaim as error:
        return str(error)
    return outcome.results


@settings(max_examples=6, phases=_UNSHRUNK)
@given(st.integers(0, 1 << 32), st.sampled_from(hard.KINDS))
def test_hard_worlds_of_thirteen_devices_are_decided(seed: int, kind: str) -> None:
    decided(seed, kind, 13, FEW)  # GaveUp is a failure


@settings(max_examples=40, phases=_UNSHRUNK)
@given(st.integers(0, 1 << 32), st.sampled_from(hard.KINDS))
def test_what_is_tried_once_changes_no_answer(seed: int, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeadEnds, "known", lambda self, group: False)
        plain = decided(seed, kind, 8, 3_000_000)
    assert decided(seed, kind, 8, FEW) == plain


# In these the answer is lost when a state leaves out what a later request has to fit to: the value that several
# requests share, the values that none may repeat, the constraints of the last request or of every second one.
@pytest.mark.parametrize("seed", [67, 182, 210, 388])
def test_assignments_take_later_requests_into_account(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slices, wanted = hard.tangled(seed)
    asked = allocator(slices, features=Features.everything())
    tried_once = asked.allocate(HOST, claims(*wanted)).results
    assert tried_once is not None
    monkeypatch.setattr(DeadEnds, "known", lambda self, group: False)
    assert asked.allocate(HOST, claims(*wanted)).results == tried_once


def test_without_dead_ends_such_a_world_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the property above can fail."""
    decided(1, "everything", 13, FEW)
    monkeypatch.setattr(DeadEnds, "known", lambda self, group: False)
    with pytest.raises(GaveUp):
        decided(1, "everything", 13, FEW)

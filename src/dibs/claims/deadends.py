"""Dead ends: states from which the search is known to find nothing, so that it does not go down there again.

`search` remembers one whenever it comes back to the last device of a request, and asks before it goes on to the next
request. Different ways lead to the same state: which of two requests got which of two devices does not matter to those
that follow. A state holds everything that what follows depends on, and devices that can stand for each other count as
one, so a dead end never hides a solution, and an error that lies ahead was met the first time.
"""

from __future__ import annotations

from collections.abc import Callable

from dibs.claims.attempt import Attempt
from dibs.claims.constraints import Constraint, DistinctAttribute, MatchAttribute
from dibs.claims.wanted import Wanted

_MOST = 200_000  # states; some 100 MB at most, and far more than any world has needed


class DeadEnds:
    """Those of one search. `likeness`: equal for devices that can stand for each other in every respect."""

    __slots__ = ("_attempt", "_claims", "_constraints", "_exact", "_likeness", "_numbers", "_states")

    def __init__(self, attempt: Attempt, groups: list[list[Wanted]], likeness: Callable[[int], object]) -> None:
        self._attempt = attempt
        self._likeness = likeness
        self._numbers: dict[object, int] = {}
        self._states: set[object] = set()
        # Administrators share devices with others, but not within a claim: there it matters who has which.
        self._exact = any(wanted.admin for group in groups for wanted in group)
        self._claims = [group[0].claim_index for group in groups]
        # By request, the constraints that it or a later one is under.
        self._constraints: list[list[Constraint]] = [[] for _ in groups]
        later: dict[int, Constraint] = {}
        for index in reversed(range(len(groups))):
            later.update({id(one): one for wanted in groups[index] for one in wanted.constraints})
            self._constraints[index] = list(later.values())

    def known(self, group: int) -> bool:
        """Whether nothing is found from this request on, with what is taken now."""
        return bool(self._states) and group < len(self._claims) and self._state(group) in self._states

    def remember(self, group: int) -> None:
        """Nothing was found from this request on, with what is taken now. After the last one everything is placed."""
        if len(self._states) < _MOST:
            self._states.add(self._state(group))

    def _state(self, group: int) -> object:
        attempt = self._attempt
        taken: object
        if self._exact:
            taken = tuple(sorted((position, tuple(sorted(claims))) for position, claims in attempt.marks.items()))
        else:
            numbers, likeness = self._numbers, self._likeness
            taken = tuple(sorted(numbers.setdefault(likeness(place), len(numbers)) for place in attempt.marks))
        shares = tuple(
            (position, count, tuple(sorted(attempt.sums[position].items())))
            for position, count in sorted(attempt.shares.items())
        )
        counts = tuple(len(given) for given in attempt.given[self._claims[group] :])
        return group, taken, shares, counts, tuple(_standing(one) for one in self._constraints[group])


def _standing(constraint: Constraint) -> object:
    """What a constraint allows from now on."""
    if isinstance(constraint, MatchAttribute):
        return constraint.common[-1] if constraint.common else None
    assert isinstance(constraint, DistinctAttribute)
    return len(constraint.taken), frozenset().union(*constraint.taken)

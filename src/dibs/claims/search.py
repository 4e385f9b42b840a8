"""The search: depth first, the first complete solution wins.

`allocator` starts it. Claim by claim, request by request, device by device; within a request only devices behind the
last one are tried, so that combinations are tried and not their permutations. When a path fails, the next device is
tried, then the next alternative. Until the first dead end nothing is looked up in advance; from then on `lookahead`
says which paths cannot succeed, and `deadends` which have been tried. Both only remove paths without a solution, so the
answer stays the same.

The search keeps its own stack: its depth is not limited by Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dibs.claims.attempt import Attempt, Given
from dibs.claims.deadends import DeadEnds
from dibs.claims.failures import Cancelled, GaveUp
from dibs.claims.identity import DeviceId
from dibs.claims.lookahead import Lookahead
from dibs.claims.wanted import MAX_RESULTS, Wanted

# Some seconds of work, about what Kubernetes allows for one node (10 s). What gets there is a knot that more steps
# would hardly untie.
STEP_BUDGET = 500_000
_NOBODY: Mapping[DeviceId, str] = {}
_FAILED, _TOO_MANY = 1, 2  # too many devices: no other device of the same claim can help, only an alternative


class _Choice:
    """Which alternative of a request is being tried."""

    __slots__ = ("group", "index", "only_too_many")

    def __init__(self, group: int) -> None:
        self.group = group
        self.index = 0
        self.only_too_many = True


class _Pick:
    """A device that was taken, and where to go on if it was the wrong one."""

    __slots__ = ("count", "cursor", "failed", "given", "group", "wanted")

    def __init__(
        self, group: int, wanted: Wanted, count: int, cursor: int, given: Given, failed: set[object] | None
    ) -> None:
        self.group = group
        self.wanted = wanted
        self.count = count
        self.cursor = cursor
        self.given = given
        self.failed = failed


class Search:
    """One run. `groups` are the requests of all claims in order, each with its alternatives."""

    def __init__(
        self,
        attempt: Attempt,
        groups: list[list[Wanted]],
        choosing: set[int],
        budget: int,
        cancelled: Callable[[], bool] | None,
        most: int | None = MAX_RESULTS,
    ) -> None:
        """`choosing`: the indices of the groups that are a choice (`firstAvailable`). `most`: how many devices a claim
        may be given; None where it is none that Kubernetes has to store."""
        self.attempt = attempt
        self.groups = groups
        self.choosing = choosing
        self.budget = budget
        self.cancelled = cancelled
        self.most = most
        self.steps = 0
        self.furthest = 0  # devices placed at most
        self.furthest_group = 0
        self.chosen: dict[int, Wanted] = {}
        self.hopeless = ""  # why the look-ahead gave up at once
        self._lookahead: Lookahead | None = None
        self._dead_ends: DeadEnds | None = None

    def run(self) -> bool:
        """Whether a solution was found; it then stands in the attempt."""
        stack: list[_Choice | _Pick] = []
        groups = self.groups
        group = 0
        while True:
            signal = self._descend(stack, group)
            if not signal:
                return True
            if self._lookahead is None:
                self._lookahead = Lookahead(self.attempt, groups)
                self.hopeless = self._lookahead.hopeless()
                if self.hopeless:
                    return False
                self._dead_ends = DeadEnds(self.attempt, groups, self._lookahead.likeness)
            resumed = self._backtrack(stack, signal)
            if resumed is None:
                return False
            group = resumed

    def _descend(self, stack: list[_Choice | _Pick], group: int) -> int:
        """Go down from a request until everything is placed (0) or a dead end is met (its signal)."""
        groups = self.groups
        while group < len(groups):
            alternatives = groups[group]
            if group in self.choosing:
                stack.append(_Choice(group))
            signal = self._place(stack, group, alternatives[0])
            if signal:
                return signal
            group += 1
        return 0

    def _place(self, stack: list[_Choice | _Pick], group: int, wanted: Wanted) -> int:
        """Place a whole request, from its first device on."""
        self.chosen[group] = wanted
        if wanted.everything and not wanted.positions:
            return _FAILED
        most = self.most
        if most is not None and len(self.attempt.given[wanted.claim_index]) + wanted.need > most and wanted.need > 0:
            return _TOO_MANY
        return self._pick(stack, group, wanted, 0, 0, None)

    def _pick(
        self,
        stack: list[_Choice | _Pick],
        group: int,
        wanted: Wanted,
        count: int,
        cursor: int,
        failed: set[object] | None,
    ) -> int:
        """Place the devices of a request from the given one on; the first is looked for from the cursor on."""
        attempt = self.attempt
        found = wanted.positions if wanted.everything else wanted.selection.found
        more = None if wanted.everything else wanted.selection.more
        lookahead = self._lookahead
        candidates, fell = attempt.candidates, wanted.fell
        held = _NOBODY if wanted.admin else attempt.allocated.devices
        while count < wanted.need:
            while True:
                if cursor >= len(found) and (more is None or not more()):
                    self._note(group)
                    return _FAILED
                position = found[cursor]
                cursor += 1
                self.steps += 1
                if self.steps > self.budget or self.cancelled is not None:
                    self._check()
                if candidates[position].id in held and not wanted.everything:  # most often, and cheap
                    fell.setdefault(position, ("in-use", held[candidates[position].id]))
                    continue
                if failed is not None and lookahead is not None and lookahead.likeness(position) in failed:
                    continue
                given = attempt.take(wanted, position)
                if given is None:
                    if wanted.everything:
                        return _FAILED
                    continue
                if lookahead is not None and (
                    self._is_dead_end(group, wanted, count + 1)
                    or not lookahead.possible(group, wanted, count + 1, position)
                ):
                    attempt.put_back(given)
                    if wanted.everything:
                        return _FAILED
                    failed = failed if failed is not None else set()
                    failed.add(lookahead.likeness(position))
                    continue
                break
            stack.append(_Pick(group, wanted, count, cursor, given, failed))
            failed = None
            count += 1
        return 0

    def _is_dead_end(self, group: int, wanted: Wanted, count: int) -> bool:
        """Whether the requests after this one, which is complete now, are known to find nothing."""
        return count == wanted.need and self._dead_ends is not None and self._dead_ends.known(group + 1)

    def _backtrack(self, stack: list[_Choice | _Pick], signal: int) -> int | None:
        """Undo until another way opens, and take it; the group to go on with, None where there is no other way.

        "Too many" never leaves its claim: a claim whose smallest alternatives are too many is refused beforehand.
        """
        while stack:
            frame = stack[-1]
            if isinstance(frame, _Choice):
                alternatives = self.groups[frame.group]
                if signal != _TOO_MANY:
                    frame.only_too_many = False
                frame.index += 1
                if frame.index == len(alternatives):
                    stack.pop()
                    signal = _TOO_MANY if frame.only_too_many else _FAILED
                    continue
                signal = self._place(stack, frame.group, alternatives[frame.index])
                if not signal:
                    return frame.group + 1
                continue
            stack.pop()
            if signal != _TOO_MANY and frame.count + 1 == frame.wanted.need and self._dead_ends is not None:
                self._dead_ends.remember(frame.group + 1)
            self.attempt.put_back(frame.given)
            if signal == _TOO_MANY or frame.wanted.everything:
                continue
            failed = frame.failed
            if self._lookahead is not None:
                failed = failed if failed is not None else set()
                failed.add(self._lookahead.likeness(frame.given.position))
            signal = self._pick(stack, frame.group, frame.wanted, frame.count, frame.cursor, failed)
            if not signal:
                return frame.group + 1
        return None

    def _check(self) -> None:
        if self.steps > self.budget:
            raise GaveUp(f"gave up after {self.budget} steps: {self.progress()}")
        if self.cancelled is not None and self.cancelled():
            raise Cancelled(f"stopped after {self.steps} steps, as asked: {self.progress()}")

    def _note(self, group: int) -> None:
        placed = sum(len(given) for given in self.attempt.given)
        if placed >= self.furthest:
            self.furthest, self.furthest_group = placed, group

    def progress(self) -> str:
        """How far it came, for a person."""
        wanted = self.groups[self.furthest_group][0]
        devices = "device was" if self.furthest == 1 else "devices were"
        return (
            f"at most {self.furthest} {devices} placed before request {wanted.request} "
            f"of claim {wanted.claim} found no further device"
        )

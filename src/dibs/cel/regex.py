"""A matcher for RE2 patterns that takes linear time, whatever the pattern: no backtracking.

Called by the string and regex libraries. ``compile_regex`` keeps the latest patterns. A test (``search``) runs a DFA
that is built lazily; finding where a match lies runs all threads of the program side by side, in order of preference.
"""

from typing import Final

from dibs.cel.errors import CelCostError, CelRuntimeError
from dibs.cel.pattern import (
    ASSERT,
    BOUNDARY,
    CHARS,
    LINE_END,
    LINE_START,
    MATCH,
    SPLIT,
    TEXT_END,
    TEXT_START,
    CharSet,
    compile_program,
)
from dibs.cel.values import spend

_CACHE_SIZE: Final = 256
_MAX_STATES: Final = 1_000
# Thread steps per call; about half a second.
_MAX_STEPS: Final = 1_000_000

_cache: dict[str, "Regex"] = {}


def compile_regex(pattern: str) -> "Regex":
    """The compiled pattern; CelRuntimeError where it is none."""
    found = _cache.get(pattern)
    if found is None:
        found = Regex(pattern)
        if len(_cache) >= _CACHE_SIZE:
            # The oldest goes; a plain dict keeps the order of insertion.
            _cache.pop(next(iter(_cache)), None)
        _cache[pattern] = found
    return found


def _count(steps: int, more: int) -> int:
    spend(float(more))
    if steps + more > _MAX_STEPS:
        raise CelCostError("the regular expression takes too many steps")
    return steps + more


def _word(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "_")


class Regex:
    """A compiled pattern."""

    __slots__ = ("_free", "_literal", "_program", "_start", "_states", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            self._program = compile_program(pattern)
        except ValueError as error:
            raise CelRuntimeError(f"error parsing regexp: {error}: `{pattern[:200]}`") from None
        # Most patterns are plain text; Python's own substring search answers those.
        self._literal = pattern if pattern and not set(pattern) & set(r"\.+*?()|[]{}^$") else None
        asserts = {first for code, first, _ in self._program if code == ASSERT}
        # A DFA state cannot know its neighbours, so only assertions about the two ends of the text may be in it.
        self._free = asserts <= {TEXT_START, TEXT_END}
        self._states: dict[frozenset[int], _State] = {}
        self._start: _State | None = None

    @property
    def size(self) -> int:
        """The number of instructions: the work per character."""
        return len(self._program)

    def search(self, text: str) -> bool:
        """Whether the pattern matches anywhere."""
        if self._literal is not None:
            return self._literal in text
        if not self._free:
            return self._run(text, 0, anywhere=True) is not None
        return self._search_states(text)

    # -- the lazy DFA

    def _search_states(self, text: str) -> bool:
        state = self._start
        if state is None:
            state = self._start = self._new_state(self._closure([0], start=True, end=False), start=True)
        steps = 0
        for char in text:
            if state.matched:
                return True
            following = state.next.get(char)
            if following is None:
                steps = _count(steps, len(state.threads) + 1)
                following = state.next[char] = self._advance(state, char)
            state = following
        if state.matched:
            return True
        if state.at_end is None:
            state.at_end = self._matched(self._closure(list(state.threads), start=state.start, end=True))
        return state.at_end

    def _advance(self, state: "_State", char: str) -> "_State":
        program = self._program
        seeds: list[int] = []
        for place in state.threads:
            code, chars, following = program[place]
            if code == CHARS and isinstance(chars, CharSet) and chars.holds(char):
                seeds.append(following)
        # The search may begin anew at every place.
        seeds.append(0)
        threads = self._closure(seeds, start=False, end=False)
        found = self._states.get(threads)
        if found is None:
            if len(self._states) >= _MAX_STATES:
                self._states.clear()
                self._start = None
            found = self._states[threads] = self._new_state(threads, start=False)
        return found

    def _new_state(self, threads: frozenset[int], *, start: bool) -> "_State":
        return _State(threads, start=start, matched=self._matched(threads))

    def _matched(self, threads: frozenset[int]) -> bool:
        return (len(self._program) - 1) in threads

    def _closure(self, seeds: list[int], *, start: bool, end: bool) -> frozenset[int]:
        program = self._program
        stack = list(seeds)
        seen: set[int] = set()
        while stack:
            place = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            code, first, second = program[place]
            if code == SPLIT:
                stack.append(second)
                stack.append(int(first))  # type: ignore[arg-type]
            elif code == ASSERT and ((first == TEXT_START and start) or (first == TEXT_END and end)):
                stack.append(second)
        # Unmet assertions stay in the set: they may be met at the end of the text.
        return frozenset(seen)

    # -- the thread machine

    def find(self, text: str, begin: int = 0) -> tuple[int, int] | None:
        """The leftmost match at or after ``begin``, preferring as Perl does."""
        if self._literal is not None:
            place = text.find(self._literal, begin)
            return None if place < 0 else (place, place + len(self._literal))
        return self._run(text, begin, anywhere=False)

    def find_all(self, text: str, limit: int = -1) -> list[str]:
        """All matches that do not overlap, from the left."""
        found: list[str] = []
        place, last = 0, -1
        while place <= len(text) and (limit < 0 or len(found) < limit):
            span = self.find(text, place)
            if span is None:
                break
            # An empty match directly after a match does not count, as in Go.
            if span[0] != span[1] or span[0] != last:
                found.append(text[span[0] : span[1]])
            last = span[1]
            place = span[1] + (1 if span[0] == span[1] else 0)
        return found

    def _run(self, text: str, begin: int, *, anywhere: bool) -> tuple[int, int] | None:
        program = self._program
        threads: list[tuple[int, int]] = []
        best: tuple[int, int] | None = None
        steps = 0
        for place in range(begin, len(text) + 1):
            seen: set[int] = set()
            current: list[tuple[int, int]] = []
            for target, origin in threads:
                self._add(current, seen, target, origin, text, place)
            if best is None:
                self._add(current, seen, 0, place, text, place)
            if not current:
                if best is not None:
                    break
                threads = []
                continue
            steps = _count(steps, len(seen))
            threads = []
            char = text[place] if place < len(text) else ""
            for target, origin in current:
                code, chars, following = program[target]
                if code == MATCH:
                    best = (origin, place)
                    if anywhere:
                        return best
                    break
                if char and isinstance(chars, CharSet) and chars.holds(char):
                    threads.append((following, origin))
            if best is not None and not threads:
                break
        return best

    def _add(
        self, threads: list[tuple[int, int]], seen: set[int], target: int, origin: int, text: str, place: int
    ) -> None:
        program = self._program
        stack = [target]
        while stack:
            target = stack.pop()
            if target in seen:
                continue
            seen.add(target)
            code, first, second = program[target]
            if code == SPLIT:
                stack.append(second)
                stack.append(int(first))  # type: ignore[arg-type]
            elif code == ASSERT:
                if _holds(int(first), text, place):  # type: ignore[arg-type]
                    stack.append(second)
            else:
                threads.append((target, origin))


class _State:
    __slots__ = ("at_end", "matched", "next", "start", "threads")

    def __init__(self, threads: frozenset[int], *, start: bool, matched: bool) -> None:
        self.threads = threads
        self.start = start
        self.matched = matched
        self.next: dict[str, _State] = {}
        self.at_end: bool | None = None


def _holds(what: int, text: str, place: int) -> bool:
    if what == TEXT_START:
        return place == 0
    if what == TEXT_END:
        return place == len(text)
    if what == LINE_START:
        return place == 0 or text[place - 1] == "\n"
    if what == LINE_END:
        return place == len(text) or text[place] == "\n"
    before = place > 0 and _word(text[place - 1])
    after = place < len(text) and _word(text[place])
    return (before != after) == (what == BOUNDARY)

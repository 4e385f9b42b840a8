"""A smaller expression that shows the same difference: cut to a part of itself, or with a part replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

_OPENING, _CLOSING = "([{", ")]}"
_PLAIN = ("1", '"a"', "true", "[1]", "x")
_TRIES = 300


def _parts(text: str) -> Iterator[tuple[int, int]]:
    """Balanced pieces: what is inside of brackets, and the arguments between commas."""
    stack: list[list[int]] = []
    quote = ""
    place = 0
    while place < len(text):
        char = text[place]
        if quote:
            if char == "\\":
                place += 1
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        elif char in _OPENING:
            stack.append([place + 1])
        elif char == "," and stack:
            yield stack[-1][-1], place
            stack[-1].append(place + 1)
        elif char in _CLOSING and stack:
            starts = stack.pop()
            yield starts[-1], place
            if len(starts) > 1:
                yield starts[0], place
        place += 1


def _cut(text: str) -> Iterator[str]:
    parts = list(_parts(text))
    for start, end in parts:
        yield text[start:end].strip()
    for start, end in sorted(parts, key=lambda part: part[0] - part[1]):
        if end - start > 5:
            for plain in _PLAIN:
                yield text[:start] + plain + text[end:]


def shrunk(text: str, still: Callable[[str], bool]) -> str:
    """The smallest text found for which `still` holds."""
    tries = 0
    better = True
    while better:
        better = False
        for candidate in _cut(text):
            if not candidate or len(candidate) >= len(text):
                continue
            tries += 1
            if tries > _TRIES:
                return text
            if still(candidate):
                text, better = candidate, True
                break
    return text

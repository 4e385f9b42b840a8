"""Regular expressions in RE2's syntax, read into a small program for the matcher in ``regex``.

Called by ``regex`` only. What RE2 does not have (backreferences, lookaround, possessive repeats, atomic groups) is
refused, and so is what would make the program large: the size of the program bounds the work per character.
"""

import unicodedata
from bisect import bisect_right
from typing import Any, Final, NamedTuple

MAX_PROGRAM: Final = 5_000
MAX_REPEAT: Final = 1_000
MAX_GROUPS: Final = 100
_TOP: Final = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]

# The codes of instructions. CHARS holds a set and the next place, SPLIT two places in order of preference, ASSERT
# what must hold and the next place.
CHARS, SPLIT, ASSERT, MATCH = range(4)
TEXT_START, TEXT_END, LINE_START, LINE_END, BOUNDARY, NO_BOUNDARY = range(6)

_DIGIT: Final[Ranges] = ((48, 57),)
_WORD: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Final[Ranges] = ((9, 10), (12, 13), (32, 32))
_PERL: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: Final[dict[str, Ranges]] = {
    "alnum": ((48, 57), (65, 90), (97, 122)), "alpha": ((65, 90), (97, 122)), "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)), "cntrl": ((0, 31), (127, 127)), "digit": _DIGIT, "graph": ((33, 126),),
    "lower": ((97, 122),), "print": ((32, 126),), "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)), "upper": ((65, 90),), "word": _WORD, "xdigit": ((48, 57), (65, 70), (97, 102)),
}  # fmt: skip
_CONTROL: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_CATEGORIES: Final = frozenset(
    [
        "C",
        "Cc",
        "Cf",
        "Cn",
        "Co",
        "Cs",
        "L",
        "Ll",
        "Lm",
        "Lo",
        "Lt",
        "Lu",
        "M",
        "Mc",
        "Me",
        "Mn",
        "N",
        "Nd",
        "Nl",
        "No",
        "P",
        "Pc",
        "Pd",
        "Pe",
        "Pf",
        "Pi",
        "Po",
        "Ps",
        "S",
        "Sc",
        "Sk",
        "Sm",
        "So",
        "Z",
        "Zl",
        "Zp",
        "Zs",
    ]
)


class CharSet:
    """A set of code points: ranges, and Unicode categories that are asked for when needed."""

    __slots__ = ("categories", "folded", "negated", "starts", "stops")

    def __init__(
        self, ranges: list[tuple[int, int]], categories: list[tuple[str, bool]], *, negated: bool, folded: bool
    ) -> None:
        merged: list[list[int]] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        self.starts = [low for low, _ in merged]
        self.stops = [high for _, high in merged]
        self.categories = categories
        self.negated = negated
        self.folded = folded

    def _holds(self, code: int) -> bool:
        place = bisect_right(self.starts, code) - 1
        if place >= 0 and code <= self.stops[place]:
            return True
        if self.categories:
            name = unicodedata.category(chr(code))
            return any(name.startswith(wanted) != negated for wanted, negated in self.categories)
        return False

    def holds(self, char: str) -> bool:
        """Whether the character is in the set."""
        found = self._holds(ord(char))
        if not found and self.folded:
            found = any(len(other) == 1 and self._holds(ord(other)) for other in (char.lower(), char.upper()))
        return found != self.negated


class Flags(NamedTuple):
    """What ``(?imsU)`` switches."""

    fold: bool = False
    multiline: bool = False
    dot_all: bool = False
    ungreedy: bool = False


Instruction = tuple[int, "CharSet | int", int]
# A syntax tree: a kind ("set", "assert", "cat", "alt" or "repeat"), then what that kind needs.
Tree = tuple[Any, ...]


def compile_program(pattern: str) -> list[Instruction]:
    """The program of a pattern; ValueError where it is not RE2 or too large."""
    tree = _Reader(pattern).read()
    program: list[Instruction] = []
    _emit(program, tree)
    program.append((MATCH, 0, 0))
    return program


def _put(program: list[Instruction], instruction: Instruction) -> int:
    if len(program) >= MAX_PROGRAM:
        raise ValueError("the expression is too large once its repetitions are written out")
    program.append(instruction)
    return len(program) - 1


def _emit(program: list[Instruction], tree: Tree) -> None:
    kind = tree[0]
    if kind == "set":
        _put(program, (CHARS, tree[1], len(program) + 1))
    elif kind == "assert":
        _put(program, (ASSERT, tree[1], len(program) + 1))
    elif kind == "cat":
        for item in tree[1]:
            _emit(program, item)
    elif kind == "alt":
        ends = []
        for item in tree[1][:-1]:
            split = _put(program, (SPLIT, 0, 0))
            _emit(program, item)
            ends.append(_put(program, (SPLIT, 0, 0)))
            program[split] = (SPLIT, split + 1, len(program))
        _emit(program, tree[1][-1])
        for end in ends:
            program[end] = (SPLIT, len(program), len(program))
    else:
        _, item, low, high, greedy = tree
        for _ in range(low):
            _emit(program, item)
        if high is None:
            split = _put(program, (SPLIT, 0, 0))
            _emit(program, item)
            _put(program, (SPLIT, split, split))
            program[split] = _split(split + 1, len(program), greedy=greedy)
        else:
            splits = []
            for _ in range(high - low):
                splits.append(_put(program, (SPLIT, 0, 0)))
                _emit(program, item)
            for split in splits:
                program[split] = _split(split + 1, len(program), greedy=greedy)


def _split(into: int, past: int, *, greedy: bool) -> Instruction:
    return (SPLIT, into, past) if greedy else (SPLIT, past, into)


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.place = 0
        self.depth = 0

    def read(self) -> Tree:
        tree = self.alternatives(Flags())
        if self.place < len(self.text):
            raise ValueError("unexpected )")
        return tree

    def peek(self, size: int = 1) -> str:
        return self.text[self.place : self.place + size]

    def take(self) -> str:
        if self.place >= len(self.text):
            raise ValueError("the expression ends too early")
        self.place += 1
        return self.text[self.place - 1]

    def alternatives(self, flags: Flags) -> Tree:
        branches: list[Tree] = []
        items: list[Tree] = []
        while True:
            char = self.peek()
            if char in ("", ")"):
                break
            if char == "|":
                self.place += 1
                branches.append(("cat", items))
                items = []
                continue
            if self.peek(2) == "(?" and self.peek(3) != "(?P":
                changed = self.flags(flags)
                if changed is not None:
                    flags = changed
                    continue
            items.append(self.repeated(flags))
        branches.append(("cat", items))
        return branches[0] if len(branches) == 1 else ("alt", branches)

    def flags(self, flags: Flags) -> Flags | None:
        """``(?i)`` changes the flags of the rest of the group; ``(?i:...)`` is left to ``group``."""
        end = self.place + 2
        while end < len(self.text) and self.text[end] in "imsU-":
            end += 1
        if end == self.place + 2 or self.text[end : end + 1] != ")":
            return None
        changed = _switch(flags, self.text[self.place + 2 : end])
        self.place = end + 1
        return changed

    def repeated(self, flags: Flags) -> Tree:
        item = self.atom(flags)
        repeated = False
        while True:
            char = self.peek()
            if char and char in "*+?":
                self.place += 1
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            elif char == "{":
                bounds = self.bounds()
                if bounds is None:
                    return item
                low, high = bounds
            else:
                return item
            if repeated:
                raise ValueError("invalid nested repetition operator")
            repeated = True
            greedy = not flags.ungreedy
            if self.peek() == "?":
                self.place += 1
                greedy = not greedy
            item = ("repeat", item, low, high, greedy)

    def bounds(self) -> tuple[int, int | None] | None:
        """``{2}``, ``{2,}``, ``{2,5}``; anything else is a literal brace."""
        end = self.text.find("}", self.place)
        low, comma, high = self.text[self.place + 1 : max(end, 0)].partition(",")
        if end < 0 or not _digits(low) or (high and not _digits(high)):
            return None
        self.place = end + 1
        least = _number(low)
        most = least if not comma else (_number(high) if high else None)
        if least > MAX_REPEAT or (most is not None and (most > MAX_REPEAT or most < least)):
            raise ValueError("invalid repeat count")
        return least, most

    def atom(self, flags: Flags) -> Tree:
        char = self.take()
        if char == "(":
            return self.group(flags)
        if char == "[":
            return self.char_class(flags)
        if char == ".":
            return _set([] if flags.dot_all else [(10, 10)], flags, negated=True)
        if char == "^":
            return ("assert", LINE_START if flags.multiline else TEXT_START)
        if char == "$":
            return ("assert", LINE_END if flags.multiline else TEXT_END)
        if char == "\\":
            return self.escape(flags)
        if char in "*+?":
            raise ValueError(f"missing argument to repetition operator: {char}")
        return _set([(ord(char), ord(char))], flags)

    def group(self, flags: Flags) -> Tree:
        self.depth += 1
        if self.depth > MAX_GROUPS:
            raise ValueError("groups are nested too deeply")
        if self.peek() == "?":
            self.place += 1
            rest = self.text[self.place :]
            if rest.startswith(("P<", "<")) and not rest.startswith(("<=", "<!")):
                end = rest.find(">")
                name = rest[rest.index("<") + 1 : end]
                if end < 0 or not name or not (name.isascii() and name.replace("_", "a").isalnum()):
                    raise ValueError("invalid named capture")
                self.place += end + 1
            else:
                end = self.place
                while end < len(self.text) and self.text[end] in "imsU-":
                    end += 1
                if self.text[end : end + 1] != ":":
                    raise ValueError(f"invalid or unsupported Perl syntax: (?{rest[:2]}")
                flags = _switch(flags, self.text[self.place : end])
                self.place = end + 1
        tree = self.alternatives(flags)
        if self.place >= len(self.text):
            raise ValueError("missing closing )")
        self.place += 1
        self.depth -= 1
        return tree

    def escape(self, flags: Flags) -> Tree:
        char = self.peek()
        asserts = {"A": TEXT_START, "z": TEXT_END, "b": BOUNDARY, "B": NO_BOUNDARY}
        if char in asserts and char:
            self.place += 1
            return ("assert", asserts[char])
        if char == "Q":
            self.place += 1
            end = self.text.find("\\E", self.place)
            stop = end if end >= 0 else len(self.text)
            # It is put back with each character escaped, since an operator after it takes the last character only.
            quoted = "".join(f"\\{c}" if c.isascii() and not c.isalnum() else c for c in self.text[self.place : stop])
            self.text = quoted + self.text[stop + (2 if end >= 0 else 0) :]
            self.place = 0
            return self.atom(flags) if quoted else ("cat", [])
        ranges: list[tuple[int, int]] = []
        categories: list[tuple[str, bool]] = []
        self.class_escape(ranges, categories)
        return ("set", CharSet(ranges, categories, negated=False, folded=flags.fold))

    def class_escape(self, ranges: list[tuple[int, int]], categories: list[tuple[str, bool]]) -> int | None:
        """Read what follows a backslash into the set; the code point where it is a single one."""
        char = self.take()
        if char.lower() in _PERL:
            found = _PERL[char.lower()]
            ranges.extend(found if char.islower() else _complement(found))
            return None
        if char in "pP":
            self.category(categories, negated=char == "P")
            return None
        code = self.code_point(char)
        ranges.append((code, code))
        return code

    def category(self, categories: list[tuple[str, bool]], *, negated: bool) -> None:
        name = self.take()
        if name == "{":
            end = self.text.find("}", self.place)
            if end < 0:
                raise ValueError("invalid character class range")
            name = self.text[self.place : end]
            self.place = end + 1
            if name.startswith("^"):
                name, negated = name[1:], not negated
        if name not in _CATEGORIES:
            raise ValueError(f'the Unicode class "{name}" is not supported; general categories like L or Nd are')
        categories.append((name, negated))

    def code_point(self, char: str) -> int:
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "x":
            if self.peek() == "{":
                end = self.text.find("}", self.place)
                digits = self.text[self.place + 1 : max(end, 0)]
                self.place = end + 1
            else:
                digits = self.peek(2)
                self.place += 2
                if len(digits) < 2:
                    digits = ""
            if not digits or len(digits) > 8 or digits.strip("0123456789abcdefABCDEF") or int(digits, 16) > _TOP:
                raise ValueError("invalid escape sequence: \\x")
            return int(digits, 16)
        if char == "0" or (char in "1234567" and self.peek() and self.peek() in "01234567"):
            digits = char
            while len(digits) < 3 and self.peek() and self.peek() in "01234567":
                digits += self.take()
            return int(digits, 8)
        if char.isascii() and not char.isalnum():
            return ord(char)
        raise ValueError(f"invalid escape sequence: \\{char}")

    def char_class(self, flags: Flags) -> Tree:
        negated = self.peek() == "^"
        if negated:
            self.place += 1
        ranges: list[tuple[int, int]] = []
        categories: list[tuple[str, bool]] = []
        first = True
        while first or self.peek() != "]":
            first = False
            if self.peek(2) == "[:" and ":]" in self.text[self.place :]:
                self.posix(ranges)
                continue
            low = self.class_item(ranges, categories)
            if low is not None and self.peek() == "-" and self.peek(2) not in ("-]", "-"):
                self.place += 1
                spare: list[tuple[int, int]] = []
                high = self.class_item(spare, [])
                if high is None or high < low:
                    raise ValueError("invalid character class range")
                ranges.append((low, high))
        self.place += 1
        return ("set", CharSet(ranges, categories, negated=negated, folded=flags.fold))

    def class_item(self, ranges: list[tuple[int, int]], categories: list[tuple[str, bool]]) -> int | None:
        if self.place >= len(self.text):
            raise ValueError("missing closing ]")
        char = self.take()
        if char == "\\":
            return self.class_escape(ranges, categories)
        ranges.append((ord(char), ord(char)))
        return ord(char)

    def posix(self, ranges: list[tuple[int, int]]) -> None:
        end = self.text.index(":]", self.place)
        name = self.text[self.place + 2 : end]
        self.place = end + 2
        negated = name.startswith("^")
        found = _POSIX.get(name.removeprefix("^"))
        if found is None:
            raise ValueError(f"invalid character class range: [:{name}:]")
        ranges.extend(_complement(found) if negated else found)


def _set(ranges: list[tuple[int, int]], flags: Flags, *, negated: bool = False) -> Tree:
    return ("set", CharSet(ranges, [], negated=negated, folded=flags.fold and not negated))


def _switch(flags: Flags, letters: str) -> Flags:
    names = {"i": "fold", "m": "multiline", "s": "dot_all", "U": "ungreedy"}
    value = True
    changes: dict[str, bool] = {}
    for letter in letters:
        if letter == "-":
            if not value:
                raise ValueError("invalid or unsupported Perl syntax: flags")
            value = False
        else:
            changes[names[letter]] = value
    return flags._replace(**changes)


def _complement(ranges: Ranges) -> list[tuple[int, int]]:
    found = []
    start = 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    return [*found, (start, _TOP)]


def _digits(text: str) -> bool:
    return bool(text) and text.isascii() and text.isdigit()


def _number(text: str) -> int:
    return int(text) if len(text) < 6 else MAX_REPEAT + 1

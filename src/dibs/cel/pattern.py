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
_CATEGORIES: Final = (
    "C", "Cc", "Cf", "Cn", "Co", "Cs", "L", "LC", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd",
    "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs",
)  # fmt: skip
# The long names that RE2 knows beside the short ones.
_LONG: Final = {
    "other": "C", "control": "Cc", "cntrl": "Cc", "format": "Cf", "unassigned": "Cn", "privateuse": "Co",
    "surrogate": "Cs", "letter": "L", "casedletter": "LC", "lowercaseletter": "Ll", "modifierletter": "Lm",
    "otherletter": "Lo", "titlecaseletter": "Lt", "uppercaseletter": "Lu", "mark": "M", "combiningmark": "M",
    "spacingmark": "Mc", "enclosingmark": "Me", "nonspacingmark": "Mn", "number": "N", "decimalnumber": "Nd",
    "digit": "Nd", "letternumber": "Nl", "othernumber": "No", "punctuation": "P", "punct": "P",
    "connectorpunctuation": "Pc", "dashpunctuation": "Pd", "closepunctuation": "Pe", "finalpunctuation": "Pf",
    "initialpunctuation": "Pi", "otherpunctuation": "Po", "openpunctuation": "Ps", "symbol": "S",
    "currencysymbol": "Sc", "modifiersymbol": "Sk", "mathsymbol": "Sm", "othersymbol": "So", "separator": "Z",
    "lineseparator": "Zl", "paragraphseparator": "Zp", "spaceseparator": "Zs",
}  # fmt: skip
_SPECIAL: Final[dict[str, Ranges]] = {"any": ((0, _TOP),), "ascii": ((0, 127),)}
_IGNORED: Final = str.maketrans("", "", " _-")
_NAMES: Final = {name.lower(): name for name in _CATEGORIES} | _LONG


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

    def _in_ranges(self, code: int) -> bool:
        place = bisect_right(self.starts, code) - 1
        return place >= 0 and code <= self.stops[place]

    def _found(self, chars: set[str]) -> bool:
        if any(self._in_ranges(ord(char)) for char in chars):
            return True
        if not self.categories:
            return False
        names = [unicodedata.category(char) for char in chars]
        # Other cases of a letter count before a class is turned round.
        return any(any(_belongs(name, wanted) for name in names) != negated for wanted, negated in self.categories)

    def holds(self, char: str) -> bool:
        """Whether the character is in the set."""
        chars = {char}
        if self.folded:
            chars.update(other for other in (char.lower(), char.upper(), char.title()) if len(other) == 1)
        return self._found(chars) != self.negated


def _belongs(category: str, wanted: str) -> bool:
    return category in ("Lu", "Ll", "Lt") if wanted == "LC" else category.startswith(wanted)


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
        _emit_repeat(program, *tree[1:])


def _emit_repeat(program: list[Instruction], item: Tree, low: int, high: int | None, greedy: bool) -> None:
    if high is None and not low and not _may_be_empty(item):
        split = _put(program, (SPLIT, 0, 0))
        _emit(program, item)
        _put(program, (SPLIT, split, split))
        program[split] = _split(split + 1, len(program), greedy=greedy)
        return
    splits = []
    for number in range(max(low, 1) if high is None else high):
        if number >= low:
            splits.append(_put(program, (SPLIT, 0, 0)))
        start = len(program)
        _emit(program, item)
    if high is None:
        # The test follows the item: what matches the empty text may come first, and leaves the loop then.
        _put(program, _split(start, len(program) + 1, greedy=greedy))
    for split in splits:
        program[split] = _split(split + 1, len(program), greedy=greedy)


def _may_be_empty(tree: Tree) -> bool:
    kind = tree[0]
    if kind == "cat":
        return all(_may_be_empty(item) for item in tree[1])
    if kind == "alt":
        return any(_may_be_empty(item) for item in tree[1])
    return kind == "assert" or (kind == "repeat" and (not tree[2] or _may_be_empty(tree[1])))


def _repeats(tree: Tree, limit: int) -> bool:
    """Whether nothing in it is repeated more often than this, loops within loops multiplied."""
    kind = tree[0]
    if kind in ("cat", "alt"):
        return all(_repeats(item, limit) for item in tree[1])
    if kind != "repeat":
        return True
    _, item, low, high, _ = tree
    times = low if high is None else high
    if high == 0:
        return True
    return times <= limit and _repeats(item, limit // max(times, 1))


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
        repeated = False
        while True:
            char = self.peek()
            if char in ("", ")"):
                break
            begin = self.place
            bounds = self.repetition()
            if bounds is not None:
                greedy = not flags.ungreedy
                if self.peek() == "?":
                    self.place += 1
                    greedy = not greedy
                if repeated:
                    raise ValueError("invalid nested repetition operator")
                if not items:
                    raise ValueError(f"missing argument to repetition operator: {self.text[begin : self.place]}")
                items[-1] = _repeated(items[-1], *bounds, greedy)
                repeated = True
                continue
            # An operator applies to the last item, also where flags or an empty quotation are in between.
            repeated = False
            if char == "|":
                self.place += 1
                branches.append(("cat", items))
                items = []
            elif self.peek(2) == "\\Q":
                items.extend(_set([(ord(quoted), ord(quoted))], flags) for quoted in self.quotation())
            elif self.flagged():
                self.place += 2
                changed = self.flags(flags)
                if self.take() == ")":
                    flags = changed
                else:
                    items.append(self.group(changed))
            else:
                items.append(self.atom(flags))
        branches.append(("cat", items))
        return branches[0] if len(branches) == 1 else ("alt", branches)

    def flagged(self) -> bool:
        """Whether flags follow: ``(?i)`` for the rest of the group, or ``(?i:...)``."""
        return self.peek(2) == "(?" and self.peek(3) != "(?<" and self.peek(4) != "(?P<"

    def flags(self, flags: Flags) -> Flags:
        begin = self.place
        while self.peek() and self.peek() in "imsU-":
            self.place += 1
        letters = self.text[begin : self.place]
        if self.peek() not in (":", ")") or letters.count("-") > 1 or letters.endswith("-"):
            raise ValueError(f"invalid or unsupported Perl syntax: (?{self.text[begin : self.place + 1]}")
        return _switch(flags, letters)

    def quotation(self) -> str:
        end = self.text.find("\\E", self.place + 2)
        stop = end if end >= 0 else len(self.text)
        quoted = self.text[self.place + 2 : stop]
        self.place = stop + (2 if end >= 0 else 0)
        return quoted

    def repetition(self) -> tuple[int, int | None] | None:
        char = self.peek()
        if char == "{":
            return self.bounds()
        if char not in ("*", "+", "?"):
            return None
        self.place += 1
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]

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
            if self.peek() == "?":
                self.capture_name()
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
        return _set([(ord(char), ord(char))], flags)

    def group(self, flags: Flags) -> Tree:
        self.depth += 1
        if self.depth > MAX_GROUPS:
            raise ValueError("groups are nested too deeply")
        tree = self.alternatives(flags)
        if self.place >= len(self.text):
            raise ValueError("missing closing )")
        self.place += 1
        self.depth -= 1
        return tree

    def capture_name(self) -> None:
        """Read ``?P<name>`` or ``?<name>``."""
        begin = self.text.index("<", self.place) + 1
        end = self.text.find(">", begin)
        name = self.text[begin : max(end, 0)]
        if not (name.isascii() and name.replace("_", "a").isalnum()):
            raise ValueError("invalid named capture")
        self.place = end + 1

    def escape(self, flags: Flags) -> Tree:
        char = self.peek()
        asserts = {"A": TEXT_START, "z": TEXT_END, "b": BOUNDARY, "B": NO_BOUNDARY}
        if char in asserts and char:
            self.place += 1
            return ("assert", asserts[char])
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
            self.category(ranges, categories, negated=char == "P")
            return None
        code = self.code_point(char)
        ranges.append((code, code))
        return code

    def category(self, ranges: list[tuple[int, int]], categories: list[tuple[str, bool]], *, negated: bool) -> None:
        name = self.take()
        if name == "{":
            end = self.text.find("}", self.place)
            if end < 0:
                raise ValueError("invalid character class range")
            name = self.text[self.place : end]
            self.place = end + 1
            if name.startswith("^"):
                name, negated = name[1:], not negated
        plain = name.translate(_IGNORED).lower() if name.isascii() else ""
        if plain in _SPECIAL:
            found = _SPECIAL[plain]
            ranges.extend(_complement(found) if negated else found)
        elif plain == "assigned":
            categories.append(("Cn", not negated))
        elif plain in _NAMES:
            categories.append((_NAMES[plain], negated))
        else:
            raise ValueError(f'the Unicode class "{name}" is not supported; general categories like L or Nd are')

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
            if (
                not digits
                or len(digits.lstrip("0")) > 6
                or digits.strip("0123456789abcdefABCDEF")
                or int(digits, 16) > _TOP
            ):
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
            if self.peek(2) == "[:" and ":]" in self.text[self.place + 2 :]:
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
        end = self.text.index(":]", self.place + 2)
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
    on, _, off = letters.partition("-")
    return flags._replace(**{names[letter]: True for letter in on}, **{names[letter]: False for letter in off})


def _repeated(item: Tree, low: int, high: int | None, greedy: bool) -> Tree:
    tree = ("repeat", item, low, high, greedy)
    if max(low, high or 0) >= 2 and not _repeats(tree, MAX_REPEAT):
        raise ValueError("invalid repeat count")
    return tree


def _complement(ranges: Ranges) -> list[tuple[int, int]]:
    found = []
    start = 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    return [*found, (start, _TOP)]


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and (len(text) == 1 or text[0] != "0")


def _number(text: str) -> int:
    return int(text) if len(text) < 6 else MAX_REPEAT + 1

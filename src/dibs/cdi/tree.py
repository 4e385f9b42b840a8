"""Text to plain values: the JSON and YAML reading under `decode`.

Only `decode` calls this. It knows nothing of CDI. It exists because the usual readers lose what a strict
reader must see: a key given twice, and YAML words that one library reads as a number and another as text.
Scalars are read as the container engines read them (go-yaml), since both sides must agree on a device's name:
`1:0` is text here and 60 in YAML 1.1. It must not recurse over the input: depth is the writer's choice.
"""

from __future__ import annotations

import re
from typing import Any, Final

from dibs.cdi.errors import Problem, SpecError, quoted

MAX_DEPTH: Final = 64
"""A CDI spec is six levels deep; the rest is room for unknown fields that are to be named in an error."""

_INT = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+|0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORDS: Final[dict[str, bool | None]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "yes": True, "Yes": True, "YES": True, "on": True, "On": True, "ON": True,
    "false": False, "False": False, "FALSE": False, "no": False, "No": False, "NO": False,
    "off": False, "Off": False, "OFF": False,
}  # fmt: skip
_SPECIAL_FLOATS = frozenset(sign + word for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")) | {
    ".nan",
    ".NaN",
    ".NAN",
}
_MAX_DIGITS: Final = 64
_TAG = "tag:yaml.org,2002:"
_SECOND_DOCUMENT = "more than one YAML document; put each spec in a file of its own"


def parse_text(data: bytes) -> Any:
    """Read JSON or YAML, whichever it is. The file's ending does not matter, as for the engines."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise _refuse(f"not UTF-8 text: byte {exc.start} is {data[exc.start]:#04x}") from exc
    if text.lstrip()[:1] == "{":
        tree, readable = _try_json(text)
        if readable:
            return tree
    return _parse_yaml(text)


def plain_scalar(text: str) -> str | int | float | bool | None:
    """What an unquoted YAML word means."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    # go-yaml drops underscores before it looks at digits.
    digits = text.replace("_", "")
    if len(digits) <= _MAX_DIGITS:
        if _INT.match(digits):
            return _integer(digits)
        if _FLOAT.match(digits):
            return float(digits)
    if text in _SPECIAL_FLOATS:
        return float(text.replace(".", "").lower())
    return text


def _integer(digits: str) -> int:
    sign = -1 if digits[0] == "-" else 1
    body = digits.lstrip("+-")
    if len(body) > 1 and body[0] == "0" and body[1].isdigit():
        return sign * int(body, 8)
    return sign * int(body, 0)


def _refuse(what: str, where: str = "") -> SpecError:
    return SpecError([Problem(where, what)])


# JSON


def _try_json(text: str) -> tuple[Any, bool]:
    """The tree and True, or False when it is not JSON after all: `{a: b}` is a YAML mapping."""
    import json

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in items:
            if key in mapping:
                raise _refuse(f"key {quoted(key)} is given twice in one object")
            mapping[key] = value
        return mapping

    def constant(word: str) -> Any:
        raise _refuse(f"{word} is not a JSON value")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant), True
    except ValueError:
        return None, False
    except RecursionError as exc:
        raise _refuse(f"nested deeper than {MAX_DEPTH} levels") from exc


# YAML


class _Open:
    """A collection whose end has not been seen yet."""

    __slots__ = ("anchor", "is_map", "items", "key", "line", "merges", "value")

    def __init__(self, is_map: bool, anchor: str | None, line: int) -> None:
        self.is_map = is_map
        self.anchor = anchor
        self.line = line
        self.value: dict[str, Any] = {}
        self.items: list[Any] = []
        self.key: str | None = None
        self.merges: list[dict[str, Any]] = []


class _MergeKey:
    """The value of an unquoted `<<` until it is used as a key."""


_MERGE = _MergeKey()


def _parse_yaml(text: str) -> Any:
    # PyYAML costs more to load than everything else here together.
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder().build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise _refuse(f"neither JSON nor YAML: {place}{exc.problem or exc.context or 'unreadable'}") from exc
    except (yaml.YAMLError, UnicodeError, ValueError) as exc:
        raise _refuse(
            f"neither JSON nor YAML: {quoted(str(exc).splitlines()[0] if str(exc) else 'unreadable')}"
        ) from exc


class _Builder:
    """Builds the tree from parser events, so that depth, anchors and keys stay under our control."""

    def __init__(self) -> None:
        self.stack: list[_Open] = []
        self.anchors: dict[str, Any] = {}
        self.root: Any = None
        self.documents = 0

    def build(self, events: Any) -> Any:
        import yaml

        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                value = _scalar(event)
                if event.anchor:
                    self.anchors[event.anchor] = value
                self.place(value, event)
            elif isinstance(event, yaml.AliasEvent):
                # An anchor counts once its node is complete, so that nothing can contain itself.
                if event.anchor not in self.anchors:
                    raise _refuse(f"unknown anchor {quoted(event.anchor)}", _line(event))
                self.place(self.anchors[event.anchor], event)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                self.open(event, isinstance(event, yaml.MappingStartEvent))
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self.close(event)
        return self.root

    def open(self, event: Any, is_map: bool) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise _refuse(f"nested deeper than {MAX_DEPTH} levels", _line(event))
        if event.tag and event.tag != _TAG + ("map" if is_map else "seq"):
            raise _refuse(f"unknown tag {quoted(event.tag)}", _line(event))
        top = self.stack[-1] if self.stack else None
        if top is None and self.documents:
            raise _refuse(_SECOND_DOCUMENT, _line(event))
        if top is not None and top.is_map and top.key is None:
            raise _refuse("a key must be a word, not a list or a mapping", _line(event))
        self.stack.append(_Open(is_map, event.anchor, event.start_mark.line))

    def close(self, event: Any) -> None:
        done = self.stack.pop()
        value: Any = done.items
        if done.is_map:
            value = done.value
            for merged in done.merges:
                for key, item in merged.items():
                    value.setdefault(key, item)
        if done.anchor:
            self.anchors[done.anchor] = value
        self.place(value, event)

    def place(self, value: Any, event: Any) -> None:
        if not self.stack:
            self.documents += 1
            if self.documents > 1 and value is not None:
                raise _refuse(_SECOND_DOCUMENT, _line(event))
            if self.documents == 1:
                self.root = None if value is _MERGE else value
            return
        top = self.stack[-1]
        if not top.is_map:
            top.items.append("<<" if value is _MERGE else value)
        elif top.key is None:
            self.place_key(top, value, event)
        elif top.key == "<<" and not isinstance(value, str):
            self.merge(top, value, event)
            top.key = None
        else:
            top.value[top.key] = "<<" if value is _MERGE else value
            top.key = None

    def place_key(self, top: _Open, value: Any, event: Any) -> None:
        if value is _MERGE:
            top.key = "<<"
            return
        if value is None or isinstance(value, dict | list):
            raise _refuse("a key must be a word", _line(event))
        key = scalar_text(value)
        if key is None or key in top.value:
            what = "is not usable as a key; put it in quotes" if key is None else "is given twice in one mapping"
            raise _refuse(f"key {quoted(value if key is None else key)} {what}", _line(event))
        top.key = key

    def merge(self, top: _Open, value: Any, event: Any) -> None:
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise _refuse("only mappings can be merged with <<", _line(event))
            top.merges.append(part)


def scalar_text(value: Any) -> str | None:
    """A scalar as text where text is wanted (`name: 0`); None where writers would disagree on its form."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(value).removesuffix(".0")
        # Above a million and in exponents, Go and Python print differently: quotes are needed.
        return text if abs(value) < 1_000_000 and "e" not in text else None
    return None


def _scalar(event: Any) -> Any:
    text: str = event.value
    tag: str | None = event.tag
    if tag in (None, "", "!"):
        if event.implicit[0]:
            return _MERGE if text == "<<" else plain_scalar(text)
        return text
    kind = str(tag).removeprefix(_TAG)
    if kind == "str":
        return text
    value = plain_scalar(text)
    wanted: dict[str, Any] = {"int": int, "float": float, "bool": bool, "null": type(None)}
    if kind not in wanted:
        raise _refuse(f"unknown tag {quoted(tag)}", _line(event))
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not wanted[kind]:
        raise _refuse(f"{quoted(text)} is not of the type that its tag {quoted(tag)} says", _line(event))
    return value


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"

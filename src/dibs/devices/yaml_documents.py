"""Text to plain values, as kubectl reads it: JSON, or YAML with any number of documents.

`manifests` calls this. It knows nothing of Kubernetes' objects. Strict where a reader must be: a key given twice is
refused, and so is what only costs memory (depth, aliases of aliases, size). Scalars are read as Go's YAML reads them.
It does not recurse over the input: depth is the writer's choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dibs.cdi.tree import plain_scalar, scalar_text
from dibs.errors import quoted

MAX_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 64  # an object of Kubernetes has some fifteen levels; the rest is for opaque parameters
MAX_VALUES: Final = 4_000_000  # with every alias counted in full; 16 MiB of text cannot hold as many by itself

_TAG = "tag:yaml.org,2002:"


class Unreadable(ValueError):
    """The text is not what it should be; the message says where and why."""


def documents(data: bytes) -> list[Any]:
    """The values of all documents; None for an empty one. Raises Unreadable."""
    if len(data) > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 text: byte {error.start} is {data[error.start]:#04x}") from None
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [_json(text)]
        except _NotJson:
            pass  # `{a: b}` is YAML, and so are several objects of JSON with --- between them
    return _yaml(text)


class _NotJson(Exception):
    pass


def _json(text: str) -> Any:
    import json

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(items)
        if len(mapping) < len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise Unreadable(f"key {quoted(twice)} is given twice in one object")
        return mapping

    def constant(word: str) -> Any:
        raise Unreadable(f"{word} is not a value of JSON")

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError:
        raise Unreadable(f"nested deeper than {MAX_DEPTH} levels") from None
    except Unreadable:
        raise
    except ValueError:
        raise _NotJson from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(item for item in one.values() if isinstance(item, dict | list))
            elif isinstance(one, list):
                below.extend(item for item in one if isinstance(item, dict | list))
        if not below:
            return
        level = below
    raise Unreadable(f"nested deeper than {MAX_DEPTH} levels")


def _yaml(text: str) -> list[Any]:
    import yaml  # costs more to load than everything else here

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder().build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise Unreadable(f"neither JSON nor YAML: {place}{error.problem or error.context or 'unreadable'}") from None
    except Unreadable:
        raise
    except (yaml.YAMLError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else "unreadable"
        raise Unreadable(f"neither JSON nor YAML: {said}") from None


class _Open:
    """A collection whose end has not been seen yet. `size` counts the values in it, aliases in full."""

    __slots__ = ("anchor", "depth", "items", "key", "mapping", "merges", "merging", "size")

    def __init__(self, *, mapping: bool, anchor: str | None) -> None:
        self.mapping: dict[str, Any] | None = {} if mapping else None
        self.items: list[Any] = []
        self.anchor = anchor
        self.key: str | None = None
        self.merging = False
        self.merges: list[dict[str, Any]] = []
        self.size = 1
        self.depth = 1


class _Builder:
    """Builds values from the parser's events, so that depth, aliases and keys stay under our control."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Any, int, int]] = {}  # value, size, depth
        self.total = 0

    def build(self, events: Iterable[Any]) -> list[Any]:
        import yaml

        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                value = _scalar(event)
                if event.anchor:
                    self.anchors[event.anchor] = (value, 1, 0)
                self.place(value, 1, 0, event, plain=bool(event.implicit[0]))
            elif isinstance(event, yaml.AliasEvent):
                # An anchor counts once its node is complete, so that nothing can contain itself.
                if event.anchor not in self.anchors:
                    raise Unreadable(f"{_line(event)}: unknown anchor {quoted(event.anchor)}")
                self.place(*self.anchors[event.anchor], event)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                mapping = isinstance(event, yaml.MappingStartEvent)
                if len(self.stack) >= MAX_DEPTH:
                    raise Unreadable(f"{_line(event)}: nested deeper than {MAX_DEPTH} levels")
                if event.tag not in (None, "!", _TAG + ("map" if mapping else "seq")):
                    raise Unreadable(f"{_line(event)}: unknown tag {quoted(event.tag)}")
                self.stack.append(_Open(mapping=mapping, anchor=event.anchor))
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self.close(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                self.anchors.clear()
        return self.found

    def close(self, event: Any) -> None:
        done = self.stack.pop()
        value: Any = done.items
        if done.mapping is not None:
            value = done.mapping
            for merged in done.merges:
                for key, item in merged.items():
                    value.setdefault(key, item)
        if done.anchor:
            self.anchors[done.anchor] = (value, done.size, done.depth)
        self.place(value, done.size, done.depth, event)

    def place(self, value: Any, size: int, depth: int, event: Any, *, plain: bool = False) -> None:
        if len(self.stack) + depth > MAX_DEPTH:
            raise Unreadable(f"{_line(event)}: nested deeper than {MAX_DEPTH} levels")
        if not self.stack:
            self.total += size
            self.found.append(value)
        else:
            top = self.stack[-1]
            top.size += size
            top.depth = max(top.depth, depth + 1)
            self._into(top, value, event, plain=plain)
        if self.total + (self.stack[-1].size if self.stack else 0) > MAX_VALUES:
            raise Unreadable(f"{_line(event)}: more than {MAX_VALUES} values, aliases counted in full")

    def _into(self, top: _Open, value: Any, event: Any, *, plain: bool) -> None:
        if top.mapping is None:
            top.items.append(value)
        elif top.merging:
            for part in value if isinstance(value, list) else [value]:
                if not isinstance(part, dict):
                    raise Unreadable(f"{_line(event)}: only mappings can be merged with <<")
                top.merges.append(part)
            top.merging = False
        elif top.key is not None:
            top.mapping[top.key] = value
            top.key = None
        elif plain and value == "<<":
            top.merging = True
        else:
            key = None if value is None or isinstance(value, dict | list) else scalar_text(value)
            if key is None:
                raise Unreadable(f"{_line(event)}: a key must be a word; put it in quotes")
            if key in top.mapping:
                raise Unreadable(f"{_line(event)}: key {quoted(key)} is given twice in one mapping")
            top.key = key


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.tag in (None, "!"):
        return plain_scalar(text) if event.implicit[0] and event.tag is None else text
    kind = str(event.tag).removeprefix(_TAG)
    if kind == "str":
        return text
    wanted: dict[str, tuple[type, ...]] = {
        "int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)
    }  # fmt: skip
    value = plain_scalar(text)
    if kind not in wanted or type(value) not in wanted[kind]:
        raise Unreadable(f"{_line(event)}: unknown tag {quoted(event.tag)}, or {quoted(text)} is not of that kind")
    return float(value) if kind == "float" and isinstance(value, int) else value


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"

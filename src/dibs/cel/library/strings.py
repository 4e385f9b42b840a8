"""The strings library: cel-go's extended string functions, version 2. ``format`` is in ``formatting``."""

from typing import Any, Final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.library.formatting import format_string
from dibs.cel.types import DYN, INT, STRING, list_of
from dibs.cel.values import no_overload, spend

_MAX_RESULT: Final = 10_000_000
_SPACE: Final = "".join(
    chr(code)
    for code in (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
)
_LOWER: Final = {code: code + 32 for code in range(65, 91)}
_UPPER: Final = {code: code - 32 for code in range(97, 123)}
_QUOTED: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def _in_range(place: int, size: int, what: str = "index") -> int:
    if place < 0 or place > size:
        raise CelRuntimeError(f"{what} out of range: {place}")
    return place


def _char_at(text: str, place: int) -> str:
    return text[_in_range(place, len(text)) :][:1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise CelRuntimeError(f"index out of range: {start}")
    return text.find(part, start) if part else min(start, len(text))


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    if start < 0:
        raise CelRuntimeError(f"index out of range: {start}")
    if start >= len(text):
        return -1 if part else len(text)
    return text.rfind(part, 0, start + len(part))


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if start < 0 or start > len(text) or stop < 0 or stop > len(text):
        raise CelRuntimeError(f"index out of range: {start if start < 0 or start > len(text) else stop}")
    if start > stop:
        raise CelRuntimeError(f"invalid substring range. start: {start}, end: {stop}")
    return text[start:stop]


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    if (text.count(old) if old else len(text) + 1) * len(new) > _MAX_RESULT:
        raise CelRuntimeError("the result of replace is too long")
    return text.replace(old, new, limit if limit >= 0 else -1)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if limit == 1:
        return [text] if text or separator else []
    if not separator:
        if limit < 0 or limit >= len(text):
            return list(text)
        return [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def join(items: list[Any], separator: str = "") -> str:
    """The strings of a list with a separator between them."""
    if sum(len(item) for item in items if isinstance(item, str)) + len(separator) * len(items) > _MAX_RESULT:
        raise CelRuntimeError("the result of join is too long")
    for item in items:
        if type(item) is not str:
            raise no_overload("join", item)
        spend(0.1 * (len(item) + len(separator)))
    return separator.join(items)


def quote(text: str) -> str:
    """The text as a literal in double quotes."""
    return '"' + "".join(_QUOTED.get(char, char) for char in text) + '"'


def strings(version: int = 3) -> Library:
    """The library."""
    if version < 3:
        from dibs.cel.library.localized import format_string as form
    else:
        form = format_string
    one, texts = (STRING,), list_of(STRING)

    newer = [Function("reverse", method(one, STRING, lambda a: a[::-1], fails=False))] if version >= 3 else []
    return Library(
        "strings",
        [
            Function("charAt", method((STRING, INT), STRING, _char_at)),
            Function(
                "indexOf",
                method((STRING, STRING), INT, _index_of),
                method((STRING, STRING, INT), INT, _index_of),
            ),
            Function(
                "lastIndexOf",
                method((STRING, STRING), INT, _last_index_of),
                method((STRING, STRING, INT), INT, _last_index_of),
            ),
            Function(
                "join",
                method((texts,), STRING, join, grows=True),
                method((texts, STRING), STRING, join, grows=True),
            ),
            Function("lowerAscii", method(one, STRING, lambda a: a.translate(_LOWER), fails=False)),
            Function("upperAscii", method(one, STRING, lambda a: a.translate(_UPPER), fails=False)),
            Function(
                "replace",
                method((STRING, STRING, STRING), STRING, _replace),
                method((STRING, STRING, STRING, INT), STRING, _replace),
            ),
            Function(
                "split",
                method((STRING, STRING), texts, _split),
                method((STRING, STRING, INT), texts, _split),
            ),
            Function(
                "substring",
                method((STRING, INT), STRING, _substring),
                method((STRING, INT, INT), STRING, _substring),
            ),
            Function("trim", method(one, STRING, lambda a: a.strip(_SPACE), fails=False)),
            *newer,
            Function("format", method((STRING, list_of(DYN)), STRING, form, grows=True)),
            Function("strings.quote", Overload(one, STRING, quote, fails=False)),
        ],
    )

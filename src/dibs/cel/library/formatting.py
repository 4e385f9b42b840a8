"""``"...".format([...])``: CEL's own verbs, not C's or Python's.

Called by the strings library. The output is limited while it is made: a value may share parts and unfold without end.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from dibs.cel.errors import CelRuntimeError
from dibs.cel.values import Optional, TypeValue, Uint, key_value, spend, type_name

_MAX_RESULT: Final = 1_000_000
_MAX_PRECISION: Final = 1_000


def format_string(text: str, arguments: list[Any]) -> str:
    """Replace the verbs of ``text``: %s %d %f %e %b %x %X %o and %%."""
    out = _Output()
    place = used = 0
    while True:
        percent = text.find("%", place)
        if percent < 0:
            out.add(text[place:])
            return out.text()
        out.add(text[place:percent])
        place = percent + 1
        if text[place : place + 1] == "%":
            out.add("%")
            place += 1
            continue
        precision, place = _precision(text, place)
        verb = text[place : place + 1]
        place += 1
        if verb not in _VERBS or not verb:
            raise CelRuntimeError(f'could not parse formatting clause: unrecognized formatting clause "{verb}"')
        if used >= len(arguments):
            raise CelRuntimeError(f"index {used} out of range")
        out.add(_VERBS[verb](arguments[used], precision))
        used += 1


class _Output:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.left = _MAX_RESULT

    def add(self, part: str) -> None:
        self.left -= len(part) + 1
        spend(0.1 * len(part) + 0.1)
        if self.left < 0:
            raise CelRuntimeError("the result of format is too long")
        self.parts.append(part)

    def text(self) -> str:
        return "".join(self.parts)


def _precision(text: str, place: int) -> tuple[int | None, int]:
    if text[place : place + 1] != ".":
        return None, place
    end = place + 1
    while end < len(text) and text[end] in "0123456789":
        end += 1
    digits = text[place + 1 : end]
    if len(digits) > 4 or int(digits or "0") > _MAX_PRECISION:
        raise CelRuntimeError(f"precision must not be above {_MAX_PRECISION}")
    return int(digits or "0"), end


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return None


def _refuse(verb: str, wanted: str, value: Any) -> CelRuntimeError:
    return CelRuntimeError(
        f"error during formatting: %{verb} can only be used on {wanted}, was given {type_name(value)}"
    )


def _string(value: Any, precision: int | None) -> str:
    del precision
    out = _Output()
    _write(out, value, 0)
    return out.text()


def _write(out: _Output, value: Any, depth: int) -> None:
    if depth > 100:
        raise CelRuntimeError("the value is nested too deeply to be formatted")
    if isinstance(value, list):
        out.add("[")
        for place, item in enumerate(value):
            if place:
                out.add(", ")
            _write(out, item, depth + 1)
        out.add("]")
    elif isinstance(value, dict):
        entries = []
        for key, item in value.items():
            shown = _Output()
            _write(shown, key_value(key), depth + 1)
            entries.append((shown.text(), item))
        out.add("{")
        for place, (shown_key, item) in enumerate(sorted(entries, key=lambda entry: entry[0])):
            out.add((", " if place else "") + shown_key + ": ")
            _write(out, item, depth + 1)
        out.add("}")
    else:
        out.add(_atom(value))


def _atom(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is str:
        return value
    if type(value) is bytes:
        return value.decode(errors="replace")
    if type(value) is int or type(value) is Uint:
        return str(int(value))
    if type(value) is float:
        return _special(value) or f"{value!r}".removesuffix(".0")
    if isinstance(value, TypeValue):
        return value.name
    if isinstance(value, Optional) or not hasattr(type(value), "__cel_format__"):
        raise _refuse("s", "strings, bools, bytes, numbers, lists, maps, durations, timestamps and types", value)
    return str(value)


def _decimal(value: Any, precision: int | None) -> str:
    del precision
    if type(value) is int or type(value) is Uint:
        return str(int(value))
    if type(value) is float:
        special = _special(value)
        if special is not None:
            return special
        return f"{value!r}".removesuffix(".0")
    raise _refuse("d", "integers and doubles", value)


def _number(verb: str, value: Any) -> float:
    if type(value) in (float, int, Uint):
        return float(value)
    if type(value) is str and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise _refuse(verb, "numbers", value)


def _fixed(value: Any, precision: int | None) -> str:
    number = _number("f", value)
    return _special(number) or f"{number:.{6 if precision is None else precision}f}"


def _scientific(value: Any, precision: int | None) -> str:
    number = _number("e", value)
    return _special(number) or f"{number:.{6 if precision is None else precision}e}"


def _binary(value: Any, precision: int | None) -> str:
    del precision
    if type(value) is bool:
        return "1" if value else "0"
    if type(value) is int or type(value) is Uint:
        return f"{int(value):b}"
    raise _refuse("b", "integers and bools", value)


def _octal(value: Any, precision: int | None) -> str:
    del precision
    if type(value) is int or type(value) is Uint:
        return f"{int(value):o}"
    raise _refuse("o", "integers", value)


def _hex(value: Any, precision: int | None) -> str:
    del precision
    if type(value) is int or type(value) is Uint:
        return f"{int(value):x}"
    if type(value) is str:
        return value.encode().hex()
    if type(value) is bytes:
        return value.hex()
    raise _refuse("x", "integers, byte buffers, and strings", value)


_VERBS: Final[dict[str, Callable[[Any, int | None], str]]] = {
    "s": _string,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "o": _octal,
    "x": _hex,
    "X": lambda value, precision: _hex(value, precision).upper(),
}

"""``format`` as Kubernetes has it: an older version of cel-go's, which prints numbers for readers of English.

Called by the strings library of version 2 and by ``validators``, which checks literal formats when compiling. The
output is limited while it is made: a value may share parts and unfold without end.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from dibs.cel.errors import CelRuntimeError
from dibs.cel.library.standard import format_double
from dibs.cel.library.times import Duration, Timestamp
from dibs.cel.values import TypeValue, Uint, key_value, spend, type_name

_MAX_RESULT: Final = 1_000_000
_MAX_PRECISION: Final = 1_000
_CLAUSE: Final = re.compile(r"(?:\.([0-9]*))?(.)?", re.DOTALL)
_RAISED: Final = str.maketrans("0123456789-+", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺")
VERBS: Final = frozenset("sdfebxXo")


def clauses(text: str) -> Iterator[tuple[str, str, int | None]]:
    """The parts of a format: plain text before, the verb (empty at the end), the precision."""
    place = 0
    plain: list[str] = []
    while True:
        percent = text.find("%", place)
        if percent < 0:
            plain.append(text[place:])
            yield "".join(plain), "", None
            return
        plain.append(text[place:percent])
        place = percent + 1
        if place >= len(text):
            raise CelRuntimeError("unexpected end of string")
        if text[place] == "%":
            plain.append("%")
            place += 1
            continue
        found = _CLAUSE.match(text, place)
        assert found is not None
        place = found.end()
        verb = found[2] or ""
        if found[1] is not None:
            if not verb:
                raise CelRuntimeError("could not find end of precision specifier")
            if not found[1] or len(found[1]) > 4 or int(found[1]) > _MAX_PRECISION:
                raise CelRuntimeError(f'error while converting precision "{found[1][:20]}" to integer')
        if verb not in VERBS:
            raise CelRuntimeError(f'could not parse formatting clause: unrecognized formatting clause "{verb}"')
        yield "".join(plain), verb, None if found[1] is None else int(found[1])
        plain = []


def format_string(text: str, arguments: list[Any]) -> str:
    """Replace the verbs of ``text``: %s %d %f %e %b %x %X %o and %%."""
    out: list[str] = []
    used = length = 0
    for plain, verb, precision in clauses(text):
        out.append(plain)
        length += len(plain)
        if verb:
            if used >= len(arguments):
                raise CelRuntimeError(f"index {used} out of range")
            made = _FORMS[verb](arguments[used], precision)
            out.append(made)
            length += len(made)
            used += 1
        spend(0.1 * length)
        if length > _MAX_RESULT:
            raise CelRuntimeError("the result of format is too long")
    return "".join(out)


def _refuse(clause: str, wanted: str, value: Any) -> CelRuntimeError:
    return CelRuntimeError(
        f"error during formatting: {clause} clause can only be used on {wanted}, was given {type_name(value)}"
    )


def _string(value: Any, precision: int | None = None) -> str:
    del precision
    if isinstance(value, list):
        return "[" + ", ".join(_nested(item) for item in _counted(value)) + "]"
    if isinstance(value, dict):
        entries = sorted((_nested(key_value(key)), _nested(item)) for key, item in _counted(list(value.items())))
        return "{" + ", ".join(f"{key}:{item}" for key, item in entries) + "}"
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CelRuntimeError("error during formatting: could not convert bytes to string") from None
    if type(value) is float:
        return format_double(value)
    if isinstance(value, str | int | Duration | Timestamp | TypeValue):
        return str(value) if not isinstance(value, TypeValue) else value.name
    raise _refuse(
        "string", "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps", value
    )


def _counted(items: list[Any]) -> list[Any]:
    spend(float(len(items)))
    return items


def _nested(value: Any) -> str:
    if type(value) is float:
        if math.isnan(value):
            return '"NaN"'
        return f"{value:.6f}" if math.isfinite(value) else ('"+Inf"' if value > 0 else '"-Inf"')
    if isinstance(value, Duration | Timestamp):
        name = "duration" if isinstance(value, Duration) else "timestamp"
        return f'{name}("{value}")'
    if type(value) is str:
        return quoted(value)
    if type(value) is bytes:
        return "b" + quoted(_string(value))
    if isinstance(value, list | dict | int | TypeValue) or value is None:
        made = _string(value)
        if len(made) > _MAX_RESULT:
            raise CelRuntimeError("the result of format is too long")
        return made
    raise CelRuntimeError(f"error during formatting: no formatting function for {type_name(value)}")


_ESCAPES: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def quoted(text: str) -> str:
    """The text as a Go literal."""
    return '"' + "".join(_ESCAPES.get(char) or _shown(char) for char in text) + '"'


def _shown(char: str) -> str:
    if char == " " or char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _decimal(value: Any, precision: int | None) -> str:
    del precision
    if type(value) is int or type(value) is Uint:
        return str(int(value))
    raise _refuse("decimal", "integers", value)


def _double(clause: str, value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is str and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise _refuse(clause, "doubles", value)


def _special(number: float) -> str | None:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return None


def _fixed(value: Any, precision: int | None) -> str:
    number = _double("fixed-point", value)
    return _special(number) or f"{number:,.{6 if precision is None else precision}f}"


def _scientific(value: Any, precision: int | None) -> str:
    number = _double("scientific", value)
    made = _special(number)
    if made is None:
        mantissa, _, exponent = f"{number:.6e}".partition("e")
        raised = exponent.removeprefix("+").translate(_RAISED)
        made = f"{mantissa}×10{raised}"
    # The precision is taken for a width there.
    return made.rjust(6 if precision is None else precision)


def _binary(value: Any, precision: int | None) -> str:
    del precision
    if isinstance(value, int):
        return f"{int(value):b}"
    raise _refuse("binary", "integers and bools", value)


def _octal(value: Any, precision: int | None) -> str:
    del precision
    if type(value) is int or type(value) is Uint:
        return f"{int(value):o}"
    raise _refuse("octal", "integers", value)


def _hex(value: Any, precision: int | None) -> str:
    del precision
    if type(value) is int or type(value) is Uint:
        return f"{int(value):x}"
    if type(value) is str:
        return value.encode().hex()
    if type(value) is bytes:
        return value.hex()
    raise _refuse("hex", "integers, byte buffers, and strings", value)


_FORMS: Final[dict[str, Callable[[Any, int | None], str]]] = {
    "s": _string,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "o": _octal,
    "x": _hex,
    "X": lambda value, precision: _hex(value, precision).upper(),
}

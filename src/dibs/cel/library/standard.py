"""CEL's standard functions and operators, declared for the checker and implemented on CEL values.

``_==_``, ``_!=_``, ``@in``, ``_[_]`` and ``_[?_]`` are declared here for their types; codegen has its own forms.
"""

import math
import re
from typing import Any, Final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.operators import contains, index, optional_index
from dibs.cel.regex import compile_regex
from dibs.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    NULL,
    STRING,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
    parameter,
    type_of,
)
from dibs.cel.values import INT_MAX, INT_MIN, UINT_MAX, TypeValue, Uint, compare, equals, type_name

A: Final = parameter("A")
B: Final = parameter("B")


def int_(value: int) -> int:
    """A result as an int, or the overflow error."""
    if value > INT_MAX or value < INT_MIN:
        raise CelRuntimeError("integer overflow")
    return value


def uint_(value: int) -> Uint:
    """A result as a uint, or the overflow error."""
    if value > UINT_MAX or value < 0:
        raise CelRuntimeError("unsigned integer overflow")
    return Uint(value)


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise CelRuntimeError("division by zero")
    quotient = abs(left) // abs(right)
    return int_(quotient if (left < 0) == (right < 0) else -quotient)


def _modulo(left: int, right: int) -> int:
    if right == 0:
        raise CelRuntimeError("modulus by zero")
    if left == INT_MIN and right == -1:
        raise CelRuntimeError("integer overflow")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _divide_double(left: float, right: float) -> float:
    if right == 0.0:
        if left == 0.0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    return left / right


def _arithmetic() -> list[Function]:
    return [
        Function(
            "_+_",
            Overload((INT, INT), INT, lambda a, b: int_(a + b)),
            Overload((UINT, UINT), UINT, lambda a, b: uint_(int(a) + int(b))),
            Overload((DOUBLE, DOUBLE), DOUBLE, lambda a, b: a + b, fails=False, template="a + b"),
            Overload((STRING, STRING), STRING, lambda a, b: a + b, fails=False, template="a + b"),
            Overload((BYTES, BYTES), BYTES, lambda a, b: a + b, fails=False, template="a + b"),
            Overload(
                (list_of(A), list_of(A)),
                list_of(A),
                lambda a, b: a + b,
                fails=False,
                grows=True,
                template="a + b",
            ),
        ),
        Function(
            "_-_",
            Overload((INT, INT), INT, lambda a, b: int_(a - b)),
            Overload((UINT, UINT), UINT, lambda a, b: uint_(int(a) - int(b))),
            Overload((DOUBLE, DOUBLE), DOUBLE, lambda a, b: a - b, fails=False, template="a - b"),
        ),
        Function(
            "_*_",
            Overload((INT, INT), INT, lambda a, b: int_(a * b)),
            Overload((UINT, UINT), UINT, lambda a, b: uint_(int(a) * int(b))),
            Overload((DOUBLE, DOUBLE), DOUBLE, lambda a, b: a * b, fails=False, template="a * b"),
        ),
        Function(
            "_/_",
            Overload((INT, INT), INT, _divide),
            Overload((UINT, UINT), UINT, lambda a, b: uint_(_divide_unsigned(a, b))),
            Overload((DOUBLE, DOUBLE), DOUBLE, _divide_double, fails=False),
        ),
        Function(
            "_%_",
            Overload((INT, INT), INT, _modulo),
            Overload((UINT, UINT), UINT, lambda a, b: Uint(_modulo(int(a), int(b)))),
        ),
        Function(
            "-_",
            Overload((INT,), INT, lambda a: int_(-a)),
            Overload((DOUBLE,), DOUBLE, lambda a: -a, fails=False, template="-a"),
        ),
        Function("!_", Overload((BOOL,), BOOL, lambda a: not a, fails=False, template="not a")),
    ]


def _divide_unsigned(left: int, right: int) -> int:
    if right == 0:
        raise CelRuntimeError("division by zero")
    return int(left) // int(right)


_ORDERINGS: Final = {
    "_<_": ("a < b", lambda order: order < 0),
    "_<=_": ("a <= b", lambda order: order <= 0),
    "_>_": ("a > b", lambda order: order > 0),
    "_>=_": ("a >= b", lambda order: order >= 0),
}


def _orderings(extra: tuple[Type, ...] = ()) -> list[Function]:
    found = []
    for name, (template, accept) in _ORDERINGS.items():

        def general(left: Any, right: Any, name: str = name, accept: Any = accept) -> bool:
            return bool(accept(compare(left, right, name)))

        same = [
            Overload((kind, kind), BOOL, general, fails=False, template=template)
            for kind in (INT, UINT, STRING, BYTES, BOOL, *extra)
        ]
        # NaN has no order.
        same.append(Overload((DOUBLE, DOUBLE), BOOL, general))
        mixed = [
            Overload((left, right), BOOL, general)
            for left in (INT, UINT, DOUBLE)
            for right in (INT, UINT, DOUBLE)
            if left is not right
        ]
        found.append(Function(name, *same, *mixed))
    return found


def _relations() -> list[Function]:
    return [
        Function("_==_", Overload((A, A), BOOL, equals)),
        Function("_!=_", Overload((A, A), BOOL, lambda a, b: not equals(a, b), fails=False)),
        Function(
            "@in",
            Overload((A, list_of(A)), BOOL, lambda a, b: contains(b, a)),
            Overload((A, map_of(A, B)), BOOL, lambda a, b: contains(b, a)),
        ),
        Function(
            "_[_]",
            Overload((list_of(A), INT), A, index),
            Overload((map_of(A, B), A), B, index),
            Overload((optional_of(list_of(A)), INT), optional_of(A), index),
            Overload((optional_of(map_of(A, B)), A), optional_of(B), index),
        ),
        Function(
            "_[?_]",
            Overload((list_of(A), INT), optional_of(A), optional_index),
            Overload((map_of(A, B), A), optional_of(B), optional_index),
            Overload((optional_of(list_of(A)), INT), optional_of(A), optional_index),
            Overload((optional_of(map_of(A, B)), A), optional_of(B), optional_index),
        ),
    ]


# -- conversions

_INT: Final = re.compile(r"[+-]?[0-9]{1,40}\Z")
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,6})?\Z")
_HEXADECIMAL: Final = re.compile(r"[+-]?0[xX]_?[0-9a-fA-F_]{0,400}\.?[0-9a-fA-F_]{0,400}[pP][+-]?[0-9]{1,6}\Z")
_SPECIAL: Final = re.compile(r"[+-]?(?:inf|infinity|nan)\Z", re.IGNORECASE)
_BOOLS: Final = {
    "1": True, "t": True, "T": True, "true": True, "TRUE": True, "True": True,
    "0": False, "f": False, "F": False, "false": False, "FALSE": False, "False": False,
}  # fmt: skip


def _parse_int(text: str) -> int:
    if not _INT.match(text):
        raise CelRuntimeError(f"type conversion error from 'string' to 'int': {text[:60]!r}")
    return int_(int(text))


def _parse_uint(text: str) -> Uint:
    if not _INT.match(text) or text[0] in "+-":
        raise CelRuntimeError(f"type conversion error from 'string' to 'uint': {text[:60]!r}")
    return uint_(int(text))


def _parse_double(text: str) -> float:
    """As Go reads a number: underscores and hexadecimal included, what is too large not."""
    try:
        if _SPECIAL.match(text):
            return float(text)
        if _HEXADECIMAL.match(text):
            value = float.fromhex(text.replace("_", ""))
        elif _FLOAT.match(text):
            value = float(text)
        else:
            raise ValueError
        if math.isinf(value):
            raise ValueError
    except (ValueError, OverflowError):
        raise CelRuntimeError(f"type conversion error from 'string' to 'double': {text[:60]!r}") from None
    return value


def _parse_bool(text: str) -> bool:
    if text not in _BOOLS:
        raise CelRuntimeError(f"type conversion error from 'string' to 'bool': {text[:60]!r}")
    return _BOOLS[text]


def _double_to_int(value: float) -> int:
    # The two ends are refused: near them a double cannot tell neighbours apart.
    if not -9223372036854775808.0 < value < 9223372036854775808.0:
        raise CelRuntimeError("integer overflow")
    return int(value)


def _double_to_uint(value: float) -> Uint:
    if not 0.0 <= value < 18446744073709551616.0:
        raise CelRuntimeError("unsigned integer overflow")
    return Uint(int(value))


def format_double(value: float) -> str:
    """The shortest text that reads back, in Go's style."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    mantissa, _, exponent = f"{value!r}".partition("e")
    digits = mantissa.replace("-", "").replace(".", "").lstrip("0").rstrip("0") or "0"
    power = math.floor(math.log10(abs(value))) if value else 0
    if exponent:
        power = int(exponent)
    elif value:
        whole = mantissa.lstrip("-").partition(".")[0]
        power = len(whole) - 1 if whole != "0" else power
    if power < -4 or power >= 6:
        head = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{'-' if value < 0 else ''}{head}e{'-' if power < 0 else '+'}{abs(power):02d}"
    return f"{value:.{max(len(digits) - power - 1, 0)}f}"


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelRuntimeError("invalid UTF-8 in bytes, cannot convert to string") from None


def _conversions() -> list[Function]:
    return [
        Function(
            "int",
            Overload((INT,), INT, lambda a: a, fails=False, template="a"),
            Overload((UINT,), INT, lambda a: int_(int(a))),
            Overload((DOUBLE,), INT, _double_to_int),
            Overload((STRING,), INT, _parse_int),
        ),
        Function(
            "uint",
            Overload((UINT,), UINT, lambda a: a, fails=False, template="a"),
            Overload((INT,), UINT, uint_),
            Overload((DOUBLE,), UINT, _double_to_uint),
            Overload((STRING,), UINT, _parse_uint),
        ),
        Function(
            "double",
            Overload((DOUBLE,), DOUBLE, lambda a: a, fails=False, template="a"),
            Overload((INT,), DOUBLE, float, fails=False),
            Overload((UINT,), DOUBLE, float, fails=False),
            Overload((STRING,), DOUBLE, _parse_double),
        ),
        Function(
            "bool",
            Overload((BOOL,), BOOL, lambda a: a, fails=False, template="a"),
            Overload((STRING,), BOOL, _parse_bool),
        ),
        Function(
            "string",
            Overload((STRING,), STRING, lambda a: a, fails=False, template="a"),
            Overload((INT,), STRING, str, fails=False),
            Overload((UINT,), STRING, lambda a: str(int(a)), fails=False),
            Overload((DOUBLE,), STRING, format_double, fails=False),
            Overload((BOOL,), STRING, lambda a: "true" if a else "false", fails=False),
            Overload((BYTES,), STRING, _decode),
        ),
        Function(
            "bytes",
            Overload((BYTES,), BYTES, lambda a: a, fails=False, template="a"),
            Overload((STRING,), BYTES, lambda a: a.encode(), fails=False),
        ),
        Function("dyn", Overload((A,), DYN, lambda a: a, fails=False, template="a")),
        Function("type", Overload((A,), type_of(A), lambda a: TypeValue(type_name(a)), fails=False)),
    ]


# -- strings


def _strings() -> list[Function]:
    def matches(text: str, pattern: str) -> bool:
        return compile_regex(pattern).search(text)

    two = (STRING, STRING)
    sizes = [Overload((kind,), INT, len, fails=False) for kind in (STRING, BYTES, list_of(A), map_of(A, B))]
    sizes += [method((kind,), INT, len, fails=False) for kind in (STRING, BYTES, list_of(A), map_of(A, B))]
    return [
        Function("size", *sizes),
        Function("contains", method(two, BOOL, lambda a, b: b in a, fails=False, template="b in a")),
        Function("startsWith", method(two, BOOL, str.startswith, fails=False)),
        Function("endsWith", method(two, BOOL, str.endswith, fails=False)),
        Function(
            "matches",
            Overload(two, BOOL, matches),
            method(two, BOOL, matches),
        ),
    ]


NAMES: Final[dict[str, Type]] = {
    "bool": type_of(BOOL),
    "int": type_of(INT),
    "uint": type_of(UINT),
    "double": type_of(DOUBLE),
    "string": type_of(STRING),
    "bytes": type_of(BYTES),
    "null_type": type_of(NULL),
    "list": type_of(list_of(DYN)),
    "map": type_of(map_of(DYN, DYN)),
    "type": type_of(type_of(DYN)),
    "dyn": type_of(DYN),
}


def standard() -> Library:
    """The functions that are always there."""
    functions = [*_arithmetic(), *_orderings(), *_relations(), *_conversions(), *_strings()]
    return Library("standard", functions)

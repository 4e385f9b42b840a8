"""The math library: extremes, rounding, signs, bits."""

import math
from collections.abc import Callable
from typing import Any, Final

from dibs.cel.declarations import Function, Library, Overload, linear
from dibs.cel.errors import CelRuntimeError
from dibs.cel.macros import MATH
from dibs.cel.types import BOOL, DOUBLE, DYN, INT, UINT, Type, list_of
from dibs.cel.values import INT_MAX, INT_MIN, UINT_MAX, Uint, compare, no_overload

_NUMBERS: Final = (INT, UINT, DOUBLE)


def _extreme(name: str, wanted: int) -> Function:
    def of_two(one: Any, other: Any) -> Any:
        return other if compare(other, one, name) == wanted else one

    def of_list(items: list[Any]) -> Any:
        if not items:
            raise CelRuntimeError(f"{name}(list) argument must not be empty")
        best = items[0]
        for item in items:
            if type(item) not in (int, Uint, float):
                raise no_overload(name, item)
            best = of_two(best, item)
        return best

    return Function(
        name,
        *(Overload((kind,), kind, lambda a: a, fails=False) for kind in _NUMBERS),
        *(
            Overload((one, other), one if one is other else DYN, of_two, fails=False)
            for one in _NUMBERS
            for other in _NUMBERS
        ),
        *(Overload((list_of(kind),), kind, of_list, cost=linear(1.0)) for kind in _NUMBERS),
        Overload((list_of(DYN),), DYN, of_list, cost=linear(1.0)),
    )


def _rounded(value: float) -> float:
    # Halves go away from zero; Python's round goes to the even neighbour.
    if not math.isfinite(value):
        return value
    whole = math.floor(abs(value) + 0.5) if abs(value) < 2**52 else abs(value)
    return math.copysign(float(whole), value)


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda value: float(function(value)) if math.isfinite(value) else value


def _absolute(value: int) -> int:
    if value == INT_MIN:
        raise CelRuntimeError("integer overflow")
    return abs(value)


def _sign(value: Any) -> Any:
    if type(value) is float and math.isnan(value):
        return value
    return type(value)((value > 0) - (value < 0))


def _signed(value: int) -> int:
    value &= UINT_MAX
    return value - 2**64 if value > INT_MAX else value


def _shift(*, left: bool, unsigned: bool) -> Callable[[int, int], int]:
    def shift(value: int, places: int) -> int:
        if places < 0:
            raise CelRuntimeError(f"math.bitShift{'Left' if left else 'Right'}() negative offset: {places}")
        bits = int(value) & UINT_MAX
        shifted = 0 if places > 63 else (bits << places) & UINT_MAX if left else bits >> places
        return Uint(shifted) if unsigned else _signed(shifted)

    return shift


def _bits(name: str, function: Callable[[int, int], int]) -> Function:
    return Function(
        name,
        Overload((INT, INT), INT, function, fails=False),
        Overload((UINT, UINT), UINT, lambda a, b: Uint(function(int(a), int(b))), fails=False),
    )


def _on_double(name: str, function: Callable[[float], Any], result: Type) -> Function:
    return Function(name, Overload((DOUBLE,), result, function, fails=False))


def mathematics() -> Library:
    """The library."""
    return Library(
        "math",
        [
            _extreme("math.greatest", 1),
            _extreme("math.least", -1),
            _on_double("math.ceil", _whole(math.ceil), DOUBLE),
            _on_double("math.floor", _whole(math.floor), DOUBLE),
            _on_double("math.round", _rounded, DOUBLE),
            _on_double("math.trunc", _whole(math.trunc), DOUBLE),
            _on_double("math.isNaN", math.isnan, BOOL),
            _on_double("math.isInf", math.isinf, BOOL),
            _on_double("math.isFinite", math.isfinite, BOOL),
            Function(
                "math.sqrt",
                *(
                    Overload((kind,), DOUBLE, lambda a: math.sqrt(a) if a >= 0 else math.nan, fails=False)
                    for kind in _NUMBERS
                ),
            ),
            Function(
                "math.abs",
                Overload((INT,), INT, _absolute),
                Overload((UINT,), UINT, lambda a: a, fails=False),
                Overload((DOUBLE,), DOUBLE, abs, fails=False),
            ),
            Function("math.sign", *(Overload((kind,), kind, _sign, fails=False) for kind in _NUMBERS)),
            _bits("math.bitAnd", lambda a, b: a & b),
            _bits("math.bitOr", lambda a, b: a | b),
            _bits("math.bitXor", lambda a, b: a ^ b),
            Function(
                "math.bitNot",
                Overload((INT,), INT, lambda a: ~a, fails=False),
                Overload((UINT,), UINT, lambda a: Uint(UINT_MAX - a), fails=False),
            ),
            Function(
                "math.bitShiftLeft",
                Overload((INT, INT), INT, _shift(left=True, unsigned=False)),
                Overload((UINT, INT), UINT, _shift(left=True, unsigned=True)),
            ),
            Function(
                "math.bitShiftRight",
                Overload((INT, INT), INT, _shift(left=False, unsigned=False)),
                Overload((UINT, INT), UINT, _shift(left=False, unsigned=True)),
            ),
        ],
        macros=MATH,
    )

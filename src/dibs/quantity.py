"""Kubernetes quantities: `500m`, `2`, `1.5Gi`, `1e9`.

One grammar and one meaning on every backend. `request` parses cpu and memory with it, `claims` the capacities. A value
is kept exactly, as a fraction; what Kubernetes would round up (below a thousand-millionth) is rounded up here too.
It must not guess: text outside the grammar raises ValueError with the reason.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import total_ordering

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SHAPE = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)((?:[eE][+-]?[0-9]{1,3})|[A-Za-z]*)", re.ASCII)
_NANO = 10**9
_LIMIT = 1 << 63  # Kubernetes' own: larger values do not survive its int64 arithmetic


@total_ordering
class Quantity:
    """An exact amount that remembers nothing of its spelling; `str()` gives the canonical one."""

    __slots__ = ("_binary", "_value")

    def __init__(self, value: int | Fraction, *, binary: bool = False) -> None:
        self._value = Fraction(value)
        self._binary = binary

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read Kubernetes' grammar. Raises ValueError with the reason."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise ValueError("not a quantity such as 2, 500m, 1.5Gi or 1e9")
        sign, digits, suffix = match.groups()
        if len(digits) > 64:
            raise ValueError("more digits than a quantity can have")
        value = Fraction(digits if not digits.endswith(".") else digits + "0")
        binary = suffix in _BINARY
        if binary:
            value *= _BINARY[suffix]
        elif suffix in _DECIMAL:
            value *= Fraction(10) ** _DECIMAL[suffix]
        elif suffix[:1] in ("e", "E") and len(suffix) > 1:
            value *= Fraction(10) ** int(suffix[1:])
        else:
            known = "m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei"
            raise ValueError(f"unknown suffix {suffix!r}; the suffixes are {known}")
        scaled = value * _NANO
        if scaled.denominator != 1:  # round away from zero at the ninth place, as Kubernetes does
            value = Fraction(-(-scaled.numerator // scaled.denominator), _NANO)
        if value >= _LIMIT:
            raise ValueError("larger than a quantity can be (2^63 - 1)")
        return cls(-value if sign == "-" else value, binary=binary)

    @property
    def value(self) -> Fraction:
        return self._value

    def __int__(self) -> int:
        """The whole amount, rounded up as Kubernetes does."""
        return -(-self._value.numerator // self._value.denominator)

    @property
    def is_whole(self) -> bool:
        return self._value.denominator == 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self._value == other._value

    def __lt__(self, other: Quantity) -> bool:
        return self._value < other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __str__(self) -> str:
        value = self._value
        if value == 0:
            return "0"
        if self._binary and value.denominator == 1:
            for suffix, scale in reversed(_BINARY.items()):
                if value.numerator % scale == 0:
                    return f"{value.numerator // scale}{suffix}"
        for suffix in ("E", "P", "T", "G", "M", "k", "", "m", "u", "n"):
            scaled = value / Fraction(10) ** _DECIMAL[suffix]
            if scaled.denominator == 1:
                return f"{scaled.numerator}{suffix}"
        raise AssertionError("a quantity has at most nine decimal places")


def human_bytes(amount: int) -> str:
    """Bytes for a person's eye, in binary units with at most two decimals: 79.65Gi."""
    value = float(amount)
    for suffix in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(value) < 1024 or suffix == "Ti":
            return f"{value:.2f}".rstrip("0").rstrip(".") + suffix
        value /= 1024
    raise AssertionError("unreachable")

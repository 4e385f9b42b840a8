"""Kubernetes quantities as exact values: `10Gi`, `1500m`, `1e3`. One grammar and one meaning on every backend.

`request` parses cpu and memory with it, `claims` the capacities, `cel` its quantity() values. A quantity is a whole
number of nanos, which is the finest step that Kubernetes keeps (finer input is rounded away from zero), so that every
comparison and sum is exact. It imports nothing, and it never guesses: text outside the grammar is a ValueError.
"""

from typing import Final, NoReturn

NANO: Final = 10**9
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DIGITS: Final = frozenset("0123456789")
# Kubernetes' own parser takes any exponent and then works with numbers of that many digits. No real quantity is near.
_MAX_EXPONENT: Final = 1000
_MAX_LENGTH: Final = 1000


class Quantity:
    """An exact amount. Immutable, hashable, ordered by value: ``Quantity.parse("1Ki") == Quantity.parse("1024")``."""

    __slots__ = ("binary", "exponent", "nanos")

    __cel_type__ = "kubernetes.Quantity"
    __cel_class__ = "cel.Quantity"
    __cel_strict__ = True

    nanos: int
    binary: bool
    exponent: bool

    def __init__(self, nanos: int, *, binary: bool = False, exponent: bool = False) -> None:
        """``nanos``: the amount in billionths. It is printed with Ki, Mi, Gi (``binary``), or as 1e3 (``exponent``)."""
        self.nanos = nanos
        self.binary = binary
        self.exponent = exponent

    @classmethod
    def of(cls, amount: int) -> "Quantity":
        """A whole number."""
        return cls(amount * NANO)

    @classmethod
    def parse(cls, text: str) -> "Quantity":
        """Read Kubernetes' grammar: sign, digits with at most one point, a binary or decimal suffix or exponent."""
        if len(text) > _MAX_LENGTH:
            _refuse(text[:40] + "…", "it is too long")
        nanos, binary, exponent = _parse(text)
        return cls(nanos, binary=binary, exponent=exponent)

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.nanos > 0) - (self.nanos < 0)

    def is_integer(self) -> bool:
        """Whether ``as_integer`` works: a whole number within 64 bits."""
        return self.nanos % NANO == 0 and _INT64_MIN <= self.nanos // NANO <= _INT64_MAX

    def as_integer(self) -> int:
        """The whole number; ValueError if it is none or does not fit into 64 bits."""
        if not self.is_integer():
            raise ValueError("cannot convert value to integer")
        return self.nanos // NANO

    def as_float(self) -> float:
        """The nearest double; infinite if out of range."""
        try:
            return self.nanos / NANO
        except OverflowError:
            return float("inf") if self.nanos > 0 else float("-inf")

    def compare(self, other: "Quantity") -> int:
        """-1, 0 or 1."""
        return (self.nanos > other.nanos) - (self.nanos < other.nanos)

    def __add__(self, other: "Quantity | int") -> "Quantity":
        return self._printed_alike(self.nanos + _nanos(other), other)

    def __sub__(self, other: "Quantity | int") -> "Quantity":
        return self._printed_alike(self.nanos - _nanos(other), other)

    def _printed_alike(self, nanos: int, other: "Quantity | int") -> "Quantity":
        """A sum is printed as its first part is written, unless that is zero."""
        form = other if self.nanos == 0 and isinstance(other, Quantity) else self
        return Quantity(nanos, binary=form.binary, exponent=form.exponent)

    def __neg__(self) -> "Quantity":
        return Quantity(-self.nanos, binary=self.binary, exponent=self.exponent)

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: "Quantity") -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: "Quantity") -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: "Quantity") -> bool:
        return self.nanos >= other.nanos

    def __hash__(self) -> int:
        return hash((Quantity, self.nanos))

    def __str__(self) -> str:
        """The canonical form: no fraction, the largest suffix that keeps it exact."""
        return _format(self.nanos, binary=self.binary, exponent=self.exponent)

    def __repr__(self) -> str:
        return f"Quantity.parse({str(self)!r})"


def _nanos(other: Quantity | int) -> int:
    return other.nanos if isinstance(other, Quantity) else other * NANO


def _refuse(text: str, reason: str) -> NoReturn:
    raise ValueError(
        f'quantity "{text}": {reason}; write a number with at most one of n u m k M G T P E Ki Mi Gi Ti Pi Ei'
    )


def _parse(text: str) -> tuple[int, bool, bool]:
    body = text[1:] if text[:1] in ("+", "-") else text
    split = 0
    while split < len(body) and (body[split] in _DIGITS or body[split] == "."):
        split += 1
    number, suffix = body[:split], body[split:]
    whole, _, fraction = number.partition(".")
    if not whole + fraction or "." in fraction:
        _refuse(text, "it has no number")
    digits, scale = int(whole + fraction), -len(fraction)
    binary = suffix in _BINARY
    if binary:
        digits <<= _BINARY[suffix]
    elif suffix in _DECIMAL:
        scale += _DECIMAL[suffix]
    else:
        scale += _exponent(text, suffix)
    nanos = _scaled(digits, scale + 9)
    if binary:
        nanos = min(nanos, _INT64_MAX * NANO)
        # Below one, Kubernetes prints a decimal fraction: there is no binary suffix for it.
        binary = nanos >= NANO or nanos == 0
    exponent = not binary and suffix[:1] in ("e", "E") and len(suffix) > 1
    return (-nanos if text[0] == "-" else nanos), binary, exponent


def _exponent(text: str, suffix: str) -> int:
    sign = 1
    power = suffix[1:]
    if power[:1] in ("+", "-"):
        sign = -1 if power[0] == "-" else 1
        power = power[1:]
    if suffix[0] not in "eE" or not power or not _DIGITS.issuperset(power):
        _refuse(text, f'the suffix "{suffix}" is unknown')
    if len(power) > 10 or int(power) > _MAX_EXPONENT:
        _refuse(text, f"the exponent is beyond {_MAX_EXPONENT}")
    return sign * int(power)


def _ten(power: int) -> int:
    return int(10**power)


def _scaled(digits: int, power: int) -> int:
    if power >= 0:
        return digits * _ten(power)
    # Away from zero: a request for something must not end as nothing.
    return -(-digits // _ten(-power))


def _format(nanos: int, *, binary: bool, exponent: bool) -> str:
    sign, size = ("-", -nanos) if nanos < 0 else ("", nanos)
    if size == 0:
        return "0"
    if binary and size % NANO == 0 and size >= 1024 * NANO:
        whole, suffix = size // NANO, ""
        for name, bits in _BINARY.items():
            if (size // NANO) % (1 << bits) == 0:
                whole, suffix = (size // NANO) >> bits, name
        return f"{sign}{whole}{suffix}"
    if exponent:
        power = -9
        while size % 1000 == 0:
            size, power = size // 1000, power + 3
        return f"{sign}{size}e{power}" if power else f"{sign}{size}"
    whole, suffix = size, "n"
    for name, power in _DECIMAL.items():
        if size % 10 ** (power + 9) == 0:
            whole, suffix = size // 10 ** (power + 9), name
    return f"{sign}{whole}{suffix}"


def human_bytes(amount: int) -> str:
    """Bytes for a person's eye, in binary units with at most two decimals: 79.65Gi."""
    value = float(amount)
    for suffix in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(value) < 1024 or suffix == "Ti":
            return f"{value:.2f}".rstrip("0").rstrip(".") + suffix
        value /= 1024
    raise AssertionError("unreachable")

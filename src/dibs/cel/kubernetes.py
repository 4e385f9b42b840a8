"""Kubernetes' CEL functions on quantities and versions, and the two value types.

Switched on with ``libraries=[quantities(), versions()]``. ``Quantity`` and ``Semver`` are plain values that other
modules may use without CEL.
"""

import re
from typing import Final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.quantity import Quantity
from dibs.cel.semver import Semver
from dibs.cel.types import BOOL, DOUBLE, INT, STRING, Type, opaque

QUANTITY: Final = opaque("kubernetes.Quantity", Quantity)
SEMVER: Final = opaque("kubernetes.Semver", Semver)


# What comes before the first digit, where there is none: "G" and "." are 0 to Kubernetes.
_BEFORE_DIGITS: Final = re.compile(r"[+-]?\.?")


def _parsed(text: str) -> Quantity:
    before = _BEFORE_DIGITS.match(text)
    assert before is not None  # it also matches nothing
    rest = text[before.end() :]
    if not text or rest[:1] in set("0123456789."):
        return Quantity.parse(text)
    try:
        return Quantity.parse(f"{before[0]}0{rest}")
    except ValueError:
        return Quantity.parse(text)  # which fails too, and names the value as it was written


def _quantity(text: str) -> Quantity:
    try:
        return _parsed(text)
    except ValueError as error:
        raise CelRuntimeError(str(error)) from None


def _is_quantity(text: str) -> bool:
    try:
        _parsed(text)
    except ValueError:
        return False
    return True


def _semver(text: str, normalize: bool = False) -> Semver:
    try:
        return Semver.parse(text, normalize=normalize)
    except ValueError as error:
        raise CelRuntimeError(str(error)) from None


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        Semver.parse(text, normalize=normalize)
    except ValueError:
        return False
    return True


def _part(number: int) -> int:
    # A version's numbers are unsigned; CEL's int is not.
    if number >= 2**63:
        raise CelRuntimeError("integer overflow")
    return number


def _comparisons(kind: Type, key: str) -> dict[str, Overload]:
    both = (kind, kind)
    greater, less, compare = f"a.{key} > b.{key}", f"a.{key} < b.{key}", f"(a.{key} > b.{key}) - (a.{key} < b.{key})"
    return {
        "isGreaterThan": method(both, BOOL, lambda a, b: a > b, fails=False, template=greater),
        "isLessThan": method(both, BOOL, lambda a, b: a < b, fails=False, template=less),
        "compareTo": method(both, INT, lambda a, b: a.compare(b), fails=False, template=compare, ordering=f"a.{key}"),
    }


def _add(left: Quantity, right: Quantity | int) -> Quantity:
    return left + right


def _subtract(left: Quantity, right: Quantity | int) -> Quantity:
    return left - right


def quantities() -> Library:
    """``quantity("10Gi")`` and what can be done with it."""
    one = (QUANTITY,)
    return Library(
        "kubernetes.quantity",
        [
            Function("quantity", Overload((STRING,), QUANTITY, _quantity, fold=True)),
            Function("isQuantity", Overload((STRING,), BOOL, _is_quantity, fails=False, fold=True)),
            Function("sign", Overload(one, INT, lambda a: a.sign, fails=False)),
            Function("isInteger", method(one, BOOL, Quantity.is_integer, fails=False)),
            Function("asInteger", method(one, INT, Quantity.as_integer)),
            Function("asApproximateFloat", method(one, DOUBLE, Quantity.as_float, fails=False)),
            Function(
                "add",
                method((QUANTITY, QUANTITY), QUANTITY, _add, fails=False),
                method((QUANTITY, INT), QUANTITY, _add, fails=False),
            ),
            Function(
                "sub",
                method((QUANTITY, QUANTITY), QUANTITY, _subtract, fails=False),
                method((QUANTITY, INT), QUANTITY, _subtract, fails=False),
            ),
            *(Function(name, overload) for name, overload in _comparisons(QUANTITY, "nanos").items()),
        ],
    )


def versions() -> Library:
    """``semver("1.2.3")`` and what can be done with it."""
    one = (SEMVER,)
    return Library(
        "kubernetes.semver",
        [
            Function(
                "semver",
                Overload((STRING,), SEMVER, _semver, fold=True),
                Overload((STRING, BOOL), SEMVER, _semver, fold=True),
            ),
            Function(
                "isSemver",
                Overload((STRING,), BOOL, _is_semver, fails=False, fold=True),
                Overload((STRING, BOOL), BOOL, _is_semver, fails=False, fold=True),
            ),
            Function("major", method(one, INT, lambda a: _part(a.major))),
            Function("minor", method(one, INT, lambda a: _part(a.minor))),
            Function("patch", method(one, INT, lambda a: _part(a.patch))),
            *(Function(name, overload) for name, overload in _comparisons(SEMVER, "key").items()),
        ],
    )


__all__ = ["QUANTITY", "SEMVER", "Quantity", "Semver", "quantities", "versions"]

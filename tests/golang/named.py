"""The differences from Kubernetes that are known, each with its reason. ``docs/cel.md`` names the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dibs.quantity import Quantity

# Name, and an expression that shows it. The page has the reasons.
NAMED: dict[str, str] = {
    "panics": "{?'b': dyn(optional.of(2))} == {}",
    "scripts": r"'a'.matches('\\p{Greek}')",
    "keys": "{[1]: 1}.size() == 1",
    "map order": "{'a': 1, 'b': 2}.map(k, k) == ['a', 'b']",
    "quantities": "quantity('1000m').isInteger()",
    "computed quantities": "quantity('2') == quantity('1').add(1)",
    "smallest integer": "quantity('0').sub(-9223372036854775808).asApproximateFloat() > 0.0",
    "internal errors": "dyn(semver('1.2.3')) in {'a': 1}",
    "last day": "timestamp('9999-12-31T23:59:59Z').getMonth('02:00') == 0",
    "durations": "string(duration('1.497s')) == '1.497s'",
    "offsets": "string(timestamp('2000-01-01T00:00:00+02:00')) == '1999-12-31T22:00:00Z'",
    "empty literals": "dyn(1) in [{}['a'], 1]",
    "fields of optionals": "dyn([1][?0]).missing.hasValue()",
    "costs beside errors": "sets.equivalent([1, 'a'.charAt(-1).indexOf('a')], lists.range(1000).sortBy(v, v))",
    "nesting": "!" * 3 + "(" * 100 + "true" + ")" * 100,
}
# How often Kubernetes is asked again: a map of two entries comes out in the rarer order one time in eight.
_TIMES = 40
_EMPTY = re.compile(r"\{\}|\[\]|optional\.none\(\)")
_OPTIONAL = re.compile(r"dyn\(.*(\.\?|\[\?|optional\.|first\(|last\().*\)\.\w+", re.DOTALL)
_ELEMENTS = re.compile(r" in |\.distinct\(|[iI]ndexOf\(|sets\.")  # what compares the elements of lists
_PRINTED = re.compile(r"quantity:([^,\])}=]+)")
Answer = dict[str, Any]
Value = tuple[str, Any]


def named(text: str, what: str, ours: Answer, theirs: Answer, again: Callable[[], Answer]) -> str:
    """The name of a difference; empty where it has none. `again` asks Kubernetes once more."""
    refused_here, refused_there = str(ours.get("refused", "")), str(theirs.get("refused", ""))
    if what == "refused there":
        if refused_there.startswith("panic") and "?" in text:
            return "panics"
        if _EMPTY.search(text) and re.search(r"(expected type|but found) '(any|dyn)'", refused_there):
            return "empty literals"
        return ""
    if what == "refused here":
        if "p{Greek}" in text and "Greek" in refused_here:
            return "scripts"
        if _EMPTY.search(text) and "expected type 'optional_type' but found 'dyn'" in refused_here:
            return "empty literals"
        if "nested too deeply" in refused_here:
            return "nesting"
        return "keys" if "unsupported key type" in refused_here else ""
    if what not in ("value", "cost"):
        return ""
    if _of_quantities(text, "sub") and re.search(r"-9223372036854775808|-1 - 9223372036854775807", text):
        return "smallest integer"
    if _all(ours, theirs, lambda mine, their: "unsupported key type" in _problem(mine)):
        return "keys"
    if _all(ours, theirs, lambda mine, their: mine[0] == "error" and their[0] == "cost"):
        return "costs beside errors"
    if _quantities(text, ours, theirs):
        return "quantities"
    if _all(ours, theirs, lambda mine, their: _problem(their).startswith("internal error:")):
        return "internal errors"
    if _all(ours, theirs, lambda mine, their: "timestamp overflow" in _problem(mine)) and "get" in text:
        return "last day"
    if _of_quantities(text, "add", "sub") and (_only_fails_there(ours, theirs) or _never_equal_there(text, theirs)):
        return "computed quantities"
    if what == "cost" and _of_quantities(text, "add", "sub") and re.search(r"[!=]=| in ", text):
        return "computed quantities"
    if _of_quantities(text, "add", "sub") and _ELEMENTS.search(text):
        return "computed quantities"
    if "duration" in text and ("string(" in text or ".format(" in text):
        return "durations"
    if "+02:00" in text and ("string(" in text or ".format(" in text):
        return "offsets"
    if what == "cost" and _OPTIONAL.search(text) and _one_more(ours, theirs):
        return "fields of optionals"
    if any(again() != theirs for _ in range(_TIMES)):
        return "map order"
    return ""


def _of_quantities(text: str, *functions: str) -> bool:
    """Whether one of these functions may be called on a quantity."""
    return any(f".{name}(" in text for name in functions) and ("quantity(" in text or "device.capacity" in text)


def _quantities(text: str, ours: Answer, theirs: Answer) -> bool:
    if _of_quantities(text, "isInteger", "asInteger", "asApproximateFloat"):
        return True
    if _all(ours, theirs, lambda mine, their: "it has no number" in _problem(mine)):
        return True
    return _by_amount(ours) == _by_amount(theirs)


def _only_fails_there(ours: Answer, theirs: Answer) -> bool:
    """Whether every value that differs is an error there, of operands that cannot be compared."""
    return _all(ours, theirs, lambda mine, their: _problem(their) == "no such overload")


def _never_equal_there(text: str, theirs: Answer) -> bool:
    """Whether the expression is a single `!=` of two quantities, which is true there however large they are."""
    computed = re.fullmatch(r"[^!=<>&|?]+ != [^!=<>&|?]+\.(add|sub)\([^!=<>&|?]*\)", text)
    return computed is not None and all(value[0] in ("bool:true", "error") for value in theirs["values"])


def _all(ours: Answer, theirs: Answer, holds: Callable[[Value, Value], bool]) -> bool:
    """Whether this holds of all values that differ."""
    pairs = zip(ours["values"], theirs["values"], strict=True)
    unlike = [(mine, their) for mine, their in pairs if mine[0] != their[0]]
    return bool(unlike) and all(holds(mine, their) for mine, their in unlike)


def _one_more(ours: Answer, theirs: Answer) -> bool:
    """Whether each value is the same, and costs one unit more here."""
    pairs = zip(ours["values"], theirs["values"], strict=True)
    return all(mine[0] == their[0] and (mine[0] == "error" or mine[1] == their[1] + 1) for mine, their in pairs)


def _problem(value: Value) -> str:
    return str(value[1]) if value[0] == "error" else ""


def _by_amount(answer: Answer) -> list[str]:
    """The values, with quantities by what they amount to instead of how they are printed."""

    def amount(found: re.Match[str]) -> str:
        return f"quantity:{Quantity.parse(found[1]).nanos}"

    values = [(shown, None if shown in ("error", "cost") else cost) for shown, cost in answer["values"]]
    return [f"{_PRINTED.sub(amount, shown)} {cost}" for shown, cost in values]

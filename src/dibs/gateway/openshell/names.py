"""Names and labels as OpenShell has them: what a name may be, names that are made up, label selectors. Pure."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping

from dibs.errors import InvalidRequest, Problem, quoted

LONGEST_NAME = 19  # a name is part of a routable host name there
LONGEST_WORKSPACE = 63
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<gone>[^\s=!,()]+)"
    r"|(?P<key>[^\s=!,()]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[^\s=!,()]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)",
    re.ASCII,
)


def name_problem(text: str, field: str, longest: int = LONGEST_NAME) -> Problem | None:
    """What is wrong with a name."""
    if _NAME.fullmatch(text) and len(text) <= longest:
        return None
    reason = f"must be 1 to {longest} lower-case letters, digits and -, and begin and end with a letter or digit"
    return Problem("NAME_INVALID", field, quoted(text)[1:-1], reason, "as in train-1")


def made_up(seed: str = "") -> str:
    """Two words joined by a dash; for a seed always the same two."""
    data = hashlib.sha256(seed.encode()).digest() if seed else secrets.token_bytes(12)
    letters = [
        (_CONSONANTS if place % 2 == 0 else _VOWELS)[byte % (14 if place % 2 == 0 else 5)]
        for place, byte in enumerate(data[:12])
    ]
    return "".join(letters[:6]) + "-" + "".join(letters[6:])


def selector(text: str, field: str = "label_selector") -> Callable[[Mapping[str, str]], bool]:
    """A label selector, Kubernetes' grammar: `a=b,c!=d,e,!f,g in (x,y),h notin (z)`."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    place = 0
    while place < len(text):
        match = _TERM.match(text, place)
        if match is None or match.end() == place:
            raise InvalidRequest(
                "this is not a label selector", field=field, value=quoted(text)[1:-1], code="SELECTOR_INVALID",
                remedy="write it as in team=red,tier!=test,gpu,!old,zone in (a,b)",
            )  # fmt: skip
        tests.append(_term(match))
        place = match.end()
    return lambda labels: all(test(labels) for test in tests)


def _term(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    key, value = match["key"], match["value"]
    if match["absent"]:
        gone = match["gone"]
        return lambda labels: gone not in labels
    if match["set"]:
        values = {one.strip() for one in match["values"].split(",")}
        if match["set"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match["op"] == "!=":
        return lambda labels: labels.get(key) != value
    if match["op"]:
        return lambda labels: labels.get(key) == value
    return lambda labels: key in labels

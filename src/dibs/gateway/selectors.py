"""Label selectors, in Kubernetes' grammar. The surfaces of OpenShell and Kubeflow use them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dibs.errors import InvalidRequest, quoted

_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<gone>[^\s=!,()]+)"
    r"|(?P<key>[^\s=!,()]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[^\s=!,()]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)",
    re.ASCII,
)


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

"""The differences from Kubernetes that are known, each with its reason. ``docs/cel.md`` names the same ones."""

from __future__ import annotations

from typing import Any

# Name, and an expression that shows it. The page has the reasons.
NAMED: dict[str, str] = {
    "panics": "{'a': 1, ?'b': dyn(optional.of(2))} == {}",
    "scripts": r"'a'.matches('\\p{Greek}')",
    "keys": "{[1]: 1}.size() == 1",
    "map order": "{'a': 1, 'b': 2}.map(k, k) == ['a', 'b']",
    "quantities": "quantity('1e3').isInteger()",
    "offsets": "string(timestamp('2000-01-01T00:00:00+02:00')) == 'x'",
    "empty literals": "dyn(1) in [{}['a'], 1]",
    "nesting": "!" * 3 + "(" * 100 + "true" + ")" * 100,
    "conditional chains": "true ? true : true ? true : true",
}


def named(text: str, what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The name of a difference; empty where it has none."""
    if str(theirs.get("refused", "")).startswith("panic"):
        return "panics"
    if "p{Greek}" in text:
        return "scripts"
    if "unsupported key type" in str(ours):
        return "keys"
    if what in ("value", "cost") and ("quantity" in text or "device.capacity" in text):
        return "quantities"
    if what in ("value", "cost") and "+02:00" in text:
        return "offsets"
    if what == "value" and ("transform" in text or ".map(" in text or ".filter(" in text) and "{" in text:
        return "map order"
    if what == "refused there" and "{}" in text and "dyn" in theirs["refused"]:
        return "empty literals"
    if "nested too deeply" in str(ours.get("refused", "")):
        return "nesting"
    if what == "refused there" and "?" in text and "Syntax error" in theirs["refused"]:
        return "conditional chains"
    return ""

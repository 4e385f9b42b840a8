"""Taints as people write them: `maintenance`, `maintenance=fan`, `maintenance=fan:NoExecute`."""

from __future__ import annotations

from dibs.claims.meta import ObjectMeta
from dibs.claims.slices import DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec
from dibs.claims.validation import validate_taint_rule
from dibs.errors import InvalidRequest, Problem
from dibs.ledger.rows import Taint

EFFECTS = ("NoSchedule", "NoExecute", "None")


def parse_taint(text: str) -> Taint:
    """Read it, by Kubernetes' rules for keys, values and effects. Raises InvalidRequest."""
    front, colon, effect = text.partition(":")
    key, _, value = front.partition("=")
    if not colon:
        effect = "NoSchedule"
    remedy = "write it as maintenance, maintenance=fan or maintenance=fan:NoExecute"
    if effect not in EFFECTS:
        raise InvalidRequest(
            f"the effect is one of {', '.join(EFFECTS)}", field="taint", value=text, code="TAINT_INVALID", remedy=remedy
        )
    rule = DeviceTaintRule(
        metadata=ObjectMeta(name="taint"),
        spec=DeviceTaintRuleSpec(taint=DeviceTaint(key=key, value=value, effect=effect)),
    )
    problems = [
        Problem("TAINT_INVALID", one.path.removeprefix("spec."), text, one.detail or one.kind.lower(), remedy)
        for one in validate_taint_rule(rule)
    ]
    if problems:
        raise InvalidRequest(problems)
    return Taint(key, value, effect)  # type: ignore[arg-type]  # one of the three

"""Which nodes a pod's own words allow: selectors, affinity, taints, room. `pending` asks for each node. Pure.

What needs other pods or volumes (pod affinity, topology spread, persistent volumes, host ports) is not judged here;
`not_judged` names it, so that silence is not taken for consent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dibs.claims import Node
from dibs.claims.meta import NodeSelector
from dibs.claims.nodes import selector_matches
from dibs.kube import objects as core
from dibs.kube.demand import Amounts, amounts, is_extended, shown
from dibs.kube.verdicts import Reason

_CORDONED = "node.kubernetes.io/unschedulable"
_PREVENTING = ("NoSchedule", "NoExecute")
_CONDITIONS = {
    "node.kubernetes.io/not-ready": "the node is not ready: see kubectl describe node",
    "node.kubernetes.io/unreachable": "the node does not answer: see whether it runs",
    "node.kubernetes.io/memory-pressure": "the node is short of memory",
    "node.kubernetes.io/disk-pressure": "the node is short of disk",
    "node.kubernetes.io/pid-pressure": "the node is short of process ids",
}


def against_node(pod: core.Pod, node: core.Node) -> list[Reason]:
    """What of the pod's own words excludes a node."""
    reasons: list[Reason] = []
    labels = node.metadata.labels
    for key, value in pod.spec.node_selector.items():
        if labels.get(key) != value:
            has = f"it has {key}={labels[key]}" if key in labels else "it has no such label"
            reasons.append(
                Reason(
                    "NODE_NOT_SELECTED",
                    f"nodeSelector {key}={value}: {has}",
                    f"change the selector, or label the node: kubectl label node {node.name} {key}={value}",
                )
            )
    reasons += _affinity(pod, node)
    if node.spec.unschedulable and not _tolerated(pod, core.Taint(key=_CORDONED, effect="NoSchedule")):
        reasons.append(Reason("NODE_CORDONED", "the node is cordoned", f"kubectl uncordon {node.name}"))
    for taint in node.spec.taints:
        if taint.effect not in _PREVENTING or (taint.key == _CORDONED and node.spec.unschedulable):
            continue
        if not _tolerated(pod, taint):
            remedy = _CONDITIONS.get(taint.key) or (
                f"tolerate it (key: {taint.key}), or remove it: kubectl taint node {node.name} {taint}-"
            )
            reasons.append(Reason("NODE_TAINTED", f"untolerated node taint {taint}", remedy))
    return reasons


def against_room(
    wanted: Mapping[str, int], node: core.Node, used: Amounts, by_devices: frozenset[str] = frozenset()
) -> list[Reason]:
    """What the node has too little of. `by_devices`: resources that DRA serves there, judged elsewhere."""
    reasons: list[Reason] = []
    total = amounts(node.status.allocatable)
    for name, amount in wanted.items():
        if amount <= 0 or name in by_devices:
            continue
        has = total.get(name, 0)
        left = has - used.get(name, 0)
        if amount <= left:
            continue
        if name == "pods":
            reasons.append(
                Reason(
                    "RESOURCE_SHORT", f"the node has room for {shown(has, name)} pods, and has them", "use another node"
                )
            )
        elif has == 0 and is_extended(name):
            reasons.append(
                Reason(
                    "RESOURCE_UNKNOWN",
                    f"the node offers no {name}",
                    "install the device plugin or DRA driver that offers it, or see why it does not",
                )
            )
        else:
            never = amount > has
            reasons.append(
                Reason(
                    "RESOURCE_SHORT",
                    f"{shown(amount, name)} {name} wanted; the node has {shown(has, name)}"
                    + ("" if never else f", {shown(max(left, 0), name)} of it left"),
                    f"ask for at most {shown(has, name)}" if never else "wait, end something there, or ask for less",
                )
            )
    return reasons


def not_judged(pod: core.Pod) -> list[str]:
    """What else the scheduler looks at, and dibs does not."""
    found = []
    affinity = pod.spec.affinity if isinstance(pod.spec.affinity, dict) else {}
    for kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            found.append(f"required {kind}")
    if any(one.get("whenUnsatisfiable") != "ScheduleAnyway" for one in pod.spec.topology_spread_constraints):
        found.append("topology spread constraints")
    if any("persistentVolumeClaim" in one or "ephemeral" in one for one in pod.spec.volumes):
        found.append("persistent volumes")
    if any(port.get("hostPort") for one in pod.spec.containers for port in one.ports):
        found.append("host ports")
    return found


def judged_node(node: core.Node) -> Node:
    """The node as the allocator wants it."""
    return Node(node.name, dict(node.metadata.labels))


def _affinity(pod: core.Pod, node: core.Node) -> list[Reason]:
    affinity: Any = pod.spec.affinity if isinstance(pod.spec.affinity, dict) else {}
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return []
    try:
        matches = selector_matches(judged_node(node), msgspec.convert(required, NodeSelector))
    except (msgspec.ValidationError, ValueError) as error:
        return [Reason("NODE_AFFINITY", f"required node affinity cannot be judged: {error}")]
    if matches:
        return []
    terms = " or ".join(_term(term) for term in required.get("nodeSelectorTerms") or ())
    return [
        Reason("NODE_AFFINITY", f"required node affinity: {terms}", "change the affinity, or label a node to match")
    ]


def _term(term: dict[str, Any]) -> str:
    parts = [
        f"{one.get('key')} {one.get('operator')} {','.join(one.get('values') or ())}".strip()
        for one in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
    ]
    return " and ".join(parts) or "(nothing)"


def _tolerated(pod: core.Pod, taint: core.Taint) -> bool:
    return any(toleration.accepts(taint) for toleration in pod.spec.tolerations)

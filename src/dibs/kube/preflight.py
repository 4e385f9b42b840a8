"""Whether a cluster could ever run what was rendered, judged before anything is created.

The `kubernetes` backend asks. The rendered pod and its claim are judged like any pending pod (`pending`), on the
cluster as it is. Where no node can take it now, they are judged once more as if nothing were in use: what does not even
fit then is refused, with what stands against it on the node that comes nearest. What may not be read is not judged, and
said so.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.claims import ResourceClaim
from dibs.kube import objects as core
from dibs.kube.devices import DeviceJudge
from dibs.kube.inventory import ClusterInventory
from dibs.kube.pending import judge_nodes, nearest_of
from dibs.kube.verdicts import NodeVerdict, Reason


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """`ever`: on an empty cluster; `now`: as it is. Both with what stands against it on the nearest node."""

    ever: tuple[Reason, ...] = ()
    now: tuple[Reason, ...] = ()
    nearest: str = ""
    nodes: tuple[NodeVerdict, ...] = ()  # as they are; where it could never run, as if nothing were in use


def fit(inventory: ClusterInventory, pod: dict[str, Any], template: dict[str, Any] | None, namespace: str) -> Fit:
    """Where a pod that is not there yet could run."""
    view = msgspec.convert({**pod, "metadata": {**pod.get("metadata", {}), "namespace": namespace}}, core.Pod)
    claims = []
    if template is not None:
        body = {"metadata": {"name": template["metadata"]["name"], "namespace": namespace, "uid": "new"}}
        claims = [msgspec.convert({**body, "spec": template["spec"]["spec"]}, ResourceClaim)]
    judge = DeviceJudge(inventory)
    today = judge_nodes(view, claims, inventory, judge)
    close = nearest_of(today)
    if close is None:
        return Fit(ever=(Reason("NO_NODES", "the cluster has no nodes", "add one"),))
    if close.fits:
        return Fit(nearest=close.node, nodes=today)
    empty = msgspec.structs.replace(inventory, pods=(), claims=())
    ever = judge_nodes(view, claims, empty, judge.of(empty))
    best = nearest_of(ever)
    if best is not None and not best.fits:
        return Fit(ever=best.reasons, now=best.reasons, nearest=best.node, nodes=ever)
    return Fit(now=close.reasons, nearest=close.node, nodes=today)

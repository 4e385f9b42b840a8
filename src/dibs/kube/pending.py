"""Why is it pending: for any pod or claim of a cluster, made by anyone, with read access only.

`dibs explain pod/NAME` and `kubectl dibs why` call it. The answer is `verdicts.Waiting`: what Kubernetes says,
verbatim, and beside it what dibs finds with its own allocator on the cluster's slices. What may not be read is named
in the answer, and what is not judged too. It changes nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import msgspec

from dibs.claims import ResourceClaim, ResourceClaimTemplate
from dibs.claims.claim import AllocationResult, DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaimSpec
from dibs.claims.meta import ObjectMeta
from dibs.claims.nodes import selector_matches
from dibs.kube import errors
from dibs.kube import objects as core
from dibs.kube.client import CLAIMS, EVENTS, NODES, POD_GROUPS, PODS, QUOTAS, SLICES, TEMPLATES, Cluster
from dibs.kube.demand import IMPLICIT, Amounts, extended_by_container, in_use, requested
from dibs.kube.devices import DeviceJudge
from dibs.kube.inventory import ClusterInventory, read_inventory, read_part
from dibs.kube.placement import against_node, against_room, judged_node, not_judged
from dibs.kube.verdicts import NodeVerdict, Reason, Waiting, Words

_EVENTS = 5  # the newest that are shown
_NOT_CREATED = ("FailedCreate", "FailedCreatePod")
# How far a pod came with a node when it fell: the later, the nearer.
_NEAR = (
    "NODE_NOT_SELECTED", "NODE_AFFINITY", "NODE_TAINTED", "NODE_CORDONED", "RESOURCE_UNKNOWN", "CLAIM_ELSEWHERE",
    "NO_DEVICES", "CLASS_MISSING", "DEVICE_NO_MATCH", "POOL_UNUSABLE", "DEVICE_UNUSABLE", "RESOURCE_SHORT",
    "DEVICE_CAPACITY_SHORT", "DEVICE_TAINTED", "DEVICE_COUNTERS_USED_UP", "DEVICE_CONSTRAINT", "DEVICES_TOGETHER",
    "DEVICE_IN_USE",
)  # fmt: skip


def explain_pod(cluster: Cluster, namespace: str, name: str, inventory: ClusterInventory | None = None) -> Waiting:
    """Why a pod waits. A pod that was never created is looked for in the events of its controller.

    `inventory`: what the cluster has, where that was just read.
    """
    try:
        pod = cluster.get(PODS, name, core.Pod, namespace)
    except errors.Missing:
        return _never_created(cluster, namespace, name)
    events = _events(cluster, namespace, name, pod.metadata.uid)
    answer = Waiting(
        cluster=cluster.name,
        kind="pod",
        namespace=namespace,
        name=name,
        state="pending",
        since=pod.metadata.creation_timestamp or "",
        words=_words(pod, events),
    )
    if pod.ended or pod.status.phase == "Running":
        return _over(answer, pod)
    if pod.spec.node_name:
        return _on_its_node(answer, pod)
    return _unscheduled(cluster, answer, pod, inventory or read_inventory(cluster))


def explain_claim(cluster: Cluster, namespace: str, name: str) -> Waiting:
    """Why a claim is not allocated."""
    notes: list[str] = []
    try:
        claim = read_part(cluster, CLAIMS, ResourceClaim, name, namespace, notes)
    except errors.Missing as error:
        names = [one.metadata.name for one in cluster.items(CLAIMS, core.Pod, namespace)]
        reason = f"there is no such claim in namespace {namespace}"
        raise errors.Missing(reason, field="claim", value=name, remedy=_close(name, names)) from error
    answer = Waiting(
        cluster=cluster.name,
        kind="claim",
        namespace=namespace,
        name=name,
        state="pending",
        since=claim.metadata.creation_timestamp or "",
        words=_said(_events(cluster, namespace, name, claim.metadata.uid)),
        notes=tuple(notes),
    )
    if claim.status is not None and claim.status.allocation is not None:
        got = [f"{one.driver}/{one.pool}/{one.device}" for one in claim.status.allocation.devices.results]
        consumers = [f"{one.resource} {one.name}" for one in claim.status.reserved_for]
        used = f", for {', '.join(consumers)}" if consumers else ", and no user"
        text = f"it has {', '.join(got) or 'no device'}{used}"
        return msgspec.structs.replace(answer, state="allocated", reasons=(Reason("ALLOCATED", text),))
    inventory = read_inventory(cluster)
    reasons: list[Reason] = []
    if claim.metadata.deletion_timestamp:
        reasons.append(Reason("CLAIM_BEING_DELETED", "it is being deleted", "wait until it is gone"))
    users = [pod for pod in inventory.pods if _uses(pod, claim)]
    if not users:
        reasons.append(
            Reason(
                "CLAIM_UNUSED",
                "no pod uses it; a claim is allocated when a pod that uses it is scheduled",
                "create a pod with it in spec.resourceClaims",
            )
        )
    for pod in users[:3]:
        command = f"dibs explain pod/{pod.metadata.name} -n {namespace}"
        reasons.append(Reason("CLAIM_WAITS_FOR_POD", f"pod {pod.title} uses it and is not scheduled", command))
    judge = DeviceJudge(inventory)
    nodes = tuple(_claim_verdict(judge, node, [claim]) for node in inventory.nodes)
    return _concluded(answer, inventory, nodes, reasons, deciding=not users, not_judged=[])


# -- a pod that no node has


def _unscheduled(cluster: Cluster, answer: Waiting, pod: core.Pod, inventory: ClusterInventory) -> Waiting:
    notes = list(inventory.notes)
    reasons: list[Reason] = []
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        reasons.append(
            Reason(
                "GATED",
                f"scheduling gates hold it back: {gates}",
                "the controller that set a gate has to remove it",
            )
        )
    reasons += _gang(cluster, pod, inventory)
    silent = _silent(pod, answer)
    claims, troubles = _claims_of(cluster, pod, inventory, notes)
    reasons += troubles
    reasons += _quota(cluster, pod.metadata.namespace, [one.message for one in answer.words])
    nodes: tuple[NodeVerdict, ...] = ()
    if not troubles:
        nodes = judge_nodes(pod, claims, inventory)
    answer = msgspec.structs.replace(answer, notes=tuple(dict.fromkeys(notes)))
    concluded = _concluded(answer, inventory, nodes, reasons, deciding=not reasons, not_judged=not_judged(pod))
    return msgspec.structs.replace(concluded, reasons=(*concluded.reasons, *silent))


def _silent(pod: core.Pod, answer: Waiting) -> list[Reason]:
    """A scheduler of another name that has said nothing may not be there at all."""
    if pod.spec.scheduler_name == "default-scheduler" or answer.words:
        return []
    return [
        Reason(
            "SCHEDULER_SILENT",
            f"it is left to scheduler {pod.spec.scheduler_name}, which has said nothing about it",
            "see whether that scheduler runs, or drop spec.schedulerName",
        )
    ]


def _concluded(
    answer: Waiting,
    inventory: ClusterInventory,
    nodes: tuple[NodeVerdict, ...],
    reasons: list[Reason],
    *,
    deciding: bool,
    not_judged: list[str],
) -> Waiting:
    """The answer with its short form: the object's own reasons, else those of the nearest node."""
    nearest = nearest_of(nodes)
    if deciding:
        if nearest is not None and nearest.fits:
            also = f"; not judged: {', '.join(not_judged)}" if not_judged else ""
            reasons.append(
                Reason(
                    "NOTHING_AGAINST_IT",
                    f"nothing stands against node {nearest.node}{also}",
                    "the scheduler may be about to try again; if this stays, what it says decides",
                )
            )
        elif nearest is not None:
            reasons += nearest.reasons
        elif inventory.read(NODES.plural):
            reasons.append(Reason("NO_NODES", "the cluster has no nodes", "add one"))
    return msgspec.structs.replace(
        answer,
        reasons=tuple(dict.fromkeys(reasons)),
        nearest=nearest.node if nearest is not None else "",
        nodes=nodes,
        not_judged=tuple(not_judged),
        unreadable=tuple(one.problem for one in inventory.unreadable),
        notes=tuple(dict.fromkeys((*answer.notes, *inventory.notes))),
    )


def nearest_of(nodes: Sequence[NodeVerdict]) -> NodeVerdict | None:
    """The node that least stands against; None where there are no nodes."""

    def distance(verdict: NodeVerdict) -> tuple[int, int]:
        ranks = [_NEAR.index(one.code) if one.code in _NEAR else 0 for one in verdict.reasons]
        return (len(ranks), -min(ranks, default=0))

    return min(nodes, key=distance) if nodes else None


def judge_nodes(
    pod: core.Pod, claims: Sequence[ResourceClaim], inventory: ClusterInventory, judge: DeviceJudge | None = None
) -> tuple[NodeVerdict, ...]:
    """What stands against a pod on each node, used or not. `judge`: of this inventory, where there is one already."""
    judge = judge or DeviceJudge(inventory)
    used = in_use(inventory.pods)
    wanted = requested(pod)
    given = [claim for claim in claims if _allocation(claim) is not None]
    open_claims = [claim for claim in claims if _allocation(claim) is None]
    return tuple(
        _pod_verdict(judge, pod, node, wanted, used.get(node.name, {}), given, open_claims, inventory)
        for node in inventory.nodes
    )


def _pod_verdict(
    judge: DeviceJudge,
    pod: core.Pod,
    node: core.Node,
    wanted: Amounts,
    used: Amounts,
    given: Sequence[ResourceClaim],
    open_claims: Sequence[ResourceClaim],
    inventory: ClusterInventory,
) -> NodeVerdict:
    reasons = against_node(pod, node)
    implied, by_devices = _implied_claim(pod, node, inventory)
    reasons += against_room(wanted, node, used, by_devices)
    for claim in given:
        allocation = _allocation(claim)
        selector = allocation.node_selector if allocation is not None else None
        if selector is not None and not selector_matches(judged_node(node), selector):
            reasons.append(
                Reason(
                    "CLAIM_ELSEWHERE",
                    f"claim {claim.metadata.namespace}/{claim.metadata.name} is allocated on another node",
                    "run the pod where the claim is, or use a claim of its own (resourceClaimTemplateName)",
                )
            )
    found, notes = judge.judge(judged_node(node), [*open_claims, *implied])
    if found and not inventory.read(SLICES.plural):
        found = ()  # without the slices nothing can be said of devices; the answer says that they could not be read
    return NodeVerdict(node.name, (*reasons, *found), notes)


def _claim_verdict(judge: DeviceJudge, node: core.Node, claims: Sequence[ResourceClaim]) -> NodeVerdict:
    found, notes = judge.judge(judged_node(node), claims)
    return NodeVerdict(node.name, found, notes)


def _implied_claim(
    pod: core.Pod, node: core.Node, inventory: ClusterInventory
) -> tuple[list[ResourceClaim], frozenset[str]]:
    """The claim that the scheduler makes of extended resources which a DeviceClass serves on this node."""
    by_name = {one.spec.extended_resource_name: one for one in inventory.classes if one.spec.extended_resource_name}
    requests: list[DeviceRequest] = []
    served: set[str] = set()
    for index, (_container, resource, count) in enumerate(extended_by_container(pod)):
        if resource in node.status.allocatable and node.status.allocatable[resource] != "0":
            continue  # a device plugin offers it there
        if resource.startswith(IMPLICIT):
            class_name = resource.removeprefix(IMPLICIT)
        elif resource in by_name:
            class_name = by_name[resource].metadata.name
        else:
            continue
        served.add(resource)
        exactly = ExactDeviceRequest(device_class_name=class_name, allocation_mode="ExactCount", count=count)
        requests.append(DeviceRequest(name=f"{resource.rpartition('/')[2]}-{index}", exactly=exactly))
    if not requests:
        return [], frozenset(served)
    meta = ObjectMeta(name=f"{pod.metadata.name} (extended resources)", namespace=pod.metadata.namespace)
    return [
        ResourceClaim(metadata=meta, spec=ResourceClaimSpec(devices=DeviceClaim(requests=tuple(requests))))
    ], frozenset(served)


# -- the pod's claims


def _claims_of(
    cluster: Cluster, pod: core.Pod, inventory: ClusterInventory, notes: list[str]
) -> tuple[list[ResourceClaim], list[Reason]]:
    """The claims of a pod; those that a template will make too. And what is missing."""
    known = {(one.metadata.namespace, one.metadata.name): one for one in inventory.claims}
    namespace = pod.metadata.namespace
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    claims: list[ResourceClaim] = []
    troubles: list[Reason] = []
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name or made.get(entry.name)
        if name:
            claim = known.get((namespace, name))
            if claim is None:
                troubles += _fetched(cluster, namespace, name, claims, notes)
            else:
                claims.append(claim)
            continue
        template = entry.resource_claim_template_name or ""
        try:
            found = read_part(cluster, TEMPLATES, ResourceClaimTemplate, template, namespace, notes)
        except errors.Missing:
            troubles.append(
                Reason(
                    "TEMPLATE_MISSING",
                    f"claim {entry.name} comes from ResourceClaimTemplate {template}, which is not in {namespace}",
                    f"create {template}, or name one that is there: kubectl get resourceclaimtemplates -n {namespace}",
                )
            )
            continue
        meta = ObjectMeta(name=f"{pod.metadata.name}-{entry.name}", namespace=namespace)
        claims.append(ResourceClaim(metadata=meta, spec=found.spec.spec))
    return claims, troubles


def _fetched(
    cluster: Cluster, namespace: str, name: str, claims: list[ResourceClaim], notes: list[str]
) -> list[Reason]:
    try:
        claims.append(read_part(cluster, CLAIMS, ResourceClaim, name, namespace, notes))
    except errors.Missing:
        return [
            Reason(
                "CLAIM_MISSING",
                f"ResourceClaim {name} is not in namespace {namespace}",
                "create it, or name one that is there: kubectl get resourceclaims",
            )
        ]
    return []


def _allocation(claim: ResourceClaim) -> AllocationResult | None:
    return claim.status.allocation if claim.status is not None else None


def _uses(pod: core.Pod, claim: ResourceClaim) -> bool:
    if pod.metadata.namespace != claim.metadata.namespace:
        return False
    names = {entry.resource_claim_name for entry in pod.spec.resource_claims}
    names |= {entry.resource_claim_name for entry in pod.status.resource_claim_statuses}
    return claim.metadata.name in names


# -- gangs, quotas, pods that never were


def _gang(cluster: Cluster, pod: core.Pod, inventory: ClusterInventory) -> list[Reason]:
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name:
        return []
    namespace, name = pod.metadata.namespace, group.pod_group_name
    try:
        found = cluster.get(POD_GROUPS, name, core.PodGroup, namespace)
    except errors.Missing:
        return [
            Reason(
                "GANG_UNKNOWN",
                f"it belongs to PodGroup {name}, which is not in namespace {namespace}",
                "create the group: its pods wait for it",
            )
        ]
    except errors.Forbidden as error:
        return [
            Reason("GANG_UNKNOWN", f"it belongs to PodGroup {name}, which may not be read: {error.problems[0].reason}")
        ]
    policy = found.spec.get("schedulingPolicy") or {}
    needed = int((policy.get("gang") or {}).get("minCount") or 0)
    members = [
        one
        for one in inventory.pods
        if one.metadata.namespace == namespace
        and one.spec.scheduling_group is not None
        and one.spec.scheduling_group.pod_group_name == name
    ]
    if len(members) >= needed:
        return []
    return [
        Reason(
            "GANG_SHORT",
            f"PodGroup {name} starts with {needed} pods together, and has {len(members)}",
            f"create the other {needed - len(members)}, or lower spec.schedulingPolicy.gang.minCount",
        )
    ]


def _quota(cluster: Cluster, namespace: str, messages: Sequence[str]) -> list[Reason]:
    """Whether a quota is what Kubernetes complains of, with what is used and allowed."""
    said = next((message for message in messages if "exceeded quota" in message or "failed quota" in message), "")
    if not said:
        return []
    try:
        quotas = cluster.items(QUOTAS, core.Quota, namespace)
    except errors.Forbidden:
        quotas = []
    rows = [
        f"{name} {quota.status.used.get(name, '0')} of {hard} ({quota.metadata.name})"
        for quota in quotas
        if quota.metadata.name in said
        for name, hard in quota.status.hard.items()
    ]
    used = f"; used: {', '.join(rows)}" if rows else ""
    return [Reason("QUOTA", f"{said}{used}", "end or shrink something in the namespace, or have the quota raised")]


def _never_created(cluster: Cluster, namespace: str, name: str) -> Waiting:
    """A pod that a Job, ReplicaSet or the like could not create says nothing; its owner's events do."""
    events = [
        event
        for event in cluster.items(EVENTS, core.Event, namespace, fields="type=Warning")
        if event.reason in _NOT_CREATED
        and (event.involved_object.name == name or name.startswith(f"{event.involved_object.name}-"))
    ]
    if not events:
        names = sorted(pod.metadata.name for pod in cluster.items(PODS, core.Pod, namespace))
        raise errors.Missing(
            f"there is no such pod in namespace {namespace}, and no controller says that it could not create it",
            field="pod",
            value=name,
            remedy=_close(name, names),
        )
    words = _said(events)
    reasons = _quota(cluster, namespace, [one.message for one in words])
    if not reasons:
        owner = events[-1].involved_object
        reasons = [
            Reason(
                "NOT_CREATED",
                f"{owner.kind} {owner.name} cannot create it: {words[0].message}",
                "change its pod template",
            )
        ]
    return Waiting(
        cluster=cluster.name,
        kind="pod",
        namespace=namespace,
        name=name,
        state="not created",
        reasons=tuple(reasons),
        words=words,
    )


def _close(name: str, names: Sequence[str]) -> str:
    """What may be meant: names that look alike, or that Kubernetes has made longer."""
    close = [*(one for one in names if one.startswith(f"{name}-")), *difflib.get_close_matches(name, names, n=3)]
    return f"did you mean {', '.join(dict.fromkeys(close))}?" if close else "another namespace? -n NAMESPACE"


# -- a pod that has a node


def _on_its_node(answer: Waiting, pod: core.Pod) -> Waiting:
    """Scheduled, and not started: the kubelet's words."""
    reasons = []
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = one.state.get("waiting") or {}
        if waiting.get("reason"):
            text = f"container {one.name}: {waiting['reason']}" + (
                f": {waiting['message']}" if waiting.get("message") else ""
            )
            reasons.append(Reason("ON_ITS_NODE", text))
    troubles = [one for one in answer.words if one.reason.startswith("Failed")]
    reasons += [
        Reason("ON_ITS_NODE", f"{one.reason}: {one.message}", _kubelet_remedy(one.reason)) for one in troubles[:2]
    ]
    if not reasons:
        reasons = [
            Reason("ON_ITS_NODE", f"it is on node {pod.spec.node_name}, whose kubelet has not reported on it yet")
        ]
    return msgspec.structs.replace(
        answer, state="bound", nearest=pod.spec.node_name, reasons=tuple(dict.fromkeys(reasons))
    )


def _kubelet_remedy(reason: str) -> str:
    if reason == "FailedPrepareDynamicResources":
        return "see the DRA driver's pod on that node, and its log"
    return ""


def _over(answer: Waiting, pod: core.Pod) -> Waiting:
    ended = []
    for one in pod.status.container_statuses:
        state = one.state.get("terminated") or one.last_state.get("terminated") or {}
        if state:
            ended.append(f"container {one.name}: {state.get('reason', '')} (exit code {state.get('exitCode')})")
    text = " ".join(part for part in (pod.status.phase, pod.status.reason, pod.status.message) if part)
    reasons = [Reason("ENDED" if pod.ended else "RUNNING", "; ".join([f"it is not pending: {text}", *ended]))]
    state = "ended" if pod.ended else "running"
    return msgspec.structs.replace(answer, state=state, nearest=pod.spec.node_name, reasons=tuple(reasons))


# -- words


def _words(pod: core.Pod, events: Sequence[core.Event]) -> tuple[Words, ...]:
    """The scheduler's condition first, then the newest events; the same text once."""
    found = [
        Words("PodScheduled", one.reason, one.message, one.last_transition_time or "")
        for one in pod.status.conditions
        if one.type == "PodScheduled" and one.status == "False" and one.message
    ]
    texts = {one.message for one in found}
    return (*found, *(one for one in _said(events) if one.message not in texts))


def _said(events: Sequence[core.Event]) -> tuple[Words, ...]:
    newest = sorted((one for one in events if one.type != "Normal"), key=lambda event: event.moment, reverse=True)
    found = {(one.reason, one.message): Words("event", one.reason, one.message, one.moment) for one in reversed(newest)}
    return tuple(reversed(found.values()))[:_EVENTS]


def _events(cluster: Cluster, namespace: str, name: str, uid: str) -> list[core.Event]:
    fields = f"involvedObject.name={name},involvedObject.uid={uid}"
    return cluster.items(EVENTS, core.Event, namespace, fields=fields)

"""The parts of core Kubernetes objects that decide where a pod can run, and what is said about it.

`inventory` and `pending` read them. They are views, not whole objects: nothing here is ever written back. Device
objects (slices, classes, claims) are those of `dibs.claims`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base: camelCase, and what is not named here is not read."""


class Owner(View, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(View, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[Owner, ...] = ()


class Condition(View, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


# -- nodes


class Taint(View, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{'=' + self.value if self.value else ''}:{self.effect}"


class NodeSpec(View, frozen=True, kw_only=True):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeInfo(View, frozen=True, kw_only=True):
    kubelet_version: str = ""
    container_runtime_version: str = ""  # containerd://2.1.4


class NodeStatus(View, frozen=True, kw_only=True):
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    node_info: NodeInfo = NodeInfo()


class Node(View, frozen=True, kw_only=True):
    metadata: Meta = Meta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def ready(self) -> bool:
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)


# -- pods


class Resources(View, frozen=True, kw_only=True):
    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}
    claims: tuple[Any, ...] = ()


class Container(View, frozen=True, kw_only=True):
    name: str = ""
    restart_policy: str = ""
    resources: Resources = Resources()
    ports: tuple[Any, ...] = ()


class Toleration(View, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def accepts(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        if self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        if self.operator in ("Lt", "Gt"):
            return _compares(self.operator, taint.value, self.value)
        return self.value == taint.value


def _compares(operator: str, taint: str, toleration: str) -> bool:
    try:
        return int(taint) < int(toleration) if operator == "Lt" else int(taint) > int(toleration)
    except ValueError:
        return False


class PodResourceClaim(View, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGate(View, frozen=True, kw_only=True):
    name: str = ""


class SchedulingGroup(View, frozen=True, kw_only=True):
    pod_group_name: str = ""


class PodSpec(View, frozen=True, kw_only=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    node_selector: dict[str, str] = {}
    affinity: Any = None
    tolerations: tuple[Toleration, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = Resources()  # of the pod as a whole
    overhead: dict[str, str] = {}
    resource_claims: tuple[PodResourceClaim, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    topology_spread_constraints: tuple[Any, ...] = ()
    volumes: tuple[Any, ...] = ()
    host_network: bool = False


class ClaimStatus(View, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None


class ExtendedClaimStatus(View, frozen=True, kw_only=True):
    resource_claim_name: str = ""


class ContainerState(View, frozen=True, kw_only=True):
    name: str = ""
    state: dict[str, Any] = {}
    last_state: dict[str, Any] = {}


class PodStatus(View, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[ClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedClaimStatus | None = None
    init_container_statuses: tuple[ContainerState, ...] = ()
    container_statuses: tuple[ContainerState, ...] = ()


class Pod(View, frozen=True, kw_only=True):
    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def title(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


# -- what is said


class Reference(View, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Series(View, frozen=True, kw_only=True):
    count: int = 0
    last_observed_time: str | None = None


class Event(View, frozen=True, kw_only=True):
    metadata: Meta = Meta()
    involved_object: Reference = Reference()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: Series | None = None

    @property
    def moment(self) -> str:
        seen = self.series.last_observed_time if self.series is not None else None
        return seen or self.last_timestamp or self.event_time or self.metadata.creation_timestamp or ""


class PodGroup(View, frozen=True, kw_only=True):
    metadata: Meta = Meta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class QuotaStatus(View, frozen=True, kw_only=True):
    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class Quota(View, frozen=True, kw_only=True):
    metadata: Meta = Meta()
    status: QuotaStatus = QuotaStatus()

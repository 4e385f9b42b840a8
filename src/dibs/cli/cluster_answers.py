"""What `-o json` prints about a cluster, as types: a part of `answers`, with the same rules.

Values that come from the cluster (names of attributes and resources, taints, amounts, moments) are as Kubernetes has
them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class Answer(Struct, kw_only=True, forbid_unknown_fields=True):
    """Nothing that is not described here is printed."""


class Amount(Answer):
    """How much of a resource a node has for pods, and how much of it pods hold."""

    allocatable: str
    in_use: str


class Node(Answer):
    """A node; `resources` are cpu, memory, pods and extended resources."""

    name: str
    ready: bool
    taints: tuple[str, ...]
    resources: dict[str, Amount]


class Holder(Answer):
    """A claim that holds a device, and the pods that may use it."""

    claim: str
    users: tuple[str, ...]


class ClusterDevice(Answer):
    """A device that a driver publishes."""

    driver: str
    pool: str
    device: str
    node: str
    attributes: dict[str, str | int | bool]
    capacity: dict[str, str]
    taints: tuple[str, ...]
    held_by: tuple[Holder, ...]


class DeviceClass(Answer):
    """A class, and the extended resource that stands for it, or nothing."""

    name: str
    extended_resource: str


class Unread(Answer):
    """A kind of objects that could not be read, so that what depends on it is not known."""

    what: str
    code: str
    reason: str
    remedy: str


class ClusterGpus(Answer):
    """`dibs gpus --cluster`."""

    cluster: str
    version: str
    nodes: tuple[Node, ...]
    devices: tuple[ClusterDevice, ...]
    device_classes: tuple[DeviceClass, ...]
    unreadable: tuple[Unread, ...]
    notes: tuple[str, ...]


class Reason(Answer):
    """One thing that stands against it. Codes are public."""

    code: str
    text: str
    remedy: str | UnsetType = UNSET


class NodeVerdict(Answer):
    """One node: nothing against it, or all that is. `devices`: what the allocator noted for each request."""

    node: str
    reasons: tuple[Reason, ...] | UnsetType = UNSET
    devices: tuple[dict[str, Any], ...] | UnsetType = UNSET


class Words(Answer):
    """What Kubernetes itself says, verbatim."""

    source: str
    reason: str
    message: str
    at: str | UnsetType = UNSET


class Unreadable(Answer):
    """A problem of reading the cluster."""

    code: str
    field: str
    value: str
    reason: str
    remedy: str | UnsetType = UNSET


class Waiting(Answer):
    """`dibs explain pod/NAME` and `claim/NAME`: why it waits. What is empty is left out."""

    cluster: str
    kind: Literal["pod", "claim"]
    namespace: str
    name: str
    state: str
    since: str | UnsetType = UNSET
    reasons: tuple[Reason, ...] | UnsetType = UNSET
    nearest: str | UnsetType = UNSET
    words: tuple[Words, ...] | UnsetType = UNSET
    nodes: tuple[NodeVerdict, ...] | UnsetType = UNSET
    not_judged: tuple[str, ...] | UnsetType = UNSET
    unreadable: tuple[Unreadable, ...] | UnsetType = UNSET
    notes: tuple[str, ...] | UnsetType = UNSET


class ClusterSubmission(Answer):
    """`dibs train cluster submit`: in which way, why, and what was created."""

    name: str
    namespace: str
    way: Literal["trainer", "jobset", "jobs"]
    reason: str
    created: tuple[str, ...]
    warnings: tuple[str, ...]


class ClusterRank(Answer):
    """One rank of a job on a cluster. What is empty is left out."""

    name: str
    job: str
    index: int
    phase: str
    pod: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    devices: tuple[str, ...] | UnsetType = UNSET
    restarts: int | UnsetType = UNSET
    reasons: tuple[Reason, ...] | UnsetType = UNSET
    words: tuple[str, ...] | UnsetType = UNSET


class ClusterTrainingJob(Answer):
    """`dibs train cluster show`: a job on a cluster, rank by rank. What is empty is left out."""

    name: str
    namespace: str
    cluster: str
    way: Literal["trainer", "jobset", "jobs"]
    state: str
    message: str | UnsetType = UNSET
    restarts: int | UnsetType = UNSET
    ranks: tuple[ClusterRank, ...] | UnsetType = UNSET

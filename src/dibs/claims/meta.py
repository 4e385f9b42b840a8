"""What every Kubernetes object shares: metadata, conditions, node selectors.

The objects of this package are built from these. They are data only: a field is either what was written or unset,
and what is unset is not written back. Rules live in `validation`, node matching in `nodes`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

# A quantity as it stands in JSON: usually text, but Kubernetes also takes a bare number.

Amount = str | int | float


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """The base of all wire types: camelCase in JSON, unknown fields refused, unset fields left out."""


def always(value: T) -> Any:
    """A default that is written even when it was not set, as Kubernetes does for a few fields."""
    return msgspec.field(default_factory=lambda: value)


class OwnerReference(Part, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Part, frozen=True, kw_only=True):
    """`metadata`. `managedFields` is carried along unread."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    self_link: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    managed_fields: tuple[Any, ...] = ()


class Condition(Part, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    observed_generation: int = 0
    last_transition_time: str | None = None
    reason: str = ""
    message: str = ""


class NodeSelectorRequirement(Part, frozen=True, kw_only=True):
    """One requirement on a label (`matchExpressions`) or a field (`matchFields`) of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Part, frozen=True, kw_only=True):
    """All requirements of a term must hold. A term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Part, frozen=True, kw_only=True):
    """One of the terms must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = always(())

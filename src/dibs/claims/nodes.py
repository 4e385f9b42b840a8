"""Nodes and whether a node selector fits one. `pools` asks for slices, `selectors` for single devices.

On a machine without Kubernetes there is one node: the host. It must not know devices.
"""

from __future__ import annotations

import re

import msgspec

from dibs.claims.meta import NodeSelector, NodeSelectorRequirement
from dibs.patterns import lazy_pattern

_INTEGER = lazy_pattern(r"[+-]?[0-9]+", re.ASCII)
_INT64 = 1 << 63
NODE_NAME_FIELD = "metadata.name"


class Node(msgspec.Struct, frozen=True):
    """The place where devices are wanted."""

    name: str
    labels: dict[str, str] = {}
    declared_features: frozenset[str] = frozenset()


def node_matches(node: Node, node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None) -> bool:
    """Whether devices published for this name, for all nodes or for this selector can be used on the node.

    Raises ValueError for a selector that cannot be read.
    """
    if node_name:
        return node.name == node_name
    if all_nodes:
        return True
    if selector is not None:
        return selector_matches(node, selector)
    return False


def selector_matches(node: Node, selector: NodeSelector) -> bool:
    """One term must hold. All terms are read before any is believed, so that a broken one is not overlooked."""
    matched = False
    for term in selector.node_selector_terms:
        if not term.match_expressions and not term.match_fields:
            continue  # a term without requirements matches nothing
        labels = [_label_matches(node, requirement) for requirement in term.match_expressions]
        fields = [_field_matches(node, requirement) for requirement in term.match_fields]
        matched = matched or all(labels + fields)
    return matched


def _label_matches(node: Node, requirement: NodeSelectorRequirement) -> bool:
    key, values = requirement.key, requirement.values
    present = key in node.labels
    match requirement.operator:
        case "In" | "NotIn":
            if not values:
                raise ValueError(f"{key}: operator {requirement.operator} needs at least one value")
            inside = present and node.labels[key] in values
            return inside if requirement.operator == "In" else not inside
        case "Exists" | "DoesNotExist":
            if values:
                raise ValueError(f"{key}: operator {requirement.operator} takes no values")
            return present if requirement.operator == "Exists" else not present
        case "Gt" | "Lt":
            if len(values) != 1 or (bound := _int64(values[0])) is None:
                raise ValueError(f"{key}: operator {requirement.operator} needs exactly one whole number")
            number = _int64(node.labels[key]) if present else None
            if number is None:
                return False
            return number > bound if requirement.operator == "Gt" else number < bound
    raise ValueError(f'{key}: "{requirement.operator}" is not a valid node selector operator')


def _field_matches(node: Node, requirement: NodeSelectorRequirement) -> bool:
    key, values = requirement.key, requirement.values
    if requirement.operator not in ("In", "NotIn") or len(values) != 1:
        raise ValueError(f"{key}: a field takes operator In or NotIn with exactly one value")
    inside = key == NODE_NAME_FIELD and node.name == values[0]
    return inside if requirement.operator == "In" else not inside


def _int64(text: str) -> int | None:
    if _INTEGER.fullmatch(text) is None or len(text) > 20:
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None

"""What is written down about an allocation: results, configuration, and the nodes where it can be used.

`allocator` calls this once, for the solution that the search left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dibs.claims.attempt import Given
from dibs.claims.claim import (
    FROM_CLAIM,
    FROM_CLASS,
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
    ResourceClaim,
)
from dibs.claims.failures import BadPool
from dibs.claims.features import Features
from dibs.claims.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dibs.claims.nodes import NODE_NAME_FIELD, Node
from dibs.claims.wanted import Wanted, claim_name


def allocation_result(
    claim: ResourceClaim,
    given: Sequence[Given],
    chosen: Sequence[Wanted],
    node: Node,
    features: Features,
    new_share_id: Callable[[], str],
) -> AllocationResult:
    """`chosen`: per request of the claim, the request itself or the alternative that was taken."""
    return AllocationResult(
        devices=DeviceAllocationResult(
            results=tuple(_result(one, features, new_share_id) for one in given),
            config=_configuration(claim, chosen) if _configured(claim, chosen) else (),
        ),
        node_selector=_node_selector(claim, given, node),
    )


def _result(given: Given, features: Features, new_share_id: Callable[[], str]) -> DeviceRequestAllocationResult:
    wanted, candidate, consumed = given.wanted, given.candidate, given.consumed
    device = candidate.device
    return DeviceRequestAllocationResult(
        request=wanted.name,
        driver=candidate.id.driver,
        pool=candidate.id.pool,
        device=candidate.id.device,
        admin_access=True if wanted.admin else None,
        tolerations=wanted.tolerations,
        binding_conditions=device.binding_conditions if features.binding_conditions else (),
        binding_failure_conditions=device.binding_failure_conditions if features.binding_conditions else (),
        share_id=None if consumed is None else new_share_id(),
        consumed_capacity={} if consumed is None else {name: str(taken) for name, taken in consumed.items()},
        skip_node_operations=candidate.slice.spec.skip_node_operations,
    )


def _configured(claim: ResourceClaim, chosen: Sequence[Wanted]) -> bool:
    return bool(claim.spec.devices.config) or any(wanted.device_class.spec.config for wanted in chosen)


def _configuration(claim: ResourceClaim, chosen: Sequence[Wanted]) -> tuple[DeviceAllocationConfiguration, ...]:
    """Class configurations first, each class once with all of its requests; then those of the claim that apply."""
    found: list[tuple[str, list[str], OpaqueDeviceConfiguration | None]] = []
    requests_of: dict[str, list[str]] = {}
    for wanted in chosen:
        class_name = wanted.device_class.metadata.name
        if class_name in requests_of:
            requests_of[class_name].append(wanted.name)
            continue
        requests_of[class_name] = [wanted.name]
        found.extend((FROM_CLASS, requests_of[class_name], config.opaque) for config in wanted.device_class.spec.config)
    for config in claim.spec.devices.config:
        names = set(config.requests)
        if not names or any(wanted.request in names or wanted.name in names for wanted in chosen):
            found.append((FROM_CLAIM, list(config.requests), config.opaque))
    return tuple(
        DeviceAllocationConfiguration(
            source=source, requests=() if _covers_all(names, chosen) else tuple(names), opaque=opaque
        )
        for source, names, opaque in found
    )


def _covers_all(names: Sequence[str], chosen: Sequence[Wanted]) -> bool:
    return all(wanted.request in names or wanted.name in names for wanted in chosen)


def _node_selector(claim: ResourceClaim, given: Sequence[Given], node: Node) -> NodeSelector | None:
    """The one node if any device is bound to it, else what all devices ask of a node, else none: everywhere."""
    fields: dict[tuple[str, str, frozenset[str]], NodeSelectorRequirement] = {}
    labels: dict[tuple[str, str, frozenset[str]], NodeSelectorRequirement] = {}
    for one in given:
        spec, device = one.candidate.slice.spec, one.candidate.device
        by_device = spec.per_device_node_selection
        node_name = device.node_name if by_device else spec.node_name
        selector = device.node_selector if by_device else spec.node_selector
        if node_name is not None or device.binds_to_node:
            only = NodeSelectorRequirement(key=NODE_NAME_FIELD, operator="In", values=(node.name,))
            return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(only,)),))
        if selector is None or not selector.node_selector_terms:
            continue
        if len(selector.node_selector_terms) > 1:
            raise BadPool(
                f"create NodeSelector for claim {claim_name(claim)}: unsupported ResourceSlice.NodeSelector "
                f"with {len(selector.node_selector_terms)} terms"
            )
        term = selector.node_selector_terms[0]
        for requirement in term.match_fields:
            fields.setdefault(_key(requirement), requirement)
        for requirement in term.match_expressions:
            labels.setdefault(_key(requirement), requirement)
    if not fields and not labels:
        return None
    term = NodeSelectorTerm(match_fields=tuple(fields.values()), match_expressions=tuple(labels.values()))
    return NodeSelector(node_selector_terms=(term,))


def _key(requirement: NodeSelectorRequirement) -> tuple[str, str, frozenset[str]]:
    return (requirement.key, requirement.operator, frozenset(requirement.values))

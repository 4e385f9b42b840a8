"""What a cluster has: nodes, devices, device classes, taints, and who holds what. Read in a handful of requests.

`dibs gpus --cluster` shows it, `pending` judges with it, `dibs doctor --cluster` checks it. A part that may not be read
is recorded with its reason in `unreadable`, never taken for empty: a decision made with it must say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from dibs.claims.claim import DeviceClass, ResourceClaim
from dibs.claims.identity import DeviceId
from dibs.claims.meta import Part
from dibs.claims.objects import lenient
from dibs.claims.slices import DeviceTaintRule, ResourceSlice
from dibs.errors import InvalidRequest, Problem
from dibs.kube import errors
from dibs.kube import objects as core
from dibs.kube.client import CLAIMS, CLASSES, NODES, PODS, SLICES, TAINT_RULES, Cluster, Resource, Version

P = TypeVar("P", bound=Part)
T = TypeVar("T")


class Unreadable(msgspec.Struct, frozen=True):
    """A part of the cluster that could not be read, and what to do about it."""

    what: str
    problem: Problem


class ClusterInventory(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment."""

    cluster: str
    version: Version
    nodes: tuple[core.Node, ...] = ()
    pods: tuple[core.Pod, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    rules: tuple[DeviceTaintRule, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    notes: tuple[str, ...] = ()  # what was read, but not wholly understood

    def read(self, what: str) -> bool:
        return all(one.what != what for one in self.unreadable)

    def node(self, name: str) -> core.Node | None:
        return next((node for node in self.nodes if node.name == name), None)

    def users_of(self, claim: ResourceClaim) -> tuple[str, ...]:
        """The pods, or other consumers, that an allocated claim is reserved for."""
        status = claim.status
        if status is None:
            return ()
        return tuple(
            f"{'pod' if one.resource == 'pods' else one.resource} {claim.metadata.namespace}/{one.name}"
            for one in status.reserved_for
        )

    def holders(self) -> dict[DeviceId, list[ResourceClaim]]:
        """Per device the claims that hold it, wholly or in part."""
        found: dict[DeviceId, list[ResourceClaim]] = {}
        for claim in self.claims:
            if claim.status is None or claim.status.allocation is None:
                continue
            for result in claim.status.allocation.devices.results:
                if not result.admin_access:
                    device = DeviceId(result.driver, result.pool, result.device)
                    found.setdefault(device, []).append(claim)
        return found


def read_inventory(cluster: Cluster, *, in_use: bool = True, version: Version | None = None) -> ClusterInventory:
    """Read it all. Fails only where the cluster cannot be asked at all; a part that is forbidden is recorded.

    Without `in_use` it is the cluster as if nothing ran: pods and claims, of which there are most, are not read.
    """
    version = version or cluster.version()
    unreadable: list[Unreadable] = []
    denied: list[errors.Forbidden] = []
    notes: list[str] = []

    def part(what: str, read: Callable[[], list[T]]) -> tuple[T, ...]:
        try:
            return tuple(read())
        except (errors.Forbidden, errors.Missing) as error:
            unreadable.append(Unreadable(what, error.problems[0]))
            denied.extend([error] if isinstance(error, errors.Forbidden) else [])
            return ()

    def rules() -> list[DeviceTaintRule]:
        """They came after the rest: a cluster that does not serve them has none."""
        try:
            return read_parts(cluster, TAINT_RULES, DeviceTaintRule, notes)
        except errors.Missing:
            return []

    def devices(resource: Resource, kind: type[P]) -> tuple[P, ...]:
        if not version.has_dra:
            return ()
        return part(resource.plural, lambda: read_parts(cluster, resource, kind, notes))

    found = ClusterInventory(
        cluster=cluster.name,
        version=version,
        nodes=part(NODES.plural, lambda: cluster.items(NODES, core.Node)),
        # Pods that have ended hold nothing.
        pods=part(
            PODS.plural,
            lambda: cluster.items(PODS, core.Pod, fields="status.phase!=Succeeded,status.phase!=Failed"),
        )
        if in_use
        else (),
        slices=devices(SLICES, ResourceSlice),
        classes=devices(CLASSES, DeviceClass),
        claims=devices(CLAIMS, ResourceClaim) if in_use else (),
        rules=part(TAINT_RULES.plural, rules) if version.has_dra else (),
        notes=tuple(notes),
    )
    return msgspec.structs.replace(found, unreadable=_granted_together(unreadable, denied))


def _granted_together(unreadable: list[Unreadable], denied: list[errors.Forbidden]) -> tuple[Unreadable, ...]:
    """With one role for everything that this user may not read, in place of one for each."""
    resources = [one.resource for one in denied if one.resource]
    if len(resources) < 2:
        return tuple(unreadable)
    remedy = errors.role_to_read(denied[0].user, resources)
    problems = {one.problems[0] for one in denied}
    return tuple(
        msgspec.structs.replace(one, problem=msgspec.structs.replace(one.problem, remedy=remedy))
        if one.problem in problems
        else one
        for one in unreadable
    )


def read_parts(
    cluster: Cluster, resource: Resource, kind: type[P], notes: list[str], namespace: str | None = None
) -> list[P]:
    """All objects of a device kind. Fields that a newer Kubernetes added are noted, not silently dropped."""
    found: list[P] = []
    for item in cluster.items(resource, msgspec.Raw, namespace):
        try:
            found.append(msgspec.json.decode(item, type=kind))
        except msgspec.ValidationError:
            found.append(understood(msgspec.json.decode(item), kind, resource.plural, notes))
    return found


def read_part(cluster: Cluster, resource: Resource, kind: type[P], name: str, namespace: str, notes: list[str]) -> P:
    return understood(cluster.get(resource, name, dict[str, Any], namespace), kind, resource.plural, notes)


def understood(value: Any, kind: type[P], plural: str, notes: list[str]) -> P:
    try:
        one, unknown = lenient(value, kind)
    except InvalidRequest as error:
        raise errors.Unreachable(
            f"one of its {plural} is not understood: {error}", field="cluster", remedy="upgrade dibs"
        ) from error
    for problem in unknown:
        name = value.get("metadata", {}).get("name", "")
        notes.append(f"{plural} {name}: this dibs does not know {problem.field}; it is not judged")
    return one

"""What `dibs claims solve` asks the allocator: the case from files and host, the answer for each node.

`claims` calls it, `claims_output` prints the answers. The allocator decides, not this module, and nothing is booked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dibs.claims import (
    STEP_BUDGET,
    Allocated,
    Allocator,
    BadClaim,
    BadPool,
    DeviceClass,
    DeviceId,
    DeviceTaintRule,
    Explanation,
    Features,
    GaveUp,
    Inventory,
    Node,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dibs.claims.claim import ResourceClaimStatus
from dibs.claims.features import GATES
from dibs.claims.slices import DeviceTaint
from dibs.devices.classes import classes_of
from dibs.devices.manifests import ManifestProblem, read_manifests
from dibs.devices.model import Device
from dibs.devices.names import SIMULATED, pool_name
from dibs.errors import InvalidRequest, NoMatch, Problem
from dibs.home import find_home
from dibs.ledger.rows import Share

EXTERNAL = "dibs/external"  # taint: processes that dibs did not start use the device
_TAINT_RULES = "DRADeviceTaintRules"
_NOWHERE = "any"  # the node of slices that name none
_GATE = re.compile(r"[A-Za-z][A-Za-z0-9]*", re.ASCII)


class Unsolvable(Exception):
    """The files have problems: all of them."""

    def __init__(self, problems: Sequence[ManifestProblem]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)


class Gates(msgspec.Struct, frozen=True):
    features: Features
    taint_rules: bool = True


class Case(msgspec.Struct, frozen=True):
    """Everything that an answer depends on."""

    allocator: Allocator
    nodes: tuple[Node, ...]
    claims: tuple[ResourceClaim, ...]
    classes: tuple[str, ...]
    host: bool = False  # on this host's own devices
    simulated: bool = False
    source_errors: tuple[str, ...] = ()

    def choose(self, name: str | None) -> tuple[Node, ...]:
        """The nodes to solve for. InvalidRequest if the named one is not known."""
        if name is None:
            return self.nodes
        found = tuple(node for node in self.nodes if node.name == name)
        if not found:
            known = ", ".join(node.name for node in self.nodes[:8]) + (" …" if len(self.nodes) > 8 else "")
            raise InvalidRequest(
                "there is no such node", field="node", value=name, code="NODE_UNKNOWN", remedy=f"the nodes are {known}"
            )
        return found


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of the claims on one node."""

    node: str
    outcome: str  # allocated, unsatisfiable, undecided
    claims: tuple[ResourceClaim, ...] = ()
    error: str = ""
    code: str = ""
    explanation: Explanation | None = None


def read_gates(text: str | None) -> Gates:
    """`A=true,B=false` over what Kubernetes 1.37 has switched on. InvalidRequest with every gate that is wrong."""
    on = set(Features.default().gates)
    taint_rules = True
    wrong = []
    for item in (text or "").split(",") if text else ():
        name, equals, value = (part.strip() for part in item.partition("="))
        switch = {"true": True, "false": False}.get(value.lower())
        try:
            known = _GATE.fullmatch(name) is not None and Features.of([name]) is not None
        except ValueError:
            known = False
        if not known:
            wrong.append((item, "there is no such feature gate", f"the gates are {', '.join([*GATES, _TAINT_RULES])}"))
        elif not equals or switch is None:
            wrong.append((item, "must be true or false", f"write {name}=true or {name}=false"))
        elif name == _TAINT_RULES:
            taint_rules = switch
        elif switch:
            on.add(name)
        else:
            on.discard(name)
    if wrong:
        raise InvalidRequest([Problem("FEATURE_GATE_UNKNOWN", "feature-gates", *one) for one in wrong])
    return Gates(Features.of(on), taint_rules)


def gather(files: Iterable[str], gates: Gates) -> Case:
    """The case that the files describe, completed by this host. Unsolvable if the files are wrong."""
    found = read_manifests(files)
    if found.problems:
        raise Unsolvable(found.problems)
    by_kind: dict[type, list[Any]] = {}
    for manifest in found.manifests:
        by_kind.setdefault(type(manifest.object), []).append(manifest.object)
    wanted, given = _claims(by_kind)
    if not wanted:
        raise InvalidRequest(
            "there is no claim to solve",
            field="file",
            code="NO_CLAIM",
            remedy="give a ResourceClaim without a status.allocation, or a ResourceClaimTemplate",
        )
    own: list[DeviceClass] = by_kind.get(DeviceClass, [])
    named = {one.metadata.name for one in own}
    classes = [*own, *(one for one in classes_of(find_home()) if one.metadata.name not in named)]
    rules: list[DeviceTaintRule] = by_kind.get(DeviceTaintRule, []) if gates.taint_rules else []
    slices: list[ResourceSlice] = by_kind.get(ResourceSlice, [])
    nodes: list[Node] = by_kind.get(Node, [])
    allocated = Allocated.of_claims(given)
    names = tuple(one.metadata.name for one in classes)
    if slices:
        allocator = Allocator(Inventory(slices, rules), classes, allocated, gates.features)
        return Case(allocator, _nodes(nodes, slices), tuple(wanted), names, simulated=any(map(_is_simulated, slices)))
    host = _host(nodes)
    held = host.allocated
    held.devices = {**held.devices, **allocated.devices}
    held.shared = {**held.shared, **allocated.shared}
    held.consumed.update(allocated.consumed)
    allocator = Allocator(Inventory(host.slices, rules), classes, held, gates.features)
    return Case(
        allocator, (host.node,), tuple(wanted), names, host=True, simulated=host.simulated, source_errors=host.errors
    )


def _claims(by_kind: dict[type, list[Any]]) -> tuple[list[ResourceClaim], list[ResourceClaim]]:
    """The claims that want something, and those that have it."""
    wanted: list[ResourceClaim] = []
    given: list[ResourceClaim] = []
    for claim in by_kind.get(ResourceClaim, []):
        has = claim.status is not None and claim.status.allocation is not None
        (given if has else wanted).append(claim)
    for template in by_kind.get(ResourceClaimTemplate, []):
        wanted.append(ResourceClaim(metadata=template.metadata, spec=template.spec.spec))
    return wanted, given


def _nodes(nodes: Sequence[Node], slices: Sequence[ResourceSlice]) -> tuple[Node, ...]:
    """The nodes of the files, and those that only slices speak of."""
    known = {node.name: node for node in nodes}
    spoken = {slice_.spec.node_name for slice_ in slices}
    spoken |= {device.node_name for slice_ in slices for device in slice_.spec.devices}
    for name in sorted(name for name in spoken if name):
        known.setdefault(name, Node(name))
    return tuple(known.values()) or (Node(_NOWHERE),)


def _is_simulated(published: ResourceSlice) -> bool:
    marks = (device.attributes.get(SIMULATED) for device in published.spec.devices)
    return any(mark is not None and mark.bool_value for mark in marks)


class _Host(msgspec.Struct):
    node: Node
    slices: list[ResourceSlice]
    allocated: Allocated
    simulated: bool
    errors: tuple[str, ...]


def _host(nodes: Sequence[Node]) -> _Host:
    """This host's devices: with what is held, tainted, and used outside dibs."""
    from dibs.devices.slices import in_use, slices_of
    from dibs.remote.choose import refuse_remotely
    from dibs.workloads.service import Workloads

    refuse_remotely("solving without ResourceSlices", "ask the gateway itself: dibs explain --claim FILE")
    name = pool_name()
    taints: dict[str, list[DeviceTaint]] = {}
    held: dict[str, str] = {}
    shares: list[tuple[str, str, Share]] = []
    with Workloads() as service:
        inventory, states = service.devices()
        for device_id, against in service.ledger.taints().items():
            found = [DeviceTaint(key=one.key, value=one.value, effect=one.effect) for one in against]
            taints.setdefault(device_id, []).extend(found)
        for lease in service.leases():
            for leased in lease.devices:
                holder = f"{lease.sandbox_name} ({lease.username})"
                if leased.simulated == inventory.simulated and leased.share is not None:
                    shares.append((leased.id, holder, leased.share))
                elif leased.simulated == inventory.simulated:
                    held[leased.id] = holder
    for state in states:
        if state.holder is not None and state.state != "shared":
            held.setdefault(state.device.id, f"{state.holder.sandbox_name} ({state.holder.username})")
        if state.device.used_by:
            pid = str(state.device.used_by[0].pid)
            taints.setdefault(state.device.id, []).append(DeviceTaint(key=EXTERNAL, value=pid, effect="NoSchedule"))
    allocated = in_use(inventory, held)
    _add_shares(allocated, inventory.devices, shares)
    return _Host(
        node=next((node for node in nodes if node.name == name), Node(name)),
        slices=slices_of(inventory, node=name, taints=taints),
        allocated=allocated,
        simulated=inventory.simulated,
        errors=tuple(f"{error.source}: {error.reason}" for error in inventory.errors),
    )


def _add_shares(state: Allocated, devices: Iterable[Device], shares: Iterable[tuple[str, str, Share]]) -> None:
    from dibs.devices.slices import published_id

    ids: dict[str, DeviceId] = {device.id: published_id(device) for device in devices}
    holders = dict(state.shared)
    for device_id, holder, share in shares:
        device = ids.get(device_id)
        if device is None:
            continue  # leased, and gone since
        holders[device] = f"{holders[device]}, {holder}" if device in holders else holder
        sums = state.consumed.setdefault(device, {})
        for name, amount in share.consumed.items():
            sums[name] = sums.get(name, 0) + amount
    state.shared = holders


def solve_on(case: Case, node: Node, steps: int | None = None) -> Answer:
    """The claims together, on one node alone."""
    try:
        outcome = case.allocator.allocate(node, case.claims, budget=steps or STEP_BUDGET)
    except (BadClaim, BadPool, GaveUp) as failure:
        return Answer(node.name, "undecided", (), str(failure), failure.code, failure.explanation)
    explanation = outcome.explanation
    if outcome.results is None:
        return Answer(node.name, "unsatisfiable", explanation=explanation)
    given = tuple(
        msgspec.structs.replace(claim, status=ResourceClaimStatus(allocation=result))
        for claim, result in zip(case.claims, outcome.results, strict=True)
    )
    return Answer(node.name, "allocated", given, explanation=explanation)


def exit_code(answers: Sequence[Answer]) -> int:
    """0 if some node has it. Else the hardest word decides: what is wrong, what is not known, what cannot be had."""
    if any(answer.outcome == "allocated" for answer in answers):
        return 0
    codes = {answer.code for answer in answers if answer.outcome == "undecided"}
    if codes - {GaveUp.default_code}:
        return InvalidRequest.exit_code
    return GaveUp.exit_code if codes else NoMatch.exit_code

"""What claims ask for, worked out once per call: one `Wanted` per request, or per alternative of a request.

`allocator` builds them before it searches. Everything that makes a claim undecidable, whatever the devices, is found
here and raised as BadClaim in the words of Kubernetes. It must not choose devices; only `All` needs to know already
here which devices that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dibs.cel.quantity import Quantity
from dibs.claims.capacity import CapacityError, Consumption, consumption, quantity
from dibs.claims.claim import (
    ALL,
    EXACT_COUNT,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dibs.claims.constraints import Constraint, DistinctAttribute, MatchAttribute
from dibs.claims.failures import BadClaim, BadPool
from dibs.claims.features import Features
from dibs.claims.inventory import CLASS_SELECTOR, OTHER_NODE, Selection, World
from dibs.claims.pools import Candidate
from dibs.claims.selectors import DerivedExpression, Expression, derived_expression, expression

MAX_RESULTS = 32  # devices that one claim can be given
_INT_MAX = (1 << 63) - 1

Fallen = tuple[str, str]  # why a device was passed over: a code and a detail


class Wanted:
    """One request, or one alternative of a request."""

    __slots__ = (
        "admin",
        "claim",
        "claim_index",
        "constraints",
        "derived",
        "device_class",
        "everything",
        "fell",
        "name",
        "need",
        "positions",
        "request",
        "requested",
        "selection",
        "subrequest",
        "taken",
        "tolerations",
    )

    def __init__(
        self,
        claim: str,
        claim_index: int,
        request: str,
        subrequest: str | None,
        device_class: DeviceClass,
        selection: Selection,
    ) -> None:
        self.claim = claim
        self.claim_index = claim_index
        self.request = request
        self.subrequest = subrequest
        self.name = request if subrequest is None else f"{request}/{subrequest}"
        self.device_class = device_class
        self.selection = selection
        self.need = 1
        self.everything = False
        self.positions: list[int] = []  # for everything: which devices that is
        self.admin = False
        self.tolerations: tuple[DeviceToleration, ...] = ()
        self.requested: Mapping[str, Quantity] = {}
        self.constraints: list[Constraint] = []
        self.derived: Mapping[str, DerivedExpression] = {}
        self.taken: dict[int, Consumption | None] = {}
        self.fell: dict[int, Fallen] = {}

    @property
    def own_name(self) -> str:
        return self.request if self.subrequest is None else self.subrequest

    def consumption(self, position: int, candidate: Candidate, *, fractional: bool) -> Consumption | None:
        """What the request takes of a device's capacities; None where the device cannot be asked for that."""
        if position in self.taken:
            return self.taken[position]
        try:
            taken = consumption(candidate.capacities, self.requested, fractional=fractional)
        except (CapacityError, ValueError) as error:
            raise BadClaim(
                f"claim {self.claim}, request {self.own_name}: checking capacity for device {candidate.id}: {error}"
            ) from None
        self.taken[position] = taken
        return taken

    def raise_error(self, position: int, candidate: Candidate) -> None:
        """Raise the error that a selector gave for a device."""
        stage, index, error = self.selection.errors[position]
        if stage == OTHER_NODE:
            raise BadPool(f"node selection of device {candidate.id}: {error}")
        by_class = stage == CLASS_SELECTOR
        subject = f"class {self.device_class.metadata.name}" if by_class else f"claim {self.claim}"
        selectors = self.selection.of_class if by_class else self.selection.of_request
        if selectors[index].error is error:
            raise BadClaim(f"{subject}: selector #{index}: CEL compile error: {error}")
        raise BadClaim(f"{subject}: selector #{index} on device {candidate.id}: CEL runtime error: {error}")


class Classes:
    """The device classes, with their selectors compiled when they are first asked for."""

    __slots__ = ("_by_name", "_compiled", "_features")

    def __init__(self, classes: Sequence[DeviceClass], features: Features) -> None:
        self._by_name = {device_class.metadata.name: device_class for device_class in classes}
        self._features = features
        self._compiled: dict[str, tuple[Expression, ...]] = {}

    def get(self, name: str) -> DeviceClass | None:
        return self._by_name.get(name)

    def expressions(self, device_class: DeviceClass) -> tuple[Expression, ...]:
        name = device_class.metadata.name
        found = self._compiled.get(name)
        if found is None:
            for index, selector in enumerate(device_class.spec.selectors):
                if selector.cel is None:
                    raise BadClaim(
                        f"class {name}, selector #{index}: CEL expression empty (unsupported selector type?)"
                    )
            found = self._compiled[name] = compiled(device_class.spec.selectors, self._features)
        return found


def compiled(selectors: Sequence[DeviceSelector], features: Features) -> tuple[Expression, ...]:
    return tuple(
        expression(
            selector.cel.expression,
            consumable_capacity=features.consumable_capacity,
            list_attributes=features.list_type_attributes,
        )
        for selector in selectors
        if selector.cel is not None
    )


def claim_name(claim: ResourceClaim) -> str:
    metadata = claim.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def wanted_by(
    claim_index: int, claim: ResourceClaim, world: World, classes: Classes, features: Features
) -> list[list[Wanted]]:
    """The requests of a claim, each with its alternatives. Raises BadClaim, or BadPool where `All` cannot be known."""
    name = claim_name(claim)
    groups: list[list[Wanted]] = []
    fewest = 0
    for request in claim.spec.devices.requests:
        _check_gates(name, request, features)
        if request.first_available:
            group = [
                _wanted(name, claim_index, request.name, part, part.name, world, classes, features)
                for part in request.first_available
            ]
        elif request.exactly is not None:
            group = [_wanted(name, claim_index, request.name, request.exactly, None, world, classes, features)]
        else:
            raise BadClaim(
                f"claim {name}, request {request.name}: missing device class name (unsupported request type?)"
            )
        fewest += min(wanted.need for wanted in group)
        groups.append(group)
    if fewest > MAX_RESULTS:
        raise BadClaim(f"claim {name}: number of requested devices {fewest} exceeds the claim limit of {MAX_RESULTS}")
    constraints = _constraints(name, claim, features)
    if constraints:
        for group in groups:
            for wanted in group:
                wanted.constraints = [c for c in constraints if c.covers(wanted.request, wanted.subrequest)]
    return groups


def _check_gates(claim: str, request: DeviceRequest, features: Features) -> None:
    if request.first_available and not features.prioritized_list:
        raise BadClaim(
            f"claim {claim}, request {request.name}: has subrequests, but the DRAPrioritizedList feature is disabled"
        )
    if features.consumable_capacity:
        return
    if request.exactly is not None and request.exactly.capacity is not None:
        raise BadClaim(
            f"claim {claim}, request {request.name}: has capacity requests, "
            "but the DRAConsumableCapacity feature is disabled"
        )
    for part in request.first_available:
        if part.capacity is not None:
            raise BadClaim(
                f"claim {claim}, subrequest {part.name}: has capacity requests, "
                "but the DRAConsumableCapacity feature is disabled"
            )


def _wanted(
    claim: str,
    claim_index: int,
    request: str,
    asked: ExactDeviceRequest | DeviceSubRequest,
    subrequest: str | None,
    world: World,
    classes: Classes,
    features: Features,
) -> Wanted:
    subject = f"claim {claim}, request {request if subrequest is None else subrequest}"
    if asked.derived_attributes and not features.derived_attributes:
        raise BadClaim(f"{subject}: cannot handle request with derived attributes, the feature is disabled")
    for index, selector in enumerate(asked.selectors):
        if selector.cel is None:
            raise BadClaim(f"{subject}, selector #{index}: CEL expression empty (unsupported selector type?)")
    admin = asked.admin_access if isinstance(asked, ExactDeviceRequest) else None
    if admin is not None and not features.admin_access:
        raise BadClaim(f"{subject}: admin access is requested, but the feature is disabled")
    if not asked.device_class_name:
        raise BadClaim(f"{subject}: missing device class name (unsupported request type?)")
    device_class = classes.get(asked.device_class_name)
    if device_class is None:
        raise BadClaim(f"{subject}: could not retrieve device class {asked.device_class_name}: there is no such class")

    selectors = compiled(asked.selectors, features) if asked.selectors else ()
    selection = world.selection(classes.expressions(device_class), selectors)
    wanted = Wanted(claim, claim_index, request, subrequest, device_class, selection)
    wanted.admin = bool(admin)
    wanted.tolerations = asked.tolerations
    if asked.capacity is not None:
        wanted.requested = _requested(subject, asked.capacity.requests)
    if asked.derived_attributes:
        wanted.derived = {
            attribute.name: derived_expression(
                attribute.expression,
                consumable_capacity=features.consumable_capacity,
                list_attributes=features.list_type_attributes,
            )
            for attribute in asked.derived_attributes
        }
    if asked.allocation_mode in ("", EXACT_COUNT):
        wanted.need = 1 if asked.count is None else asked.count
        if wanted.need > _INT_MAX:
            raise BadClaim(f"{subject}: exact count {wanted.need} is too large")
    elif asked.allocation_mode == ALL:
        wanted.everything = True
        _find_everything(subject, wanted, world, features)
    else:
        raise BadClaim(f"{subject}: unsupported count mode {asked.allocation_mode}")
    return wanted


def _requested(subject: str, requests: Mapping[str, str | int | float]) -> dict[str, Quantity]:
    try:
        return {name: quantity(amount) for name, amount in requests.items()}
    except ValueError as error:
        raise BadClaim(f"{subject}: {error}") from None


def _find_everything(subject: str, wanted: Wanted, world: World, features: Features) -> None:
    """The devices that "all" means; a pool that cannot be seen completely makes that unanswerable."""
    for position, pool in world.unusable:
        wanted.selection.up_to(position)
        _keep_usable(wanted, world, features, position)
        state = "currently being updated" if pool.incomplete else f"currently invalid ({pool.invalid})"
        raise BadPool(f"{subject}: asks for all devices, but resource pool {pool} is {state}")
    wanted.selection.complete()
    _keep_usable(wanted, world, features, len(world.candidates))
    wanted.need = len(wanted.positions)


def _keep_usable(wanted: Wanted, world: World, features: Features, end: int) -> None:
    errors = wanted.selection.errors
    for position in wanted.selection.found:
        if position >= end:
            break
        candidate = world.candidates[position]
        if position in errors:
            wanted.raise_error(position, candidate)
        if features.consumable_capacity:
            taken = wanted.consumption(position, candidate, fractional=features.fractional_capacity_range)
            if taken is None or any(amount > candidate.capacities[name].value for name, amount in taken.items()):
                wanted.fell[position] = ("capacity", "it can never offer that much")
                continue
        wanted.positions.append(position)


def _constraints(claim: str, asking: ResourceClaim, features: Features) -> list[Constraint]:
    constraints: list[Constraint] = []
    lists = features.list_type_attributes
    for index, constraint in enumerate(asking.spec.devices.constraints):
        if constraint.match_attribute is not None:
            constraints.append(MatchAttribute(index, constraint.match_attribute, constraint.requests, lists=lists))
        elif constraint.distinct_attribute is not None:
            constraints.append(
                DistinctAttribute(index, constraint.distinct_attribute, constraint.requests, lists=lists)
            )
        else:
            raise BadClaim(f"claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)")
    return constraints

"""Pools: the slices of one driver that belong together, gathered for one node.

`inventory` calls this once per node. Outdated slices are dropped, and a pool is kept even when it cannot be used:
incomplete (slices are missing) or invalid (it contradicts itself), with the reason, because "all devices" must then
fail instead of giving some. Nothing is allocated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dibs.claims.capacity import Capacity, quantity
from dibs.claims.counters import NOTHING, CounterKey, Draw, draw_of
from dibs.claims.failures import BadPool
from dibs.claims.features import Features
from dibs.claims.identity import DeviceId
from dibs.claims.nodes import Node, node_matches
from dibs.claims.selectors import View
from dibs.claims.slices import Device, DeviceTaintRule, ResourceSlice
from dibs.claims.taints import added_by_rules, preventing

PoolId = tuple[str, str]  # driver, pool


class Candidate:
    """One published device, with everything about it that never changes worked out once."""

    __slots__ = (
        "_capacities",
        "_view",
        "device",
        "draw",
        "id",
        "measured",
        "pool_id",
        "shareable",
        "slice",
        "taints",
    )

    def __init__(self, published: PublishedSlice, device: Device, rules: Sequence[DeviceTaintRule]) -> None:
        driver, pool = published.pool_id
        self.id = DeviceId(driver, pool, device.name)
        self.pool_id = published.pool_id
        self.device = device
        self.slice = published
        self.shareable = bool(device.allow_multiple_allocations)
        # A whole device without a policy can be had whatever its capacity is, unless an amount is asked for.
        self.measured = self.shareable or any(
            capacity.request_policy is not None or str(capacity.value).startswith("-")
            for capacity in device.capacity.values()
        )
        taints = device.taints
        if rules:
            taints += added_by_rules(rules, driver, pool, device.name)
        self.taints = preventing(taints) if taints else ()
        self.draw: Draw = draw_of(device) if device.consumes_counters else NOTHING
        self._capacities: dict[str, Capacity] | None = None
        self._view: View | None = None

    @property
    def view(self) -> View:
        if self._view is None:
            self._view = View(self.id.driver, self.device)
        return self._view

    def forget_view(self) -> None:
        """Keep what was found out, but not what was shown."""
        if self._view is not None:
            self._view.forget()

    @property
    def capacities(self) -> dict[str, Capacity]:
        if self._capacities is None:
            self._capacities = {name: Capacity(value) for name, value in self.device.capacity.items()}
        return self._capacities


class PublishedSlice:
    """A slice and its devices, ready to be gathered into pools again and again."""

    __slots__ = ("candidates", "generation", "grouped", "name", "node_name", "pool_id", "problem", "spec")

    def __init__(self, published: ResourceSlice, rules: Sequence[DeviceTaintRule] = ()) -> None:
        spec = published.spec
        self.spec = spec
        self.name = published.metadata.name
        self.node_name = spec.node_name or ""
        self.pool_id: PoolId = (spec.driver, spec.pool.name)
        self.generation = spec.pool.generation
        self.grouped = any(c.compatibility_groups for d in spec.devices for c in d.consumes_counters)
        self.problem = ""  # an amount that cannot be read spoils the pool, not the others
        self.candidates: list[Candidate] = []
        try:
            self.candidates = [Candidate(self, device, rules) for device in spec.devices]
        except ValueError as error:
            self.problem = str(error)


class Pool:
    """The slices of one pool that reach one node."""

    __slots__ = ("counters", "elsewhere", "id", "incomplete", "invalid", "slices")

    def __init__(self, pool_id: PoolId, *, incomplete: bool = False, invalid: str = "") -> None:
        self.id = pool_id
        self.incomplete = incomplete
        self.invalid = invalid
        self.slices: list[PublishedSlice] = []  # with devices, for this node
        self.elsewhere: list[PublishedSlice] = []  # with devices, for other nodes only; they may draw counters
        self.counters: dict[CounterKey, int] = {}

    def __str__(self) -> str:
        return f"{self.id[0]}/{self.id[1]}"

    @property
    def binds(self) -> bool:
        """Whether any device needs binding conditions; such pools come last."""
        return any(c.device.binding_conditions for s in self.slices for c in s.candidates)


def gather(
    reachable: Iterable[PublishedSlice],
    every: dict[PoolId, list[PublishedSlice]],
    node: Node,
    features: Features,
) -> list[Pool]:
    """The pools of a node in the order in which they are tried: by driver and name, binding ones last.

    `reachable` are the slices of the node and those without a node name, `every` all slices by pool.
    """
    current: dict[PoolId, list[PublishedSlice]] = {}
    for published in reachable:
        if not features.partitionable_devices and (
            published.spec.per_device_node_selection is not None or published.spec.shared_counters
        ):
            continue
        # Code that cannot check groups must not give such devices, nor others of a pool that it sees only in part.
        if not features.compatibility_groups and published.grouped:
            continue
        if not _reaches(published, node):
            continue
        known = current.get(published.pool_id)
        if known is None or published.generation > known[0].generation:
            current[published.pool_id] = [published]
        elif published.generation == known[0].generation:
            known.append(published)

    pools: list[Pool] = []
    for pool_id, slices in current.items():
        pool = _completed(pool_id, slices, every[pool_id], features)
        if pool is not None:
            pools.append(pool)
    pools.sort(key=lambda pool: (pool.binds, pool.id))
    return pools


def _reaches(published: PublishedSlice, node: Node) -> bool:
    spec = published.spec
    try:
        if spec.node_name or spec.all_nodes or spec.node_selector is not None:
            return node_matches(node, spec.node_name, spec.all_nodes, spec.node_selector)
        if spec.per_device_node_selection:
            return any(node_matches(node, d.node_name, d.all_nodes, d.node_selector) for d in spec.devices)
    except ValueError as error:
        raise BadPool(
            f"gather pool information: failed to perform node selection for slice {published.name}: {error}"
        ) from None
    return False  # nothing known is set: some future way to select nodes


def _completed(
    pool_id: PoolId, slices: list[PublishedSlice], every: list[PublishedSlice], features: Features
) -> Pool | None:
    """The pool of these slices, or None where a newer generation exists that does not reach the node."""
    generation, expected = slices[0].generation, slices[0].spec.pool.resource_slice_count
    rest: list[PublishedSlice] = []
    if len(slices) != expected:
        if any(published.generation > generation for published in every):
            return None
        same = [p for p in every if p.generation == generation]
        if not features.compatibility_groups:
            same = [p for p in same if not p.grouped]
        if len(same) != expected:
            return Pool(pool_id, incomplete=True)
        here = {published.name for published in slices}
        rest = [published for published in same if published.name not in here]
    return _built(pool_id, sorted(slices, key=_order), rest, features)


def _order(published: PublishedSlice) -> tuple[str, str]:
    """By name. In Kubernetes names are unique; elsewhere the order must not depend on who answered first."""
    devices = published.spec.devices
    return (published.name, devices[0].name if devices else "")


def _built(pool_id: PoolId, slices: list[PublishedSlice], rest: list[PublishedSlice], features: Features) -> Pool:
    pool = Pool(pool_id)
    counting: list[PublishedSlice] = []
    for published in (*slices, *rest):
        if published.problem:
            return Pool(pool_id, invalid=published.problem)
    for published in slices:
        counts = features.partitionable_devices and published.spec.shared_counters
        (counting if counts else pool.slices).append(published)
    for published in rest:
        counts = features.partitionable_devices and published.spec.shared_counters
        (counting if counts else pool.elsewhere).append(published)

    names: set[str] = set()
    for published in pool.slices:
        for candidate in published.candidates:
            if candidate.id.device in names:
                return Pool(pool_id, invalid=f"duplicate device name {candidate.id.device}")
            names.add(candidate.id.device)
    if not features.partitionable_devices:
        return pool

    sets: set[str] = set()
    for published in counting:
        for counter_set in published.spec.shared_counters:
            if counter_set.name in sets:
                return Pool(pool_id, invalid=f"duplicate counter set name {counter_set.name}")
            sets.add(counter_set.name)
            try:
                for name, counter in counter_set.counters.items():
                    pool.counters[counter_set.name, name] = quantity(counter.value).nanos
            except ValueError as error:
                return Pool(pool_id, invalid=str(error))
    for published in (*pool.slices, *pool.elsewhere):
        for candidate in published.candidates:
            for counter_set_name, _ in candidate.draw.groups:
                if counter_set_name not in sets:
                    return Pool(pool_id, invalid=f"counter set {counter_set_name} not found")
            for key, _ in candidate.draw.amounts:
                if key not in pool.counters:
                    reason = f"counter {key[1]} not found in counter set {key[0]}"
                    return Pool(pool_id, invalid=reason)
    return pool

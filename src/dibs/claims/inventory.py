"""The devices that exist, prepared once and asked many times.

A source of devices builds an `Inventory` from their slices; `allocator` asks it for the `World` of a node: the
usable devices in the order in which they are tried. A world keeps what selectors said about its devices, so that the
second request of a kind costs next to nothing. A world never changes: new slices make a new inventory, which takes
over what is still the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from dibs.cel.errors import CelError
from dibs.claims.features import Features
from dibs.claims.nodes import Node, node_matches
from dibs.claims.pools import Candidate, Pool, PoolId, PublishedSlice, gather
from dibs.claims.selectors import Expression
from dibs.claims.slices import DeviceTaintRule, ResourceSlice

# Above this many devices their views are not kept: the answers are, and a view is soon made again.
_MANY_DEVICES = 4096

# Why a device is not selectable: the stage, and which selector of that stage.
BINDING_OFF, CLASS_SELECTOR, REQUEST_SELECTOR, OTHER_NODE = range(4)
Rejection = tuple[int, int]
Failure = tuple[int, int, Exception]


class Inventory:
    """All published slices. Not changed after it was built; worlds are gathered on demand and kept."""

    __slots__ = ("_by_node", "_by_pool", "_everywhere", "_worlds", "published", "taint_rules")

    def __init__(
        self,
        slices: Iterable[ResourceSlice],
        taint_rules: Iterable[DeviceTaintRule] = (),
        previous: Inventory | None = None,
    ) -> None:
        """`previous`: an inventory whose prepared slices are taken over where they are equal."""
        self.taint_rules = tuple(taint_rules)
        known: dict[tuple[PoolId, str], tuple[ResourceSlice, PublishedSlice]] = {}
        if previous is not None and previous.taint_rules == self.taint_rules:
            known = {(entry[1].pool_id, entry[1].name): entry for entry in previous.published}
        self.published: list[tuple[ResourceSlice, PublishedSlice]] = []
        self._by_node: dict[str, list[PublishedSlice]] = {}
        self._everywhere: list[PublishedSlice] = []
        self._by_pool: dict[PoolId, list[PublishedSlice]] = {}
        self._worlds: dict[tuple[object, ...], World] = {}
        for resource_slice in slices:
            spec = resource_slice.spec
            before = known.get(((spec.driver, spec.pool.name), resource_slice.metadata.name))
            if before is not None and (before[0] is resource_slice or before[0] == resource_slice):
                published = before[1]
            else:
                published = PublishedSlice(resource_slice, self.taint_rules)
            self.published.append((resource_slice, published))
            self._by_pool.setdefault(published.pool_id, []).append(published)
            if published.node_name:
                self._by_node.setdefault(published.node_name, []).append(published)
            else:
                self._everywhere.append(published)

    @property
    def slices(self) -> tuple[ResourceSlice, ...]:
        return tuple(entry[0] for entry in self.published)

    def world(self, node: Node, features: Features) -> World:
        """What can be used on a node. Raises BadPool for a node selector that cannot be read."""
        key = (node.name, features, frozenset(node.labels.items()))
        world = self._worlds.get(key)
        if world is None:
            reachable = (*self._by_node.get(node.name, ()), *self._everywhere)
            world = World(gather(reachable, self._by_pool, node, features), node, features)
            self._worlds[key] = world
        return world


class World:
    """The pools of one node, and their devices in the order in which they are tried."""

    __slots__ = ("_selections", "candidates", "features", "node", "pools", "unusable")

    def __init__(self, pools: list[Pool], node: Node, features: Features) -> None:
        self.pools = pools
        self.node = node
        self.features = features
        self.candidates: list[Candidate] = []
        self.unusable: list[tuple[int, Pool]] = []  # with the position at which its devices would have come
        self._selections: dict[tuple[tuple[Expression, ...], tuple[Expression, ...]], Selection] = {}
        for pool in pools:
            if pool.incomplete or pool.invalid:
                self.unusable.append((len(self.candidates), pool))
            for published in pool.slices:
                self.candidates.extend(published.candidates)

    def selection(self, of_class: tuple[Expression, ...], of_request: tuple[Expression, ...]) -> Selection:
        """The devices that pass these selectors; the same object for the same selectors."""
        key = (of_class, of_request)
        found = self._selections.get(key)
        if found is None:
            found = self._selections[key] = Selection(self, of_class, of_request)
        return found


class Selection:
    """The positions of the devices that pass a class's and a request's selectors, found as far as was needed.

    A device whose selector failed is listed too, with its error: the search raises it if it comes to that device,
    and never sees it if the device is in use.
    """

    __slots__ = ("_world", "errors", "found", "of_class", "of_request", "rejected", "scanned")

    def __init__(self, world: World, of_class: tuple[Expression, ...], of_request: tuple[Expression, ...]) -> None:
        self._world = world
        self.of_class = of_class
        self.of_request = of_request
        self.found: list[int] = []
        self.errors: dict[int, Failure] = {}
        self.rejected: dict[int, Rejection] = {}
        self.scanned = 0

    def more(self) -> bool:
        """Look for one further position; False at the end of the world."""
        candidates = self._world.candidates
        position = self.scanned
        end = len(candidates)
        while position < end:
            candidate = candidates[position]
            taken = self._examine(position, candidate)
            if end > _MANY_DEVICES:
                candidate.forget_view()
            position += 1
            if taken:
                self.found.append(position - 1)
                self.scanned = position
                return True
        self.scanned = position
        return False

    def complete(self) -> list[int]:
        """Look at every device."""
        while self.more():
            pass
        return self.found

    def up_to(self, position: int) -> None:
        """Look at every device before this position."""
        while self.scanned < position and self.more():
            pass

    def _examine(self, position: int, candidate: Candidate) -> bool:
        world = self._world
        if candidate.device.binding_conditions and not world.features.binding_conditions:
            self.rejected[position] = (BINDING_OFF, 0)
            return False
        view = candidate.view
        for stage, wanted in ((CLASS_SELECTOR, self.of_class), (REQUEST_SELECTOR, self.of_request)):
            for index, expression in enumerate(wanted):
                answer = view.answer(expression)
                if answer is True:
                    continue
                if isinstance(answer, CelError):
                    self.errors[position] = (stage, index, answer)
                    return True
                self.rejected[position] = (stage, index)
                return False
        if candidate.slice.spec.per_device_node_selection:
            device = candidate.device
            try:
                here = node_matches(world.node, device.node_name, device.all_nodes, device.node_selector)
            except ValueError as error:
                self.errors[position] = (OTHER_NODE, 0, error)
                return True
            if not here:
                self.rejected[position] = (OTHER_NODE, 0)
                return False
        return True

"""Pools and worlds: gathered once, kept, and taken over where nothing changed."""

from __future__ import annotations

import pytest
from tests.claims.worlds import HOST, JSON, claim, claims, device, device_class, exactly, given, gpus, resource_slice

from dibs.cel import dra
from dibs.claims import objects
from dibs.claims.allocator import Allocator
from dibs.claims.failures import BadPool
from dibs.claims.features import Features
from dibs.claims.inventory import Inventory
from dibs.claims.nodes import Node

EVERYTHING = Features.everything()


def slices(*values: JSON) -> list[objects.ResourceSlice]:
    return [objects.from_builtins(value, objects.ResourceSlice) for value in values]


def pool(name: str = "host", generation: int = 1, count: int = 1) -> JSON:
    return {"name": name, "generation": generation, "resourceSliceCount": count}


def devices_of(inventory: Inventory, node: Node = HOST, features: Features = EVERYTHING) -> list[str]:
    return [candidate.id.device for candidate in inventory.world(node, features).candidates]


def troubles(inventory: Inventory) -> list[tuple[str, str]]:
    return [(str(pool), pool.invalid) for _, pool in inventory.world(HOST, EVERYTHING).unusable]


def test_a_newer_generation_replaces_the_older_one() -> None:
    old = resource_slice([device("old")], "old", pool=pool(generation=1))
    new = resource_slice([device("new")], "new", pool=pool(generation=2))
    assert devices_of(Inventory(slices(old, new))) == ["new"]
    assert devices_of(Inventory(slices(new, old))) == ["new"]


def test_a_newer_generation_for_another_node_makes_an_incomplete_older_one_obsolete() -> None:
    old = resource_slice([device("old")], "old", pool=pool(generation=1, count=2))
    new = resource_slice([device("new")], "new", pool=pool(generation=2), nodeName="other")
    inventory = Inventory(slices(old, new))
    assert devices_of(inventory) == []
    assert troubles(inventory) == []


def test_a_pool_is_complete_with_slices_of_other_nodes() -> None:
    here = resource_slice([device("here")], "a", pool=pool(count=2))
    there = resource_slice([device("there")], "b", pool=pool(count=2), nodeName="other")
    assert devices_of(Inventory(slices(here, there))) == ["here"]
    assert troubles(Inventory(slices(here))) == [("gpu.example.com/host", "")]


def test_two_devices_of_one_name_spoil_their_pool_only() -> None:
    bad = resource_slice([device("x"), device("x")], "bad")
    good = resource_slice([device("y")], "good", pool=pool("other"))
    inventory = Inventory(slices(bad, good))
    assert devices_of(inventory) == ["y"]
    assert troubles(inventory) == [("gpu.example.com/host", "duplicate device name x")]


def test_a_counter_that_cannot_be_read_spoils_its_pool_only() -> None:
    draw = [{"counterSet": "c", "counters": {"m": {"value": "many"}}}]
    bad = resource_slice([device("x", consumesCounters=draw)], "bad")
    inventory = Inventory(slices(bad, resource_slice([device("y")], "good", pool=pool("other"))))
    assert devices_of(inventory) == ["y"]
    assert 'quantity "many"' in troubles(inventory)[0][1]


def test_slices_with_groups_are_not_used_where_groups_cannot_be_checked() -> None:
    counters = {"m": {"value": "1"}}
    draw = [{"counterSet": "c", "counters": counters, "compatibilityGroups": ["g"]}]
    values = [
        resource_slice([device("x", consumesCounters=draw)], "a", pool=pool(count=3)),
        resource_slice([device("y")], "b", pool=pool(count=3)),
        resource_slice([], "c", pool=pool(count=3), sharedCounters=[{"name": "c", "counters": counters}]),
    ]
    inventory = Inventory(slices(*values))
    assert devices_of(inventory) == ["x", "y"]
    assert devices_of(inventory, features=Features(partitionable_devices=True)) == []


def test_a_node_selector_that_cannot_be_read_is_an_error() -> None:
    term = {"matchExpressions": [{"key": "k", "operator": "Near", "values": ["x"]}]}
    bad = resource_slice(gpus(1), nodeSelector={"nodeSelectorTerms": [term]})
    with pytest.raises(BadPool, match='failed to perform node selection for slice slice: k: "Near" is not'):
        Inventory(slices(bad)).world(HOST, EVERYTHING)


def test_worlds_are_gathered_once_per_node_and_features() -> None:
    inventory = Inventory(slices(resource_slice(gpus(1))))
    assert inventory.world(HOST, EVERYTHING) is inventory.world(Node("host", {"region": "here"}), EVERYTHING)
    assert inventory.world(HOST, EVERYTHING) is not inventory.world(HOST, Features())
    assert inventory.world(HOST, EVERYTHING) is not inventory.world(Node("host"), EVERYTHING)


def test_a_selector_is_evaluated_once_per_device_and_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    plain = dra.Selector.matches

    def counting(self: dra.Selector, view: dra.DeviceView) -> bool:
        evaluated.append(self.expression)
        return plain(self, view)

    monkeypatch.setattr(dra.Selector, "matches", counting)
    classes = [objects.from_builtins(device_class(), objects.DeviceClass)]
    wanted = claims(claim(exactly(count=3)))
    values = slices(resource_slice(gpus(2), "a", pool=pool("a")), resource_slice(gpus(2), "b", pool=pool("b")))
    inventory = Inventory(values)
    for _ in range(3):
        assert Allocator(inventory, classes).allocate(HOST, wanted).results is not None
    assert len(evaluated) == 3  # the fourth device was never needed

    changed = [values[0], *slices(resource_slice(gpus(3), "b", pool=pool("b", generation=2)))]
    outcome = Allocator(Inventory(changed, previous=inventory), classes).allocate(HOST, wanted)
    assert given(outcome) == [["gpus:gpu-0", "gpus:gpu-1", "gpus:gpu-0"]]
    assert len(evaluated) == 4  # only a device of the changed slice was looked at


def test_a_taint_rule_is_not_taken_over_from_a_previous_inventory() -> None:
    rule = {
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {}, "taint": {"key": "out", "effect": "NoSchedule"}},
    }
    values = slices(resource_slice(gpus(1)))
    before = Inventory(values)
    after = Inventory(values, [objects.from_builtins(rule, objects.DeviceTaintRule)], previous=before)
    assert before.world(HOST, EVERYTHING).candidates[0].taints == ()
    assert len(after.world(HOST, EVERYTHING).candidates[0].taints) == 1
    assert after.slices == tuple(values)


def test_a_large_world_keeps_the_answers_and_not_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.claims.inventory._MANY_DEVICES", 2)
    classes = [objects.from_builtins(device_class(), objects.DeviceClass)]
    inventory = Inventory(slices(resource_slice(gpus(3))))
    wanted = claims(claim(exactly(count=3)))
    for _ in range(2):
        assert Allocator(inventory, classes).allocate(HOST, wanted).results is not None
    candidates = inventory.world(HOST, Features.default()).candidates
    assert [candidate.view._shown for candidate in candidates] == [None, None, None]
    assert all(list(candidate.view._answers.values()) == [True] for candidate in candidates)

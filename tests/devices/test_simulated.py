"""The simulated world: what is written is what is offered, and a damaged file is never "off"."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.devices import catalogue
from dibs.devices.inventory import look
from dibs.devices.model import Device, DeviceId, Inventory, Version
from dibs.devices.simulated import (
    DEFAULT_REASON,
    MAX_DEVICES,
    Group,
    World,
    devices_of,
    load,
    off,
    parse_world,
    simulate,
)
from dibs.errors import InvalidRequest, StateError
from dibs.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config")


def offered(home: Home) -> Inventory:
    return look(home, started_by_dibs=lambda _: False)


worlds = st.builds(
    World,
    st.lists(
        st.builds(
            Group,
            st.sampled_from([model.key for model in catalogue.MODELS]),
            st.integers(1, 9),
            st.sampled_from([0, 2, 3, 7]),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
)


@given(worlds)
def test_ids_and_uuids_are_unique(world: World) -> None:
    devices = devices_of(world, "box")
    assert len({device.id for device in devices}) == len(devices)
    assert len({device.uuid for device in devices}) == len(devices)


@given(worlds)
def test_every_alias_names_exactly_one_device(world: World) -> None:
    inventory = Inventory(devices_of(world, "box"))
    for device in inventory.devices:
        for name in (device.id, device.name, device.uuid, *device.aliases):
            assert inventory.find(name) == (device,), name


@given(worlds)
def test_whole_cards_never_share_a_unit(world: World) -> None:
    cards = [device for device in devices_of(world, "box") if device.parent is None]
    taken = Counter(unit for card in cards for unit in card.booked_units)
    assert set(taken.values()) == {1}


@given(worlds)
def test_the_parts_of_a_card_share_units_with_the_card_and_with_nothing_else(world: World) -> None:
    devices = devices_of(world, "box")
    by_id = {device.id: device for device in devices}
    parts: dict[DeviceId, list[Device]] = {}
    for device in devices:
        if device.parent is not None:
            parts.setdefault(device.parent, []).append(device)
    for card_id, siblings in parts.items():
        units = [unit for part in siblings for unit in part.booked_units]
        assert sorted(units) == sorted(by_id[card_id].booked_units)
        assert len(units) == len(set(units)) == len(siblings)


@given(worlds)
def test_a_world_survives_being_written_and_read(world: World) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        home = Home(state=Path(folder), config=Path(folder))
        devices = simulate(home, world)
        assert load(home) == world
        assert offered(home) == Inventory(devices, simulated=True)


def test_a_count_takes_the_model_that_was_named() -> None:
    assert parse_world("8", model="l4") == World((Group("l4", 8),))
    assert [device.model for device in devices_of(parse_world(2, model="l4"))] == ["L4", "L4"]


def test_a_mixed_world_numbers_its_cards_over_all_models() -> None:
    devices = devices_of(parse_world("H100:2, A100-80GB:1,L4"), "box")
    assert [(device.name, device.model, device.index) for device in devices] == [
        ("gpu-0", "H100", 0),
        ("gpu-1", "H100", 1),
        ("gpu-2", "A100-80GB", 2),
        ("gpu-3", "L4", 3),
    ]


def test_a_card_says_what_the_vendors_driver_would_say() -> None:
    (card,) = devices_of(parse_world(1, model="H100"), "box")
    assert card.id == "gpu.nvidia.com/box/gpu-0"
    assert card.attributes["productName"] == "NVIDIA H100 80GB HBM3"
    assert card.attributes["architecture"] == "Hopper"
    assert card.attributes["cudaComputeCapability"] == Version("9.0.0")
    assert card.attributes["driverVersion"] == Version("580.95.5")
    assert card.attributes["type"] == "gpu"
    assert card.attributes["sim.dibs/simulated"] is True
    assert card.capacity == {"memory": 81559 * 1024 * 1024}
    assert card.simulated


def test_cards_of_other_vendors_come_from_their_drivers() -> None:
    devices = devices_of(parse_world("MI300X:1,Max-1550:1"), "box")
    assert [device.driver for device in devices] == ["gpu.amd.com", "gpu.intel.com"]
    assert all("cudaComputeCapability" not in device.attributes for device in devices)


def test_eight_cards_sit_on_four_roots_and_two_numa_nodes() -> None:
    devices = devices_of(parse_world(8), "box")
    roots = [device.attributes["resource.kubernetes.io/pcieRoot"] for device in devices]
    nodes = [device.attributes["resource.kubernetes.io/numaNode"] for device in devices]
    assert nodes == [0, 0, 0, 0, 1, 1, 1, 1]
    assert Counter(Counter(roots).values()) == {2: 4}
    assert len({device.attributes["resource.kubernetes.io/pciBusID"] for device in devices_of(parse_world(64))}) == 64


def test_a_card_is_dev_null_under_its_own_name() -> None:
    (card,) = devices_of(parse_world(1))
    assert card.cdi is not None
    assert card.cdi.cdi_name == "sim.dibs/gpu=0"
    (node,) = card.cdi.edits.device_nodes
    assert (node.path, node.host_path, node.type, node.major, node.minor) == ("/dev/simgpu0", "/dev/null", "c", 1, 3)
    here = os.stat("/dev/null").st_rdev
    assert (os.major(here), os.minor(here)) == (node.major, node.minor)


def test_a_part_has_the_node_of_its_card_and_one_of_its_own() -> None:
    card, first, second = devices_of(parse_world(1, partitions=2))
    assert first.parent == second.parent == card.id
    assert second.cdi is not None
    assert second.cdi.cdi_name == "sim.dibs/gpu=0:1"
    assert [node.path for node in second.cdi.edits.device_nodes] == ["/dev/simgpu0", "/dev/simgpu0p1"]
    assert card.memory is not None
    assert second.memory == card.memory // 2
    assert second.attributes["type"] == "mig"
    assert second.attributes["parentUUID"] == card.uuid


def test_uuids_are_the_same_each_time_and_differ_between_hosts() -> None:
    world = parse_world(2)
    assert [d.uuid for d in devices_of(world, "a")] == [d.uuid for d in devices_of(world, "a")]
    assert not {d.uuid for d in devices_of(world, "a")} & {d.uuid for d in devices_of(world, "b")}


def test_broken_cards_carry_their_reason_and_so_do_their_parts() -> None:
    world = parse_world(3, partitions=2, unhealthy=["1=Xid 79, fell off the bus", "2"])
    health = {device.name: (device.health.ok, device.health.reason) for device in devices_of(world)}
    assert health["gpu-0"] == (True, "")
    assert health["gpu-1"] == health["gpu-1-part-0"] == (False, "Xid 79, fell off the bus")
    assert health["gpu-2"] == (False, DEFAULT_REASON)


def test_broken_cards_may_be_one_list_of_numbers() -> None:
    assert parse_world(4, unhealthy="1, 3").unhealthy == {1: DEFAULT_REASON, 3: DEFAULT_REASON}
    assert parse_world(4, unhealthy="1=hot, noisy").unhealthy == {1: "hot, noisy"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"count_or_spec": "H10"}, 'model "H10": there is no such model; did you mean H100'),
        ({"count_or_spec": 1, "model": "A100"}, "did you mean A100-40GB, A100-80GB"),
        ({"count_or_spec": 0}, 'count "0": must be at least 1'),
        ({"count_or_spec": "-1"}, 'model "-1": there is no such model'),
        ({"count_or_spec": "H100:x"}, 'simulate "H100:x": write a count'),
        ({"count_or_spec": "H100:2,"}, "write a count"),
        ({"count_or_spec": ""}, "write a count"),
        ({"count_or_spec": "H100:2", "model": "L4"}, 'model "L4": a world that names its models'),
        ({"count_or_spec": 1, "partitions": 1}, 'partitions "1": a card can be cut in 2 to'),
        ({"count_or_spec": 1, "partitions": -7}, 'partitions "-7"'),
        ({"count_or_spec": MAX_DEVICES + 1}, "at most 100000 devices"),
        ({"count_or_spec": 20_000, "partitions": 7}, 'count "160000": a world can have at most'),
        ({"count_or_spec": 2, "unhealthy": "2"}, "they are numbered 0 to 1"),
        ({"count_or_spec": 2, "unhealthy": ["one"]}, "name a card by its number"),
        ({"count_or_spec": 2, "unhealthy": "1,1"}, "card 1 is named twice"),
    ],
)
def test_a_world_that_cannot_be_is_refused_with_the_reason(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_world(**arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_all_problems_of_a_world_are_reported_together() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_world("H10:0", partitions=1, unhealthy=["x"])
    assert [problem.field for problem in caught.value.problems] == ["unhealthy", "model", "count", "partitions"]


def test_the_largest_world_is_allowed() -> None:
    assert parse_world(MAX_DEVICES).cards == MAX_DEVICES


def test_switching_on_again_replaces_the_world(home: Home) -> None:
    simulate(home, parse_world(8))
    assert len(offered(home).devices) == 8
    simulate(home, parse_world("L4:2"))
    assert [device.model for device in offered(home).devices] == ["L4", "L4"]
    assert sorted(path.name for path in home.state.iterdir() if path.is_file()) == ["simulated-id", "simulated.json"]


def test_switching_off_says_whether_there_was_a_world(home: Home) -> None:
    simulate(home, parse_world(1))
    assert off(home) is True
    assert off(home) is False
    assert load(home) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"groups":[]}',
        '{"groups":[{"model":"H100","count":"8"}]}',
        '{"groups":[{"model":"H100","count":8}],"extra":1}',
        '{"groups":[{"model":"H900","count":8}]}',
        '{"groups":[{"model":"H100","count":8}],"version":2}',
        '{"groups":[{"model":"H100","count":8}],"unhealthy":{"8":"x"}}',
    ],
)
def test_a_damaged_world_is_an_error_and_offers_nothing(home: Home, text: str) -> None:
    home.make()
    home.simulated.write_text(text)
    with pytest.raises(StateError) as caught:
        load(home)
    assert caught.value.code == "SIMULATED_WORLD_UNUSABLE"
    inventory = offered(home)
    assert inventory.simulated
    assert inventory.devices == ()
    (error,) = inventory.errors
    assert str(home.simulated) in error.reason
    assert "dibs gpus simulate off" in error.remedy


def test_a_world_that_cannot_be_opened_is_an_error_too(home: Home) -> None:
    home.make()
    home.simulated.mkdir()
    inventory = offered(home)
    assert inventory.simulated
    assert "Is a directory" in inventory.errors[0].reason


def test_a_damaged_world_can_be_switched_off(home: Home) -> None:
    home.make()
    home.simulated.write_text("{")
    assert off(home) is True
    assert load(home) is None


def test_a_world_that_cannot_be_written_leaves_no_temporary_file(home: Home) -> None:
    home.make()
    home.simulated.mkdir()
    with pytest.raises(StateError):
        simulate(home, parse_world(1))
    assert [path.name for path in home.state.iterdir() if path.name.startswith(".")] == []

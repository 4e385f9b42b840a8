"""Found devices as slices: right by Kubernetes' rules, in order; a card and its parts are kept apart by counters."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given as given_values
from hypothesis import settings
from hypothesis import strategies as st

from dibs.cdi.spec import ContainerEdits
from dibs.claims import Allocated, DeviceClass, DeviceId, ResourceSlice, validate
from dibs.claims.meta import ObjectMeta
from dibs.claims.slices import DeviceTaint
from dibs.devices.model import CdiAttachment, Device, Health, Inventory, UnitId, Version
from dibs.devices.slices import LEFT_OUT, device_of, in_use, published_id, slices_of
from dibs.errors import NotFound

from .cases import BOX, claim, given, solve, world

ATTACHED = CdiAttachment("x.com/gpu=0", ContainerEdits())


def device(name: str, *units: str, driver: str = "gpu.x.com", **fields: object) -> Device:
    found = Device(driver=driver, pool=BOX, name=name, vendor="x", units=tuple(map(UnitId, units)), attachment=ATTACHED)
    return msgspec.structs.replace(found, **fields)


def mistakes(slices: list[ResourceSlice]) -> list[str]:
    return [str(error) for one in slices for error in validate(one)]


@pytest.mark.parametrize(
    ("spec", "partitions", "unhealthy"),
    [
        ("H100:8", None, None),
        ("H100:128", None, None),
        ("H100:129", None, None),
        ("H100:1500", None, None),
        ("H100:300", None, "5,299"),
        ("A100-80GB:30", 7, None),
        ("H100:3", 64, "1"),
        ("H100:2,MI300X:2,Max-1550:2", 2, None),
    ],
)
def test_slices_are_valid_complete_and_in_order(spec: str, partitions: int | None, unhealthy: str | None) -> None:
    inventory = world(spec, partitions, unhealthy)
    slices = slices_of(inventory, node=BOX)
    assert mistakes(slices) == []
    assert len({one.metadata.name for one in slices}) == len(slices)
    counts: dict[tuple[str, str], int] = {}
    for one in slices:
        key = (one.spec.driver, one.spec.pool.name)
        counts[key] = counts.get(key, 0) + 1
    assert all(one.spec.pool.resource_slice_count == counts[one.spec.driver, one.spec.pool.name] for one in slices)
    by_name = sorted(slices, key=lambda one: (one.spec.driver, one.metadata.name))
    published = [DeviceId(one.spec.driver, one.spec.pool.name, d.name) for one in by_name for d in one.spec.devices]
    by_driver = sorted(inventory.devices, key=lambda device: device.driver)
    assert published == [published_id(device) for device in by_driver]


def test_a_slice_is_as_full_as_its_limit_allows() -> None:
    sizes = [len(one.spec.devices) for one in slices_of(world("H100:300", None, "299"), node=BOX)]
    assert sizes == [128, 128, 44]
    sizes = [len(one.spec.devices) for one in slices_of(world("H100:300", None, "0"), node=BOX)]
    assert sizes == [64, 128, 108]


def test_attributes_keep_their_names_and_kinds() -> None:
    first = slices_of(world("H100:1"), node=BOX)[0].spec.devices[0]
    assert first.attributes["type"].string_value == "gpu"
    assert first.attributes["index"].int_value == 0
    assert first.attributes["sim.dibs/simulated"].bool_value is True
    assert first.attributes["driverVersion"].version_value == "580.95.5"
    assert first.attributes["resource.kubernetes.io/numaNode"].int_value == 0
    assert first.capacity["memory"].value == "81559Mi"


def test_true_and_one_are_not_mixed_up() -> None:
    devices = (device("a", attributes={"x": True}), device("b", attributes={"x": 1}))
    first, second = slices_of(Inventory(devices), node=BOX)[0].spec.devices
    assert (first.attributes["x"].bool_value, first.attributes["x"].int_value) == (True, None)
    assert (second.attributes["x"].bool_value, second.attributes["x"].int_value) == (None, 1)


def test_the_same_devices_give_the_same_slices_at_once() -> None:
    inventory = world("H100:8")
    first = slices_of(inventory, node=BOX)
    assert all(one is other for one, other in zip(first, slices_of(inventory, node=BOX), strict=True))
    assert slices_of(inventory, node="other")[0].spec.node_name == "other"
    tainted = slices_of(inventory, node=BOX, taints={inventory.devices[0].id: [_taint("a/b")]})
    assert tainted[0].spec.devices[0].taints
    assert not slices_of(inventory, node=BOX)[0].spec.devices[0].taints


def _taint(key: str, effect: str = "NoSchedule") -> DeviceTaint:
    return DeviceTaint(key=key, effect=effect)


def test_a_broken_device_is_tainted_with_its_reason() -> None:
    inventory = world("H100:2", None, "1=Xid 79, fallen off the bus!")
    taint = slices_of(inventory, node=BOX)[0].spec.devices[1].taints[0]
    assert (taint.key, taint.value, taint.effect) == ("dibs/unhealthy", "Xid-79-fallen-off-the-bus", "NoSchedule")
    assert given(solve(inventory, claim(1))) == ["gpu-0"]
    assert given(solve(inventory, claim(2))) is None


def test_a_device_that_cannot_be_attached_is_not_given() -> None:
    inventory = Inventory((device("a", attachment=None, unattachable="no node"), device("b")))
    assert slices_of(inventory, node=BOX)[0].spec.devices[0].taints[0].key == "dibs/unattachable"
    assert given(solve(inventory, claim(1))) == ["b"]


def test_of_too_many_taints_those_that_matter_stay() -> None:
    extra = [*(_taint(f"a/n{i}", "None") for i in range(20)), _taint("a/stop")]
    inventory = Inventory((device("a", health=Health(ok=False, reason="x")),))
    slices = slices_of(inventory, node=BOX, taints={inventory.devices[0].id: extra})
    assert mistakes(slices) == []
    assert [taint.key for taint in slices[0].spec.devices[0].taints][:2] == ["dibs/unhealthy", "a/stop"]


# -- a card and its parts


def test_a_card_and_its_parts_exclude_each_other() -> None:
    inventory = world("A100-80GB:2", 7)
    card, part = claim(1, "gpu", name="card"), claim(1, "part", name="part")
    assert given(solve(inventory, card, part)) == ["gpu-0", "gpu-1-part-0"]
    assert given(solve(inventory, part, card)) == ["gpu-0-part-0", "gpu-1"]
    assert given(solve(inventory, claim(14, "part"))) == [f"gpu-{c}-part-{p}" for c in range(2) for p in range(7)]
    assert given(solve(inventory, claim(8, "part", name="parts"), card)) is None


@pytest.mark.parametrize("parts", [2, 32, 33, 64])
def test_every_number_of_parts_is_counted(parts: int) -> None:
    inventory = world("H100:1", parts)
    slices = slices_of(inventory, node=BOX)
    assert mistakes(slices) == []
    sets = [one for published in slices for one in published.spec.shared_counters]
    assert sum(len(one.counters) for one in sets) == parts
    held = Allocated([DeviceId("gpu.nvidia.com", BOX, f"gpu-0-part-{parts - 1}")])
    assert given(solve(inventory, claim(1), allocated=held)) is None
    assert given(solve(inventory, claim(1, "part"), allocated=held)) == ["gpu-0-part-0"]
    held = Allocated([DeviceId("gpu.nvidia.com", BOX, "gpu-0")])
    assert given(solve(inventory, claim(1, "part"), allocated=held)) is None


def test_devices_that_overlap_exclude_each_other() -> None:
    pair = device("pair", "gpu.x.com/box/pair", "gpu.x.com/box/a", "gpu.x.com/box/b")
    inventory = Inventory((device("a"), device("b"), device("c"), pair))
    assert mistakes(slices_of(inventory, node=BOX)) == []
    assert given(solve(inventory, claim(3))) == ["a", "b", "c"]
    assert given(solve(inventory, claim(4))) is None
    held = Allocated([DeviceId("gpu.x.com", BOX, "pair")])
    assert given(solve(inventory, claim(1), allocated=held)) == ["c"]
    held = Allocated([DeviceId("gpu.x.com", BOX, "b")])
    assert given(solve(inventory, claim(2), allocated=held)) == ["a", "c"]


def test_what_counters_cannot_say_is_never_given() -> None:
    other = device("x", "gpu.y.com/box/x", "gpu.x.com/box/a", driver="gpu.y.com")
    inventory = Inventory((device("a"), other))
    assert mistakes(slices_of(inventory, node=BOX)) == []
    assert given(solve(inventory, claim(1))) == ["a"]
    assert given(solve(inventory, claim(2))) is None
    wide = device("wide", *(f"gpu.x.com/box/c{i}" for i in range(100)))
    inventory = Inventory((*(device(f"c{i}") for i in range(100)), wide))
    slices = slices_of(inventory, node=BOX)
    assert mistakes(slices) == []
    assert slices[1].spec.devices[-1].taints[0].value == "too-many-units"


# -- what is held


def test_a_held_card_blocks_its_parts_and_nothing_else() -> None:
    inventory = world("A100-80GB:2", 7)
    card = inventory.devices[0].id
    held: dict[str, str] = {card: "lab"}
    held.update({device.id: "lab" for device in inventory.devices if device.parent == card})
    outcome = solve(inventory, claim(1, "part"), allocated=in_use(inventory, held))
    assert given(outcome) == ["gpu-1-part-0"]
    assert given(solve(inventory, claim(2), allocated=in_use(inventory, held))) is None


def test_a_held_part_blocks_its_card_only() -> None:
    inventory = world("A100-80GB:1", 7)
    card, first = inventory.devices[0].id, inventory.devices[1].id
    allocated = in_use(inventory, {first: "lab", card: "lab"})
    assert list(allocated.devices) == [DeviceId("gpu.nvidia.com", BOX, "gpu-0-part-0")]
    assert given(solve(inventory, claim(1), allocated=allocated)) is None
    assert len(given(solve(inventory, claim(6, "part"), allocated=allocated)) or ()) == 6


def test_a_shareable_card_that_is_held_whole_has_nothing_left() -> None:
    inventory = Inventory((device("a", shareable=True, capacity={"memory": 8 << 30}), device("b")))
    assert mistakes(slices_of(inventory, node=BOX)) == []
    allocated = in_use(inventory, {inventory.devices[0].id: "lab"})
    assert given(solve(inventory, claim(1), allocated=allocated)) == ["b"]


def test_a_lease_of_a_device_that_is_gone_takes_nothing() -> None:
    assert not in_use(world("H100:1"), {"gpu.nvidia.com/box/gpu-9": "lab"}).devices


# -- names and values that Kubernetes forbids


def test_a_result_leads_back_to_its_device() -> None:
    inventory = world("H100:2,MI300X:2", 2)
    outcome = solve(inventory, claim(3), claim(2, "part", name="parts"))
    assert outcome.results is not None
    results = [result for one in outcome.results for result in one.devices.results]
    found = device_of(results, inventory)
    assert [device.id for device in found] == [f"{r.driver}/{r.pool}/{r.device}" for r in results]
    with pytest.raises(NotFound, match=r"gpu\.amd\.com/box/gpu-2"):
        device_of(results, Inventory(()))


def test_forbidden_names_are_spelled_anew_and_found_again() -> None:
    odd = [device("GPU_0", driver="gpu_x.Nvidia.com"), device("gpu.0", driver="gpu_x.Nvidia.com"), device("g" * 80)]
    inventory = Inventory(tuple(odd))
    assert mistakes(slices_of(inventory, node=BOX)) == []
    assert len({published_id(one) for one in odd}) == 3
    outcome = solve(inventory, claim(1, "all-of-it"), classes=_everything())
    assert outcome.results is not None
    assert device_of(outcome.results[0].devices.results, inventory)[0] in odd


def _everything() -> tuple[DeviceClass, ...]:
    return (DeviceClass(metadata=ObjectMeta(name="all-of-it")),)


def test_what_cannot_be_published_is_named() -> None:
    attributes = {"long": "x" * 65, "not a name": 1, "big": 1 << 70, "version": Version("1.2"), "fine": "x" * 64}
    slices = slices_of(Inventory((device("a", attributes=attributes),)), node=BOX)
    assert mistakes(slices) == []
    assert list(slices[0].spec.devices[0].attributes) == ["fine"]
    left_out = slices[0].metadata.annotations[LEFT_OUT]
    assert all(f"a {name} (" in left_out for name in ("long", "not a name", "big", "version"))


def test_more_attributes_than_allowed_are_named() -> None:
    many: dict[str, object] = {f"n{i}": i for i in range(40)}
    slices = slices_of(Inventory((device("a", attributes=many, capacity={"memory": 1}),)), node=BOX)
    assert mistakes(slices) == []
    assert "a n39 (more than 32 attributes)" in slices[0].metadata.annotations[LEFT_OUT]


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=80) | st.from_regex(
    r"[a-z0-9.-]{1,70}", fullmatch=True
)
VALUES = (
    st.booleans()
    | st.integers()
    | st.text(st.characters(codec="utf-8"), max_size=80)
    | st.text("0123456789.-+a", max_size=12).map(Version)
)


@st.composite
def odd_devices(draw: st.DrawFn) -> Device:
    return Device(
        driver=draw(NAMES),
        pool=draw(NAMES),
        name=draw(NAMES),
        vendor="x",
        attributes=draw(st.dictionaries(NAMES, VALUES, max_size=40)),
        capacity=draw(st.dictionaries(NAMES, st.integers(), max_size=4)),
        units=tuple(map(UnitId, draw(st.lists(st.sampled_from("abcdefgh"), max_size=4)))),
        health=Health(ok=draw(st.booleans()), reason=draw(st.text(max_size=80))),
        attachment=draw(st.sampled_from([ATTACHED, None])),
    )


@settings(max_examples=60)
@given_values(st.lists(odd_devices(), max_size=12, unique_by=lambda device: (device.driver, device.pool, device.name)))
def test_whatever_was_found_the_slices_are_valid(devices: list[Device]) -> None:
    inventory = Inventory(tuple(devices))
    slices = slices_of(inventory, node=BOX)
    assert mistakes(slices) == []
    assert len({one.metadata.name for one in slices}) == len(slices)
    assert len({published_id(device) for device in devices}) == len(devices)


@settings(max_examples=60)
@given_values(st.lists(st.frozensets(st.sampled_from("abcdef"), min_size=1, max_size=4), min_size=1, max_size=8))
def test_two_devices_go_together_exactly_if_they_share_no_unit(units: list[frozenset[str]]) -> None:
    devices = tuple(device(f"d{i}", *sorted(own)) for i, own in enumerate(units))
    inventory = Inventory(devices)
    for first in devices:
        for second in devices:
            if first is second:
                continue
            allocated = Allocated([published_id(first)])
            outcome = solve(_only(inventory, first, second), claim(1), allocated=allocated)
            assert (outcome.results is not None) == (not set(first.units) & set(second.units))


def _only(inventory: Inventory, first: Device, second: Device) -> Inventory:
    """All devices, of which only these two can be given."""
    broken = Health(ok=False, reason="not for this test")
    return Inventory(
        tuple(
            one if one in (first, second) else msgspec.structs.replace(one, health=broken) for one in inventory.devices
        )
    )

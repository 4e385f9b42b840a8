"""The quick path chooses what the whole decision chooses, or leaves it to that."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.devices.model import ExternalUse, Inventory
from dibs.devices.simulated import devices_of, parse_world
from dibs.ledger.rows import Holder, LeaseId, unit_key
from dibs.plan.decision import DevicePlan, World
from dibs.plan.devices import plan_devices
from dibs.plan.quick import Free
from dibs.request.spec import parse_spec
from dibs.sandbox import SandboxId

HOLDER = Holder(LeaseId("ls-1"), SandboxId("sb-1"), "a", "b", 0.0, "attached")
OTHER = ExternalUse(4711, "bob", "python")


def box(spec: str, *, busy: tuple[int, ...] = (), broken: tuple[int, ...] = ()) -> Inventory:
    """Simulated cards; those that are `busy` are used outside dibs."""
    devices = devices_of(parse_world(spec, unhealthy=[str(number) for number in broken]))
    return Inventory(
        tuple(
            msgspec.structs.replace(device, used_by=(OTHER,)) if number in busy else device
            for number, device in enumerate(devices)
        ),
        simulated=True,
    )


@st.composite
def worlds(draw: st.DrawFn) -> Inventory:
    groups = draw(st.lists(st.tuples(st.sampled_from(["H100", "L4"]), st.integers(1, 3)), min_size=1, max_size=4))
    cards = st.sets(st.integers(0, sum(count for _, count in groups) - 1), max_size=2)
    spec = ",".join(f"{model}:{count}" for model, count in groups)
    return box(spec, busy=tuple(draw(cards)), broken=tuple(draw(cards)))


SELECTORS = st.sampled_from(
    ["1", "2", "5", "h100:1", "l4:1", "l4:3", "nvidia:2", "40Gi..:1", "..40Gi:2", "amd:1", "all"]
)


@settings(max_examples=300)
@given(worlds(), SELECTORS, st.sets(st.integers(0, 11), max_size=4), st.booleans())
def test_it_agrees_with_the_whole_decision(
    inventory: Inventory, selector: str, taken: set[int], allow_busy: bool
) -> None:
    request = parse_spec({"gpu": selector, "allow_busy": allow_busy}).resources
    ids = [device.id for number, device in enumerate(inventory.devices) if number in taken]
    held = {unit_key(name, simulated=True): HOLDER for name in ids}
    planned = plan_devices(request, World(inventory, held))
    quick = Free(inventory, held.keys()).first(request)
    if quick is not None:
        assert isinstance(planned, DevicePlan)
        assert [device.id for device in quick] == [device.id for device in planned.devices]
    else:
        assert selector == "all" or not isinstance(planned, DevicePlan)


def quick(inventory: Inventory, held: set[str] | None = None, **words: object) -> list[str] | None:
    found = Free(inventory, held or set()).first(parse_spec({"gpu": "1", **words}).resources)
    return None if found is None else [device.name for device in found]


def test_a_card_used_outside_dibs_is_passed_over_unless_asked_for() -> None:
    inventory = box("H100:2", busy=(0,))
    assert quick(inventory) == ["gpu-1"]
    assert quick(inventory, gpu="2") is None
    assert quick(inventory, gpu="2", allow_busy=True) == ["gpu-0", "gpu-1"]


def test_what_does_not_fit_is_passed_over() -> None:
    assert quick(box("H100:1,L4:1,H100:1"), gpu="l4:1") == ["gpu-1"]
    assert quick(box("L4:1,H100:2"), gpu="h100:2") == ["gpu-1", "gpu-2"]


def test_a_broken_or_unattachable_or_held_card_is_passed_over() -> None:
    inventory = box("H100:3", broken=(0,))
    assert quick(inventory) == ["gpu-1"]
    assert quick(inventory, {unit_key(inventory.devices[1].id, simulated=True)}) == ["gpu-2"]
    loose = msgspec.structs.replace(inventory.devices[1], attachment=None)
    assert quick(Inventory((inventory.devices[0], loose, inventory.devices[2]), simulated=True)) == ["gpu-2"]


def test_what_was_taken_is_not_given_again() -> None:
    inventory = box("H100:2")
    free = Free(inventory, set())
    request = parse_spec({"gpu": "1"}).resources
    for name in ("gpu-0", "gpu-1"):
        found = free.first(request)
        assert found is not None
        assert [device.name for device in found] == [name]
        free.take(found)
    assert free.first(request) is None


@pytest.mark.parametrize("gpu", ["all", ["1", "1"], ["h100:1", "l4:1"]])
def test_all_and_several_selectors_are_left_to_the_whole_decision(gpu: object) -> None:
    assert quick(box("H100:2,L4:2"), gpu=gpu) is None


def test_cut_cards_and_exact_devices_are_left_to_the_whole_decision() -> None:
    cut = Inventory(devices_of(parse_world("2", model="H100", partitions=7)), simulated=True)
    whole = Inventory(devices_of(parse_world("4", model="H100")), simulated=True)
    assert Free(cut, set()).first(parse_spec({"gpu": "1"}).resources) is None
    assert Free(whole, set()).first(parse_spec({"device": [whole.devices[0].id]}).resources) is None
    assert Free(whole, set()).first(parse_spec({"gpu": "1", "where": "true"}).resources) is None
    assert Free(whole, set()).first(parse_spec({"gpu": "5"}).resources) is None

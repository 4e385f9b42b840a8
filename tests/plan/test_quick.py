"""The short way through the plan chooses what the planner chooses, or leaves it to the planner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dibs.devices.model import Inventory
from dibs.devices.simulated import devices_of, parse_world
from dibs.ledger.rows import Holder, LeaseId, SandboxId, unit_key
from dibs.plan.planner import DevicePlan, World, plan_devices
from dibs.plan.quick import Free
from dibs.request.spec import parse_spec

HOLDER = Holder(LeaseId("ls-1"), SandboxId("sb-1"), "a", "b", 0.0, "attached")
worlds = st.builds(
    lambda h100, l4, broken: Inventory(
        devices_of(parse_world(f"H100:{h100},L4:{l4}", unhealthy=[str(n) for n in broken if n < h100 + l4])),
        simulated=True,
    ),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sets(st.integers(0, 11), max_size=3),
)
wishes = st.sampled_from(["1", "2", "5", "h100:1", "l4:3", "nvidia:2", "40Gi:1", "amd:1", "all"])


@given(worlds, wishes, st.sets(st.integers(0, 11)))
def test_it_agrees_with_the_planner(inventory: Inventory, wish: str, taken: set[int]) -> None:
    request = parse_spec({"gpu": wish}).resources
    ids = [device.id for number, device in enumerate(inventory.devices) if number in taken]
    held = {unit_key(name, simulated=True): HOLDER for name in ids}
    planned = plan_devices(request, World(inventory, held))
    quick = Free(inventory, held.keys()).first(request)
    if quick is not None:
        assert isinstance(planned, DevicePlan)
        assert [device.id for device in quick] == [device.id for device in planned.devices]
    else:
        assert wish == "all" or not isinstance(planned, DevicePlan)


def test_cut_cards_several_wishes_and_exact_devices_are_left_to_the_planner() -> None:
    cut = Inventory(devices_of(parse_world("2", model="H100", partitions=7)), simulated=True)
    whole = Inventory(devices_of(parse_world("4", model="H100")), simulated=True)
    assert Free(cut, set()).first(parse_spec({"gpu": "1"}).resources) is None
    assert Free(whole, set()).first(parse_spec({"device": [whole.devices[0].id]}).resources) is None
    assert Free(whole, set()).first(parse_spec({"gpu": "1", "where": "true"}).resources) is None
    assert Free(whole, set()).first(parse_spec({"gpu": "5"}).resources) is None

"""What a tenant is told of what is not its own."""

from __future__ import annotations

import msgspec

from dibs.devices.model import ExternalUse
from dibs.workloads.identity import Identity, this_process
from dibs.workloads.service import Workloads
from dibs.workloads.world import veiled_inventory, world_of


def test_a_tenant_learns_that_a_card_is_used_outside_and_not_by_whom(service: Workloads) -> None:
    seen = service.inventory()
    use = ExternalUse(4711, "alice", "container secret-project")
    used = tuple(msgspec.structs.replace(device, used_by=(use,)) for device in seen.devices)
    inventory = msgspec.structs.replace(seen, devices=used)
    tenant = Identity(name="blue", uid=0, tenant="blue", remote=True)
    world = world_of(service.home, service.ledger, inventory, tenant, ahead=None)
    told = msgspec.json.encode(world.inventory.devices).decode() + "".join(
        str(one) for device in world.inventory.devices for one in device.used_by
    )
    assert "outside of dibs" in told
    for word in ("secret-project", "4711", "alice"):
        assert word not in told
    assert veiled_inventory(inventory, this_process()) is inventory

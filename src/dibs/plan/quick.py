"""The quick path: the first free devices, for plain requests that can be served now. Pure.

`workloads.booking` tries this first: most requests want a number of whole cards, and most of the time enough are free.
`devices` would choose the same cards, but it also explains every other device, which is most of the cost on a host with
hundreds of cards. For anything else (several selectors, exact devices, claims, partitioned cards, too few free ones)
the result is None, and `devices` decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from dibs.devices.model import Device, Inventory
from dibs.ledger.rows import unit_key
from dibs.plan.selectors import first_fitting
from dibs.request.model import ALL, Request


class Free:
    """The devices that are free, as long as no earlier request waits and nothing is tainted or shared.

    Made once for all who are served in one transaction; `take` what one of them was given.
    """

    def __init__(self, inventory: Inventory, held: AbstractSet[str]) -> None:
        """`held`: the keys of all booked units."""
        self._plain = not any(device.units or device.parent is not None for device in inventory.devices)
        self._devices = {
            device.id: device
            for device in inventory.devices
            if unit_key(device.id, simulated=device.simulated) not in held
            and device.health.ok
            and device.cdi is not None
        }

    def first(self, request: Request) -> tuple[Device, ...] | None:
        """The devices that `plan_devices` would choose. None: it takes that to tell."""
        if request.needs_allocator or request.devices or len(request.gpus) != 1 or request.gpus[0].count == ALL:
            return None
        if not self._plain:
            return None
        selector = request.gpus[0]
        devices = [device for device in self._devices.values() if request.allow_busy or not device.used_by]
        found = first_fitting(selector, devices, int(selector.count))
        return tuple(found) if len(found) == selector.count else None

    def take(self, devices: Iterable[Device]) -> None:
        """They are booked now."""
        for device in devices:
            self._devices.pop(device.id, None)

"""What this node offers: its devices now, by the names under which they are published, and their slices.

`driver` asks again and again; `prepare` and `plugin` look devices up. Names, pools and ids are those of Kubernetes: the
pool is the node's whole name, because pools of one driver must not meet between nodes. A source that cannot be read is
kept as an error and said; it never makes devices vanish from the cluster (see `Looked.certain`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dibs.claims.identity import DeviceId
from dibs.claims.slices import DeviceTaint, ResourceSlice
from dibs.devices import slices
from dibs.devices.model import Device, Inventory, SourceError
from dibs.devices.model import DeviceId as OwnId
from dibs.devices.simulated import World, devices_of, load
from dibs.home import Home


class Looked(msgspec.Struct, frozen=True):
    """One look at the node."""

    inventory: Inventory
    slices: tuple[ResourceSlice, ...]
    by_id: dict[DeviceId, Device]
    taints: dict[DeviceId, tuple[DeviceTaint, ...]]

    @property
    def drivers(self) -> tuple[str, ...]:
        return tuple(sorted({one.spec.driver for one in self.slices}))

    @property
    def errors(self) -> tuple[SourceError, ...]:
        return self.inventory.errors

    @property
    def certain(self) -> bool:
        """Whether a device that is not there has really gone, rather than not been seen."""
        return not self.inventory.errors


class Source:
    """Where devices come from: a given simulated world, or `dibs.devices.inventory` of this host."""

    def __init__(self, node: str, home: Home, *, world: World | None = None, driver: str = "") -> None:
        self._node = node
        self._home = home
        self._world = world
        self._driver = driver  # publish everything under this name; "": each device under its own

    def look(self) -> Looked:
        inventory = self._inventory()
        devices = tuple(self._renamed(device) for device in inventory.devices)
        inventory = msgspec.structs.replace(inventory, devices=devices)
        made = tuple(slices.slices_of(inventory, node=self._node))
        taints = {
            DeviceId(one.spec.driver, one.spec.pool.name, device.name): device.taints
            for one in made
            for device in one.spec.devices
        }
        return Looked(inventory, made, {slices.published_id(device): device for device in devices}, taints)

    def _inventory(self) -> Inventory:
        if self._world is not None:
            return Inventory(devices_of(self._world, self._node), simulated=True)
        from dibs.devices.inventory import look

        # Whatever uses a card on a node is a pod's business: nothing here was started by dibs.
        found = look(self._home, started_by_dibs=_nothing)
        if found.simulated and not found.errors:
            world = load(self._home)
            if world is not None:  # again, because simulated cards are told apart by the name of their node
                return Inventory(devices_of(world, self._node), simulated=True)
        return found

    def _renamed(self, device: Device) -> Device:
        """The device in the pool of this node. Units stay: they are only compared with each other."""
        driver = self._driver or device.driver
        if device.pool == self._node and driver == device.driver:
            return device
        parent = device.parent
        if parent is not None:
            old_driver, _, name = parent.split("/", 2)
            parent = OwnId(f"{self._driver or old_driver}/{self._node}/{name}")
        units = device.booked_units  # by the old id, where the device is its own unit
        return msgspec.structs.replace(device, driver=driver, pool=self._node, parent=parent, units=units)


def _nothing(pid: int) -> bool:
    del pid
    return False


Look = Callable[[], Looked]

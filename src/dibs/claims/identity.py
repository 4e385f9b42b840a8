"""The names of devices, and which of them are in use.

The ledger builds `Allocated` from its leases (or from the claims of a cluster); the allocator only reads it. A device
is driver, pool and name together; a share of one adds its share id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dibs.claims.capacity import quantity
from dibs.claims.claim import ResourceClaim
from dibs.claims.meta import Amount


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class Allocated:
    """What is taken: whole devices with their holders, shares, and what the shares consume."""

    __slots__ = ("consumed", "devices", "shared")

    def __init__(
        self,
        devices: Mapping[DeviceId, str] | Iterable[DeviceId] = (),
        shared: Mapping[DeviceId, str] | Iterable[DeviceId] = (),
        consumed: Mapping[DeviceId, Mapping[str, Amount]] | None = None,
    ) -> None:
        """`devices` and `shared` may map to the holder's name; `consumed` is the sum over all shares of a device."""
        self.devices: Mapping[DeviceId, str] = _with_holders(devices)
        self.shared: Mapping[DeviceId, str] = _with_holders(shared)
        self.consumed: dict[DeviceId, dict[str, int]] = {
            device: {name: quantity(amount).nanos for name, amount in amounts.items()}
            for device, amounts in (consumed or {}).items()
        }

    @classmethod
    def of_claims(cls, claims: Iterable[ResourceClaim]) -> Allocated:
        """What the claims with an allocation hold. Admin access holds nothing."""
        state = cls()
        devices: dict[DeviceId, str] = {}
        shared: dict[DeviceId, str] = {}
        for claim in claims:
            if claim.status is None or claim.status.allocation is None:
                continue
            namespace = claim.metadata.namespace
            holder = f"{namespace}/{claim.metadata.name}" if namespace else claim.metadata.name
            for result in claim.status.allocation.devices.results:
                if result.admin_access:
                    continue
                device = DeviceId(result.driver, result.pool, result.device)
                if result.share_id is None:
                    devices[device] = holder
                    continue
                shared[device] = f"{shared[device]}, {holder}" if device in shared else holder
                sums = state.consumed.setdefault(device, {})
                for name, amount in result.consumed_capacity.items():
                    sums[name] = sums.get(name, 0) + quantity(amount).nanos
        state.devices = devices
        state.shared = shared
        return state

    def holds(self, device: DeviceId) -> bool:
        """Whether the device is in use at all, whole or in part."""
        return device in self.devices or device in self.shared or device in self.consumed

    def shares(self, device: DeviceId) -> bool:
        """Whether parts of the device are in use."""
        return device in self.shared or device in self.consumed

    def holder(self, device: DeviceId) -> str:
        return self.devices.get(device) or self.shared.get(device) or ""


def _with_holders(devices: Mapping[DeviceId, str] | Iterable[DeviceId]) -> Mapping[DeviceId, str]:
    return devices if isinstance(devices, Mapping) else dict.fromkeys(devices, "")

"""Which optional parts of the model are on, by Kubernetes' feature gate names.

The allocator and the validation ask. dibs itself runs with `Features.default()`, which is what Kubernetes 1.37 has
switched on; a cluster of another version is described by naming its gates. It must not guess: an unknown gate is an
error.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

GATES = {
    "DRAAdminAccess": "admin_access",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRADerivedAttributes": "derived_attributes",
    "DRADeviceBindingConditions": "binding_conditions",
    "DRADeviceCompatibilityGroups": "compatibility_groups",
    "DRADeviceTaints": "device_taints",
    "DRAFractionalCapacityRange": "fractional_capacity_range",
    "DRAListTypeAttributes": "list_type_attributes",
    "DRAOptionalNodeOperations": "optional_node_operations",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRAPrioritizedList": "prioritized_list",
}
# Gates that exist in Kubernetes but change nothing in how devices are chosen here.
_WITHOUT_EFFECT = frozenset(
    {
        "DRADeviceTaintRules",
        "DRAExtendedResource",
        "DRANodeAllocatableResources",
        "DRAResourceClaimDeviceStatus",
        "DRAResourcePoolStatus",
        "DRASchedulerFilterTimeout",
        "DRAWorkloadResourceClaims",
        "DynamicResourceAllocation",
    }
)


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """One switch per gate that changes a decision."""

    admin_access: bool = False
    compatibility_groups: bool = False
    consumable_capacity: bool = False
    derived_attributes: bool = False
    binding_conditions: bool = False
    device_taints: bool = False
    fractional_capacity_range: bool = False
    list_type_attributes: bool = False
    optional_node_operations: bool = False
    partitionable_devices: bool = False
    prioritized_list: bool = False

    @classmethod
    def of(cls, gates: Iterable[str]) -> Features:
        """By Kubernetes' names; gates that only work together may be joined by a plus sign."""
        names = [name for gate in gates for name in gate.split("+")]
        unknown = [name for name in names if name not in GATES and name not in _WITHOUT_EFFECT]
        if unknown:
            raise ValueError(f"unknown feature gates {', '.join(unknown)}; known are {', '.join(GATES)}")
        return cls(**{GATES[name]: True for name in names if name in GATES})

    @classmethod
    def everything(cls) -> Features:
        return cls.of(GATES)

    @classmethod
    def default(cls) -> Features:
        """What Kubernetes 1.37 has switched on."""
        return cls(
            admin_access=True,
            consumable_capacity=True,
            binding_conditions=True,
            device_taints=True,
            fractional_capacity_range=True,
            partitionable_devices=True,
            prioritized_list=True,
        )

    @property
    def gates(self) -> tuple[str, ...]:
        """The names of the gates that are on."""
        return tuple(gate for gate, field in GATES.items() if getattr(self, field))

"""ResourceSlice and DeviceTaintRule: what a driver publishes about devices, and what an admin says about them.

`devices` and `simulate` build slices; `pools` gathers them. Data only: limits and rules live in `validation`.
"""

from __future__ import annotations

import msgspec

from dibs.claims.meta import Amount, Condition, NodeSelector, ObjectMeta, Part, always

API_VERSION = "resource.k8s.io/v1"


class ResourcePool(Part, frozen=True, kw_only=True):
    """The pool that a slice is a part of. A higher generation replaces all slices of a lower one."""

    name: str = always("")
    generation: int = always(0)
    resource_slice_count: int = always(0)


class DeviceAttribute(Part, frozen=True, kw_only=True):
    """One typed value. Exactly one of the fields is set; the list forms need DRAListTypeAttributes."""

    int_value: int | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string_value: str | None = msgspec.field(default=None, name="string")
    version_value: str | None = msgspec.field(default=None, name="version")
    int_values: tuple[int, ...] = msgspec.field(default=(), name="ints")
    bool_values: tuple[bool, ...] = msgspec.field(default=(), name="bools")
    string_values: tuple[str, ...] = msgspec.field(default=(), name="strings")
    version_values: tuple[str, ...] = msgspec.field(default=(), name="versions")


class CapacityRequestPolicyRange(Part, frozen=True, kw_only=True):
    min: Amount | None = None
    max: Amount | None = None
    step: Amount | None = None


class CapacityRequestPolicy(Part, frozen=True, kw_only=True):
    """How a request for a part of a capacity is rounded: to listed values, or to steps in a range."""

    default: Amount | None = None
    valid_values: tuple[Amount, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(Part, frozen=True, kw_only=True):
    value: Amount = always("0")
    request_policy: CapacityRequestPolicy | None = None


class Counter(Part, frozen=True, kw_only=True):
    value: Amount = always("0")


class CounterSet(Part, frozen=True, kw_only=True):
    """Named amounts that several devices of one pool draw from: the memory slices of one GPU, say."""

    name: str = always("")
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class DeviceCounterConsumption(Part, frozen=True, kw_only=True):
    counter_set: str = always("")
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)
    compatibility_groups: tuple[str, ...] = ()


class DeviceTaint(Part, frozen=True, kw_only=True):
    """A reason not to use a device. `None` as the effect only informs."""

    key: str = always("")
    value: str = ""
    effect: str = always("")
    time_added: str | None = None


class NodeAllocatableMapping(Part, frozen=True, kw_only=True):
    capacity_key: str | None = None
    capacity_multiplier: Amount | None = None
    device_multiplier: Amount | None = None


class NodeAllocatableOverhead(Part, frozen=True, kw_only=True):
    per_pod: Amount | None = None
    per_container: Amount | None = None


class NodeAllocatableResource(Part, frozen=True, kw_only=True):
    mapping: NodeAllocatableMapping | None = None
    overhead: NodeAllocatableOverhead | None = None


class Device(Part, frozen=True, kw_only=True):
    """One device. Its identity is driver, pool and name together; the first two stand in the slice."""

    name: str = always("")
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None
    node_allocatable_resources: dict[str, NodeAllocatableResource] = msgspec.field(default_factory=dict)


class ResourceSliceSpec(Part, frozen=True, kw_only=True):
    driver: str = always("")
    pool: ResourcePool = msgspec.field(default_factory=ResourcePool)
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    devices: tuple[Device, ...] = ()
    per_device_node_selection: bool | None = None
    shared_counters: tuple[CounterSet, ...] = ()
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] = ()


class ResourceSlice(Part, frozen=True, kw_only=True, tag_field="kind", tag="ResourceSlice"):
    api_version: str = always(API_VERSION)
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ResourceSliceSpec = msgspec.field(default_factory=ResourceSliceSpec)


class DeviceTaintSelector(Part, frozen=True, kw_only=True):
    """Which devices a rule taints; what is unset matches everything."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Part, frozen=True, kw_only=True):
    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = msgspec.field(default_factory=DeviceTaint)


class DeviceTaintRuleStatus(Part, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = ()


class DeviceTaintRule(Part, frozen=True, kw_only=True, tag_field="kind", tag="DeviceTaintRule"):
    api_version: str = always(API_VERSION)
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: DeviceTaintRuleSpec = msgspec.field(default_factory=DeviceTaintRuleSpec)
    status: DeviceTaintRuleStatus | None = None

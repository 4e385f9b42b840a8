"""ResourceClaim, ResourceClaimTemplate, DeviceClass: what is asked for, and what was given.

`request` builds claims, the allocator reads them and gives what belongs in `status.allocation`; on Kubernetes the
same objects are handed over as they are. Data only: limits and rules live in `validation`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.claims.meta import Amount, Condition, NodeSelector, ObjectMeta, Part, always
from dibs.claims.slices import API_VERSION

EXACT_COUNT = "ExactCount"
ALL = "All"
FROM_CLASS = "FromClass"
FROM_CLAIM = "FromClaim"


class CELDeviceSelector(Part, frozen=True, kw_only=True):
    expression: str = always("")


class DeviceSelector(Part, frozen=True, kw_only=True):
    cel: CELDeviceSelector | None = None


class DeviceToleration(Part, frozen=True, kw_only=True):
    """Which taints are accepted: an empty key (with `Exists`) or effect accepts any."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Part, frozen=True, kw_only=True):
    requests: dict[str, Amount] = msgspec.field(default_factory=dict)


class DeviceDerivedAttribute(Part, frozen=True, kw_only=True):
    name: str = always("")
    expression: str = always("")


class ExactDeviceRequest(Part, frozen=True, kw_only=True):
    """So many devices of one class, or all of them. An unset count means one."""

    device_class_name: str = always("")
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceSubRequest(Part, frozen=True, kw_only=True):
    """One alternative of a `firstAvailable` request."""

    name: str = always("")
    device_class_name: str = always("")
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceRequest(Part, frozen=True, kw_only=True):
    """Either `exactly`, or the first of `firstAvailable` that can be had."""

    name: str = always("")
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Part, frozen=True, kw_only=True):
    """A condition over the devices of several requests; no `requests` means all of them."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueDeviceConfiguration(Part, frozen=True, kw_only=True):
    driver: str = always("")
    parameters: Any = None


class DeviceClaimConfiguration(Part, frozen=True, kw_only=True):
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(Part, frozen=True, kw_only=True):
    requests: tuple[DeviceRequest, ...] = always(())
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(Part, frozen=True, kw_only=True):
    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class DeviceRequestAllocationResult(Part, frozen=True, kw_only=True):
    """One device that was given to one request (`request`, or `request/subrequest`)."""

    request: str = always("")
    driver: str = always("")
    pool: str = always("")
    device: str = always("")
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Amount] = msgspec.field(default_factory=dict)
    skip_node_operations: tuple[str, ...] = ()


class DeviceAllocationConfiguration(Part, frozen=True, kw_only=True):
    source: str = always("")
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(Part, frozen=True, kw_only=True):
    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(Part, frozen=True, kw_only=True):
    """What a claim was given, its configuration, and the nodes it can be used on (unset: everywhere)."""

    devices: DeviceAllocationResult = msgspec.field(default_factory=DeviceAllocationResult)
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(Part, frozen=True, kw_only=True):
    api_group: str = msgspec.field(default="", name="apiGroup")
    resource: str = always("")
    name: str = always("")
    uid: str = always("")


class NetworkDeviceData(Part, frozen=True, kw_only=True):
    interface_name: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""


class AllocatedDeviceStatus(Part, frozen=True, kw_only=True):
    driver: str = always("")
    pool: str = always("")
    device: str = always("")
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[Condition, ...] = ()
    data: Any = None
    network_data: NetworkDeviceData | None = None


class ResourceClaimStatus(Part, frozen=True, kw_only=True):
    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(Part, frozen=True, kw_only=True, tag_field="kind", tag="ResourceClaim"):
    api_version: str = always(API_VERSION)
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus | None = None


class ResourceClaimTemplateSpec(Part, frozen=True, kw_only=True):
    metadata: ObjectMeta | None = None
    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)


class ResourceClaimTemplate(Part, frozen=True, kw_only=True, tag_field="kind", tag="ResourceClaimTemplate"):
    api_version: str = always(API_VERSION)
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ResourceClaimTemplateSpec = msgspec.field(default_factory=ResourceClaimTemplateSpec)


class DeviceClassConfiguration(Part, frozen=True, kw_only=True):
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(Part, frozen=True, kw_only=True):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Part, frozen=True, kw_only=True, tag_field="kind", tag="DeviceClass"):
    """A named kind of device: what must hold for a device to be of it, and how it is set up."""

    api_version: str = always(API_VERSION)
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: DeviceClassSpec = msgspec.field(default_factory=DeviceClassSpec)

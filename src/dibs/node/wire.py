"""The messages between a kubelet and its plugins: names and field numbers of three wire contracts of Kubernetes.

`kubelet` serves and calls them. Registration of plugins, DRA v1 and device plugins v1beta1; nothing else of the
kubelet's interfaces is described here.
"""

from __future__ import annotations

from dibs.protobuf import Messages

REGISTRATION_SERVICE = "pluginregistration.Registration"
DRA_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
DRA_VERSION = "v1.DRAPlugin"  # what a kubelet looks for among the supported versions
PLUGIN_SERVICE = "v1beta1.DevicePlugin"
PLUGIN_REGISTRATION = "v1beta1.Registration"
PLUGIN_VERSION = "v1beta1"

registration = Messages(
    "pluginregistration",
    """
message InfoRequest
message PluginInfo
    string type 1
    string name 2
    string endpoint 3
    *string supported_versions 4
message RegistrationStatus
    bool plugin_registered 1
    string error 2
message RegistrationStatusResponse
""",
).classes

dra = Messages(
    "k8s.io.kubelet.pkg.apis.dra.v1",
    """
message Claim
    string namespace 1
    string uid 2
    string name 3
message NodePrepareResourcesRequest
    *Claim claims 1
message Device
    *string request_names 1
    string pool_name 2
    string device_name 3
    *string cdi_device_ids 4
    ?string share_id 5
message NodePrepareResourceResponse
    *Device devices 1
    string error 2
message NodePrepareResourcesResponse
    map:NodePrepareResourceResponse claims 1
message NodeUnprepareResourcesRequest
    *Claim claims 1
message NodeUnprepareResourceResponse
    string error 1
message NodeUnprepareResourcesResponse
    map:NodeUnprepareResourceResponse claims 1
""",
).classes

plugin = Messages(
    "v1beta1",
    """
message Empty
message DevicePluginOptions
    bool pre_start_required 1
    bool get_preferred_allocation_available 2
message RegisterRequest
    string version 1
    string endpoint 2
    string resource_name 3
    DevicePluginOptions options 4
message NUMANode
    int64 ID 1
message TopologyInfo
    *NUMANode nodes 1
message Device
    string ID 1
    string health 2
    TopologyInfo topology 3
message ListAndWatchResponse
    *Device devices 1
message ContainerAllocateRequest
    *string devices_ids 1
message AllocateRequest
    *ContainerAllocateRequest container_requests 1
message CDIDevice
    string name 1
message ContainerAllocateResponse
    map envs 1
    map annotations 4
    *CDIDevice cdi_devices 5
message AllocateResponse
    *ContainerAllocateResponse container_responses 1
message PreStartContainerRequest
    *string devices_ids 1
message PreStartContainerResponse
""",
).classes

"""The messages of OpenShell's service: names and field numbers of the wire contract of its SDK 0.1.5.

They live in a descriptor pool of their own, so that the SDK can be loaded in the same process. A message that a client
sends is listed here with all of its fields, so that one that dibs does not act on can be named when it is refused. What
is never read or written (policies, say) is an empty message: its content shows up as unknown.

    TYPE name number      *TYPE: repeated    ?TYPE: presence is told    map: string to string    name|group: a oneof
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, struct_pb2, timestamp_pb2
from google.protobuf.message import DecodeError

from dibs.errors import InvalidRequest

PACKAGE = "openshell.v1"
SERVICE = f"{PACKAGE}.OpenShell"

_SCHEMA = """
enum ServiceStatus UNSPECIFIED HEALTHY DEGRADED UNHEALTHY
enum SandboxPhase UNSPECIFIED PROVISIONING READY ERROR DELETING UNKNOWN STOPPING STOPPED STARTING COMPLETED
enum DeletionOutcome UNSPECIFIED COMPLETED ACCEPTED ALREADY_ABSENT
enum SandboxRestartPolicy UNSPECIFIED NEVER ON_FAILURE ALWAYS
enum ServiceAuthorizationMode UNSPECIFIED STRIP BEARER_PASSTHROUGH
enum WorkspacePhase UNSPECIFIED ACTIVE TERMINATING
enum ExtensionKind UNSPECIFIED COMPUTE_DRIVER CREDENTIAL_DRIVER GATEWAY_INTERCEPTOR SUPERVISOR_MIDDLEWARE


message AllWorkspaces
message WorkspaceSelector
    string workspace|selection 1
    AllWorkspaces all_workspaces|selection 2
message ObjectMeta
    string id 1
    string name 2
    Timestamp created_time 103
    map labels 4
    uint64 resource_version 5
    map annotations 6
    string workspace 7
    Timestamp deletion_time 108

message HealthRequest
message HealthResponse
    ServiceStatus status 1
    string version 2
message GetCurrentUserRequest
message GetCurrentUserResponse
    string subject 1
    string display_name 2
    *string roles 3
    *string scopes 4
    string identity_provider 5
message GetGatewayInfoRequest
message GetGatewayInfoResponse
    ServiceStatus status 1
    string gateway_version 2
    *ComputeDriverInfo compute_drivers 3
message ComputeDriverInfo
    string name 1
    ComputeDriverCapabilities capabilities 2
message ComputeDriverCapabilities
    string driver_name 1
    string driver_version 2
    ResourceCapabilities resource_capabilities 3
message ResourceCapabilities
    CpuResourceCapabilities cpu 1
    MemoryResourceCapabilities memory 2
    GpuResourceCapabilities gpu 3
message CpuResourceCapabilities
    bool limit_supported 1
message MemoryResourceCapabilities
    bool limit_supported 1
message GpuResourceCapabilities
    bool default_selection_supported 1
    bool count_selection_supported 2

message SandboxPolicy
message GpuResourceRequirements
    ?uint32 count 1
message ResourceRequirements
    GpuResourceRequirements gpu 1
message SandboxTemplate
    string image 1
    string runtime_class_name 2
    string agent_socket 3
    map labels 4
    map annotations 5
    map environment 6
    Struct resources 7
    ?bool user_namespaces 10
    Struct driver_config 11
message SandboxSpec
    string log_level 1
    map environment 5
    SandboxTemplate template 6
    SandboxPolicy policy 7
    *string providers 8
    ResourceRequirements resource_requirements 9
    *string command 12
    bool tty 13
    string provider_attachment_epoch 14
    SandboxRestartPolicy restart_policy 15
message SandboxServiceExposure
    string service 1
    uint32 target_port 2
    ServiceAuthorizationMode authorization_mode 3
message SandboxCondition
    string type 1
    string status 2
    string reason 3
    string message 4
    Timestamp transition_time 105
message SandboxStatus
    *SandboxCondition conditions 5
    SandboxPhase phase 6
    uint32 current_policy_version 7
    ?int32 exit_code 9
    uint32 restart_count 14
    Timestamp main_process_started_time 16
message SandboxWorkloadTemplateProvenance
    string name 1
    string resource_version 2
message Sandbox
    ObjectMeta metadata 1
    SandboxSpec spec 2
    SandboxStatus status 3
    string host_key_fingerprint 6
    SandboxWorkloadTemplateProvenance created_from_workload_template 20

message CreateSandboxRequest
    WorkspaceSelector workspace_scope 7
    SandboxSpec spec 1
    string name 2
    map labels 3
    map annotations 4
    bool await_main_process_attachment 5
    string workload_template 6
    string request_id 8
    *SandboxServiceExposure service_exposures 9
message SandboxResponse
    Sandbox sandbox 1
    map service_urls 2
message GetSandboxRequest
    WorkspaceSelector workspace_scope 2
    string name 1
message ListSandboxesRequest
    WorkspaceSelector workspace_scope 4
    int32 page_size 1
    string page_token 2
    string label_selector 3
message ListSandboxesResponse
    *Sandbox sandboxes 1
    string next_page_token 2
message DeleteSandboxRequest
    WorkspaceSelector workspace_scope 2
    string name 1
    bool allow_missing 3
    string request_id 4
message DeleteSandboxResponse
    DeletionOutcome outcome 2
    string sandbox_id 3
message StopSandboxRequest
    WorkspaceSelector workspace_scope 2
    string name 1
    string request_id 3
message StartSandboxRequest
    WorkspaceSelector workspace_scope 2
    string name 1
    string request_id 3

message ExecSandboxRequest
    WorkspaceSelector workspace_scope 12
    string sandbox 1
    *string command 2
    string workdir 3
    map environment 4
    Duration execution_timeout 105
    bytes stdin 6
    bool tty 7
    uint32 cols 8
    uint32 rows 9
    bool no_login_shell 10
    string request_id 11
message ExecSandboxStdout
    bytes data 1
message ExecSandboxStderr
    bytes data 1
message ExecSandboxExit
    int32 exit_code 1
message ExecSandboxEvent
    ExecSandboxStdout stdout|payload 1
    ExecSandboxStderr stderr|payload 2
    ExecSandboxExit exit|payload 3
message ExecSandboxWindowResize
    uint32 cols 1
    uint32 rows 2
message ExecSandboxInput
    ExecSandboxRequest start|payload 1
    bytes stdin|payload 2
    ExecSandboxWindowResize resize|payload 3

message GetSandboxLogsRequest
    WorkspaceSelector workspace_scope 6
    string sandbox 1
    uint32 lines 2
    Timestamp since_time 103
    *string sources 4
    string min_level 5
message SandboxLogLine
    string sandbox_id 1
    Timestamp event_time 102
    string level 3
    string target 4
    string message 5
    string source 6
    map fields 7
message GetSandboxLogsResponse
    *SandboxLogLine logs 1
    uint32 buffer_total 2
message WatchSandboxRequest
    WorkspaceSelector workspace_scope 11
    string sandbox 1
    bool follow_status 2
    bool follow_logs 3
    bool follow_events 4
    uint32 log_tail_lines 5
    uint32 event_tail 6
    bool stop_on_terminal 7
    Timestamp since_time 108
    *string log_sources 9
    string log_min_level 10
    string resume_after_cursor 12
message PlatformEvent
    Timestamp event_time 101
    string source 2
    string type 3
    string reason 4
    string message 5
    map metadata 6
message SandboxStreamWarning
    string message 1
message SandboxStreamEvent
    Sandbox sandbox|payload 1
    SandboxLogLine log|payload 2
    PlatformEvent event|payload 3
    SandboxStreamWarning warning|payload 4
    string cursor 6

message Workspace
    ObjectMeta metadata 1
    WorkspaceStatus status 2
message WorkspaceStatus
    WorkspacePhase phase 1
message CreateWorkspaceRequest
    string name 1
    map labels 2
    string request_id 3
message WorkspaceResponse
    Workspace workspace 1
message GetWorkspaceRequest
    string name 1
message ListWorkspacesRequest
    int32 page_size 1
    string page_token 2
    string label_selector 3
message ListWorkspacesResponse
    *Workspace workspaces 1
    string next_page_token 2
message DeleteWorkspaceRequest
    string name 1
    bool allow_missing 2
    string request_id 3
message DeleteResponse
    DeletionOutcome outcome 2

message SandboxResources
    string cpu 1
    string memory 2
    GpuResourceRequirements gpu 3
message SandboxWorkloadConfig
    string image 1
    map environment 2
    SandboxResources resources 3
message SandboxStartup
    Duration ready_within 1
    uint32 max_burst 2
message SandboxServiceLevel
    SandboxStartup startup 1
message SandboxWorkloadTemplateSpec
    SandboxWorkloadConfig workload 1
    Struct driver_config 2
    SandboxServiceLevel desired_service_level 3
message SandboxWorkloadTemplate
    ObjectMeta metadata 1
    SandboxWorkloadTemplateSpec spec 2
message CreateSandboxTemplateRequest
    WorkspaceSelector workspace_scope 2
    SandboxWorkloadTemplate template 1
    string request_id 3
message SandboxTemplateResponse
    SandboxWorkloadTemplate template 1
message GetSandboxTemplateRequest
    WorkspaceSelector workspace_scope 2
    string name 1
message ListSandboxTemplatesRequest
    WorkspaceSelector workspace_scope 4
    int32 page_size 1
    string page_token 2
    string label_selector 3
message ListSandboxTemplatesResponse
    *SandboxWorkloadTemplate templates 1
    string next_page_token 2
message DeleteSandboxTemplateRequest
    WorkspaceSelector workspace_scope 2
    string name 1
    bool allow_missing 3
    string request_id 4

message ExposeServiceRequest
    WorkspaceSelector workspace_scope 5
    string sandbox 1
    string name 2
    uint32 target_port 3
    bool domain 4
    string request_id 6
    ServiceAuthorizationMode authorization_mode 7
message ServiceEndpoint
    ObjectMeta metadata 1
    string sandbox_id 2
    string sandbox 3
    string name 4
    uint32 target_port 5
    bool domain 6
    ServiceAuthorizationMode authorization_mode 7
message ServiceEndpointResponse
    ServiceEndpoint endpoint 1
    string url 2
message GetServiceRequest
    WorkspaceSelector workspace_scope 3
    string sandbox 1
    string name 2
message ListServicesRequest
    WorkspaceSelector workspace_scope 4
    int32 page_size 2
    string page_token 3
    string sandbox 1
message ListServicesResponse
    *ServiceEndpointResponse services 1
    string next_page_token 2
message DeleteServiceRequest
    WorkspaceSelector workspace_scope 3
    string sandbox 1
    string name 2
    bool allow_missing 4
    string request_id 5
"""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "bool": _Field.TYPE_BOOL, "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32, "uint64": _Field.TYPE_UINT64,
}  # fmt: skip
_WELL_KNOWN = {"Struct": struct_pb2, "Timestamp": timestamp_pb2, "Duration": duration_pb2}


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"dibs/{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in _WELL_KNOWN.values())
    lines = [line for line in _SCHEMA.splitlines() if line.strip()]
    enums = {line.split()[1] for line in lines if line.startswith("enum ")}
    for line in lines:
        kind, *words = line.split()
        if kind == "enum":
            _add_enum(file, words[0], words[1:])
        elif kind == "message":
            message = file.message_type.add(name=words[0])
        else:
            _add_field(message, kind, words[0], int(words[1]), enums)
    for message in file.message_type:
        _after_real_groups(message)
    return file


def _add_enum(file: descriptor_pb2.FileDescriptorProto, name: str, values: list[str]) -> None:
    prefix = "".join(f"_{letter}" if letter.isupper() else letter for letter in name)[1:].upper()
    enum = file.enum_type.add(name=name)
    for number, value in enumerate(values):
        enum.value.add(name=f"{prefix}_{value}", number=number)


def _add_field(message: Any, kind: str, name: str, number: int, enums: set[str]) -> None:
    name, _, group = name.partition("|")
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("*"):
        kind, field.label = kind[1:], _Field.LABEL_REPEATED
    elif kind.startswith("?"):
        kind, field.proto3_optional = kind[1:], True
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind in enums:
        field.type, field.type_name = _Field.TYPE_ENUM, f".{PACKAGE}.{kind}"
    elif kind in _WELL_KNOWN:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".google.protobuf.{kind}"
    elif kind == "map":
        entry = message.nested_type.add(name="".join(word.capitalize() for word in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for place, key in enumerate(("key", "value"), 1):
            entry.field.add(name=key, number=place, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    if group:
        names = [one.name for one in message.oneof_decl]
        if group not in names:
            message.oneof_decl.add(name=group)
            names.append(group)
        field.oneof_index = names.index(group)


def _after_real_groups(message: Any) -> None:
    """A field whose presence is told is a oneof of its own; those come behind the real ones."""
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


_POOL = descriptor_pool.DescriptorPool()
for _module in _WELL_KNOWN.values():
    _POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)
_POOL.AddSerializedFile(_described().SerializeToString())
_FILE = _POOL.FindFileByName(f"dibs/{PACKAGE}.proto")
_CLASSES: dict[str, Any] = {
    name: message_factory.GetMessageClass(found) for name, found in _FILE.message_types_by_name.items()
}


def message(name: str) -> Any:
    """The class of a message."""
    return _CLASSES[name]


def number(name: str) -> int:
    """The number of an enum's value, as in SANDBOX_PHASE_READY."""
    found: int = _VALUES[name]
    return found


_VALUES = {value.name: value.number for enum in _FILE.enum_types_by_name.values() for value in enum.values}


def parsed(name: str, data: bytes) -> Any:
    """A message as it came over the wire; raises InvalidRequest if it is none."""
    try:
        return _CLASSES[name].FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"this is not a {name}", field="message", code="MESSAGE_INVALID", remedy="use OpenShell's SDK 0.1"
        ) from error

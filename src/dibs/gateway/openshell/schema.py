"""The messages of OpenShell's service: names and field numbers of the wire contract of its SDK 0.1.5.

They live in a descriptor pool of their own, so that the SDK can be loaded in the same process. A message that a client
sends is listed here with all of its fields, so that one that dibs does not act on can be named when it is refused. What
is never read or written (policies, say) is an empty message: its content shows up as unknown. `dibs.protobuf` says how
the text is read.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from dibs.errors import InvalidRequest
from dibs.protobuf import Messages

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

_MESSAGES = Messages(PACKAGE, _SCHEMA)
_CLASSES = _MESSAGES.classes
_VALUES = _MESSAGES.values


def message(name: str) -> Any:
    """The class of a message."""
    return _CLASSES[name]


def number(name: str) -> int:
    """The number of an enum's value, as in SANDBOX_PHASE_READY."""
    return _VALUES[name]


def name(enum: str, value: int) -> str:
    """The name of an enum's value; the number itself of one that the schema does not have."""
    prefix = "".join(f"_{letter}" if letter.isupper() else letter for letter in enum)[1:].upper()
    return next((key for key, one in _VALUES.items() if key.startswith(f"{prefix}_") and one == value), str(value))


def parsed(name: str, data: bytes) -> Any:
    """A message as it came over the wire; raises InvalidRequest if it is none."""
    try:
        return _CLASSES[name].FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"this is not a {name}", field="message", code="MESSAGE_INVALID", remedy="use OpenShell's SDK 0.1"
        ) from error

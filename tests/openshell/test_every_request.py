"""No field of any request disappears: each one of the SDK's own descriptors has an example that makes a difference.

An example is a request without the field and one with it. What comes of them must differ: another answer, another
sandbox, or a refusal. A release of the SDK with a field that has no example fails the tests, until it has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import json_format, text_format
from openshell._proto import openshell_pb2
from openshell._proto import openshell_pb2 as pb
from openshell.errors import from_grpc_error
from tests.openshell.conftest import Place
from tests.openshell.test_calls import ready, stub

from dibs.errors import InvalidRequest
from dibs.gateway.openshell import schema, templates
from dibs.gateway.openshell.requests import Rules, read_create
from dibs.gateway.openshell.server import METHODS

SERVICE = openshell_pb2.DESCRIPTOR.services_by_name["OpenShell"]
RULES = Rules(backends=("local", "docker", "kubernetes"))


def leaves(descriptor: Any, before: str = "") -> Iterator[str]:
    """The paths of all fields, down to those that hold no message of OpenShell's."""
    for field in descriptor.fields:
        inner = field.message_type
        own = inner is not None and not inner.full_name.startswith("google.") and not inner.GetOptions().map_entry
        if own and inner.fields and inner.name != "FilesystemPolicy" and not inner.full_name.endswith("Policy"):
            yield from leaves(inner, f"{before}{field.name}.")
        elif own and inner.full_name.endswith("SandboxPolicy"):
            yield from (f"{before}{field.name}.{one.name}" for one in inner.fields)
        else:
            yield f"{before}{field.name}"


# -- creating -------------------------------------------------------------------------------------------------------

LIMITS = 'fields {key: "limits" value {struct_value {fields {key: "cpu" value {string_value: "1"}}}}}'
BLOCK = 'fields {key: "vm" value {struct_value {}}}'
# A field of CreateSandboxRequest → an example, in protobuf's text format.
CREATE = {
    "spec.log_level": 'spec {log_level: "debug"}',
    "spec.environment": 'spec {environment {key: "A" value: "b"}}',
    "spec.template.image": 'spec {template {image: "python:3.12"}}',
    "spec.template.runtime_class_name": 'spec {template {runtime_class_name: "nvidia"}}',
    "spec.template.agent_socket": 'spec {template {agent_socket: "/run/agent"}}',
    "spec.template.labels": 'spec {template {labels {key: "team" value: "red"}}}',
    "spec.template.annotations": 'spec {template {annotations {key: "note" value: "mine"}}}',
    "spec.template.environment": 'spec {template {environment {key: "A" value: "b"}}}',
    "spec.template.resources": f"spec {{template {{resources {{{LIMITS}}}}}}}",
    "spec.template.user_namespaces": "spec {template {user_namespaces: false}}",
    "spec.template.driver_config": f"spec {{template {{driver_config {{{BLOCK}}}}}}}",
    "spec.policy.version": "spec {policy {version: 1}}",
    "spec.policy.filesystem": "spec {policy {filesystem {}}}",
    "spec.policy.landlock": "spec {policy {landlock {}}}",
    "spec.policy.process": 'spec {policy {process {run_as_user: "1000"}}}',
    "spec.policy.network_policies": 'spec {policy {network_policies {key: "a" value {}}}}',
    "spec.policy.network_middlewares": "spec {policy {network_middlewares {}}}",
    "spec.providers": 'spec {providers: "github"}',
    "spec.resource_requirements.gpu.count": "spec {resource_requirements {gpu {count: 2}}}",
    "spec.command": 'spec {command: "true"}',
    "spec.tty": "spec {tty: true}",
    "spec.provider_attachment_epoch": 'spec {provider_attachment_epoch: "1"}',
    "spec.restart_policy": "spec {restart_policy: SANDBOX_RESTART_POLICY_ALWAYS}",
    "name": 'name: "mine"',
    "labels": 'labels {key: "team" value: "red"}',
    "annotations": 'annotations {key: "dibs.ttl" value: "1h"}',
    "await_main_process_attachment": "await_main_process_attachment: true",
}
# Those that another part of the gateway reads: `CALLS` has examples of them.
READ_ELSEWHERE = {
    "workspace_scope.workspace", "workspace_scope.all_workspaces", "workload_template", "request_id",
    "service_exposures.service", "service_exposures.target_port", "service_exposures.authorization_mode",
}  # fmt: skip
# A field of SandboxWorkloadTemplate → an example.
TEMPLATE = {
    "metadata.id": 'metadata {id: "x"}',
    "metadata.name": 'metadata {name: "BAD"}',
    "metadata.created_time": "metadata {created_time {seconds: 1}}",
    "metadata.labels": 'metadata {labels {key: "" value: "x"}}',
    "metadata.resource_version": "metadata {resource_version: 1}",
    "metadata.annotations": 'metadata {annotations {key: "dibs.wait" value: "1m"}}',
    "metadata.workspace": 'metadata {workspace: "default"}',
    "metadata.deletion_time": "metadata {deletion_time {seconds: 1}}",
    "spec.workload.image": 'spec {workload {image: "python:3.12"}}',
    "spec.workload.environment": 'spec {workload {environment {key: "A" value: "b"}}}',
    "spec.workload.resources.cpu": 'spec {workload {resources {cpu: "1"}}}',
    "spec.workload.resources.memory": 'spec {workload {resources {memory: "1Gi"}}}',
    "spec.workload.resources.gpu.count": "spec {workload {resources {gpu {count: 2}}}}",
    "spec.driver_config": f"spec {{driver_config {{{BLOCK}}}}}",
    "spec.desired_service_level.startup.ready_within":
        "spec {desired_service_level {startup {ready_within {seconds: 1}}}}",
    "spec.desired_service_level.startup.max_burst": "spec {desired_service_level {startup {max_burst: 1}}}",
}  # fmt: skip


def ours(name: str, text: str) -> Any:
    """A message as the gateway reads it: written by the SDK's class."""
    kind: Any = getattr(pb, name)
    return schema.parsed(name, text_format.Parse(text, kind()).SerializeToString())


def comes_of(request: Any, template: Any = None) -> object:
    try:
        return read_create(request, RULES, template)
    except InvalidRequest as error:
        return error.problems


def test_every_field_of_a_create_request_has_an_example() -> None:
    found = set(leaves(pb.CreateSandboxRequest.DESCRIPTOR))
    assert found == set(CREATE) | READ_ELSEWHERE
    assert set(leaves(pb.SandboxWorkloadTemplate.DESCRIPTOR)) == set(TEMPLATE)


@pytest.mark.parametrize("path", CREATE)
def test_a_field_of_a_create_request_makes_a_difference(path: str) -> None:
    assert comes_of(ours("CreateSandboxRequest", CREATE[path])) != comes_of(ours("CreateSandboxRequest", ""))


@pytest.mark.parametrize("path", TEMPLATE)
def test_a_field_of_a_workload_template_makes_a_difference(path: str) -> None:
    usual = 'metadata {name: "t"} spec {workload {}}'
    request = ours("CreateSandboxRequest", "")

    def outcome(text: str) -> object:
        template = ours("SandboxWorkloadTemplate", text)
        try:
            templates.check(template)
        except InvalidRequest as error:
            return error.problems
        return comes_of(request, template)

    changed = text_format.Parse(usual, pb.SandboxWorkloadTemplate())
    changed.MergeFrom(text_format.Parse(TEMPLATE[path], pb.SandboxWorkloadTemplate()))
    assert outcome(text_format.MessageToString(changed)) != outcome(usual)


# -- all other calls ------------------------------------------------------------------------------------------------


class Example(NamedTuple):
    """Two requests that differ in one field."""

    field: str
    without: str
    changed: str


def adds(field: str, without: str, more: str) -> Example:
    return Example(field, without, without + more)


HERE = 'workspace_scope {workspace: "default"} '
LONG_ID = f'request_id: "{"x" * 129}"'


def of_scope(rest: str = "") -> tuple[Example, ...]:
    elsewhere, everywhere = 'workspace_scope {workspace: "elsewhere"} ', "workspace_scope {all_workspaces {}} "
    return (
        Example("workspace_scope.workspace", HERE + rest, elsewhere + rest),
        Example("workspace_scope.all_workspaces", HERE + rest, everywhere + rest),
    )


def of_pages(without: str) -> tuple[Example, ...]:
    return (adds("page_size", without, "page_size: 1"), adds("page_token", without, 'page_token: "x"'))


def of_name(missing: str, *, repeats: bool = True) -> tuple[Example, ...]:
    """Of a call to something that is not there, so that it has no effect."""
    name = adds("name", HERE + missing, 'name: "missing"')
    found = (*of_scope(f'{missing} name: "missing" '), name)
    return (*found, adds("request_id", name.changed, LONG_ID)) if repeats else found


def of_deletion(missing: str = "") -> tuple[Example, ...]:
    found = of_name(missing)
    return (*found, adds("allow_missing", f'{HERE}{missing} name: "missing" ', "allow_missing: true"))


SELECTOR = 'label_selector: "made=never"'
BAD = 'name: "BAD" '
PASSTHROUGH = "authorization_mode: SERVICE_AUTHORIZATION_MODE_BEARER_PASSTHROUGH"
FIRST, ENDED = 'sandbox: "first" ', 'sandbox: "ended" '
WEB = FIRST + 'name: "web" '
SHOWS = 'command: "sh" command: "-c" command: "pwd; echo $A $FROM_PROFILE; cat" '
SIZE = HERE + FIRST + 'tty: true command: "stty" command: "size" '
TERMINAL = HERE + FIRST + 'command: "sh" command: "-c" command: "test -t 1; echo $?" '
RUN = HERE + FIRST + SHOWS
LOG = HERE + ENDED
WATCH = LOG + "stop_on_terminal: true "
WATCH_LOG, WATCH_EVENTS = WATCH + "follow_logs: true ", WATCH + "follow_events: true "
CALLS: dict[str, tuple[Example, ...]] = {
    "CreateSandbox": (
        *of_scope(BAD), adds("workload_template", HERE + BAD, 'workload_template: "missing"'),
        adds("request_id", HERE + BAD, LONG_ID),
        Example(
            "service_exposures.service", HERE + BAD + "service_exposures {target_port: 1}",
            HERE + BAD + 'service_exposures {target_port: 1 service: "A B"}',
        ),
        Example(
            "service_exposures.target_port", HERE + BAD + "service_exposures {}",
            HERE + BAD + "service_exposures {target_port: 1}",
        ),
        Example(
            "service_exposures.authorization_mode", HERE + BAD + "service_exposures {target_port: 1}",
            HERE + BAD + f"service_exposures {{target_port: 1 {PASSTHROUGH}}}",
        ),
    ),
    "GetSandbox": of_name("", repeats=False),
    "ListSandboxes": (*of_scope(), *of_pages(HERE), adds("label_selector", HERE, SELECTOR)),
    "DeleteSandbox": of_deletion(),
    "StopSandbox": of_name(""),
    "StartSandbox": of_name(""),
    "CreateSandboxTemplate": (*of_scope(), adds("request_id", HERE, LONG_ID)),
    "GetSandboxTemplate": of_name("", repeats=False),
    "ListSandboxTemplates": (*of_scope(), *of_pages(HERE), adds("label_selector", HERE, SELECTOR)),
    "DeleteSandboxTemplate": of_deletion(),
    "ExposeService": (
        *of_scope(WEB + "target_port: 80 "), adds("sandbox", HERE + "target_port: 80 ", FIRST),
        adds("name", HERE + FIRST + "target_port: 80 ", 'name: "web"'),
        adds("target_port", HERE + WEB, "target_port: 80"), adds("domain", HERE + WEB, "target_port: 80 domain: true"),
        adds("request_id", HERE + WEB + "target_port: 80 ", LONG_ID),
        adds("authorization_mode", HERE + WEB + "target_port: 80 ", PASSTHROUGH),
    ),
    "GetService": (*of_name(FIRST, repeats=False), adds("sandbox", HERE + 'name: "web" ', FIRST)),
    "ListServices": (*of_scope(), *of_pages(HERE), adds("sandbox", HERE, ENDED)),
    "DeleteService": (*of_deletion(FIRST), adds("sandbox", HERE + 'name: "missing" ', FIRST)),
    "ExecSandbox": (
        *of_scope(FIRST + SHOWS), adds("sandbox", HERE + SHOWS, FIRST), adds("command", HERE + FIRST, SHOWS),
        adds("workdir", RUN, 'workdir: "/usr"'), adds("environment", RUN, 'environment {key: "A" value: "b"}'),
        adds(
            "execution_timeout", HERE + FIRST + 'command: "sleep" command: "3" ', "execution_timeout {seconds: 1}",
        ),
        adds("stdin", RUN, 'stdin: "words"'), adds("tty", TERMINAL, "tty: true"), adds("cols", SIZE, "cols: 99"),
        adds("rows", SIZE, "rows: 33"), adds("no_login_shell", RUN, "no_login_shell: true"),
        adds("request_id", RUN, LONG_ID),
    ),
    "GetSandboxLogs": (
        *of_scope(ENDED), adds("sandbox", HERE, ENDED), adds("lines", LOG, "lines: 1"),
        adds("since_time", LOG, "since_time {seconds: 9999999999}"), adds("sources", LOG, 'sources: "gateway"'),
        adds("min_level", LOG, 'min_level: "ERROR"'),
    ),
    "WatchSandbox": (
        *of_scope(ENDED + "stop_on_terminal: true follow_status: true "),
        adds("sandbox", HERE + "follow_status: true stop_on_terminal: true ", ENDED),
        adds("follow_status", WATCH, "follow_status: true"), adds("follow_logs", WATCH, "follow_logs: true"),
        adds("follow_events", WATCH, "follow_events: true"), adds("log_tail_lines", WATCH_LOG, "log_tail_lines: 1"),
        adds("event_tail", WATCH_EVENTS, "event_tail: 1"),
        adds("stop_on_terminal", LOG + "follow_status: true ", "stop_on_terminal: true"),
        adds("since_time", WATCH_LOG, "since_time {seconds: 9999999999}"),
        adds("log_sources", WATCH_LOG, 'log_sources: "gateway"'),
        adds("log_min_level", WATCH_LOG, 'log_min_level: "ERROR"'),
        adds("resume_after_cursor", WATCH_EVENTS, 'resume_after_cursor: "999999999"'),
    ),
    "CreateWorkspace": (
        adds("name", "", 'name: "default"'), adds("labels", 'name: "default" ', 'labels {key: "" value: "x"}'),
        adds("request_id", 'name: "default" ', LONG_ID),
    ),
    "GetWorkspace": (adds("name", "", 'name: "default"'),),
    "ListWorkspaces": (*of_pages(""), adds("label_selector", "", SELECTOR)),
    "DeleteWorkspace": (
        adds("name", "", 'name: "default"'), adds("allow_missing", 'name: "none" ', "allow_missing: true"),
        adds("request_id", 'name: "none" ', LONG_ID),
    ),
}  # fmt: skip
# Fields inside these are in the tables above.
INSIDE = {"CreateSandbox": set(CREATE), "CreateSandboxTemplate": {f"template.{path}" for path in TEMPLATE}}
TALK = {"start", "stdin", "resize"}  # of ExecSandboxInteractive: see the tests of conversations


def test_every_field_of_every_call_has_an_example() -> None:
    for method in SERVICE.methods:
        if method.name not in METHODS or method.name == "ExecSandboxInteractive":
            continue
        fields = set(leaves(method.input_type))
        examples = {one.field for one in CALLS.get(method.name, ())} | INSIDE.get(method.name, set())
        assert fields == examples, method.name
    assert {one.name for one in pb.ExecSandboxInput.DESCRIPTOR.fields} == TALK


@pytest.fixture(scope="module")
def stage(local: Place) -> Iterator[Place]:
    """A gateway with a sandbox that runs, one that has ended, a template and two services."""
    client = local.client()
    spec = local.spec()
    spec.command.extend(["sh", "-c", "echo one; echo two; echo three"])
    client.create(workspace="default", spec=spec, name="ended")
    ready(client, local.spec(env={"HOME": "/tmp"}), "first")
    local.gateway.until(lambda: client.get("ended", workspace="default").status.exit_code == 0)
    client.exec("first", ["sh", "-c", "echo export FROM_PROFILE=yes > ~/.profile"], workspace="default")
    for name in ("kept", "other"):
        client.sandbox_templates().create(workspace="default", name=name)
        asked = f'{HERE} sandbox: "first" name: "{name}" target_port: 8080'
        stub(local).ExposeService(text_format.Parse(asked, pb.ExposeServiceRequest()))
    yield local
    for name in ("kept", "other"):
        client.sandbox_templates().delete(name, workspace="default")
    local.clear()


def seen(place: Place, method: str, text: str) -> object:
    """What a client sees of a call, without what is another each time."""
    described = SERVICE.methods_by_name[method]
    kind: Any = getattr(pb, described.input_type.name)
    call = getattr(stub(place, place.gateway.token if "Workspace" in method else ""), method)
    try:
        found = call(text_format.Parse(text, kind()), timeout=4 if "follow" in text and "stop" not in text else 60)
        answers = list(found) if described.server_streaming else [found]
    except grpc.RpcError as caught:
        error: Any = from_grpc_error(caught)
        return error.code(), error.error_info and error.error_info.reason, str(error.field_violations)
    if method == "ExecSandbox":  # output comes in other pieces each time
        said = (b"".join(one.stdout.data for one in answers), b"".join(one.stderr.data for one in answers))
        return *said, answers[-1].exit.exit_code
    return [steady(json_format.MessageToDict(one)) for one in answers]


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        passing = ("Time", "Version", "id", "Id", "cursor")
        return {key: steady(one) for key, one in value.items() if not key.endswith(passing)}
    return [steady(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("method", CALLS)
def test_a_field_of_a_call_makes_a_difference(stage: Place, method: str) -> None:
    for one in CALLS[method]:
        before, after = seen(stage, method, one.without), seen(stage, method, one.changed)
        assert before != after, (one.field, before)
        assert "INTERNAL" not in str((before, after)), one.field

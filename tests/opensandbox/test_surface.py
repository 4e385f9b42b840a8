"""Every operation of the SDK's generated API, called as the SDK calls it. The answer must be one that it documents and
that its own parser takes. The modules are walked: an operation of a newer SDK fails here until it is reviewed.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import opensandbox.api
import pytest
from opensandbox.api.egress.models import NetworkRule, NetworkRuleAction
from opensandbox.api.execd import models as execd
from opensandbox.api.execd.types import File
from opensandbox.api.lifecycle import models as lifecycle
from tests.opensandbox.conftest import Place

GROUPS = ("lifecycle", "diagnostic", "execd", "egress")
LATER = datetime.now(UTC) + timedelta(hours=1)
NONE = uuid.UUID(int=0)
STREAMS = {"run_command", "run_in_session", "run_code", "watch_metrics", "run_in_isolated_session"}
NOT_OFFERED = 501  # where the SDK documents no 501, it shows our code and message as text

# operation → (its arguments, the status that we must answer). `$x` stands for what an earlier answer gave.
CALLS: dict[str, tuple[dict[str, Any], int]] = {
    # lifecycle and diagnostics
    "report_metrics_event": (
        {"body": lifecycle.MetricsEvent.from_dict(
            {"eventType": "sandbox.create", "createDurationMs": 5, "success": True})}, 204),
    "post_sandboxes": ({"body": "$create"}, 202),
    "get_sandboxes": ({"state": ["Running", "Pending"], "metadata": "a=b", "page": 1, "page_size": 5}, 200),
    "get_sandboxes_sandbox_id": ({"sandbox_id": "$id"}, 200),
    "get_sandboxes_sandbox_id_endpoints_port": ({"sandbox_id": "$id", "port": 44772}, 200),
    "patch_sandboxes_sandbox_id_metadata": (
        {"sandbox_id": "$id", "body": lifecycle.PatchSandboxMetadataRequest.from_dict({"a": "c"})}, 200),
    "post_sandboxes_sandbox_id_pause": ({"sandbox_id": "$id"}, 202),
    "post_sandboxes_sandbox_id_resume": ({"sandbox_id": "$id"}, 202),
    "post_sandboxes_sandbox_id_renew_expiration": (
        {"sandbox_id": "$id", "body": lifecycle.RenewSandboxExpirationRequest(expires_at=LATER)}, 200),
    "get_sandboxes_sandbox_id_diagnostics_logs": ({"sandbox_id": "$id", "scope": "container"}, 200),
    "get_sandboxes_sandbox_id_diagnostics_events": ({"sandbox_id": "$id", "scope": "all"}, 200),
    "get_snapshots": ({"state": ["Ready"]}, 200),
    "post_sandboxes_sandbox_id_snapshots": (
        {"sandbox_id": "$id", "body": lifecycle.CreateSnapshotRequest(name="s")}, 409),
    "get_snapshots_snapshot_id": ({"snapshot_id": "snap-none"}, 404),
    "delete_snapshots_snapshot_id": ({"snapshot_id": "snap-none"}, 404),
    "list_templates": ({}, NOT_OFFERED),
    "create_template": ({"body": lifecycle.CreateFsbTemplateRequest(image="host", publish="p")}, NOT_OFFERED),
    "get_template": ({"template_id": "t"}, NOT_OFFERED),
    "delete_template": ({"template_id": "t"}, NOT_OFFERED),
    "get_sandbox_network_policy": ({"sandbox_id": "$id"}, NOT_OFFERED),
    "replace_sandbox_network_policy": ({"sandbox_id": "$id", "body": lifecycle.NetworkPolicy()}, NOT_OFFERED),
    "patch_sandbox_network_policy": ({"sandbox_id": "$id", "body": []}, NOT_OFFERED),
    "delete_sandbox_network_policy_rules": ({"sandbox_id": "$id", "body": ["x"]}, NOT_OFFERED),
    # execd
    "ping": ({}, 200),
    "run_command": ({"body": execd.RunCommandRequest(command="echo hi")}, 200),
    "get_command_status": ({"id": "none"}, 404),
    "get_background_command_logs": ({"id": "none"}, 404),
    "interrupt_command": ({"id": "none"}, 400),
    "create_session": ({"body": execd.CreateSessionRequest(cwd="/tmp")}, 200),
    "run_in_session": ({"session_id": "$session", "body": execd.RunInSessionRequest(command="echo hi")}, 200),
    "delete_session": ({"session_id": "$session"}, 200),
    "make_dirs": ({"body": execd.MakeDirsBody.from_dict({"/tmp/s": {"mode": 755}})}, 200),
    "upload_file": ({"body": execd.UploadFileBody(
        metadata='{"path": "/tmp/s/f.txt", "mode": 644}', file=File(io.BytesIO(b"text"), file_name="f.txt"))}, 200),
    "get_files_info": ({"path": ["/tmp/s/f.txt"]}, 200),
    "download_file": ({"path": "/tmp/s/f.txt"}, 200),
    "search_files": ({"path": "/tmp/s", "pattern": "*"}, 200),
    "list_directory": ({"path": "/tmp/s"}, 200),
    "chmod_files": ({"body": execd.ChmodFilesBody.from_dict({"/tmp/s/f.txt": {"mode": 600}})}, 200),
    "replace_content": (
        {"body": execd.ReplaceContentBody.from_dict({"/tmp/s/f.txt": {"old": "t", "new": "T"}}), "verbose": True}, 200),
    "rename_files": ({"body": [execd.RenameFileItem(src="/tmp/s/f.txt", dest="/tmp/s/g.txt")]}, 200),
    "remove_files": ({"path": ["/tmp/s/g.txt"]}, 200),
    "remove_dirs": ({"path": ["/tmp/s"]}, 200),
    "get_metrics": ({}, 200),
    "watch_metrics": ({}, 200),
    # the egress sidecar
    "get_policy": ({}, NOT_OFFERED),
    "patch_policy": ({"body": [NetworkRule(NetworkRuleAction.ALLOW, "x")]}, NOT_OFFERED),
    "delete_policy": ({"body": ["x"]}, NOT_OFFERED),
    "delete_credential_vault": ({}, NOT_OFFERED),
    "get_credential_vault": ({}, NOT_OFFERED),
    "get_credential_vault_bindings": ({}, NOT_OFFERED),
    "get_credential_vault_bindings_binding_name": ({"binding_name": "b"}, NOT_OFFERED),
    "get_credential_vault_credentials": ({}, NOT_OFFERED),
    "get_credential_vault_credentials_credential_name": ({"credential_name": "c"}, NOT_OFFERED),
    "patch_credential_vault": ({"body": SimpleNamespace(to_dict=dict)}, NOT_OFFERED),
    "post_credential_vault": ({"body": SimpleNamespace(to_dict=dict)}, NOT_OFFERED),
    # last of all
    "delete_sandboxes_sandbox_id": ({"sandbox_id": "$id"}, 204),
}  # fmt: skip
# Sessions of their own namespaces and code in Jupyter: whole groups that have one answer.
ISOLATED = {"session_id": NONE, "run_id": NONE, "path": "/tmp"}
CODE = {"context_id": "none", "id": "none", "language": "python"}


def operations(group: str) -> Iterator[tuple[str, ModuleType]]:
    """The modules of one generated API, by the name of the operation."""
    package = importlib.import_module(f"opensandbox.api.{group}.api")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.ispkg:
            yield found.name.rpartition(".")[2], importlib.import_module(found.name)


def documented(module: ModuleType) -> set[int]:
    assert module.__file__
    return {int(code) for code in re.findall(r"status_code == (\d+)", Path(module.__file__).read_text())}


def test_every_operation_of_the_sdk_has_been_looked_at() -> None:
    found = {name: module.__name__ for group in GROUPS for name, module in operations(group)}
    others = {name for name, module in found.items() if ".isolated_execution." in module or ".code_inter" in module}
    assert set(found) - others == set(CALLS)
    groups = {found.name for found in pkgutil.iter_modules(opensandbox.api.__path__) if found.ispkg}
    assert groups == set(GROUPS)


def problem(name: str, module: ModuleType, answer: httpx.Response, status: int) -> str:
    """What is wrong with an answer; empty if nothing."""
    if answer.status_code != status:
        return f"{name}: {answer.status_code} instead of {status}: {answer.text[:300]}"
    if status >= 400 and not {"code", "message"} <= set(answer.json()):
        return f"{name}: no code and message in {answer.text[:300]}"
    if status not in documented(module):
        return "" if status == NOT_OFFERED else f"{name}: {status} is not documented"
    if name in STREAMS and status < 300:
        return "" if answer.headers["content-type"].startswith("text/event-stream") else f"{name}: not a stream"
    try:
        module._parse_response(client=SimpleNamespace(raise_on_unexpected_status=True), response=answer)
    except Exception as error:  # noqa: BLE001 - whatever its parser does not like is what we want to know
        return f"{name}: {type(error).__name__} {error} in {answer.text[:300]}"
    return ""


def call(base: str, headers: dict[str, str], name: str, module: ModuleType, args: dict[str, Any]) -> httpx.Response:
    words = module._get_kwargs(**args)
    words["headers"] = {**words.get("headers", {}), **headers}
    with httpx.Client(base_url=base, timeout=120) as client:
        if name != "watch_metrics":
            return client.request(**words)
        with client.stream(**words) as stream:  # it does not end by itself
            next(stream.iter_lines())
            return httpx.Response(stream.status_code, headers=stream.headers, content=b"")


def test_every_answer_is_one_that_the_sdk_documents_and_parses(place: Place) -> None:
    known: dict[str, Any] = {"$create": lifecycle.CreateSandboxRequest.from_dict(
        {"image": {"uri": place.image}, "entrypoint": ["sleep", "1000"], "timeout": 600, "resourceLimits": {"gpu": "1"},
         "metadata": {"a": "b"}, "extensions": {"dibs.backend": place.backend}})}  # fmt: skip
    modules = {name: (group, module) for group in GROUPS for name, module in operations(group)}
    key = {"OPEN-SANDBOX-API-KEY": place.token}
    own: dict[str, str] = {}
    wrong: list[str] = []
    for name, (args, status) in CALLS.items():
        group, module = modules[name]
        filled = {key: known.get(value, value) if isinstance(value, str) else value for key, value in args.items()}
        base = f"http://{place.domain}/v1"
        if group in ("execd", "egress"):
            base = f"{base}/sandboxes/{known['$id']}/proxy/{44772 if group == 'execd' else 18080}"
        answer = call(base, own if group in ("execd", "egress") else key, name, module, filled)
        wrong.append(problem(name, module, answer, status))
        if name == "post_sandboxes":
            known["$id"] = answer.json()["id"]
        elif name == "get_sandboxes_sandbox_id_endpoints_port":
            own = answer.json()["headers"]
        elif name == "create_session":
            known["$session"] = answer.json().get("session_id", "none")
    assert [one for one in wrong if one] == []


@pytest.mark.parametrize("group", ["isolated_execution", "code_interpreting"])
def test_groups_that_are_not_offered_answer_so_in_a_form_that_the_sdk_parses(place: Place, group: str) -> None:
    sandbox = place.made()
    own = place.ask("GET", f"/v1/sandboxes/{sandbox}/endpoints/44772").data["headers"]
    base = f"http://{place.domain}/v1/sandboxes/{sandbox}/proxy/44772"
    wrong = []
    for name, module in operations("execd"):
        if f".{group}." not in module.__name__:
            continue
        wanted = module._get_kwargs.__code__.co_varnames[
            : module._get_kwargs.__code__.co_argcount + module._get_kwargs.__code__.co_kwonlyargcount
        ]
        given = {**ISOLATED, **CODE, "body": SimpleNamespace(to_dict=dict, to_multipart=list)}
        if name in ("isolated_get_files_info", "isolated_remove_files", "isolated_remove_dirs"):
            given["path"] = ["/tmp"]
        if name == "isolated_rename_files":
            given["body"] = []
        args = {key: given[key] for key in wanted if key in given}
        answer = call(base, own, name, module, args)
        if name == "isolated_capabilities":
            assert module._parse_response(client=SimpleNamespace(), response=answer).available is False
        elif answer.status_code not in documented(module) | {NOT_OFFERED} or answer.status_code < 400:
            wrong.append(f"{name}: {answer.status_code} {answer.text[:200]}")
        elif not {"code", "message"} <= set(answer.json()):
            wrong.append(f"{name}: {answer.text[:200]}")
    assert wrong == []

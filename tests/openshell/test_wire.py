"""The wire: our messages have the SDK's names, numbers and types; errors have a code for each class, and details."""

from __future__ import annotations

import ast
from pathlib import Path

import grpc
import pytest
from openshell._proto import datamodel_pb2, openshell_pb2

import dibs
from dibs import errors
from dibs.errors import Busy, DibsError, InvalidRequest, Problem
from dibs.gateway.openshell import schema
from dibs.gateway.openshell.errors import answer_of
from dibs.gateway.openshell.refusals import not_offered
from dibs.gateway.openshell.server import METHODS
from dibs.gateway.problems import GRPC, GRPC_OF_CODE, GRPC_OF_STATUS, STATUS

# Ours under another name, because several of theirs are alike.
ALIASES = {"WorkspaceResponse": "CreateWorkspaceResponse", "DeleteResponse": "DeleteSandboxTemplateResponse"}
NOT_THEIRS = {"SandboxPolicy"}  # never read; in another file of theirs
# Statuses of what is wrong as HTTP before any handler has seen it; 500 is INTERNAL, as everything that is not listed.
ONLY_HTTP = {405, 431, 500}
OF_OTHER_APIS = {"Refused", "RuntimeProblem", "ScriptFailed"}  # an HTTP status; what OpenSandbox's execd answers
SERVICE = openshell_pb2.DESCRIPTOR.services_by_name["OpenShell"]


def messages() -> list[str]:
    return sorted(set(schema._CLASSES) - NOT_THEIRS)


@pytest.mark.parametrize("name", messages())
def test_a_message_has_the_fields_of_the_sdk(name: str) -> None:
    theirs_name = ALIASES.get(name, name)
    theirs = openshell_pb2.DESCRIPTOR.message_types_by_name.get(theirs_name)
    theirs = theirs or datamodel_pb2.DESCRIPTOR.message_types_by_name[theirs_name]
    fields = {field.name: field for field in theirs.fields}
    for field in schema.message(name).DESCRIPTOR.fields:
        other = fields[field.name]
        assert (field.number, field.type, field.is_repeated, field.has_presence) == (
            other.number,
            other.type,
            other.is_repeated,
            other.has_presence,
        ), field.name


SENT = sorted({method.takes for method in METHODS.values()} | {"SandboxSpec", "SandboxTemplate"})


@pytest.mark.parametrize("name", SENT)
def test_a_message_that_clients_send_has_all_fields_of_the_sdk(name: str) -> None:
    theirs = openshell_pb2.DESCRIPTOR.message_types_by_name[name]
    ours = schema.message(name).DESCRIPTOR
    assert {field.name for field in theirs.fields} == {field.name for field in ours.fields}


def test_every_method_of_the_service_is_served_or_refused_with_what_to_use_instead() -> None:
    theirs = {method.name: method for method in SERVICE.methods}
    assert set(METHODS) <= set(theirs)
    for name in set(theirs) - set(METHODS):
        refusal = not_offered(name)
        assert refusal.status == 501
        assert refusal.problems[0].remedy
        assert "no such method" not in refusal.problems[0].reason, name
    for name, method in METHODS.items():
        kind = {(False, False): "unary", (False, True): "stream", (True, True): "talk"}
        assert method.kind == kind[theirs[name].client_streaming, theirs[name].server_streaming]


def tree(kind: type[DibsError]) -> list[type[DibsError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


def test_every_error_has_a_code_next_to_its_http_status() -> None:
    assert set(GRPC) == set(STATUS)
    for name in (*GRPC.values(), *GRPC_OF_CODE.values(), *GRPC_OF_STATUS.values()):
        assert grpc.StatusCode[name]
    known = {kind.__name__ for kind in tree(DibsError) if kind.__module__ == errors.__name__}
    for kind in (kind for kind in tree(DibsError) if kind is not DibsError and kind.__module__ == errors.__name__):
        assert any(parent in GRPC for parent in kind.__mro__), kind
    for path in Path(*dibs.__path__).rglob("*.py"):  # errors of other modules are of these kinds
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.ClassDef) and "DibsError" in [getattr(base, "id", "") for base in one.bases]:
                assert one.name in known | OF_OTHER_APIS, f"{path}: {one.name}"


def test_every_status_that_a_gateway_refuses_with_is_a_code_too() -> None:
    statuses = {
        int(call.args[0].value)
        for path in Path(*dibs.__path__, "gateway").rglob("*.py")
        if "kubeflow" not in path.parts
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Refused" and call.args
        and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, int)
    }  # fmt: skip
    assert statuses - set(GRPC_OF_STATUS) == ONLY_HTTP


def test_an_error_says_what_was_asked_for_and_who_has_it() -> None:
    from google.rpc import error_details_pb2, status_pb2

    answer = answer_of(Busy("held", field="gpu", value="1", code="DEVICES_BUSY"), {"held_by": "gpu-0=training"})
    status = status_pb2.Status.FromString(answer.details)
    assert (status.code, status.message) == (answer.code.value[0], answer.words)
    info, violations, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail, kind in zip(status.details, (info, violations, retry), strict=True):
        assert detail.Unpack(kind)
    assert (info.reason, info.metadata["held_by"], info.metadata["requested"]) == (
        "DEVICES_BUSY",
        "gpu-0=training",
        "1",
    )
    assert violations.field_violations[0].field == "gpu"
    assert retry.retry_delay.seconds > 0


def test_many_problems_fit_into_what_a_client_takes() -> None:
    many = InvalidRequest([Problem("X", f"field.{number}", "ü" * 500, "w" * 500) for number in range(200)])
    answer = answer_of(many)
    assert len(answer.words.encode()) + len(answer.details) * 4 / 3 < 8000

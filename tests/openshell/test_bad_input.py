"""What every call makes of input that is wrong: the right status, the field named, and nothing is left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from openshell._proto import datamodel_pb2, openshell_pb2
from openshell._proto import openshell_pb2 as pb
from tests.openshell.conftest import Place
from tests.openshell.test_calls import DEFAULT, processes, ready, refused, stub

from dibs.gateway.openshell.server import METHODS
from dibs.ledger.store import Ledger

SERVICE = openshell_pb2.DESCRIPTOR.services_by_name["OpenShell"]
UNARY = sorted(name for name, method in METHODS.items() if method.kind == "unary" and name != "Health")
IN_A_WORKSPACE = sorted(
    method.name for method in SERVICE.methods
    if method.name in METHODS and "workspace_scope" in method.input_type.fields_by_name
)  # fmt: skip
UNKNOWN = bytes([0xF8, 0x06, 0x01])  # field 111


def raw(place: Place, method: str, data: bytes, token: str = "") -> Any:
    """A call whose message the SDK would not write."""
    channel, path = place.client(token)._channel, f"/openshell.v1.OpenShell/{method}"
    streams = SERVICE.methods_by_name[method].server_streaming
    make = channel.unary_stream if streams else channel.unary_unary
    found = make(path, request_serializer=bytes, response_deserializer=bytes)(data, timeout=30)
    return list(found) if streams else found


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"ExecSandboxInteractive"}))
def test_an_unknown_field_is_named_by_every_call(place: Place, method: str) -> None:
    with refused("INVALID_ARGUMENT", "UNKNOWN_FIELD") as caught:
        raw(place, method, UNKNOWN + _scope(method), place.gateway.token)
    assert "111" in [one.field for one in caught.error.field_violations]


def test_an_unknown_field_inside_another_is_named_with_its_place(place: Place) -> None:
    inner = pb.SandboxSpec().SerializeToString() + UNKNOWN
    data = pb.CreateSandboxRequest(workspace_scope=DEFAULT).SerializeToString() + bytes([0x0A, len(inner)]) + inner
    with refused("INVALID_ARGUMENT", "UNKNOWN_FIELD") as caught:
        raw(place, "CreateSandbox", data)
    assert [one.field for one in caught.error.field_violations] == ["spec.111"]


def test_an_unknown_field_in_the_middle_of_a_conversation_ends_it_and_its_process(place: Place) -> None:
    name = ready(place.client(), place.spec())
    asked = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox=name, command=["sleep", "4351"])
    start = pb.ExecSandboxInput(start=asked).SerializeToString()
    call = place.client()._channel.stream_stream(
        "/openshell.v1.OpenShell/ExecSandboxInteractive", request_serializer=bytes, response_deserializer=bytes
    )
    with refused("INVALID_ARGUMENT", "UNKNOWN_FIELD"):
        list(call(iter([start, UNKNOWN]), timeout=60))
    place.gateway.until(lambda: processes(place, name, "435[1]") == 0)


def _scope(method: str, workspace: str = "default") -> bytes:
    """A message with nothing but a workspace, where the call has one."""
    if method not in IN_A_WORKSPACE:
        return b""
    selector = datamodel_pb2.WorkspaceSelector(workspace=workspace)
    kind: Any = getattr(pb, SERVICE.methods_by_name[method].input_type.name)
    data: bytes = kind(workspace_scope=selector).SerializeToString()
    return data


@pytest.mark.parametrize("method", IN_A_WORKSPACE)
@pytest.mark.parametrize("workspace", ["team-a", "missing", "../team-a", "TEAM-A", "a" * 5000])
def test_another_tenants_workspace_is_as_unknown_as_one_that_never_was(
    place: Place, method: str, workspace: str
) -> None:
    with refused("NOT_FOUND", "WORKSPACE_NOT_FOUND") as caught:
        raw(place, method, _scope(method, workspace), place.other)
    assert "team-a" not in caught.error.details().replace(workspace, "")


@pytest.mark.parametrize("method", UNARY)
@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe"])
def test_bytes_that_are_no_message_are_refused_by_every_call(place: Place, method: str, data: bytes) -> None:
    with refused("INVALID_ARGUMENT") as caught:
        raw(place, method, data, place.gateway.token)
    assert caught.error.error_info.reason in ("MESSAGE_INVALID", "UNKNOWN_FIELD")


@pytest.mark.parametrize("name", ["", "../x", "a" * 5000, "a b", "ä", "a\x00b", "%", "_"])
def test_a_name_that_nothing_has_is_not_found(place: Place, name: str) -> None:
    calls = stub(place)
    for call in (
        lambda: calls.GetSandbox(pb.GetSandboxRequest(workspace_scope=DEFAULT, name=name)),
        lambda: calls.DeleteSandbox(pb.DeleteSandboxRequest(workspace_scope=DEFAULT, name=name)),
        lambda: list(calls.ExecSandbox(pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox=name, command=["true"]))),
        lambda: calls.GetSandboxTemplate(pb.GetSandboxTemplateRequest(workspace_scope=DEFAULT, name=name)),
    ):
        with refused("NOT_FOUND"):
            call()


def test_a_huge_message_in_a_conversation_is_refused_and_its_process_ends(place: Place) -> None:
    name = ready(place.client(), place.spec())
    asked = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox=name, command=["sh", "-c", "sleep 4352"])

    def inputs() -> Iterator[pb.ExecSandboxInput]:
        yield pb.ExecSandboxInput(start=asked)
        yield pb.ExecSandboxInput(stdin=b"x" * (8 << 20))

    with refused("RESOURCE_EXHAUSTED"):
        list(stub(place).ExecSandboxInteractive(inputs(), timeout=60))
    place.gateway.until(lambda: processes(place, name, "435[2]") == 0)


def test_a_create_whose_client_does_not_wait_for_it_is_taken_back(place: Place) -> None:
    """With neither a name nor a request id its client cannot ask for it again."""
    asked = pb.CreateSandboxRequest(workspace_scope=DEFAULT, spec=place.spec(1))
    before = place.gateway.log.count("a create was taken back")
    with Ledger(place.gateway.home) as ledger, ledger.writing(), refused("DEADLINE_EXCEEDED"):
        stub(place).CreateSandbox(asked, timeout=1)  # it cannot be written down as long as the block lasts
    place.gateway.until(lambda: place.gateway.log.count("a create was taken back") > before)
    assert place.client().list_all(workspace="default") == []
    assert place.held() == 0


def test_a_create_with_a_name_or_an_id_is_there_for_its_client_to_find(place: Place) -> None:
    calls = stub(place)
    named = pb.CreateSandboxRequest(workspace_scope=DEFAULT, spec=place.spec(1), name="mine")
    with_id = pb.CreateSandboxRequest(workspace_scope=DEFAULT, spec=place.spec(1), request_id="give-up-1")
    for asked in (named, with_id):
        for _ in range(20):
            with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError):
                calls.CreateSandbox(asked, timeout=0.02)
    made = calls.CreateSandbox(with_id).sandbox.metadata.name
    assert {one.name for one in place.client().list_all(workspace="default")} <= {"mine", made}


@pytest.mark.parametrize(
    "change",
    [
        {"tty": True, "rows": 10_001}, {"tty": True, "cols": 4_000_000_000}, {"cols": 80}, {"request_id": "x" * 129},
        {"request_id": "a\nb"},
    ],
)  # fmt: skip
def test_a_command_with_a_window_or_an_id_that_cannot_be_is_refused(place: Place, change: dict[str, Any]) -> None:
    asked = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox="any", command=["true"], **change)
    with refused("INVALID_ARGUMENT") as caught:
        list(stub(place).ExecSandbox(asked))
    assert [one.field for one in caught.error.field_violations] == [list(change)[-1]]


def test_more_lines_of_a_log_than_one_answer_holds_are_refused(place: Place) -> None:
    name = ready(place.client(), place.spec())
    with refused("INVALID_ARGUMENT", "LINES_INVALID"):
        stub(place).GetSandboxLogs(pb.GetSandboxLogsRequest(workspace_scope=DEFAULT, sandbox=name, lines=10_001))


@pytest.mark.parametrize(
    ("limits", "code", "field"),
    [
        ({"amd.com/gpu": 1}, "FAILED_PRECONDITION", "spec.template.resources.limits.amd.com/gpu"),
        ({"nvidia.com/gpu": 9}, "FAILED_PRECONDITION", "spec.template.resources.limits.nvidia.com/gpu"),
        ({"gpu": "B200:1"}, "FAILED_PRECONDITION", "spec.template.resources.limits.gpu"),
        ({"gpu": 4_000_000_000}, "INVALID_ARGUMENT", "spec.template.resources.limits.gpu"),
    ],
)
def test_a_refusal_names_the_place_that_the_client_wrote_in(
    place: Place, limits: dict[str, Any], code: str, field: str
) -> None:
    with refused(code) as caught:
        place.client().create(workspace="default", spec=place.spec(resources={"limits": limits}))
    assert [one.field for one in caught.error.field_violations] == [field]
    assert "--gpu" not in caught.error.details()

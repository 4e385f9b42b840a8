"""Calls through the SDK and its stubs: GPUs, tenants, lists, services, watching, and what bad input gets."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import pytest
from openshell._proto import datamodel_pb2, openshell_pb2_grpc
from openshell._proto import openshell_pb2 as pb
from openshell.errors import GatewayError, from_grpc_error
from tests.openshell.conftest import Place

from openshell import SandboxClient, WorkspaceClient

DEFAULT = datamodel_pb2.WorkspaceSelector(workspace="default")


@contextlib.contextmanager
def refused(code: str, reason: str = "") -> Iterator[Any]:
    """The typed error of a refused call."""
    with pytest.raises(grpc.RpcError) as caught:
        yield caught
    error: Any = from_grpc_error(caught.value)
    assert error.code() is grpc.StatusCode[code], error
    if reason:
        assert error.error_info.reason == reason, error.error_info
    caught.error = error  # type: ignore[attr-defined]


def stub(place: Place, token: str = "") -> Any:
    """The SDK's generated stub, for what its classes do not call."""
    make: Any = openshell_pb2_grpc.OpenShellStub
    return make(place.client(token)._channel)


def ready(client: SandboxClient, spec: pb.SandboxSpec, name: str = "") -> str:
    made = client.create(workspace="default", spec=spec, name=name or None)
    return client.wait_ready(made.name, workspace="default").name


def condition(sandbox: Any, kind: str) -> Any:
    return next(one for one in sandbox.conditions if one.type == kind)


# -- GPUs -----------------------------------------------------------------------------------------------------------


def test_sd_11_two_sandboxes_get_different_gpus_and_the_third_is_told_who_holds_them(anywhere: Place) -> None:
    client = anywhere.client()
    names = [ready(client, anywhere.spec(1), name) for name in ("first", "second")]
    nodes = {
        client.exec(name, ["sh", "-c", "ls /dev | grep simgpu"], workspace="default").stdout.strip() for name in names
    }
    assert len(nodes) == 2, nodes
    with refused("RESOURCE_EXHAUSTED", "DEVICES_BUSY") as caught:
        client.create(workspace="default", spec=anywhere.spec(1))
    info = caught.error.error_info.metadata
    assert (info["requested"], info["available"]) == ("1", "0")
    assert "=first" in info["held_by"]
    assert "=second" in info["held_by"]
    assert caught.error.retry_delay > 0
    assert caught.error.field_violations[0].field == "spec.resource_requirements.gpu"
    assert len(client.list_all(workspace="default")) == 2


def test_sd_11_one_that_may_wait_is_queued_with_the_reason_and_served_when_its_turn_comes(place: Place) -> None:
    client = place.client()
    ready(client, place.spec(2), "holder")
    spec = place.spec(1)
    spec.template.annotations["dibs.wait"] = "5m"
    waiting = client.create(workspace="default", spec=spec, name="waiter")
    assert waiting.phase == pb.SANDBOX_PHASE_PROVISIONING
    assert condition(waiting, "Ready").reason == "Queued"
    assert "holder" in condition(waiting, "Ready").message
    client.delete("holder", workspace="default")
    client.wait_ready("waiter", workspace="default")


def test_sd_12_sd_13_sd_16_sd_17_are_refused_through_the_sdk_and_nothing_is_made(anywhere: Place) -> None:
    client = anywhere.client()
    spec = anywhere.spec(1, resources={"limits": {"memory": "half", "nvidia.com/gpu": 4}, "requests": {"cpu": "1"}})
    spec.template.driver_config.update({"dokcer": {"cdi_devices": ["nvidia.com/gpu=0"]}})
    with refused("INVALID_ARGUMENT") as caught:
        client.create(workspace="default", spec=spec)
    fields = {one.field for one in caught.error.field_violations}
    assert fields == {
        "spec.template.resources.limits.memory",
        "spec.template.resources.limits.nvidia.com/gpu",
        "spec.template.resources.requests.cpu",
        "spec.template.driver_config.dokcer",
    }
    assert client.list_all(workspace="default") == []


def test_keys_of_a_vm_are_refused_by_name(place: Place) -> None:
    with refused("INVALID_ARGUMENT", "VM_NOT_OFFERED"):
        spec = place.spec(1, driver_config={"vm": {"gpu_device_ids": ["0000:01:00.0"]}})
        place.client().create(workspace="default", spec=spec)


def test_sd_21_the_sandbox_says_what_was_delivered_and_what_did_not_apply(place: Place) -> None:
    client = place.client()
    spec = place.spec(1, driver_config={"kubernetes": {"pod": {"priority_class_name": "high"}}})
    spec.log_level = "debug"
    ready(client, spec, "told")
    found = stub(place).GetSandbox(pb.GetSandboxRequest(workspace_scope=DEFAULT, name="told")).sandbox
    assert found.metadata.annotations["dibs.receipt"] == "delivered"
    assert found.metadata.annotations["dibs.models"] == "H100"
    unused = condition(found.status, "NotApplicable").message
    assert "driver_config.kubernetes" in unused
    assert "spec.log_level" in unused
    assert found.spec.log_level == "debug"


def test_exact_devices_are_the_ones_named(docker: Place) -> None:
    client = docker.client()

    def asked(number: int) -> pb.SandboxSpec:
        return docker.spec(1, driver_config={"docker": {"cdi_devices": [f"sim.dibs/gpu={number}"]}})

    try:
        name = ready(client, asked(1), "exact")
        assert client.exec(name, ["sh", "-c", "ls /dev | grep simgpu"], workspace="default").stdout == "simgpu1\n"
        with refused("RESOURCE_EXHAUSTED", "DEVICES_BUSY") as caught:
            client.create(workspace="default", spec=asked(1))
        assert "=exact" in caught.error.error_info.metadata["held_by"]
        with refused("NOT_FOUND") as caught:
            client.create(workspace="default", spec=asked(77))
        assert "sim.dibs/gpu=77" in caught.error.details()
    finally:
        docker.clear()


def test_values_of_the_environment_are_not_kept_where_others_read_them(place: Place) -> None:
    from dibs.ledger.store import Ledger

    client = place.client()
    name = ready(client, place.spec(env={"TOKEN": "sesame-open"}))

    def kept() -> bool:
        with Ledger(place.gateway.home) as ledger:
            return any(
                "sesame-open" in str(row.annotations) + str(row.spec) for row in ledger.sandboxes(live_only=False)
            )

    assert not kept()
    client.stop(name, workspace="default")
    assert kept()  # a start needs it
    client.start(name, workspace="default")
    client.wait_ready(name, workspace="default")
    assert client.exec(name, ["sh", "-c", "echo $TOKEN"], workspace="default").stdout == "sesame-open\n"
    assert not kept()
    client.stop(name, workspace="default")
    client.delete(name, workspace="default")
    assert not kept()


# -- tenants, names, lists ------------------------------------------------------------------------------------------


def test_other_tenants_workspaces_and_sandboxes_are_not_there(place: Place) -> None:
    ready(place.client(), place.spec(), "mine")
    other = place.client(place.other)
    with refused("NOT_FOUND"):
        other.get("mine", workspace="default")
    with refused("NOT_FOUND", "WORKSPACE_NOT_FOUND"):
        other.get("mine", workspace="team-a")
    assert other.list_all_for_all_workspaces() == []
    admin = place.client(place.gateway.token)
    assert admin.get("mine", workspace="team-a").name == "mine"
    assert [one.workspace for one in admin.list_all_for_all_workspaces()] == ["team-a"]


def test_workspaces_are_made_by_administrators(place: Place) -> None:
    admin = WorkspaceClient.from_sandbox_client(place.client(place.gateway.token))
    user = WorkspaceClient.from_sandbox_client(place.client())
    assert [one.name for one in user.list_all()] == ["default", "team-a"]
    with refused("PERMISSION_DENIED", "SCOPE_MISSING"):
        user.create("team-c")
    admin.create("team-c", labels={"kind": "test"})
    assert admin.get("team-c").name == "team-c"
    assert [one.name for one in admin.list_all(label_selector="kind=test")] == ["team-c"]
    with refused("ALREADY_EXISTS"):
        admin.create("team-c")
    with refused("FAILED_PRECONDITION"):
        admin.delete("default")
    client = place.client(place.gateway.token)
    client.create(workspace="team-c", spec=place.spec(), name="inside")
    with refused("FAILED_PRECONDITION", "WORKSPACE_NOT_EMPTY"):
        admin.delete("team-c")
    client.delete("inside", workspace="team-c")
    assert admin.delete("team-c").outcome.name == "COMPLETED"
    with refused("NOT_FOUND"):
        admin.get("team-c")


def test_a_name_is_taken_until_its_sandbox_is_deleted(place: Place) -> None:
    client = place.client()
    ready(client, place.spec(), "once")
    with refused("ALREADY_EXISTS", "NAME_TAKEN"):
        client.create(workspace="default", spec=place.spec(), name="once")
    client.stop("once", workspace="default")
    with refused("ALREADY_EXISTS", "NAME_TAKEN"):
        client.create(workspace="default", spec=place.spec(), name="once")
    client.delete("once", workspace="default")
    client.create(workspace="default", spec=place.spec(), name="once")


def test_the_same_request_id_makes_one_sandbox(place: Place) -> None:
    request = pb.CreateSandboxRequest(workspace_scope=DEFAULT, spec=place.spec(1), request_id="r-1")
    calls = stub(place)
    assert len({calls.CreateSandbox(request).sandbox.metadata.id for _ in range(3)}) == 1


def test_lists_come_in_pages(place: Place) -> None:
    client = place.client()
    made = {client.create(workspace="default", spec=place.spec(), labels={"n": str(n)}).name for n in range(5)}
    assert all(re.fullmatch("[a-z]+-[a-z]+", name) and len(name) <= 19 for name in made)
    pages = list(client.list(workspace="default", page_size=2))
    assert [len(page.items) for page in pages] == [2, 2, 1]
    assert {one.name for page in pages for one in page.items} == made
    assert len(client.list_all(workspace="default", label_selector="n in (1,3)")) == 2
    with refused("INVALID_ARGUMENT", "SELECTOR_INVALID"):
        client.list_all(workspace="default", label_selector="a=(")


def has_ended(client: SandboxClient, name: str) -> bool:
    return client.get(name, workspace="default").status.exit_code is not None


def test_a_command_that_ends_is_completed_and_one_that_fails_says_how(place: Place) -> None:
    client = place.client()
    for code, phase in ((0, pb.SANDBOX_PHASE_COMPLETED), (3, pb.SANDBOX_PHASE_ERROR)):
        spec = place.spec()
        spec.command.extend(["sh", "-c", f"echo out; exit {code}"])
        name = client.create(workspace="default", spec=spec).name
        place.gateway.until(partial(has_ended, client, name))
        found = client.get(name, workspace="default")
        assert (found.phase, found.status.exit_code) == (phase, code)
        assert f"exit code {code}" in condition(found, "Ready").message
        lines = stub(place).GetSandboxLogs(pb.GetSandboxLogsRequest(workspace_scope=DEFAULT, sandbox=name)).logs
        assert [line.message for line in lines] == ["out"]


def test_a_service_maps_to_the_port_proxy(place: Place) -> None:
    calls = stub(place)
    ready(place.client(), place.spec(), "web")
    asked = pb.ExposeServiceRequest(workspace_scope=DEFAULT, sandbox="web", name="http", target_port=8123)
    found = calls.ExposeService(asked)
    assert found.url.startswith(place.gateway.url)
    assert "/proxy/8123" in found.url
    listed = calls.ListServices(pb.ListServicesRequest(workspace_scope=DEFAULT, sandbox="web")).services
    assert [one.endpoint.name for one in listed] == ["http"]
    moved = pb.ExposeServiceRequest(workspace_scope=DEFAULT, sandbox="web", name="http", target_port=8124)
    assert "/proxy/8124" in calls.ExposeService(moved).url
    unnamed = pb.ExposeServiceRequest(workspace_scope=DEFAULT, sandbox="web", target_port=8125)
    assert "/proxy/8125" in calls.ExposeService(unnamed).url
    everywhere = pb.ListServicesRequest(workspace_scope=DEFAULT, page_size=1)
    first = calls.ListServices(everywhere)
    everywhere.page_token = first.next_page_token
    second = calls.ListServices(everywhere)
    found = [(one.endpoint.name, one.endpoint.target_port) for page in (first, second) for one in page.services]
    assert found == [("", 8125), ("http", 8124)]
    assert second.next_page_token == ""
    calls.DeleteService(pb.DeleteServiceRequest(workspace_scope=DEFAULT, sandbox="web", name="http"))
    with refused("NOT_FOUND"):
        calls.GetService(pb.GetServiceRequest(workspace_scope=DEFAULT, sandbox="web", name="http"))


def test_capabilities_come_from_the_delivery_table(place: Place) -> None:
    found = stub(place).GetGatewayInfo(pb.GetGatewayInfoRequest())
    drivers = {one.name: one.capabilities.resource_capabilities for one in found.compute_drivers}
    assert drivers["local"].gpu.count_selection_supported
    assert drivers["local"].memory.limit_supported


# -- streams --------------------------------------------------------------------------------------------------------


def processes(place: Place, name: str, mark: str) -> int:
    words = ["sh", "-c", f"grep -l {mark} /proc/[0-9]*/cmdline 2>/dev/null | grep -v /$$/ | wc -l"]
    return int(place.client().exec(name, words, workspace="default", no_login_shell=True).stdout)


def test_a_cancelled_stream_kills_the_process_inside(anywhere: Place) -> None:
    name = ready(anywhere.client(), anywhere.spec())
    asked = pb.ExecSandboxRequest(
        workspace_scope=DEFAULT, sandbox=name, command=["sh", "-c", "echo on; sleep 4321"], no_login_shell=True
    )
    stream = stub(anywhere).ExecSandbox(asked)
    assert next(iter(stream)).stdout.data == b"on\n"
    assert processes(anywhere, name, "432[1]") >= 1
    stream.cancel()
    anywhere.gateway.until(lambda: processes(anywhere, name, "432[1]") == 0)


def test_an_expired_deadline_kills_the_process_inside(place: Place) -> None:
    name = ready(place.client(), place.spec())
    asked = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox=name, command=["sleep", "4322"])
    with refused("DEADLINE_EXCEEDED"):
        list(stub(place).ExecSandbox(asked, timeout=2))
    place.gateway.until(lambda: processes(place, name, "432[2]") == 0)


def test_a_client_that_never_reads_holds_the_process_back_and_nothing_piles_up(place: Place) -> None:
    name = ready(place.client(), place.spec())
    words = ["sh", "-c", "head -c 200000000 /dev/zero; echo done > /tmp/done"]
    asked = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox=name, command=words)
    stream = stub(place).ExecSandbox(asked)
    next(iter(stream))
    before = memory(place.gateway.process.pid)
    time.sleep(2)
    assert memory(place.gateway.process.pid) - before < 64 << 20
    there = place.client().exec(name, ["test", "-e", "/tmp/done"], workspace="default").exit_code
    assert there == 1  # it waits for its reader
    stream.cancel()


def memory(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_conversation_has_a_terminal_a_size_and_an_end_of_input(place: Place) -> None:
    name = ready(place.client(), place.spec())
    start = pb.ExecSandboxRequest(
        workspace_scope=DEFAULT, sandbox=name, command=["sh", "-c", "stty size; read x; stty size; exit 5"],
        tty=True, rows=33, cols=77, no_login_shell=True,
    )  # fmt: skip
    go = threading.Event()

    def inputs() -> Iterator[pb.ExecSandboxInput]:
        yield pb.ExecSandboxInput(start=start)
        go.wait(200)
        yield pb.ExecSandboxInput(resize=pb.ExecSandboxWindowResize(rows=40, cols=100))
        yield pb.ExecSandboxInput(stdin=b"go\n")

    seen, code = b"", None
    for event in stub(place).ExecSandboxInteractive(inputs(), timeout=240):
        seen += event.stdout.data
        if b"33 77" in seen:
            go.set()
        if event.HasField("exit"):
            code = event.exit.exit_code
    assert code == 5
    assert b"40 100" in seen


def test_a_window_of_a_command_without_a_terminal_is_refused_and_the_command_ends(place: Place) -> None:
    name = ready(place.client(), place.spec())
    start = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox=name, command=["sleep", "4323"])
    size = pb.ExecSandboxInput(resize=pb.ExecSandboxWindowResize(rows=40, cols=100))
    with refused("INVALID_ARGUMENT", "CONFLICT"):
        list(stub(place).ExecSandboxInteractive(iter([pb.ExecSandboxInput(start=start), size]), timeout=60))
    place.gateway.until(lambda: processes(place, name, "432[3]") == 0)


def test_half_closing_is_the_end_of_input_and_output_still_comes(place: Place) -> None:
    name = ready(place.client(), place.spec())
    start = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox=name, command=["sh", "-c", "cat; echo after"])
    inputs = iter([pb.ExecSandboxInput(start=start), pb.ExecSandboxInput(stdin=b"before\n")])
    events = list(stub(place).ExecSandboxInteractive(inputs, timeout=240))
    assert b"".join(event.stdout.data for event in events) == b"before\nafter\n"
    assert events[-1].exit.exit_code == 0
    with refused("INVALID_ARGUMENT", "FIELD_MISSING"):
        list(stub(place).ExecSandboxInteractive(iter([]), timeout=240))


def test_watching_shows_each_phase_and_ends_with_the_sandbox(place: Place) -> None:
    spec = place.spec()
    spec.command.extend(["sh", "-c", "echo line; sleep 1"])
    name = place.client().create(workspace="default", spec=spec).name
    asked = pb.WatchSandboxRequest(
        workspace_scope=DEFAULT, sandbox=name, follow_status=True, follow_logs=True, follow_events=True,
        stop_on_terminal=True,
    )  # fmt: skip
    events = list(stub(place).WatchSandbox(asked, timeout=240))
    assert [event.sandbox.status.phase for event in events if event.HasField("sandbox")][
        -1
    ] == pb.SANDBOX_PHASE_COMPLETED
    assert "line" in [event.log.message for event in events if event.HasField("log")]
    assert any(event.event.reason.startswith("sandbox.") for event in events if event.HasField("event"))


def test_a_log_is_followed_from_as_many_lines_before_its_end_as_were_asked_for(place: Place) -> None:
    spec = place.spec()
    spec.command.extend(
        ["sh", "-c", "echo one; echo two; echo three; until [ -e /tmp/go ]; do sleep 0.1; done; echo four"]
    )
    name = ready(place.client(), spec)
    asked = pb.GetSandboxLogsRequest(workspace_scope=DEFAULT, sandbox=name)
    place.gateway.until(lambda: len(stub(place).GetSandboxLogs(asked).logs) == 3)
    watched = pb.WatchSandboxRequest(
        workspace_scope=DEFAULT, sandbox=name, follow_logs=True, log_tail_lines=2, stop_on_terminal=True
    )
    stream = stub(place).WatchSandbox(watched, timeout=240)
    assert next(stream).log.message == "two"
    place.client().exec(name, ["touch", "/tmp/go"], workspace="default")
    assert [event.log.message for event in stream] == ["three", "four"]


def test_a_thousand_parallel_streams_are_served_and_end(place: Place) -> None:
    name = ready(place.client(), place.spec())
    calls = stub(place)
    asked = pb.WatchSandboxRequest(workspace_scope=DEFAULT, sandbox=name, follow_status=True)
    streams = [calls.WatchSandbox(asked, timeout=240) for _ in range(1000)]
    with ThreadPoolExecutor(32) as pool:
        first = list(pool.map(lambda stream: next(iter(stream)).sandbox.metadata.name, streams))
    assert first == [name] * 1000
    assert place.client().exec(name, ["echo", "alive"], workspace="default").stdout == "alive\n"
    for stream in streams:
        stream.cancel()
    metric = 'dibs_streams{kind="grpc"} 0.0'
    place.gateway.until(lambda: metric in place.gateway.ask("GET", "/metrics").body.decode())


# -- bad input ------------------------------------------------------------------------------------------------------


def test_a_huge_message_is_refused_and_the_gateway_goes_on(place: Place) -> None:
    client = place.client()
    with refused("RESOURCE_EXHAUSTED"):
        client.create(workspace="default", spec=place.spec(env={"BIG": "x" * (2 << 20)}))
    assert client.health().status == pb.SERVICE_STATUS_HEALTHY


def test_garbage_is_refused_as_such(place: Place) -> None:
    channel = place.client()._channel
    call = channel.unary_unary(
        "/openshell.v1.OpenShell/CreateSandbox", request_serializer=lambda data: data, response_deserializer=bytes
    )
    with refused("INVALID_ARGUMENT", "MESSAGE_INVALID"):
        call(b"\xff\xff\xff\xff")


def test_methods_that_are_not_offered_say_what_to_use_instead(place: Place) -> None:
    with refused("UNIMPLEMENTED", "METHOD_NOT_OFFERED") as caught:
        stub(place).ListProviders(pb.ListProvidersRequest(workspace_scope=DEFAULT))
    assert "spec.environment" in caught.error.details()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"command": []}, "command"),
        ({"command": ["x"] * 1025}, "command"),
        ({"command": ["x" * 40000]}, "command[0]"),
        ({"environment": {"A": "a\nb"}}, "environment.A"),
        ({"workdir": "relative"}, "workdir"),
        ({"rows": 3}, "rows"),
    ],
)
def test_a_command_that_cannot_be_is_refused(place: Place, change: dict[str, Any], field: str) -> None:
    asked = pb.ExecSandboxRequest(workspace_scope=DEFAULT, sandbox="any", **{"command": ["true"], **change})
    with refused("INVALID_ARGUMENT") as caught:
        list(stub(place).ExecSandbox(asked))
    assert [one.field for one in caught.error.field_violations] == [field]


def test_exec_in_what_is_not_ready_is_a_failed_precondition(place: Place) -> None:
    client = place.client()
    name = ready(client, place.spec())
    client.stop(name, workspace="default")
    with refused("FAILED_PRECONDITION", "WRONG_STATE") as caught:
        client.exec(name, ["true"], workspace="default")
    assert "sandbox is not ready" in caught.error.details()
    assert isinstance(caught.error, GatewayError)

"""The whole life of sandboxes as OpenShell's own SDK drives it. Run as a program of its own, as a user would.

It is told by the environment where the gateway is. Every line that it prints is one step that went well. At the end it
looks whether a public method of the SDK was never called: a release with a new one needs a step for it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import grpc
from openshell._proto import openshell_pb2 as pb
from openshell.errors import GatewayError

from openshell import (
    ExecResult,
    ProviderClient,
    Sandbox,
    SandboxClient,
    SandboxSession,
    SandboxTemplateClient,
    ServiceExposure,
    WorkspaceClient,
)

WORKSPACE = "default"
BACKEND, IMAGE = os.environ["DIBS_TEST_BACKEND"], os.environ["DIBS_TEST_IMAGE"]
PYTHON_PATH = os.environ.get("DIBS_TEST_PATH", "")
HAS_PYTHON = BACKEND != "kubernetes"
CLIENTS = (Sandbox, SandboxClient, SandboxSession, SandboxTemplateClient, WorkspaceClient, ProviderClient)
KEEPS_FILES = BACKEND in ("docker", "podman")
REFUSES = BACKEND != "kubernetes"  # there the scheduler decides, and what does not fit now waits


def request(environment: dict[str, str] | None = None, *, gpu: bool = True) -> pb.SandboxSpec:
    path = {"PATH": PYTHON_PATH} if PYTHON_PATH else {}
    spec = pb.SandboxSpec(environment={**path, **(environment or {})})
    spec.template.image = IMAGE
    spec.template.annotations["dibs.backend"] = BACKEND
    if gpu:
        spec.resource_requirements.gpu.SetInParent()
    return spec


def step(words: str) -> None:
    print(words, flush=True)


def refused(call: Callable[[], object]) -> Any:
    """The error of a call that must fail. The SDK's environment has no pytest."""
    try:
        call()
    except GatewayError as error:
        return error
    raise AssertionError("it was not refused")


def product(a: int, b: int = 7) -> int:
    return a * b


def public_methods() -> dict[str, CodeType]:
    """What a user may call, by name."""
    found: dict[str, CodeType] = {}
    for kind in CLIENTS:
        for name, value in vars(kind).items():
            function: Any = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if hasattr(function, "__code__") and (name in ("__enter__", "__exit__") or not name.startswith("_")):
                found[f"{kind.__name__}.{name}"] = function.__code__
    return found


def main() -> None:
    called: set[CodeType] = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code) if event == "call" else None)
    client = SandboxClient.from_active_cluster(timeout=60)
    assert client.health().status == pb.SERVICE_STATUS_HEALTHY
    step("health")
    session = commands(client)
    lists(client, session)
    stop_and_start(client, session)
    templates(client)
    workspaces(client)
    providers = ProviderClient.from_sandbox_client(client)
    error = refused(lambda: providers.get_credentials("github", ["TOKEN"], workspace=WORKSPACE))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error
    step("providers are refused")
    session.delete()
    client.wait_deleted(session.sandbox.name, workspace=WORKSPACE)
    step("delete")
    context_managers()
    with SandboxClient.from_active_cluster() as other:
        assert refused(lambda: other.get("with-block", workspace=WORKSPACE)).code() is grpc.StatusCode.NOT_FOUND
    client.close()
    sys.setprofile(None)
    never = sorted(name for name, code in public_methods().items() if code not in called)
    assert never == [] or (not HAS_PYTHON and all("exec_python" in name for name in never)), never
    step("every public method was called")


def commands(client: SandboxClient) -> SandboxSession:
    exposed = [ServiceExposure(service="web", target_port=8080)]
    session = client.create_session(
        workspace=WORKSPACE, spec=request({"GREETING": "good day"}), labels={"team": "red"}, service_exposures=exposed
    )
    name = session.sandbox.name
    assert re.fullmatch("[a-z]+-[a-z]+", name), name
    assert "/proxy/8080/" in session.sandbox.service_urls["web"]
    ready = client.wait_ready(name, workspace=WORKSPACE)
    delivered = next(one for one in ready.conditions if one.type == "Delivered")
    assert delivered.status == "True", delivered
    assert "H100" in delivered.message, delivered
    assert "receipt" in delivered.message
    step("create, wait_ready")

    result = session.exec(["sh", "-c", 'echo "$GREETING"; echo bad >&2; exit 7'])
    assert (result.exit_code, result.stdout, result.stderr) == (7, "good day\n", "bad\n"), result
    result = session.exec(["sh", "-c", "ls /dev | grep -c simgpu"])
    assert result.stdout.strip() == "1", result
    result = session.exec(["sh", "-c", "cat; pwd; echo $X"], stdin=b"in\n", workdir="/tmp", env={"X": "y"})
    assert result.stdout == "in\n/tmp\ny\n", result
    assert session.exec(["sleep", "100"], timeout_seconds=1).exit_code == 124
    assert session.exec(["no-such-command"]).exit_code == 127
    assert session.exec(["echo", "direct"], no_login_shell=True).stdout == "direct\n"
    *pieces, last = client.exec_stream(name, ["sh", "-c", "echo one; echo two"], workspace=WORKSPACE)
    assert isinstance(last, ExecResult)
    assert last.stdout == "one\ntwo\n", last
    assert b"".join(one.data for one in pieces if not isinstance(one, ExecResult)) == b"one\ntwo\n", pieces
    step("exec")
    if HAS_PYTHON:
        answer = session.exec_python(product, args=(6,), kwargs={"b": 8}, env={"UNUSED": "1"})
        assert (answer.exit_code, answer.stdout) == (0, "48\n"), answer
        answer = client.exec_python(name, product, workspace=WORKSPACE, args=(6,))
        assert (answer.exit_code, answer.stdout) == (0, "42\n"), answer
        failed = client.exec_python(name, product, workspace=WORKSPACE, args=("a", "b"))
        assert failed.exit_code == 1, failed
        assert "TypeError" in failed.stderr, failed
        step("exec_python")
    return session


def lists(client: SandboxClient, session: SandboxSession) -> None:
    name = session.sandbox.name
    mine = client.list_all(workspace=WORKSPACE, label_selector="team in (red),!blue")
    assert [one.name for one in mine] == [name]
    assert client.list_all(workspace=WORKSPACE, label_selector="team=blue") == []
    assert session.id in client.list_ids(workspace=WORKSPACE)
    assert session.id in client.list_ids_for_all_workspaces()
    assert [one.name for page in client.list(workspace=WORKSPACE, page_size=5000) for one in page.items] == [name]
    assert name in [one.name for page in client.list_for_all_workspaces(page_size=1) for one in page.items]
    assert name in [one.name for one in client.list_all_for_all_workspaces(label_selector="team=red")]
    assert client.get(name, workspace=WORKSPACE).labels == {"team": "red"}
    assert client.get_session(name, workspace=WORKSPACE).exec(["true"]).exit_code == 0
    step("list, labels")


def stop_and_start(client: SandboxClient, session: SandboxSession) -> None:
    name = session.sandbox.name
    session.exec(["sh", "-c", "echo kept > /root/file || echo kept > /tmp/file"])
    stopped = session.stop()
    assert stopped.phase == pb.SANDBOX_PHASE_STOPPED, stopped
    client.wait_stopped(name, workspace=WORKSPACE)
    assert session.start().id == stopped.id
    again = client.wait_ready(name, workspace=WORKSPACE)
    assert again.status.restart_count == 1
    kept = next(one for one in again.conditions if one.type == "FilesKept")
    assert kept.status == ("True" if KEEPS_FILES else "False"), kept
    found = session.exec(["sh", "-c", 'echo "$GREETING"; cat /root/file /tmp/file 2>/dev/null'])
    assert found.stdout == ("good day\nkept\n" if KEEPS_FILES else "good day\n"), found
    step("stop, start")


def templates(client: SandboxClient) -> None:
    kept = SandboxTemplateClient.from_sandbox_client(client)
    kept.create(workspace=WORKSPACE, name="one-gpu", image=IMAGE, gpu_count=1, environment={"A": "b"})
    assert kept.get("one-gpu", workspace=WORKSPACE).spec.workload.resources.gpu.count == 1
    assert [one.metadata.name for one in kept.list_all(workspace=WORKSPACE)] == ["one-gpu"]
    assert "one-gpu" in [one.metadata.name for one in kept.list_all_for_all_workspaces()]
    spec = request(gpu=False)
    made = client.create_from_template(workspace=WORKSPACE, workload_template="one-gpu", spec=spec, name="from-one")
    assert made.created_from_workload_template is not None
    assert made.created_from_workload_template.name == "one-gpu"
    client.wait_ready("from-one", workspace=WORKSPACE)
    seen = client.exec("from-one", ["sh", "-c", "echo $A; ls /dev | grep -c simgpu"], workspace=WORKSPACE)
    assert seen.stdout == "b\n1\n", seen
    step("templates")

    if REFUSES:
        info = refused(lambda: client.create(workspace=WORKSPACE, spec=request())).error_info
        assert info.reason == "DEVICES_BUSY"
        assert "from-one" in info.metadata["held_by"]
        step("the third is refused")

    assert client.delete("from-one", workspace=WORKSPACE).outcome.name == "COMPLETED"
    assert client.delete("from-one", workspace=WORKSPACE, allow_missing=True).outcome.name == "ALREADY_ABSENT"
    again = client.create_session_from_template(workspace=WORKSPACE, workload_template="one-gpu", spec=spec)
    client.wait_ready(again.sandbox.name, workspace=WORKSPACE)
    assert again.exec(["sh", "-c", "echo $A"]).stdout == "b\n"
    again.delete()
    with Sandbox(workspace=WORKSPACE, workload_template="one-gpu", spec=spec) as sandbox:
        assert sandbox.exec(["sh", "-c", "ls /dev | grep -c simgpu"]).stdout == "1\n"
    kept.delete("one-gpu", workspace=WORKSPACE)
    assert kept.list_all(workspace=WORKSPACE) == []


def workspaces(client: SandboxClient) -> None:
    spaces = WorkspaceClient.from_sandbox_client(client)
    assert spaces.get(WORKSPACE).name == WORKSPACE
    assert WORKSPACE in [one.name for one in spaces.list_all()]
    if os.environ["DIBS_TEST_ADMIN"] == "no":
        assert refused(lambda: spaces.create("life-team")).code() is grpc.StatusCode.PERMISSION_DENIED
        assert refused(lambda: spaces.delete("life-team")).code() is grpc.StatusCode.PERMISSION_DENIED
    else:
        spaces.create("life-team", labels={"made": "here"})
        assert [one.name for one in spaces.list_all(label_selector="made=here")] == ["life-team"]
        assert spaces.delete("life-team").outcome.name == "COMPLETED"
    step("workspaces")


def context_managers() -> None:
    with Sandbox(workspace=WORKSPACE, spec=request(), name="with-block") as sandbox:
        assert sandbox.exec(["echo", "inside"]).stdout == "inside\n"
        assert sandbox.id == sandbox.sandbox.id
        with Sandbox(workspace=WORKSPACE, sandbox="with-block", delete_on_exit=False) as same:
            assert same.id == sandbox.id
        if HAS_PYTHON:
            answer = sandbox.exec_python(lambda a, b: print(a * b), args=(6, 7))
            assert (answer.exit_code, answer.stdout) == (0, "42\n"), answer
    step("context manager")


if __name__ == "__main__":
    main()

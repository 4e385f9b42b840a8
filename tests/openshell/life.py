"""The whole life of sandboxes as OpenShell's own SDK drives it. Run as a program of its own, as a user would.

It is told by the environment where the gateway is. Every line that it prints is one step that went well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import grpc
from openshell._proto import openshell_pb2 as pb
from openshell.errors import GatewayError

from openshell import Sandbox, SandboxClient

WORKSPACE = "default"
BACKEND, IMAGE = os.environ["DIBS_TEST_BACKEND"], os.environ["DIBS_TEST_IMAGE"]
PYTHON_PATH = os.environ.get("DIBS_TEST_PATH", "")
KEEPS_FILES = BACKEND in ("docker", "podman")
REFUSES = BACKEND != "kubernetes"  # there the scheduler decides, and what does not fit now waits


def request(environment: dict[str, str] | None = None, *, gpu: bool = True) -> pb.SandboxSpec:
    spec = pb.SandboxSpec(environment=environment or {})
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


def main() -> None:
    client = SandboxClient.from_active_cluster(timeout=60)
    assert client.health().status == pb.SERVICE_STATUS_HEALTHY
    step("health")

    session = client.create_session(workspace=WORKSPACE, spec=request({"GREETING": "good day"}), labels={"team": "red"})
    name = session.sandbox.name
    assert re.fullmatch("[a-z]+-[a-z]+", name), name
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
    step("exec")

    mine = client.list_all(workspace=WORKSPACE, label_selector="team in (red),!blue")
    assert [one.name for one in mine] == [name]
    assert client.list_all(workspace=WORKSPACE, label_selector="team=blue") == []
    assert ready.id in client.list_ids(workspace=WORKSPACE)
    assert client.get(name, workspace=WORKSPACE).labels == {"team": "red"}
    step("list, labels")

    session.exec(["sh", "-c", "echo kept > /root/file || echo kept > /tmp/file"])
    stopped = session.stop()
    assert stopped.phase == pb.SANDBOX_PHASE_STOPPED, stopped
    client.wait_stopped(name, workspace=WORKSPACE)
    assert session.start().id == ready.id
    again = client.wait_ready(name, workspace=WORKSPACE)
    assert again.status.restart_count == 1
    kept = next(one for one in again.conditions if one.type == "FilesKept")
    assert kept.status == ("True" if KEEPS_FILES else "False"), kept
    found = session.exec(["sh", "-c", 'echo "$GREETING"; cat /root/file /tmp/file 2>/dev/null'])
    assert found.stdout == ("good day\nkept\n" if KEEPS_FILES else "good day\n"), found
    step("stop, start")

    templates = client.sandbox_templates()
    templates.create(workspace=WORKSPACE, name="one-gpu", image=IMAGE, gpu_count=1, environment={"A": "b"})
    assert [one.metadata.name for one in templates.list_all(workspace=WORKSPACE)] == ["one-gpu"]
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
    templates.delete("one-gpu", workspace=WORKSPACE)
    session.delete()
    step("delete")

    environment = {"PATH": PYTHON_PATH} if PYTHON_PATH else {}
    with Sandbox(workspace=WORKSPACE, spec=request(environment), name="with-block") as sandbox:
        assert sandbox.exec(["echo", "inside"]).stdout == "inside\n"
        if PYTHON_PATH:
            answer = sandbox.exec_python(lambda a, b: print(a * b), args=(6, 7))
            assert answer.exit_code == 0, answer
            assert "42" in answer.stdout, answer
            step("exec_python")
    assert refused(lambda: client.get("with-block", workspace=WORKSPACE)).code() is grpc.StatusCode.NOT_FOUND
    step("context manager")
    client.close()


if __name__ == "__main__":
    main()

"""Lines of the catalogue of silent drops, through the unmodified wheel, that need a machine of their own kind: virtual
machines, clusters, a host that can only give all of its GPUs, a GPU that fails to initialise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from openshell._proto import openshell_pb2 as pb
from openshell.errors import GatewayError
from tests.gateway.conftest import RunningGateway, end_all
from tests.openshell.conftest import Place
from tests.openshell.test_calls import condition, ready, refused

from dibs.home import Home
from openshell import SandboxError

OnHost = Callable[[str, dict[str, Any]], Place]


@pytest.fixture
def on_host(home: Home, tmp_path: Path) -> Iterator[OnHost]:
    """A gateway on a host whose GPUs are those of one CDI spec: `on_host(kind, device)`."""
    gateways: list[RunningGateway] = []
    places: list[Place] = []

    def start(kind: str, device: dict[str, Any]) -> Place:
        specs = tmp_path / "cdi"
        specs.mkdir()
        (specs / "spec.json").write_text(json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": [device]}))
        env = {"DIBS_CDI_DIRS": str(specs)}
        gateway = RunningGateway(home, tmp_path, "--openshell", "127.0.0.1:0", env=env).start()
        gateways.append(gateway)
        places.append(Place(gateway=gateway, backend="local", image="host", token=gateway.token, other=gateway.token))
        return places[-1]

    yield start
    for place in places:
        place.clear()
        assert place.held() == 0
    for gateway in gateways:
        assert gateway.stop() == 0, gateway.log[-4000:]
        assert "Traceback" not in gateway.log, gateway.log[-8000:]
    end_all(home)


def made_nothing(place: Place) -> None:
    assert place.client().list_all(workspace="default") == []
    assert place.held() == 0


@pytest.mark.parametrize("backend", ["vm", "kubernetes"])
def test_shell_sd_14_sd_18_sd_20_a_driver_that_is_not_here_is_refused_by_name_and_nothing_is_ignored(
    place: Place, backend: str
) -> None:
    spec = place.spec(1, resources={"limits": {"cpu": "2", "memory": "4Gi"}})
    spec.template.annotations["dibs.backend"] = backend
    spec.template.image = "python:3.12"
    with pytest.raises(GatewayError) as caught:
        place.client().create(workspace="default", spec=spec)
    error: Any = caught.value
    # A backend that dibs does not have, and one that it cannot reach from here: there is no kubeconfig.
    assert error.code() == {
        "vm": grpc.StatusCode.INVALID_ARGUMENT, "kubernetes": grpc.StatusCode.FAILED_PRECONDITION,
    }[backend]  # fmt: skip
    assert backend in error.details()
    assert error.error_info.metadata["remedy"]
    made_nothing(place)


def test_shell_sd_14_sizes_beside_the_keys_of_a_vm_are_not_taken_for_granted(place: Place) -> None:
    spec = place.spec(1, resources={"limits": {"cpu": "2", "memory": "4Gi"}})
    spec.template.driver_config.update({"vm": {"gpu_device_ids": ["0000:01:00.0"]}})
    with refused("INVALID_ARGUMENT", "VM_NOT_OFFERED") as caught:
        place.client().create(workspace="default", spec=spec)
    assert [one.field for one in caught.error.field_violations] == ["spec.template.driver_config.vm.gpu_device_ids"]
    assert "resource_requirements.gpu" in caught.error.error_info.metadata["remedy"]
    made_nothing(place)


def test_shell_sd_15_a_gpu_that_fails_to_initialise_is_an_error_with_its_words_and_never_ready(on_host: OnHost) -> None:
    hook = {
        "hookName": "createContainer",
        "path": "/bin/sh",
        "args": ["sh", "-c", "echo 'GPU init failed: Xid 79' >&2; exit 1"],
    }
    node = {"path": "/dev/nvidia0", "hostPath": "/dev/null"}
    place = on_host("nvidia.com/gpu", {"name": "0", "containerEdits": {"deviceNodes": [node], "hooks": [hook]}})
    client = place.client()
    name = client.create(workspace="default", spec=place.spec(1)).name
    with pytest.raises(SandboxError):
        client.wait_ready(name, workspace="default")
    found = client.get(name, workspace="default")
    assert found.phase == pb.SANDBOX_PHASE_ERROR
    assert condition(found, "Ready").status == "False"
    assert "Xid 79" in condition(found, "Ready").message
    assert place.held() == 0


def test_sd_19_one_gpu_where_only_all_can_be_given_is_told_as_all_and_takes_them_all(on_host: OnHost) -> None:
    """As under WSL2: the only device of the spec is `all`, behind one node for every card."""
    node = {"path": "/dev/dxg", "hostPath": "/dev/null"}
    place = on_host("nvidia.com/gpu", {"name": "all", "containerEdits": {"deviceNodes": [node]}})
    client = place.client()
    name = ready(client, place.spec(1), "holder")
    found = client.get(name, workspace="default")
    assert "all GPUs of this host" in condition(found, "Delivered").message
    assert client.exec(name, ["test", "-e", "/dev/dxg"], workspace="default").exit_code == 0
    with refused("RESOURCE_EXHAUSTED", "DEVICES_BUSY") as caught:
        client.create(workspace="default", spec=place.spec(1))
    assert "=holder" in caught.error.error_info.metadata["held_by"]
    with refused("FAILED_PRECONDITION") as caught:
        client.create(workspace="default", spec=place.spec(2))
    assert "all GPUs of this host" in caught.error.details()

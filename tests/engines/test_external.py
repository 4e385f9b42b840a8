"""What a container's description says about the devices that it holds. No engine here can start one with NVIDIA's own
request, so Docker's descriptions of such containers stand for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dibs.backends.engines.external import holder_of
from dibs.devices.model import Device
from dibs.devices.simulated import devices_of, parse_world


def cards() -> list[Device]:
    """Four cards as a real host has them."""
    return [msgspec.structs.replace(one, simulated=False) for one in devices_of(parse_world("4"))]


def described(env: tuple[str, ...] = (), **host: Any) -> dict[str, Any]:
    return {"Id": "0" * 64, "Name": "/one", "Config": {"Env": list(env)}, "HostConfig": host, "State": {"Pid": 0}}


def held(document: dict[str, Any], devices: list[Device]) -> list[str]:
    found = holder_of("docker", document)
    return [one.name for one in devices if found is not None and found.holds(one)]


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        ({"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu"]]}, ["gpu-0", "gpu-1"]),
        ({"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}, ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]),
        ({"Driver": "nvidia", "DeviceIDs": ["@uuid"], "Capabilities": [["gpu"]]}, ["gpu-2"]),
        ({"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=3"]}, ["gpu-3"]),
        ({"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}, ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]),
    ],
    ids=["by count", "all", "by id", "by CDI name", "all by CDI name"],
)
def test_a_request_holds_what_it_would_get(request_: dict[str, Any], names: list[str]) -> None:
    devices = cards()
    if request_.get("DeviceIDs") == ["@uuid"]:
        request_ = {**request_, "DeviceIDs": [devices[2].uuid]}
    assert held(described(DeviceRequests=[request_]), devices) == names
    simulated = [msgspec.structs.replace(one, simulated=True) for one in devices]
    assert held(described(DeviceRequests=[request_]), simulated) == [], "a real request holds no simulated card"


def test_nvidias_runtime_takes_a_variable_for_a_request() -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=all",)
    assert len(held(described(env, Runtime="nvidia"), cards())) == 4
    assert held(described(env, Runtime="runc"), cards()) == []


def test_privileges_alone_hold_nothing() -> None:
    found = holder_of("docker", described(Privileged=True))
    assert found is not None
    assert found.privileged
    assert not any(found.holds(one) for one in cards())

"""`dibs gpus --where`: only the devices that match; what cannot be told is told."""

from __future__ import annotations

import json

import pytest
import yaml

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home

from .conftest import Dibs


@pytest.fixture
def mixed(home: Home) -> Home:
    simulate(home, parse_world("H100:2,MI300X:1", partitions=2))
    return home


def names(dibs: Dibs, expression: str) -> list[str]:
    result = dibs("gpus", "--where", expression, "-o", "json")
    assert result.code == 0
    return [device["id"].rpartition("/")[2] for device in json.loads(result.out)["devices"]]


def test_only_matching_devices_are_shown(mixed: Home, dibs: Dibs) -> None:
    assert names(dibs, 'device.driver == "gpu.amd.com"') == ["gpu-2", "gpu-2-part-0", "gpu-2-part-1"]
    assert names(dibs, 'device.attributes[device.driver].type == "gpu"') == ["gpu-0", "gpu-1", "gpu-2"]
    memory = 'device.capacity[device.driver].memory.compareTo(quantity("100Gi")) > 0'
    assert names(dibs, memory) == ["gpu-2"]
    assert names(dibs, 'has(device.attributes["gpu.nvidia.com"].parentUUID)')[0] == "gpu-0-part-0"
    table = dibs("gpus", "--where", 'device.driver == "gpu.amd.com"').out
    assert "MI300X" in table
    assert "H100" not in table
    assert ", 3 free" in table


def test_nothing_that_matches_is_said(mixed: Home, dibs: Dibs) -> None:
    result = dibs("gpus", "--where", "false")
    assert result.code == 0
    assert "no device matches" in result.out


def test_an_expression_that_is_none_is_refused_with_a_caret(mixed: Home, dibs: Dibs) -> None:
    result = dibs("gpus", "--where", "device.driver ==")
    assert (result.code, result.out) == (80, "")
    assert result.err.splitlines()[0] == "dibs: where: not a CEL expression"
    assert " | device.driver ==" in result.err
    assert "^" in result.err.splitlines()[-1]
    data = json.loads(dibs("gpus", "--where", "device.driver ==", "-o", "json").err)
    assert data["problems"][0]["code"] == "CEL_INVALID"


def test_devices_of_which_it_cannot_be_told_are_named(mixed: Home, dibs: Dibs) -> None:
    expression = "device.attributes[device.driver].cudaComputeCapability.major() == 9"
    result = dibs("gpus", "--where", expression)
    assert result.code == 80
    assert "gpu-0 " in result.out
    assert "gpu-2 " not in result.out
    assert "cannot be told of gpu-2, gpu-2-part-0, gpu-2-part-1:" in result.err
    assert "no such key: cudaComputeCapability" in result.err
    data = json.loads(dibs("gpus", "--where", expression, "-o", "json").out)
    assert [device.rpartition("/")[2] for device in data["undecided"]] == ["gpu-2", "gpu-2-part-0", "gpu-2-part-1"]


def test_matching_devices_can_be_printed_as_slices(mixed: Home, dibs: Dibs) -> None:
    result = dibs("gpus", "--where", 'device.driver == "gpu.amd.com"', "-o", "slices")
    found = list(yaml.safe_load_all(result.out))
    assert [len(one["spec"].get("devices", ())) for one in found] == [3, 0]


def test_where_does_not_go_with_a_subcommand(mixed: Home, dibs: Dibs) -> None:
    assert dibs("gpus", "--where", "true", "simulate", "off").code == 2

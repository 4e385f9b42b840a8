"""The same on the command line: `dibs explain pod/…`, `kubectl dibs why`, `dibs gpus --cluster`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.cluster.world import World, device, model_is, request

from dibs.cli.kubectl import arguments_of
from dibs.cli.schema import schema_of

BIN = Path(sys.executable).parent


def dibs(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / "dibs"), *words], capture_output=True, text=True, check=False)


@pytest.fixture
def waiting(world: World) -> World:
    world.node(nvidia_com__gpu="2")
    world.device_class()
    world.slice([device("gpu-0"), device("gpu-1")])
    world.template("one", request("gpu", model_is("SIM-H100")))
    world.template("b200", request("gpu", model_is("SIM-B200")))
    world.pod("holder", template="one")
    world.bound("holder")
    world.pod("waiter", template="b200")
    world.refused("waiter")
    return world


def valid(name: str, text: str) -> Any:
    """An answer that is what its published schema says."""
    found = json.loads(text)
    assert [error.message for error in jsonschema_rs.validator_for(schema_of(name)).iter_errors(found)] == []
    return found


def test_explain_says_why_in_words_and_as_data(waiting: World) -> None:
    done = dibs("explain", "pod/waiter")
    assert done.returncode == 83, done.stderr
    assert "pod default/waiter on admin: pending" in done.stdout
    assert "[DEVICE_NO_MATCH]" in done.stdout
    assert "cannot allocate all claims" in done.stdout
    data = valid(
        "explain pod", dibs("explain", "pod/waiter", "-n", "default", "--cluster", "admin", "-o", "json").stdout
    )
    assert data["reasons"][0]["code"] == "DEVICE_NO_MATCH"
    assert data["nodes"][0]["node"] == "fake-1"
    before = dibs("explain", "-n", "default", "-o", "json", "pod/waiter")
    assert json.loads(before.stdout)["name"] == "waiter"


def test_a_running_kubectl_finds_the_plugin(waiting: World) -> None:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    kubectl = waiting.running.binaries / "kubectl"
    done = subprocess.run(
        [str(kubectl), "dibs", "why", "waiter", "-n", "default"], capture_output=True, text=True, check=False,
        env=environment,
    )  # fmt: skip
    assert "[DEVICE_NO_MATCH]" in done.stdout, done.stderr


def test_gpus_of_a_cluster_shows_devices_and_their_holders(waiting: World) -> None:
    done = dibs("gpus", "--cluster")
    assert done.returncode == 0, done.stderr
    assert "0 of 2 nvidia.com/gpu" in done.stdout
    held = [line for line in done.stdout.splitlines() if "default/holder-gpu-" in line]
    assert len(held) == 1
    assert "fake-1/gpu-0" in held[0]
    data = valid("gpus --cluster", dibs("gpus", "--cluster", "admin", "-o", "json").stdout)
    assert [one["device"] for one in data["devices"]] == ["gpu-0", "gpu-1"]
    assert data["devices"][0]["held_by"][0]["users"] == ["pod default/holder"]
    assert "kind: ResourceSlice" in dibs("gpus", "--cluster", "-o", "slices").stdout


def test_an_unknown_cluster_and_an_unknown_pod_are_refused(waiting: World) -> None:
    assert dibs("gpus", "--cluster", "nosuch").returncode == 89
    assert dibs("explain", "pod/nosuch").returncode == 89
    assert dibs("explain", "--cluster", "admin", "--", "true").returncode == 2


def test_kubectls_own_flags_are_understood() -> None:
    assert arguments_of(["why", "-n", "team", "train-0", "--context=prod"]) == [
        "explain", "pod/train-0", "-n", "team", "--cluster", "prod",
    ]  # fmt: skip
    assert arguments_of(["why", "claim/x"]) == ["explain", "claim/x"]
    assert arguments_of(["gpus", "--context", "prod"]) == ["gpus", "--cluster", "prod"]
    assert arguments_of(["frobnicate"]) is None

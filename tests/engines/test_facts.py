"""What is read of an engine's own process, also while that ends."""

from __future__ import annotations

import os
import subprocess

import pytest

from dibs.backends.engines.device_injection import decide
from dibs.backends.engines.facts import Facts, mount_table
from dibs.backends.port import GrantedDevice
from dibs.cdi.spec import ContainerEdits, DeviceNode
from dibs.devices.model import CdiAttachment, DeviceId
from dibs.errors import BackendUnavailable
from dibs.process import name_of


@pytest.mark.parametrize("reaped", [False, True], ids=["ending", "gone"])
def test_an_engine_that_ends_while_its_mounts_are_read_is_away(reaped: bool) -> None:
    with subprocess.Popen(["sleep", "1000"]) as engine:
        peer = name_of(engine.pid)
        assert peer is not None
        assert mount_table("podman", peer).at("/") is not None
        engine.kill()
        if reaped:
            engine.wait()
        else:
            os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(BackendUnavailable) as found:
            mount_table("podman", peer)
        assert found.value.code == "ENGINE_UNREACHABLE"


@pytest.mark.parametrize("reaped", [False, True], ids=["ending", "gone"])
def test_what_is_looked_for_through_an_engine_that_has_ended_is_not_said_to_be_missing(reaped: bool) -> None:
    node = DeviceNode(path="/dev/sim0", host_path="/dev/null")
    edits = ContainerEdits(device_nodes=(node,))
    card = GrantedDevice(DeviceId("x/y/0"), CdiAttachment("sim.example/gpu=0", edits, "s"))
    with subprocess.Popen(["sleep", "1000"]) as engine:
        facts = Facts(version="1", architecture="amd64", peer=name_of(engine.pid), cdi=False, cdi_dirs=())
        assert decide((card,), facts, {}, ()).problems == []
        assert facts.seen("/dev/null") == "/dev/null"
        engine.kill()
        if reaped:
            engine.wait()
        else:
            os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
        for look in (lambda: facts.seen("/dev/null"), lambda: decide((card,), facts, {}, ())):
            with pytest.raises(BackendUnavailable) as found:
                look()
            assert found.value.code == "ENGINE_UNREACHABLE"

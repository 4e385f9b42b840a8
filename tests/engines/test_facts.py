"""What is read of an engine's own process, also while that ends."""

from __future__ import annotations

import os
import subprocess

import pytest

from dibs.backends.engines.facts import mount_table
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

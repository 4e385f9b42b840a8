"""The harness itself: real engines that leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.engines.installing import CannotInstall
from tests.engines.running import Engine, _processes


def links() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def tables() -> str:
    try:
        return Path("/proc/net/ip_tables_names").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_an_engine_leaves_no_process_mount_link_or_rule(kind: str) -> None:
    before = links(), tables()
    try:
        engine = Engine(kind)
        engine.start()
    except CannotInstall as error:
        pytest.skip(f"{kind} is not here: {error}")
    try:
        engine.load()
        create = "/v1.41/containers/create" if kind == "docker" else "/v4.0.0/libpod/containers/create"
        body: dict[str, object] = (
            {"Image": "localhost/dibs-test:1", "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "host"}}
            if kind == "docker"
            else {"image": "localhost/dibs-test:1", "command": ["sleep", "1000"], "netns": {"nsmode": "host"}}
        )
        status, made = engine.api("POST", create, json=body)
        assert status == 201, made
        assert isinstance(made, dict)
        assert engine.api("POST", f"{engine.prefix}/containers/{made['Id']}/start")[0] == 204
        assert _processes(engine.folder.name)
    finally:
        engine.stop()
    assert _processes(engine.folder.name) == []
    assert not engine.folder.exists()
    assert engine.folder.name not in Path("/proc/self/mountinfo").read_text()
    assert (links(), tables()) == before

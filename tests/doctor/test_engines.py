"""The doctor on container engines: what stops them from being given devices, and the command that fixes it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dibs.backends.engines.facts import Facts
from dibs.doctor import Finding, engines

FACTS = Facts(version="28.1.0", architecture="amd64", peer=None, cdi=True, cdi_dirs=("/etc/cdi",))


def settings(patient: Any, **sockets: Path) -> None:
    patient.home.config.mkdir(parents=True, exist_ok=True)
    lines = [f'[{engine}]\nsocket = "{path}"\n' for engine, path in sockets.items()]
    (patient.home.config / "config.toml").write_text("".join(lines))


def found(findings: Any) -> dict[str, Finding]:
    return {finding.id: finding for finding in findings}


def a_spec(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    devices = [{"name": name, "containerEdits": {"env": [f"N={name}"]}} for name in names]
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    (folder / "nvidia.json").write_text(json.dumps(spec))


def test_a_host_without_engines_is_no_failure(patient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("dibs.backends.engines.discovery.places", lambda *_: ["/nowhere.sock"])
    result = found(engines.check(patient.scene()))
    assert {name: one.verdict for name, one in result.items()} == {"engine.docker": "skip", "engine.podman": "skip"}


def test_a_socket_without_a_listener_has_a_remedy_that_starts_the_engine(patient: Any, tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    settings(patient, docker=path, podman=tmp_path / "missing.sock")
    result = found(engines.check(patient.scene()))
    for engine, unit in (("docker", "docker"), ("podman", "podman.socket")):
        one = result[f"engine.{engine}"]
        assert one.verdict == "fail"
        assert one.fix == f"sudo systemctl start {unit}"


@pytest.mark.skipif(os.getuid() == 0, reason="root may use every socket")
def test_a_socket_that_we_may_not_use_says_how_to_join(patient: Any, tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0)
        listener.listen()
        settings(patient, docker=path)
        one = found(engines.check(patient.scene()))["engine.docker"]
    assert (one.verdict, one.fix) == ("fail", "sudo usermod -aG docker $USER && newgrp docker")


@pytest.mark.parametrize(
    ("version", "has_file", "fix"),
    [
        ("26.1.5", False, "echo"),
        ("26.1.5", True, "add"),
        ("20.10.24", False, "upgrade Docker"),
    ],
)
def test_an_engine_without_cdi_says_how_to_switch_it_on(patient: Any, version: str, has_file: bool, fix: str) -> None:
    if has_file:
        patient.file("/etc/docker/daemon.json", "{}")
    facts = msgspec.structs.replace(FACTS, version=version, cdi=False, cdi_dirs=())
    one = found(engines.judge("docker", facts, patient.scene()))["engine.docker.cdi"]
    assert one.verdict == "fail"
    assert one.fix.startswith(fix)
    legacy = msgspec.structs.replace(facts, legacy=True)
    assert found(engines.judge("docker", legacy, patient.scene()))["engine.docker.cdi"].verdict == "warn"


def test_an_engine_that_reads_other_folders_is_distinguished(patient: Any, tmp_path: Path) -> None:
    a_spec(patient.specs, "0", "1")
    a_spec(tmp_path / "theirs", "0")
    facts = msgspec.structs.replace(FACTS, cdi_dirs=(str(tmp_path / "theirs"),))
    one = found(engines.judge("docker", facts, patient.scene()))["engine.docker.specs"]
    assert one.verdict == "fail"
    assert "nvidia.com/gpu=1 cannot be given" in one.why
    assert str(patient.specs) in one.fix
    a_spec(tmp_path / "theirs", "0", "1")
    assert found(engines.judge("docker", facts, patient.scene()))["engine.docker.specs"].verdict == "ok"


def test_limits_that_an_engine_cannot_keep_are_named(patient: Any) -> None:
    facts = msgspec.structs.replace(FACTS, limits=frozenset(("pids",)), rootless=True)
    one = found(engines.judge("podman", facts, patient.scene()))["engine.podman.limits"]
    assert one.title == "podman cannot limit cpu, memory rootless"
    assert "Delegate" in one.fix


def test_gpus_that_a_reload_would_take_away_are_foreseen(patient: Any) -> None:
    patient.node("/dev/nvidia0")
    facts = msgspec.structs.replace(FACTS, systemd=True)
    one = found(engines.judge("docker", facts, patient.scene()))["engine.docker.reload"]
    assert one.verdict == "warn"
    assert "create-dev-char-symlinks" in one.fix
    patient.node("/dev/char/1:3")
    assert "engine.docker.reload" not in found(engines.judge("docker", facts, patient.scene()))
    without_cdi = msgspec.structs.replace(facts, cdi=False, legacy=True)
    assert "engine.docker.reload" in found(engines.judge("docker", without_cdi, patient.scene()))

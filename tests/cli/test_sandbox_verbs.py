"""`dibs sandbox …`: a whole life, and what is refused in the wrong state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dibs.home import Home

from .conftest import Dibs


def state(dibs: Dibs, name: str) -> str:
    return str(json.loads(dibs("sandbox", "show", name, "-o", "json").stdout)["state"])


def test_a_whole_life(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    assert dibs("sandbox", "create", "--name", "lab", "--gpu", "1").stdout == "lab\n"
    result = dibs("sandbox", "exec", "lab", "--", "sh", "-c", "cat; ls /dev | grep gpu; exit 4", input="in ")
    assert (result.stdout, result.returncode) == ("in simgpu0\n", 4)
    assert dibs("sandbox", "exec", "-e", "A=b", "-w", "/usr", "lab", "sh", "-c", "echo $A $PWD").stdout == "b /usr\n"
    assert dibs("sandbox", "pause", "lab").returncode == 0
    assert state(dibs, "lab") == "paused"
    assert dibs("sandbox", "exec", "lab", "true").returncode == 88
    assert dibs("sandbox", "pause", "lab").returncode == 88
    assert dibs("sandbox", "resume", "lab").returncode == 0
    assert state(dibs, "lab") == "running"
    assert dibs("sandbox", "stop", "lab", "--grace", "0s").returncode == 0
    assert state(dibs, "lab") == "exited"
    assert json.loads(dibs("leases", "-o", "json").stdout)["leases"] == []
    assert dibs("sandbox", "stop", "lab").returncode == 0, "stopping twice changes nothing"
    assert dibs("sandbox", "rm", "lab").returncode == 0
    assert dibs("sandbox", "exec", "lab", "true").returncode == 88


def test_files_are_copied_in_and_out(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "data" / "sub").mkdir(parents=True)
    (work / "data" / "sub" / "file").write_text("content")
    dibs("sandbox", "create", "--name", "lab")
    assert dibs("sandbox", "cp", "./data", "lab:/tmp").returncode == 0
    assert dibs("sandbox", "exec", "lab", "cat", "/tmp/data/sub/file").stdout == "content"
    dibs("sandbox", "exec", "lab", "--", "sh", "-c", "echo made > /tmp/data/new")
    assert dibs("sandbox", "cp", "lab:/tmp/data", "./back").returncode == 0
    assert (work / "back" / "new").read_text() == "made\n"
    assert (work / "back" / "sub" / "file").read_text() == "content"
    assert dibs("sandbox", "cp", "lab:/no/such", ".").returncode != 0
    assert dibs("sandbox", "cp", "./absent", "lab:/tmp").returncode == 80
    assert dibs("sandbox", "cp", "a", "b").returncode == 80


def test_a_name_is_taken_while_it_lives(home: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "lab")
    result = dibs("sandbox", "create", "--name", "lab")
    assert result.returncode == 88
    assert "dibs sandbox rm lab" in result.stderr


def test_a_time_to_live_ends_it_and_says_so(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "brief", "--gpu", "1", "--ttl", "1s", "--grace", "0s")
    assert dibs("run", "--gpu", "8", "--wait", "60s", "--", "true").returncode == 0
    shown = json.loads(dibs("sandbox", "show", "brief", "-o", "json").stdout)
    assert shown["exit"]["reason"] == "expired"


@pytest.mark.parametrize("verb", ["show", "stop", "rm", "pause", "resume", "logs"])
def test_an_unknown_sandbox_is_not_found(home: Home, dibs: Dibs, verb: str) -> None:
    result = dibs("sandbox", verb, "nobody")
    assert result.returncode == 89
    assert "dibs sandbox ls --all" in result.stderr


def test_logs_are_kept_after_the_end_with_streams_apart(home: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "talk", "--", "sh", "-c", "echo out; echo err >&2")
    result = dibs("sandbox", "logs", "--follow", "talk")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    result = dibs("sandbox", "logs", "talk")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")

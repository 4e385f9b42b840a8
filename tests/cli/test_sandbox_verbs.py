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


def test_logs_by_line_from_the_end_and_from_a_time_on(home: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "talk", "--", "sh", "-c", "printf 'one\ntwo\nthr'; printf 'ee\n'")
    dibs("wait", "talk")
    assert dibs("logs", "talk", "--tail", "2").stdout == "two\nthree\n"
    assert dibs("logs", "-f", "-n", "1", "talk").stdout == "three\n"
    stamped = dibs("logs", "talk", "--timestamps").stdout.splitlines()
    assert [line.split(" ")[1] for line in stamped] == ["one", "two", "three"]
    assert all(len(line.split(" ")[0]) == len("2026-05-04T12:00:00.000Z") for line in stamped)
    assert dibs("logs", "talk", "--since", "1h").stdout == "one\ntwo\nthree\n"
    assert dibs("logs", "talk", "--since", "2100-01-01T00:00:00Z").stdout == ""
    refused = dibs("logs", "talk", "--since", "yesterday")
    assert refused.returncode == 80
    assert "write it as 10m" in refused.stderr


def test_waiting_passes_the_exit_code_on(home: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "bad", "--", "sh", "-c", "exit 7")
    dibs("sandbox", "create", "--name", "good", "--", "true")
    result = dibs("wait", "bad")
    assert (result.returncode, result.stdout) == (7, "exit code 7\n")
    result = dibs("wait", "good", "bad", "-o", "json")
    assert result.returncode == 7
    assert [(one["name"], one["exit"]["code"]) for one in json.loads(result.stdout)] == [("good", 0), ("bad", 7)]
    dibs("sandbox", "create", "--name", "long")
    result = dibs("wait", "long", "--timeout", "100ms")
    assert result.returncode == 90
    assert "still runs" in result.stderr


def test_the_short_forms_are_the_same_verbs(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "lab", "--gpu", "1", "--ttl", "1h")
    assert dibs("ps").stdout.split()[:10] == dibs("sandbox", "ls").stdout.split()[:10]
    assert dibs("exec", "lab", "--", "echo", "hi").stdout == "hi\n"
    assert dibs("cp", "lab:/etc/hostname", ".").returncode == 0
    assert dibs("stop", "lab", "--grace", "0s").returncode == 0
    assert state(dibs, "lab") == "exited"


def test_the_time_to_live_is_shown(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "brief", "--ttl", "1h")
    dibs("sandbox", "create", "--name", "long")
    header, *lines = dibs("ps").stdout.splitlines()
    assert "UNTIL" in header
    until = {line.split()[0]: line[header.index("UNTIL") - 2 : header.index("UNTIL") + 5].strip() for line in lines}
    assert until == {"brief": until["brief"], "long": ""}
    assert until["brief"].startswith("59m") or until["brief"] == "1h00m"
    shown = json.loads(dibs("sandbox", "show", "brief", "-o", "json").stdout)
    assert shown["expires_at"] > shown["created_at"]


def test_stop_and_rm_take_several_and_go_on_after_one_that_fails(eight_gpus: Home, dibs: Dibs) -> None:
    for name in ("a", "b"):
        dibs("sandbox", "create", "--name", name, "--gpu", "1")
    stopped = dibs("stop", "absent", "a", "lost", "b", "--grace", "0s")
    assert stopped.returncode == 89
    assert '"absent"' in stopped.stderr
    assert '"lost"' in stopped.stderr
    assert dibs("leases").stdout == "nothing is held\n"
    removed = dibs("rm", "absent", "a", "b")
    assert (removed.returncode, removed.stdout) == (89, "a\nb\n")


def test_a_path_in_a_sandbox_is_absolute(eight_gpus: Home, dibs: Dibs) -> None:
    result = dibs("cp", "data", "lab:tmp/data")
    assert result.returncode == 80
    assert "write it as lab:/tmp/data" in result.stderr


def test_what_is_shown_is_in_plain_words(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "lab", "--gpu", "1")
    assert "simulated   yes" in dibs("sandbox", "show", "lab").stdout
    dibs("sandbox", "pause", "lab")
    assert "running: dibs sandbox resume lab" in dibs("exec", "lab", "true").stderr

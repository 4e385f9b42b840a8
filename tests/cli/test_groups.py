"""`dibs run --nodes N`: one terminal for all ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema_rs
import pytest
from tests.remote.serving import gateway_on

from dibs.cli.schema import schema_of
from dibs.home import Home
from dibs.workloads.service import Workloads

Dibs = Callable[..., "subprocess.Popen[str]"]
ECHO = 'echo "out $DIBS_RANK of $DIBS_NODES"; echo "err $DIBS_RANK" >&2'


@pytest.fixture
def start(eight_gpus: Home, tmp_path: Path) -> Iterator[Dibs]:
    """A command that runs; everything that it leaves is removed."""

    def call(*words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dibs", *words],
            env={**os.environ, "DIBS_HOME": str(eight_gpus.state), **env},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    yield call
    with Workloads(eight_gpus) as service:
        for row in service.sandboxes():
            service.remove(row.id, 0.0)
        assert service.leases() == []


@pytest.fixture
def dibs(start: Dibs) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        running = start(*words, **env)
        out, err = running.communicate(timeout=120)
        return subprocess.CompletedProcess(words, running.returncode, out, err)

    return call


Call = Callable[..., "subprocess.CompletedProcess[str]"]


def valid(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(text)
    validator = jsonschema_rs.validator_for(schema_of("run"))
    assert [error.message for error in validator.iter_errors(found)] == []
    return found


def test_each_line_says_which_rank_wrote_it(dibs: Call, eight_gpus: Home) -> None:
    result = dibs("run", "-q", "--nodes", "2", "--gpu", "4", "--", "sh", "-c", ECHO)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] out 0 of 2", "[1] out 1 of 2"]
    assert sorted(result.stderr.splitlines()) == ["[0] err 0", "[1] err 1"]
    with Workloads(eight_gpus) as service:
        assert service.leases() == []


def test_lines_are_whole_even_if_they_come_in_parts_or_never_end(dibs: Call) -> None:
    command = "printf 'a'; sleep 0.1; printf 'b\\nc'; cat"
    result = dibs("run", "-q", "--nodes", "2", "--gpu", "1", "--", "sh", "-c", command)
    assert (result.returncode, sorted(result.stdout.splitlines())) == (0, ["[0] ab", "[0] c", "[1] ab", "[1] c"])


def test_when_one_rank_fails_the_others_are_ended_and_its_code_is_passed_on(dibs: Call) -> None:
    command = "test $DIBS_RANK = 1 && exit 7; exec sleep 1000"
    result = dibs("run", "--nodes", "3", "--gpu", "1", "--", "sh", "-c", command)
    assert result.returncode == 7, result.stderr
    assert "rank 1 failed with exit code 7; ending the other 2" in result.stderr


@pytest.mark.parametrize(("trap", "number"), [("", 15), ("trap '' TERM;", 9)])
def test_the_others_are_asked_first_and_killed_after_their_grace(dibs: Call, trap: str, number: int) -> None:
    others = f"{trap} touch ready-$DIBS_RANK; exec sleep 1000"
    command = f"test $DIBS_RANK = 1 || {{ {others}; }}; until test -e ready-0 -a -e ready-2; do sleep 0.1; done; exit 7"
    grace = "60s" if number == signal.SIGTERM else "0.5s"
    words = ("run", "-o", "json", "--nodes", "3", "--gpu", "1", "--grace", grace, "--", "sh", "-c", command)
    data = valid(dibs(*words).stdout)
    members = data["members"]
    assert isinstance(members, list)
    assert data["exit_code"] == 7
    assert [one["exit"].get("signal") for one in members] == [number, None, number]


def test_with_continue_the_others_go_on(dibs: Call) -> None:
    command = "test $DIBS_RANK = 1 && exit 7; sleep 0.3; echo done"
    result = dibs(
        "run", "-q", "--nodes", "2", "--on-failure", "continue", "--gpu", "1", "--", "sh", "-c", command
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (7, "[0] done\n"), result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_every_member(start: Dibs, number: signal.Signals) -> None:
    command = "trap 'echo told; exit 0' INT TERM; echo ready; while :; do sleep 0.1; done"
    running = start("run", "-q", "--nodes", "2", "--gpu", "1", "--", "sh", "-c", command)
    assert running.stdout is not None
    assert sorted(running.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, sorted(out.splitlines())) == (0, ["[0] told", "[1] told"]), err


def test_ctrl_c_three_times_kills_all_members(start: Dibs) -> None:
    command = "trap 'echo no' INT; echo ready; while :; do sleep 0.1; done"
    running = start("run", "-q", "--nodes", "2", "--gpu", "1", "--", "sh", "-c", command)
    assert running.stdout is not None
    for expected in ("ready", "no", "no"):
        assert sorted(running.stdout.readline() for _ in range(2)) == [f"[0] {expected}\n", f"[1] {expected}\n"]
        running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 137, err


def test_all_of_them_end_with_the_reader_of_their_output(start: Dibs, dibs: Call) -> None:
    running = start("run", "-q", "--nodes", "2", "--gpu", "1", "--", "sh", "-c", "while sleep 0.05; do echo x; done")
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.wait(60) == 141, running.stderr.read()
    running.stderr.close()
    assert dibs("wait", *dibs("ps", "--all", "--quiet").stdout.split()).returncode != 0
    assert dibs("ps", "--all").stdout.count("the terminal or client that ran it went away") == 2


def test_as_data_each_member_has_its_own_output(dibs: Call) -> None:
    data = valid(dibs("run", "--nodes", "2", "--gpu", "1", "-o", "json", "--", "sh", "-c", ECHO).stdout)
    assert data["exit_code"] == 0
    members = data["members"]
    assert isinstance(members, list)
    assert [(one["group"], one["rank"], one["stdout"], one["stderr"]) for one in members] == [
        (data["group"], rank, f"out {rank} of 2\n", f"err {rank}\n") for rank in range(2)
    ]


def test_the_receipt_of_each_member_is_shown(dibs: Call) -> None:
    result = dibs("run", "--receipt", "--name", "job", "--nodes", "2", "--gpu", "1", "--", "true")
    assert result.returncode == 0, result.stderr
    assert all(result.stderr.count(name) == 1 for name in ("job-0", "job-1")), result.stderr


def test_a_detached_group_is_shown_by_ps(dibs: Call) -> None:
    words = ("run", "-d", "--nodes", "2", "--gpu", "1", "--grace", "0s")
    assert dibs(*words, "--name", "job", "--", "sleep", "1000").stdout.splitlines() == ["job-0", "job-1"]
    shown = dibs("ps").stdout.splitlines()
    assert "GROUP" in shown[0]
    assert [line.split()[0] for line in shown[1:]] == ["job-1", "job-0"]
    assert "rank 1" in shown[1]
    assert "exit_code" not in valid(dibs(*words, "-o", "json", "--", "sleep", "1000").stdout)


def test_the_next_command_ends_what_is_left_of_a_detached_group(dibs: Call) -> None:
    command = "test $DIBS_RANK = 1 && exit 7; exec sleep 1000"
    assert dibs("run", "-d", "--name", "job", "--nodes", "2", "--gpu", "1", "--", "sh", "-c", command).returncode == 0
    assert dibs("wait", "job-1").returncode == 7
    assert dibs("ps").stdout == "no live sandboxes; --all shows ended ones\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--nodes", "2", "--on-failure", "panic"), "there is no such policy"),
        (("--nodes", "0"), "1 to 64 members"),
        (("--on-failure", "continue"), "--nodes was not given"),
        (("--nodes", "2", "--tty"), "a group has no one at its terminal"),
    ],
)
def test_what_makes_no_sense_is_refused(dibs: Call, words: tuple[str, ...], reason: str) -> None:
    result = dibs("run", *words, "--gpu", "1", "--", "true")
    assert (result.returncode, "GROUP_INVALID" in result.stderr) == (80, True), result.stderr
    assert reason in result.stderr


def test_over_a_gateway_groups_are_refused_by_name(dibs: Call, eight_gpus: Home) -> None:
    with gateway_on(eight_gpus) as served:
        result = dibs("run", "--nodes", "2", "--gpu", "1", "-o", "json", "--", "true", DIBS_URL=served.url)
    assert result.returncode == 81, result.stderr
    [problem] = json.loads(result.stderr)["problems"]
    assert (problem["code"], problem["field"], problem["value"]) == ("GROUP_NOT_OVER_GATEWAY", "nodes", "2")
    assert "dibs run" in problem["remedy"]
    with Workloads(eight_gpus) as service:
        assert service.sandboxes(all=True) == []

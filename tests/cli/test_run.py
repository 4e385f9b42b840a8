"""`dibs run`, as a user sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.cli.foreign_options import OFFERS
from dibs.cli.run import run as run_verb
from dibs.home import Home

from .conftest import Dibs

# Where no private network can be had, a gateway's sandbox has none, and `run` says so. Tests of everything that is
# printed ask for none, so that they read the same on every machine.
NO_NETWORK = ("--network", "none")


def test_the_command_sees_exactly_what_was_leased(eight_gpus: Home, dibs: Dibs) -> None:
    result = dibs("run", *NO_NETWORK, "--gpu", "2", "--", "sh", "-c", "ls /dev | grep gpu; echo $DIBS_GPU_COUNT")
    assert result.stdout.split() == ["simgpu0", "simgpu1", "2"]
    assert result.returncode == 0
    assert result.stderr == ""


def test_gpu_with_no_value_does_not_eat_the_command(eight_gpus: Home, dibs: Dibs) -> None:
    assert dibs("run", "--gpu", "--", "sh", "-c", "ls /dev | grep gpu").stdout.split() == ["simgpu0"]
    assert dibs("run", "--gpu", "--name", "x", "--", "sh", "-c", "echo $DIBS_GPU_COUNT").stdout == "1\n"


def test_a_command_that_was_eaten_is_pointed_out(eight_gpus: Home, dibs: Dibs) -> None:
    result = dibs("run", "--gpu", "sh", "-c", "true")
    assert result.returncode != 0
    result = dibs("run", "--gpu", "sh", "true")
    assert result.returncode == 82
    assert "--gpu -- sh" in result.stderr


def test_without_gpu_no_device_node_is_there(eight_gpus: Home, dibs: Dibs) -> None:
    result = dibs("run", "--", "sh", "-c", "ls /dev | grep -c gpu; echo [$CUDA_VISIBLE_DEVICES$NVIDIA_VISIBLE_DEVICES]")
    assert result.stdout.split() == ["0", "[void]"]


def test_the_exit_code_is_passed_on(home: Home, dibs: Dibs) -> None:
    assert dibs("run", "--", "sh", "-c", "exit 42").returncode == 42
    assert dibs("run", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_streams_stay_apart_and_stdin_is_passed(home: Home, dibs: Dibs) -> None:
    result = dibs("run", *NO_NETWORK, "--", "sh", "-c", "cat; echo err >&2", input="through")
    assert (result.stdout, result.stderr) == ("through", "err\n")


def test_a_large_output_arrives_whole(home: Home, dibs: Dibs) -> None:
    result = dibs("run", "--", "sh", "-c", "seq 1 200000")
    assert result.stdout == "".join(f"{n}\n" for n in range(1, 200001))


def test_a_missing_command_is_127_and_an_unexecutable_one_126(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    result = dibs("run", "--gpu", "1", "--", "no-such-command")
    assert result.returncode == 127
    assert "COMMAND_NOT_FOUND" in result.stderr
    (tmp_path / "work" / "plain").write_text("x")
    assert dibs("run", "--", "./plain").returncode == 126
    assert json.loads(dibs("leases", "-o", "json").stdout)["leases"] == []


def test_signals_are_forwarded_and_the_devices_freed(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    code = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done"
    child = subprocess.Popen(
        [sys.executable, "-m", "dibs", "run", "--gpu", "1", "--", "sh", "-c", code],
        env={**os.environ, "DIBS_HOME": str(eight_gpus.state)},
        cwd=tmp_path / "work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.read() == "caught\n"
    assert child.wait() == 7
    child.stdout.close()
    assert json.loads(dibs("leases", "-o", "json").stdout)["leases"] == []


def test_a_killed_client_ends_its_foreground_command(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "dibs", "run", "--gpu", "8", "--", "sh", "-c", "echo ready; sleep 1000"],
        env={**os.environ, "DIBS_HOME": str(eight_gpus.state)},
        cwd=tmp_path / "work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.kill()
    child.wait()
    child.stdout.close()
    assert dibs("run", "--gpu", "8", "--wait", "60s", "--", "true").returncode == 0


def test_detached_outlives_dibs_and_is_followed_to_its_end(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "work" / "go")
    code = "echo begun; read word <go; echo $word; exit 5"
    result = dibs("run", "--detach", "--name", "job", "--gpu", "1", "--", "sh", "-c", code)
    assert result.stdout == "job\n"
    assert dibs("sandbox", "ls").stdout.split()[7:10] == ["job", "running", "gpu-0"]
    (tmp_path / "work" / "go").write_text("ended\n")
    assert dibs("sandbox", "logs", "--follow", "job").stdout == "begun\nended\n"
    shown = json.loads(dibs("sandbox", "show", "job", "-o", "json").stdout)
    assert (shown["state"], shown["exit"]["code"]) == ("exited", 5)
    assert dibs("sandbox", "logs", "job").stdout == "begun\nended\n"


def test_sd_10_two_sandboxes_get_different_gpus(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "a", "--gpu", "1")
    dibs("sandbox", "create", "--name", "b", "--gpu", "1")
    leases = json.loads(dibs("leases", "-o", "json").stdout)["leases"]
    assert [device["id"].rpartition("/")[2] for lease in leases for device in lease["devices"]] == ["gpu-0", "gpu-1"]


def test_sd_11_one_too_many_is_refused_naming_the_holder(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "greedy", "--gpu", "8")
    result = dibs("run", "--gpu", "1", "--", "true")
    assert result.returncode == 83
    assert "held by greedy" in result.stderr
    assert "--wait" in result.stderr


def test_waiting_ends_with_the_reason_when_time_is_up(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "greedy", "--gpu", "8")
    result = dibs("run", "--gpu", "1", "--wait", "200ms", "--", "true")
    assert result.returncode == 90
    assert "WAIT_TIMEOUT" in result.stderr
    assert "held by greedy" in result.stderr
    assert json.loads(dibs("leases", "-o", "json").stdout)["queue"] == []


def test_all_problems_come_at_once_in_text_and_in_json(home: Home, dibs: Dibs) -> None:
    words = ("run", "--gpu", "1.5", "--memory", "512m", "--name", "A/B", "-e", "CUDA_VISIBLE_DEVICES=1")
    result = dibs(*words, "--", "true")
    assert result.returncode == 80
    assert [word in result.stderr for word in ("1.5", "512Mi", "A/B", "CUDA_VISIBLE_DEVICES")] == [True] * 4
    explained = dibs("explain", *words[1:], "-o", "json", "--", "true")
    assert {p["field"] for p in json.loads(explained.stderr)["problems"]} == {
        "gpu", "memory", "name", "env.CUDA_VISIBLE_DEVICES",
    }  # fmt: skip


def test_a_request_file_is_read_and_unknown_keys_are_refused(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    (tmp_path / "work" / "good.yaml").write_text(
        "gpu: H100:2\nenv: {GREETING: hello}\ncommand: [sh, -c, echo $GREETING]\n"
    )
    assert dibs("run", "-f", "good.yaml").stdout == "hello\n"
    (tmp_path / "work" / "bad.yaml").write_text("gpus: 1\nmemry: 4Gi\n")
    result = dibs("run", "-f", "bad.yaml", "--", "true")
    assert result.returncode == 80
    assert 'memry "4Gi": there is no such field' in result.stderr
    (tmp_path / "work" / "worse.yaml").write_text("gpu: [")
    assert dibs("run", "-f", "worse.yaml", "--", "true").returncode == 80
    assert dibs("run", "-f", "absent.yaml", "--", "true").returncode == 80


def test_a_variable_of_the_shell_that_would_pick_gpus_is_replaced_and_said_so(eight_gpus: Home, dibs: Dibs) -> None:
    result = dibs("run", "--gpu", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="3")
    assert result.stdout.startswith("GPU-")
    assert "CUDA_VISIBLE_DEVICES=3 from your environment is replaced" in result.stderr


def test_dibs_own_variables_do_not_reach_the_command(home: Home, dibs: Dibs) -> None:
    assert "DIBS_HOME" not in dibs("run", "--", "env").stdout


@pytest.mark.parametrize("encoding", ["UTF-8", "ascii"])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "--", "echo", "\udcff"), ("run", "-o", "json", "--", "\udcff"),
        ("sandbox", "create", "--label", "a=\udcff"), ("run", "--name", "\udcff", "--", "true"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_text_are_refused(home: Home, dibs: Dibs, words: tuple[str, ...], encoding: str) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = dibs(*words, **(ascii_only if encoding == "ascii" else {}))
    assert result.returncode == 80
    assert "Traceback" not in result.stderr
    assert r"\udcff" in result.stderr + result.stdout
    assert "'" not in result.stderr  # no Python repr


def test_no_sandbox_is_called_like_bytes_that_are_no_text(home: Home, dibs: Dibs) -> None:
    for words in (("logs", "\udcff"), ("exec", "\udcff", "--", "true"), ("receipt", "\udcff", "-o", "json")):
        result = dibs(*words)
        assert result.returncode == 89
        assert "there is no such sandbox" in result.stderr


def test_a_folder_whose_name_is_no_text_is_refused(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path / "work") + b"/\xff"
    os.mkdir(odd)
    result = dibs("run", "--workdir", os.fsdecode(odd), "--", "true")
    assert result.returncode == 80
    assert "Traceback" not in result.stderr


def test_a_line_of_shell_is_no_command(home: Home, dibs: Dibs) -> None:
    result = dibs("run", "--", "echo hi; ls")
    assert result.returncode == 127
    assert "write sh -c 'echo hi; ls'" in result.stderr


@pytest.mark.parametrize("words", [("run",), ("run", "--gpu"), ("run", "--")])
def test_no_command_is_a_clear_refusal(home: Home, dibs: Dibs, words: tuple[str, ...]) -> None:
    result = dibs(*words)
    assert result.returncode == 80
    assert "write it last, as in `dibs run --gpu 1 -- python train.py`" in result.stderr


@pytest.mark.parametrize(("typed", "meant"), [("-gpu", "--gpu"), ("-memory=4Gi", "--memory")])
def test_one_hyphen_too_few_is_seen(home: Home, dibs: Dibs, typed: str, meant: str) -> None:
    result = dibs("run", typed, "1", "--", "true")
    assert result.returncode == 2
    assert f"Did you mean '{meant}'?" in result.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["--rm", "--gpu", "1"], "leave it out"),  # Docker
        (["-it", "--gpu", "1"], "stdin is passed on"),
        (["-v", "/data:/data"], "--mount /data:/data"),
        (["--cpus=2"], "--cpu 2"),
        (["--runtime=nvidia"], "leave it out"),
        (["--gpus-per-node=2"], "--gpu 2"),  # Slurm
        (["-G", "2"], "--gpu 2"),
        (["--mem", "4G"], "--memory 4Gi"),
        (["--time=1:00:00"], "--ttl 1h"),
        (["--accelerators", "H100:2"], "--gpu H100:2"),  # SkyPilot
        (["--limits", "nvidia.com/gpu=2"], "--gpu 2"),  # kubectl
        (["--gpu", "-1"], "at least 1"),
    ],
)
def test_options_of_other_tools_are_refused_with_ours(home: Home, dibs: Dibs, typed: list[str], offered: str) -> None:
    result = dibs("explain", *typed)
    assert result.returncode == 2
    assert offered in " ".join(result.stderr.split())


def test_exec_takes_no_i(home: Home, dibs: Dibs) -> None:
    assert "stdin is passed on" in dibs("exec", "-it", "lab", "sh").stderr


def test_what_is_offered_for_them_exists() -> None:
    known = {name for option in run_verb.options for name in (*option.names, option.off)}
    for typed, offer in OFFERS.items():
        assert typed not in known
        assert set(re.findall(r"--[a-z][a-z-]*", offer)) - {"--all"} <= known, typed


def test_the_whole_answer_as_data(eight_gpus: Home, dibs: Dibs) -> None:
    command = ("sh", "-c", "cat; echo err >&2; exit 3")
    result = dibs("run", *NO_NETWORK, "--gpu", "2", "--name", "job", "-o", "json", "--", *command, input="in")
    assert (result.returncode, result.stderr) == (3, "")
    data = json.loads(result.stdout)
    assert (data["name"], data["state"], data["stdout"], data["stderr"]) == ("job", "exited", "in", "err\n")
    assert data["exit"]["code"] == 3
    assert len(data["devices"]) == 2
    detached = json.loads(dibs("run", "-d", "-o", "json", "--name", "stays", "--", "sleep", "1000").stdout)
    assert (detached["name"], detached["state"]) == ("stays", "running")


@pytest.mark.parametrize("presses", [b"\x03\x03\x03", b"\x03x\x03\x03\x03"])
def test_three_presses_of_ctrl_c_end_a_command_that_ignores_it_on_a_terminal(
    eight_gpus: Home, dibs: Dibs, tmp_path: Path, presses: bytes
) -> None:
    import pty

    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "dibs", "run", "--gpu", "1", "--", "sh", "-c", "stty -isig; echo ready; cat >/dev/null"],
        env={**os.environ, "DIBS_HOME": str(eight_gpus.state), "TERM": "xterm"}, cwd=tmp_path / "work",
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(ours, 1000)
    for press in presses:
        os.write(ours, bytes([press]))
    assert child.wait(60) == 137
    os.close(ours)
    assert json.loads(dibs("leases", "-o", "json").stdout)["leases"] == []


def test_a_terminal_that_lacks_a_character_gets_no_traceback(eight_gpus: Home, dibs: Dibs) -> None:
    result = dibs("explain", "--gpu", "99", PYTHONIOENCODING="ascii")
    assert result.returncode == 82
    assert "Traceback" not in result.stderr


LOOP = 'while read -r line; do "$PYTHON" -m dibs {verb} {command}; done'


def _loop(home: Home, folder: Path, text: str, verb: str, command: str) -> str:
    (folder / "list").write_text(text)
    script = LOOP.format(verb=verb, command=command)
    env = {**os.environ, "DIBS_HOME": str(home.state), "PYTHON": sys.executable}
    from_file = subprocess.run(["sh", "-c", f"{script} <list"], cwd=folder, env=env, capture_output=True, check=True)
    piped = f"cat list | {script}"
    from_pipe = subprocess.run(["sh", "-c", piped], cwd=folder, env=env, capture_output=True, check=True)
    assert from_file.stdout == from_pipe.stdout
    return from_file.stdout.decode()


def test_a_loop_over_a_file_runs_once_for_each_line(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    said = _loop(home, tmp_path / "work", "one\ntwo\nthree\n", "run", '-- echo "$line"')
    assert said == "one\ntwo\nthree\n"


def test_a_loop_over_a_file_runs_an_exec_for_each_line(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    dibs("sandbox", "create", "--name", "lab")
    assert _loop(home, tmp_path / "work", "one\ntwo\n", "exec", 'lab -- echo "$line"') == "one\ntwo\n"


def test_what_a_command_reads_is_taken_and_nothing_more(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    """Each command reads one line of its own; dd takes exactly the bytes that it wants."""
    said = _loop(home, tmp_path / "work", "a\n1\nb\n2\n", "run", '-- sh -c "dd bs=2 count=1 2>/dev/null"')
    assert said == "1\n2\n"


def test_a_lot_of_input_from_a_pipe_arrives_whole(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    result = dibs("run", "--", "sh", "-c", "wc -c; echo done", input="x" * 3_000_000)
    assert result.stdout.split() == ["3000000", "done"]


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("--gpu 1 -- train", True),
        ("--backend local -- train", True),
        ("-- train --backend docker --image x", True),
        ("--backend docker -- train", False),
        ("--image x -- train", False),
        ("--image=x -- train", False),
    ],
)
def test_a_shim_is_started_early_only_where_it_may_be_needed(
    words: str, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs.backends.local import spawning

    started: list[str] = []

    def spawn(module: str) -> tuple[int, int]:
        started.append(module)
        return 0, 0

    monkeypatch.setattr(spawning, "_waiting", [])
    monkeypatch.setattr(spawning, "spawn", spawn)
    spawning.start_early(words.split())
    assert started == (["shim"] if starts else [])

"""What a person sees: help, tables, explanations, data formats, errors."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.remote.ways import GATEWAY

from dibs.home import Home

from .conftest import Dibs

SOURCES = Path(__file__).resolve().parents[2] / "src"
VERBS = [
    "run",
    "sandbox",
    "gpus",
    "leases",
    "explain",
    "receipt",
    "claims",
    "doctor",
    "cdi",
    "table",
    "schema",
    "completion",
]
FURTHER: list[tuple[str, ...]] = [("gpus", "simulate"), ("gpus", "taint"), ("gpus", "untaint")]
FURTHER += [("context", verb) for verb in ("ls", "use", "set", "rm")]
FURTHER += [("host", verb) for verb in ("install", "status", "uninstall")]
FURTHER += [("claims", verb) for verb in ("check", "solve", "keep", "ls", "rm")]
SANDBOX_VERBS = ["create", "ls", "show", "pause", "resume", "rm"]
SHORT_FORMS = ["exec", "logs", "cp", "wait", "stop"]


def test_the_first_page_names_every_verb_and_fits_a_terminal(dibs: Dibs) -> None:
    page = dibs("--help").stdout
    assert all(f"\n  {verb} " in page for verb in VERBS)
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize(
    "verb", [*((verb,) for verb in (*VERBS, *SHORT_FORMS)), *(("sandbox", verb) for verb in SANDBOX_VERBS), *FURTHER]
)
def test_every_verb_has_a_page_with_an_example(dibs: Dibs, verb: tuple[str, ...]) -> None:
    page = dibs(*verb, "--help", COLUMNS="80").stdout
    assert "Example" in page
    assert f"dibs {' '.join(verb)}" in page
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_the_first_page_loads_nothing_but_itself(word: str) -> None:
    code = (
        "import sys; from dibs.__main__ import main; sys.argv = ['dibs', sys.argv[1]]; main();"
        "print(*(name for name in ('click', 'msgspec', 're', 'typing', 'dataclasses') if name in sys.modules))"
    )
    words = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(SOURCES)!r}); {code}", word]
    page = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert page[0] == "dibs: call dibs on a GPU."
    assert page[-1] == ""


def test_the_first_page_is_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from dibs.cli.verbs import help_page

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, painted = help_page(io.StringIO()), help_page(Terminal())
    assert "\033" not in plain
    assert "\033[36mrun" in painted
    assert re.sub("\033\\[[0-9]*m", "", painted) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert help_page(Terminal()) == plain


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-16", "shift_jis"])
def test_every_terminal_encoding_gets_the_pages(eight_gpus: Home, dibs: Dibs, encoding: str) -> None:
    for words in (("--help",), ("explain", "--gpu", "99"), ("ps", "--all"), ("nonsense",), ("receipt", "nobody→here")):
        result = _raw(eight_gpus, *words, PYTHONIOENCODING=encoding)
        assert b"Traceback" not in result.stderr
        text = (result.stdout + result.stderr).decode(encoding)
        assert encoding != "ascii" or "\\u2192" not in text.replace("nobody\\u2192here", "")
    assert "0 done | 1 a check failed" in _raw(eight_gpus, "--help", PYTHONIOENCODING="ascii").stdout.decode("ascii")


def _raw(home: Home, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        env={**os.environ, "DIBS_HOME": str(home.state), **env}, capture_output=True, check=False,
    )  # fmt: skip


def test_the_version_is_reported(dibs: Dibs) -> None:
    from dibs import __version__

    assert dibs("--version").stdout == f"dibs {__version__}\n"


def test_a_misspelt_verb_is_met_with_the_right_one(dibs: Dibs) -> None:
    result = dibs("explian")
    assert result.returncode == 2
    assert "did you mean `dibs explain`?" in result.stderr


def test_the_table_of_gpus_lines_up(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "lab", "--gpu", "H100:2")
    lines = dibs("gpus").stdout.splitlines()
    assert lines[0].startswith("simulated GPUs")
    start = lines[2].index("STATE")
    assert [line[start : start + 4] for line in lines[3:11]] == ["held"] * 2 + ["free"] * 6
    assert "lab (" in lines[3]
    assert lines[-1] == "8 GPUs, 6 free"


@pytest.mark.parametrize("words", [("gpus",), ("leases",), ("sandbox", "ls"), ("table",), ("explain", "--gpu", "2")])
def test_every_answer_is_also_data(eight_gpus: Home, dibs: Dibs, words: tuple[str, ...]) -> None:
    as_json = json.loads(dibs(*words, "-o", "json").stdout)
    as_yaml = yaml.safe_load(dibs(*words, "-o", "yaml").stdout)
    assert as_json == as_yaml
    assert as_json


def test_the_table_is_a_matrix_and_tells_more_when_asked(dibs: Dibs) -> None:
    header, *lines = dibs("table").stdout.splitlines()
    assert header.split() == ["FIELD", "LOCAL", "DOCKER", "PODMAN", "KUBERNETES", "FAKE", "FAKE-CLUSTER"]
    assert ["memory", "yes", "yes", "yes", "yes", "yes", "yes"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 80
    assert "cgroup limit" in dibs("table", "--field", "memory").stdout
    assert dibs("table", "--field", "memry").returncode == 89


def test_a_shell_completes_names_models_and_backends(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "laboratory")

    def completed(*words: str) -> list[str]:
        line = " ".join(("dibs", *words))
        answer = dibs(_DIBS_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)))
        return [item.partition(",")[2] for item in answer.stdout.splitlines()]

    assert completed("logs", "lab") == ["laboratory"]
    assert completed("run", "--gpu", "H1")[0] == "H100"
    assert completed("run", "--backend", "do") == ["docker"]
    assert completed("run", "--device", "sim.dibs/gpu=1") == ["sim.dibs/gpu=1"]
    assert completed("receipt", "lab") == ["laboratory"]
    assert completed("gpus", "taint", "gpu-3") == ["gpu-3"]
    assert "L4" in completed("gpus", "simulate", "--model", "l")
    assert completed("table", "--field", "mem") == ["memory"]
    assert completed("cp", "lab") == ["laboratory:/"]


def test_the_time_that_is_left_is_shown_with_what_is_held(eight_gpus: Home, dibs: Dibs) -> None:
    assert "UNTIL" not in dibs("gpus").stdout  # there is nothing to show
    dibs("sandbox", "create", "--name", "lab", "--gpu", "2", "--ttl", "3h")
    for words in (("gpus",), ("gpus", "-o", "wide"), ("leases",), ("ps",)):
        page = dibs(*words).stdout
        assert "UNTIL" in page, words
        assert re.search("2h5[0-9]m|3h00m", page), words


@pytest.mark.parametrize("columns", ["80", "120"])
def test_everything_fits_the_terminal_and_nothing_of_a_proof_is_cut(eight_gpus: Home, dibs: Dibs, columns: str) -> None:
    dibs("sandbox", "create", "--name", "big", "--gpu", "8", "--ttl", "3h")
    uuids = [card["uuid"] for card in json.loads(dibs("gpus", "-o", "json").stdout)["devices"]]
    for words in (("receipt", "big"), ("gpus", "-o", "wide"), ("ps",), ("leases",), ("gpus",), ("table",), ("doctor",)):
        page = dibs(*words, COLUMNS=columns).stdout
        long = [line for line in page.splitlines() if len(line) > int(columns) and "/" not in line]
        assert not long, (words, long)  # only a path may be longer: it is never broken
        if words[0] == "receipt" or "wide" in words:
            assert all(uuid in page for uuid in uuids)
            assert "…" not in page
        if words[0] in ("ps", "leases"):
            assert "gpu-0..7" in page


def test_a_receipt_shows_a_variable_that_is_not_the_list_of_devices_as_it_is(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "big", "--gpu", "8")
    page = dibs("receipt", "big", COLUMNS="80").stdout
    assert "the 8 UUIDs below, in this order" in page
    assert page.count("GPU-") == 8
    assert all(f"gpu-{number} H100" in page for number in range(8))  # a list is folded between its items
    dibs("sandbox", "create", "--name", "small")
    assert "UUIDs below" not in dibs("receipt", "small", COLUMNS="80").stdout


def test_no_colour_reaches_a_file_and_no_color_is_honoured(eight_gpus: Home, dibs: Dibs) -> None:
    assert "\033" not in dibs("gpus").stdout


def test_no_gpu_at_all_says_what_to_do(dibs: Dibs, tmp_path: Path) -> None:
    result = dibs("gpus", DIBS_CDI_DIRS=str(tmp_path / "none"))
    if "no GPU was found" not in result.stdout:
        pytest.skip("this host has a GPU")
    assert "→ see why: dibs doctor" in result.stdout
    assert "dibs gpus simulate 8" in result.stdout
    filtered = dibs("gpus", "--where", "true", DIBS_CDI_DIRS=str(tmp_path / "none"))
    assert filtered.stdout == result.stdout, "there is nothing that could match"


def test_explain_creates_nothing_and_exits_as_the_refusal_would(eight_gpus: Home, dibs: Dibs) -> None:
    assert dibs("explain", "--gpu", "8").returncode == 0
    result = dibs("explain", "--gpu", "H100:80Gi..")
    assert result.returncode == 82
    assert "79.65Gi < 80Gi" in result.stdout
    assert dibs("run", "--gpu", "H100:80Gi..", "--", "true").returncode == 82
    dibs("sandbox", "create", "--name", "lab", "--gpu", "8")
    assert dibs("explain", "--gpu", "1").returncode == 83
    assert dibs("explain", "--device", "no.such/gpu=1").returncode == 89
    assert dibs("run", "--device", "no.such/gpu=1", "--", "true").returncode == 89
    assert [row["name"] for row in json.loads(dibs("sandbox", "ls", "-o", "json").stdout)["sandboxes"]] == ["lab"]


def test_the_receipt_is_kept_after_the_end(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("run", "--name", "done", "--gpu", "2", "--", "true")
    text = dibs("receipt", "done").stdout
    assert "simulated" in text
    assert "/dev/simgpu0 c 1:3, /dev/simgpu1 c 1:3" in text
    data = json.loads(dibs("receipt", "done", "-o", "json").stdout)
    assert data["verdict"] == "delivered"
    assert data["claim"]["kind"] == "ResourceClaim"
    assert data["rendered"]
    assert dibs("receipt", "nobody").returncode == 89


def test_the_doctor_gives_each_finding_an_id_a_verdict_and_a_fix(dibs: Dibs) -> None:
    result = dibs("doctor", "-o", "json")
    findings = json.loads(result.stdout)["findings"]
    assert {finding["verdict"] for finding in findings} <= {"ok", "warn", "fail", "skip"}
    assert all(finding.get("fix") for finding in findings if finding["verdict"] in ("warn", "fail"))
    assert result.returncode == (1 if any(finding["verdict"] == "fail" for finding in findings) else 0)


def test_the_simulated_world_does_not_change_under_a_holder(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "lab", "--gpu", "1")
    result = dibs("gpus", "simulate", "off")
    assert result.returncode == 88
    assert "held by lab" in result.stderr
    dibs("sandbox", "rm", "lab", "--grace", "0s")
    assert dibs("gpus", "simulate", "off").returncode == 0


def test_a_corrupt_ledger_is_one_clear_error_for_every_verb(home: Home, dibs: Dibs, way: str) -> None:
    if way == GATEWAY:
        pytest.skip("a gateway has its ledger open: a file that takes its place is not its ledger")
    home.ledger.write_bytes(b"prose " * 2000)
    for words in (("gpus",), ("leases",), ("run", "--", "true"), ("sandbox", "ls"), ("explain", "--gpu", "1")):
        result = dibs(*words)
        assert result.returncode == 91, words
        assert "LEDGER_CORRUPT" in result.stderr
        assert "Traceback" not in result.stderr
    assert dibs("doctor").returncode == 1
    home.ledger.unlink()


def test_a_corrupt_simulated_world_is_an_error_and_not_off(eight_gpus: Home, dibs: Dibs) -> None:
    eight_gpus.simulated.write_text("{")
    result = dibs("gpus")
    assert "cannot be read" in result.stdout
    assert dibs("run", "--gpu", "1", "--", "true").returncode != 0


def test_output_to_a_closed_pipe_is_no_traceback(eight_gpus: Home, tmp_path: Path) -> None:
    import subprocess
    import sys

    command = f"{sys.executable} -m dibs gpus -o json | head -c 1"
    env = {**os.environ, "DIBS_HOME": str(eight_gpus.state)}
    result = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_there_for_each_shell(dibs: Dibs, shell: str) -> None:
    assert "_DIBS_COMPLETE" in dibs("completion", shell).stdout


def test_every_time_in_data_is_iso_8601_in_utc(eight_gpus: Home, dibs: Dibs) -> None:
    assert dibs("sandbox", "create", "--name", "lab", "--gpu", "1", "--ttl", "1h").returncode == 0
    names = re.compile(r"at|since|created|started|ended|expires|\w+_at")
    seen = set()

    def look(value: object, verb: str) -> None:
        if isinstance(value, list):
            for inner in value:
                look(inner, verb)
        elif isinstance(value, dict):
            for key, inner in value.items():
                if names.fullmatch(key) and inner is not None:
                    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(inner)), (verb, key, inner)
                    seen.add((verb, key))
                look(inner, verb)

    for verb in (("leases",), ("ps",), ("sandbox", "show", "lab"), ("gpus",), ("receipt", "lab")):
        look(json.loads(dibs(*verb, "-o", "json").stdout), verb[0])
    assert {("leases", "created_at"), ("gpus", "since"), ("receipt", "at"), ("sandbox", "at")} <= seen
    assert ("ps", "expires_at") in seen


@pytest.mark.parametrize("group", ["train", "host", "cdi", "gpus"])
def test_the_list_of_verbs_is_whole_and_fits_80_columns(dibs: Dibs, group: str) -> None:
    lines = dibs(group, "--help", COLUMNS="80").stdout.splitlines()
    listed = lines[lines.index("Commands:") :]
    assert not [line for line in listed if line.endswith("...") or len(line) > 80]

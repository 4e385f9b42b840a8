"""A shell loop shares its stdin with the commands in it: one that does not read takes nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.whole.house import House

LOOP = 'while read -r line; do "$PYTHON" -m dibs {verb}; done'


def loop(house: House, folder: Path, source: str, verb: str) -> str:
    (folder / "list").write_text("one\ntwo\nthree\n")
    script = LOOP.format(verb=verb)
    script = f"{script} < list" if source == "file" else f"cat list | {script}"
    env = {**os.environ, "DIBS_HOME": str(house.home.state), "PYTHON": sys.executable}
    done = subprocess.run(["sh", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("source", ["file", "pipe"])
def test_a_loop_runs_a_container_for_each_line(house: House, tmp_path: Path, source: str) -> None:
    options = " ".join(house.options())
    said = loop(house, tmp_path, source, f'run {options} -- echo "$line"')
    assert said.split() == ["one", "two", "three"]


@pytest.mark.parametrize("source", ["file", "pipe"])
def test_a_loop_runs_an_exec_for_each_line(house: House, tmp_path: Path, source: str) -> None:
    row = house.service.create(house.spec(command=["sleep", "1000"]))
    assert loop(house, tmp_path, source, f'exec {row.id} -- echo "$line"').split() == ["one", "two", "three"]


@pytest.mark.parametrize("source", ["file", "pipe"])
def test_a_command_that_reads_later_gets_all_of_it(house: House, tmp_path: Path, source: str) -> None:
    (tmp_path / "list").write_text("x" * 300_000)
    options = " ".join(house.options())
    command = f"\"$PYTHON\" -m dibs run {options} -- sh -c 'sleep 0.2; wc -c'"
    script = f"{command} < list" if source == "file" else f"cat list | {command}"
    env = {**os.environ, "DIBS_HOME": str(house.home.state), "PYTHON": sys.executable}
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["300000"], done.stderr


def test_no_input_at_all_ends_at_once(house: House, tmp_path: Path) -> None:
    env = {**os.environ, "DIBS_HOME": str(house.home.state)}
    done = subprocess.run(
        [sys.executable, "-m", "dibs", "run", *house.options(), "--", "cat"], cwd=tmp_path, env=env,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

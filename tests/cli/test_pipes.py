"""Readers that close a pipe before everything has been written to it: `dibs … | head -1`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from dibs.home import Home

from .conftest import Dibs

ENDLESS = "while sleep 0.05; do echo line; done"


def piped(home: Home, *words: str) -> tuple[str, int]:
    """What `head -1` let through, and the exit code of dibs before it."""
    line = f"{sys.executable} -m dibs {shlex.join(words)} | head -1; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "DIBS_HOME": str(home.state)}
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""
    return done.stdout, done.returncode


def test_a_run_ends_with_the_reader_of_its_output(eight_gpus: Home, dibs: Dibs) -> None:
    shown, code = piped(eight_gpus, "run", "--gpu", "1", "-q", "--", "sh", "-c", ENDLESS)
    assert (shown, code) == ("line\n", 141)
    assert dibs("wait", *dibs("ps", "--all", "--quiet").stdout.split()).returncode != 0
    assert "the terminal or client that ran it went away" in dibs("ps", "--all").stdout
    assert dibs("leases").stdout == "nothing is held\n"


@pytest.mark.parametrize("words", [("gpus", "-o", "json"), ("table",), ("run", "--help")])
def test_every_answer_may_be_cut_short(eight_gpus: Home, dibs: Dibs, words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "DIBS_HOME": str(eight_gpus.state), "PYTHONUNBUFFERED": "1"}
    with os.fdopen(write, "wb") as closed:
        command = [sys.executable, "-m", "dibs", *words]
        done = subprocess.run(command, env=env, stdout=closed, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.stderr, done.returncode) == (b"", 141)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_is_like_nothing(eight_gpus: Home, dibs: Dibs, closed: str) -> None:
    """The number of a closed stream must not go to the ledger or a socket, and output into them."""
    env = {**os.environ, "DIBS_HOME": str(eight_gpus.state)}
    for words, code in ((("run", "--gpu", "1", "--", "sh", "-c", "cat; echo out; echo err >&2; exit 3"), 3),
                        (("gpus",), 0), (("--help",), 0), (("logs", "nosuch"), 89)):  # fmt: skip
        line = f"exec {sys.executable} -m dibs {shlex.join(words)} {closed}"
        done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == code, (words, done.stderr)
        assert "Traceback" not in done.stderr
        if words[0] == "run":
            assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "out\n")
            assert done.stderr == ("" if "2>&-" in closed else "err\n")
    assert len(dibs("gpus", "-o", "json").stdout) > 1000  # the ledger is sound

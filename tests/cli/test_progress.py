"""What is told while a request waits."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.remote.ways import GATEWAY

from dibs.cli.output import in_short
from dibs.cli.progress import live_line
from dibs.home import Home
from dibs.workloads.waiter import WaitNews

from .conftest import Dibs

HELD = "0 free, 1 wanted: gpu-0, gpu-1, gpu-2, gpu-3 and 4 more held by big (anna) for 4m"


def test_the_live_line_says_how_long_which_place_who_and_when() -> None:
    line = live_line(WaitNews(1, 3, HELD, 12.0, 600.0, 240.0), 200)
    assert line == f"dibs: waiting 12s, number 1 of 3, free within 4m00s: {HELD}"
    assert "free within" not in live_line(WaitNews(2, 3, HELD, 12.0, 600.0), 200)


def test_on_a_narrow_terminal_the_holder_is_kept_and_the_list_of_devices_goes() -> None:
    line = live_line(WaitNews(1, 1, HELD, 12.0, 600.0, 7000.0), 79)
    assert line == "dibs: waiting 12s, number 1 of 1, free within 1h56m: held by big (anna) for 4m"
    short = live_line(WaitNews(1, 1, HELD, 12.0, 600.0, 7000.0), 75)
    assert short == "dibs: waiting 12s, number 1 of 1, free within 1h56m: held by big (anna)"
    assert len(live_line(WaitNews(1, 1, HELD, 12.0, 600.0, 7000.0), 40)) == 40


def test_devices_in_a_row_are_a_range() -> None:
    assert in_short([f"gpu-{n}" for n in range(8)]) == "gpu-0..7"
    assert in_short(["gpu-0", "gpu-1", "gpu-3"]) == "gpu-0, gpu-1, gpu-3"
    assert in_short(["gpu-8", "gpu-9", "gpu-10", "mig-1", "x", "gpu-07"]) == "gpu-8..10, mig-1, x, gpu-07"
    assert in_short(["a7", "b8", "b9", "b10", "gpu-1 (3Gi)"]) == "a7, b8..10, gpu-1 (3Gi)"
    assert in_short([]) == ""


def _wait(home: Home, folder: Path, *words: str) -> bytes:
    """What a terminal shows while `dibs run` waits, until it is served."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "dibs", "run", *words], cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=theirs,
        env={**os.environ, "DIBS_HOME": str(home.state), "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while b"free within" not in seen:
            seen += os.read(ours, 1000)
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    return seen


def test_the_first_in_the_queue_gets_an_estimate(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    dibs("sandbox", "create", "--name", "short", "--gpu", "4", "--ttl", "1h")
    dibs("sandbox", "create", "--name", "long", "--gpu", "4", "--ttl", "9h")
    assert b"free within 59m" in _wait(eight_gpus, tmp_path, "--gpu", "4", "--wait", "1m", "--", "true")
    assert b"free within 8h" in _wait(eight_gpus, tmp_path, "--gpu", "5", "--wait", "1m", "--", "true")


def test_nothing_is_promised_where_a_holder_has_no_end(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "short", "--gpu", "4", "--ttl", "1h")
    dibs("sandbox", "create", "--name", "endless", "--gpu", "4")
    result = dibs("run", "--gpu", "5", "--wait", "1s", "--", "true")
    assert result.returncode == 90
    assert "free within" not in result.stderr


def test_a_gateway_says_at_once_that_it_starts(home: Home, way: str) -> None:
    if way == GATEWAY:
        pytest.skip("it is the gateway that is started here")
    words = [sys.executable, "-m", "dibs", "serve", "--listen", "127.0.0.1:0", "--socket", "off"]
    env = {**os.environ, "DIBS_HOME": str(home.state)}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "dibs serve: starting\n"
        child.kill()
    checked = subprocess.run([*words, "--check"], env=env, capture_output=True, text=True, check=True)
    assert "starting" not in checked.stderr

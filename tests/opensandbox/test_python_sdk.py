"""The `opensandbox` package, unmodified, through the whole life of a sandbox: asynchronous and sync."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests import needs
from tests.opensandbox.conftest import Place


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_whole_life_with_the_python_sdk(anywhere: Place, proxy: bool, kind: str) -> None:
    needs.limits(anywhere.backend)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("life.py"), kind], env=anywhere.environment(proxy=proxy),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr[-4000:]

"""The benchmarks run to their end without a complaint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_memory_of_a_shim_is_measured_without_a_complaint() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "shim"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "the shim" in done.stdout

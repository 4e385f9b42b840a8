"""Devices that a scheduler chooses, and gateways on two hosts that are killed at any moment and at every point.

25 kills in an ordinary run; with DIBS_SOAK=1 (`make soak`) 500. DIBS_KILLS_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.postgres import server

pytestmark = [pytest.mark.stress, pytest.mark.timeout(7200)]  # 500 kills take far longer than a test may otherwise

KILLS = 500 if os.environ.get("DIBS_SOAK") else 25  # read now: a test has no DIBS_ variables of ours
SEED = os.environ.get("DIBS_KILLS_SEED")
ROOT = Path(__file__).parents[2]


def test_killed_gateways_of_two_hosts_neither_lose_nor_double_what_a_scheduler_places(tmp_path: Path) -> None:
    seed = SEED or str(random.SystemRandom().randrange(1 << 32))
    url = server.shared().new_database()
    words = [sys.executable, "-m", "tests.stress.delegated", str(KILLS), seed, url, str(tmp_path)]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=7000)
    print(result.stdout)
    logs = "".join((tmp_path / f"{host}.log").read_text()[-3000:] for host in ("one", "two") if result.returncode)
    assert result.returncode == 0, f"DIBS_KILLS_SEED={seed}\n{result.stdout}\n{result.stderr[-3000:]}\n{logs}"
    assert f"'kills': {KILLS}" in result.stdout

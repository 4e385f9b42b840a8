"""The command line as a user has it: a process of its own, its exit code, its two streams.

Every test is run twice: doing it all itself, and over a gateway. What is printed must be the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.remote.ways import about_this_machine, way

from dibs.home import Home
from dibs.workloads.service import Workloads

__all__ = ["way"]

Dibs = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def dibs(home: Home, tmp_path: Path, way: str) -> Iterator[Dibs]:
    work = tmp_path / "work"
    work.mkdir()

    def call(*words: str, input: str = "", **env: str) -> subprocess.CompletedProcess[str]:  # noqa: A002
        if about_this_machine(words):
            words = ("--gateway", "none", *words)
        return subprocess.run(
            [sys.executable, "-m", "dibs", *words],
            cwd=work,
            env={**os.environ, "DIBS_HOME": str(home.state), **env},
            input=input,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    yield call
    with Workloads(home) as service:
        for row in service.sandboxes():
            service.remove(row.id, 0.0)

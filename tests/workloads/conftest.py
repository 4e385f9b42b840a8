"""A service on eight simulated GPUs, with everything removed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.home import Home
from dibs.workloads.service import Workloads


@pytest.fixture
def service(eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workloads]:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    with Workloads(eight_gpus) as found:
        yield found
        for row in found.sandboxes():
            found.remove(row.id, 0.0)

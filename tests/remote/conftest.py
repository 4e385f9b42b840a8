"""A gateway on eight simulated GPUs, and the service that talks to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.serving import Served, gateway_on

from dibs.home import Home
from dibs.remote import choose
from dibs.remote.target import Target
from dibs.remote.workloads import RemoteWorkloads
from dibs.workloads.service import Workloads


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No gateway is named, and no host service is there, unless the test says so."""
    monkeypatch.setattr(choose, "_named", [])
    monkeypatch.setenv("DIBS_HOST_ROOT", str(tmp_path / "host"))
    monkeypatch.setenv("HOME", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


@pytest.fixture
def served(eight_gpus: Home) -> Iterator[Served]:
    with gateway_on(eight_gpus) as found:
        yield found
        with Workloads(eight_gpus) as service:
            for row in service.sandboxes():
                service.remove(row.id, 0.0)


@pytest.fixture
def remote(served: Served) -> Iterator[RemoteWorkloads]:
    with RemoteWorkloads(Target(served.url, "the test")) as found:
        yield found

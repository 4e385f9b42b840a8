"""The host's root changes while a sandbox is being made: a folder goes, a file system is mounted. It is made anew."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.backends.local.backend import LocalBackend
from dibs.request import parse_spec
from dibs.workloads.service import Workloads

pytestmark = pytest.mark.root


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(f"/dibs-test-{os.urandom(6).hex()}")
    path.mkdir()
    yield path
    subprocess.run(["umount", "-l", str(path)], check=False, stderr=subprocess.DEVNULL)
    if path.exists():
        path.rmdir()


def before_the_first_create(monkeypatch: pytest.MonkeyPatch, change: Callable[[], Any]) -> list[str]:
    """Have something happen between the last look at the host and the start of bubblewrap."""
    create = LocalBackend.create
    seen: list[str] = []

    def changed(self: LocalBackend, workload: Any, realisation: Any, place: Path) -> Any:
        if not seen:
            change()
        seen.append(workload.id)
        return create(self, workload, realisation, place)

    monkeypatch.setattr(LocalBackend, "create", changed)
    return seen


def test_a_folder_of_the_root_that_goes_away_fails_no_sandbox(
    service: Workloads, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = before_the_first_create(monkeypatch, folder.rmdir)
    row = service.create(parse_spec({"command": ["sleep", "1000"], "gpu": 1}))
    assert (row.state, len(seen)) == ("running", 2)
    assert service.receipt(row.id).verdict == "delivered"


def test_a_setup_that_fails_for_another_reason_is_not_tried_again(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = before_the_first_create(monkeypatch, lambda: None)
    from dibs.errors import DibsError

    with pytest.raises(DibsError):
        service.create(parse_spec({"command": ["no-such-command"], "gpu": 1}))
    assert len(seen) == 1
    assert service.leases() == []

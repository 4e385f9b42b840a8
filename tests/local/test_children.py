"""What a gateway forks beside its other threads: a child that waits for a lock of theirs would wait for ever."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pytest

from dibs.backends.local import cgroups
from dibs.backends.local.userns import UserNamespace

IMPORTED = 99


@pytest.fixture
def children_cannot_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the child of a fork every import fails: as if another thread had held its lock, but at once."""
    fork = os.fork

    def refuse(name: str, *_: Any, **__: Any) -> None:
        os.write(2, f"{name} is imported in the child of a fork".encode())
        os._exit(IMPORTED)

    def fork_without_imports() -> int:
        pid = fork()
        if pid == 0:
            builtins.__import__ = refuse  # type: ignore[assignment]
        return pid

    monkeypatch.setattr(os, "fork", fork_without_imports)


@pytest.mark.root
@pytest.mark.usefixtures("children_cannot_import")
def test_the_first_process_of_a_user_namespace_imports_nothing() -> None:
    try:
        os.close(UserNamespace(1, 1).take())
    except PermissionError as error:
        pytest.skip(f"no user namespaces here: {error}")


@pytest.mark.usefixtures("children_cannot_import")
def test_the_process_that_tries_a_group_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    cgroups._join_and_leave(str(tmp_path))
    assert (tmp_path / "cgroup.procs").read_text() == "0"

"""What dibs keeps is readable and writable for its owner alone, whatever the umask and the folder that was there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.errors import StateError
from dibs.home import Home
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads.service import Workloads

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs a file of another user, which only root can make")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _open_to_others(home: Home) -> dict[str, str]:
    found = {}
    for folder, _, files in os.walk(home.state):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            if mode & 0o077 and path != str(home.state):
                found[os.path.relpath(path, home.state)] = f"{mode:04o}"
    return found


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("made_before", [None, 0o755, 0o777])
def test_nothing_of_the_state_can_be_read_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_before: int | None
) -> None:
    home = Home(state=tmp_path / "a" / "state", config=tmp_path / "config")
    if made_before is not None:
        home.state.mkdir(parents=True)
        home.state.chmod(made_before)
    monkeypatch.chdir(tmp_path)
    with Workloads(home) as service:
        row = service.create(parse_spec({"command": ["sleep", "1000"]}))
        try:
            assert home.ledger.with_name("ledger.db-wal").exists()
            assert _open_to_others(home) == {}
            assert stat.S_IMODE(home.state.stat().st_mode) & 0o022 == 0
        finally:
            service.remove(row.id, 0.0)


def test_a_ledger_that_others_can_read_is_closed_to_them(home: Home) -> None:
    with Ledger(home):
        for path in home.state.glob("ledger.db*"):
            path.chmod(0o644)
        Ledger(home).close()
        assert {path.name for path in home.state.glob("ledger.db*")} >= {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
        assert _open_to_others(home) == {}


@needs_root
@pytest.mark.parametrize("name", [".", "sandboxes", "ledger.db"])
def test_a_state_folder_with_parts_of_another_user_is_refused(home: Home, name: str) -> None:
    Ledger(home).close()
    os.chown(home.state / name, 12345, 12345)
    with pytest.raises(StateError) as caught:
        Ledger(home)
    problem = caught.value.problems[0]
    assert problem.code == "STATE_FOLDER_UNSAFE"
    assert problem.field == "DIBS_HOME"
    assert "12345" in problem.reason
    assert problem.remedy


def test_a_ledger_that_is_a_link_is_refused(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    home.ledger.symlink_to(target)
    with pytest.raises(StateError) as caught:
        Ledger(home)
    assert caught.value.code == "STATE_FOLDER_UNSAFE"
    assert not target.exists()


@pytest.mark.parametrize("mode", [0o1777, 0o2775])
def test_a_folder_that_is_meant_for_several_users_is_refused_and_left_as_it_is(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "common"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StateError) as caught:
        Home(state=folder, config=folder).make()
    assert caught.value.code == "STATE_FOLDER_UNSAFE"
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_processes_that_make_one_ledger_at_once_all_succeed(home: Home) -> None:
    script = "from dibs.ledger.store import Ledger; from dibs.home import find_home; Ledger(find_home()).close()"
    env = {**os.environ, "DIBS_HOME": str(home.state)}
    all_of_them = [subprocess.Popen([sys.executable, "-c", script], env=env) for _ in range(6)]
    assert [one.wait() for one in all_of_them] == [0] * 6
    assert [path.name for path in home.state.iterdir() if path.name.startswith(".")] == []

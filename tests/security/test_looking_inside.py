"""Looking into a sandbox from outside: nothing there makes dibs wait, leads it out, or fills its memory."""

from __future__ import annotations

import os
import signal
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.backends import proc, safe_open
from dibs.backends.engines import process_view
from dibs.backends.local import users
from dibs.errors import CommandFailed, InvalidRequest, NotFound


@pytest.fixture(autouse=True)
def _never_waits() -> Iterator[None]:
    """What waits for ever is interrupted; how long anything takes is not measured."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def check(command: str, folder: Path) -> None:
    """As for a sandbox whose first process we are."""
    proc.check_command(os.getpid(), command, str(folder), str(folder))


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("named", ["path", "word"])
def test_a_fifo_as_command_is_refused_and_not_waited_for(tmp_path: Path, named: str) -> None:
    os.mkfifo(tmp_path / "tool", 0o777)
    with pytest.raises(CommandFailed, match="not a regular file"):
        check("tool" if named == "word" else str(tmp_path / "tool"), tmp_path)


def test_a_fifo_behind_a_link_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o777)
    (tmp_path / "tool").symlink_to("pipe")
    with pytest.raises(CommandFailed, match="not a regular file"):
        check("tool", tmp_path)


def test_a_device_as_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="not a regular file"):
        check("/dev/zero", tmp_path)


def test_a_fifo_as_interpreter_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "interpreter", 0o777)
    program(tmp_path / "tool", f"#!{tmp_path}/interpreter\n")
    with pytest.raises(CommandFailed, match="interpreter"):
        check("tool", tmp_path)


def test_a_program_with_one_endless_line_is_read_in_part_only(tmp_path: Path) -> None:
    with open(tmp_path / "tool", "wb") as file:
        file.write(b"#!")
        file.truncate(1 << 40)
    (tmp_path / "tool").chmod(0o755)
    tracemalloc.start()
    try:
        with pytest.raises(CommandFailed, match="interpreter"):
            check("tool", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_fifo_as_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="not a folder"):
        process_view.check_folder(os.getpid(), str(tmp_path / "pipe"))
    with pytest.raises(NotFound):
        process_view.check_folder(os.getpid(), str(tmp_path / "pipe" / "below"))


@pytest.mark.parametrize("kind", ["fifo", "large", "device"])
def test_a_user_file_that_is_none_is_not_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "etc").mkdir()
    if kind == "fifo":
        os.mkfifo(tmp_path / "etc/passwd")
    elif kind == "large":
        with open(tmp_path / "etc/passwd", "wb") as file:
            file.truncate(1 << 40)
    else:
        (tmp_path / "etc/passwd").symlink_to("/dev/zero")
    _, problems = users.for_workload("bob", str(tmp_path), all_ids=True)
    assert [problem.field for problem in problems] == ["user"]


def test_a_user_file_of_a_root_is_looked_for_in_that_root(tmp_path: Path) -> None:
    """An absolute link in a root means the root's own file, not the host's."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").symlink_to(f"{tmp_path}/passwd")
    (tmp_path / "passwd").write_text("bob:x:4321:4321::/:/bin/sh\n")
    assert users.for_workload("bob", str(root), all_ids=True)[1]
    (root / str(tmp_path).lstrip("/")).mkdir(parents=True)
    (root / str(tmp_path).lstrip("/") / "passwd").write_text("bob:x:1234:1234::/:/bin/sh\n")
    assert users.for_workload("bob", str(root), all_ids=True) == ((1234, 1234), [])


def test_steps_back_and_links_do_not_lead_out_of_a_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (tmp_path / "secret").write_text("outside")
    (root / "secret").write_text("inside")
    (root / "a/back").symlink_to("../../../../secret")
    (root / "a/absolute").symlink_to("/secret")
    for path in ("../secret", "/../../secret", "a/back", "a/absolute", "a/../../secret"):
        assert safe_open.read(str(root), path, 100) == b"inside"
    (root / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        safe_open.read(str(root), "loop", 100)
    (root / "/".join(["a"] * 300)).mkdir(parents=True)
    with pytest.raises(OSError, match="too long"):
        safe_open.read(str(root), "/".join(["a"] * 300), 100)
    assert safe_open.read(str(root), "a/../" * 300 + "secret", 100) == b"inside"


def test_a_folder_exchanged_for_a_link_meanwhile_does_not_lead_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps of the walk the sandbox may exchange what was looked at."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "way").mkdir(parents=True)
    outside.mkdir()
    (root / "way/file").write_text("inside")
    (outside / "file").write_text("outside")
    looked = os.fstat

    def exchange(fd: int) -> os.stat_result:
        found = looked(fd)
        if stat.S_ISDIR(found.st_mode) and (root / "way").is_dir() and not (root / "way").is_symlink():
            (root / "way").rename(root / "moved")
            (root / "way").symlink_to(outside)
        return found

    monkeypatch.setattr(os, "fstat", exchange)
    assert safe_open.read(str(root), "way/file", 100) == b"inside"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in ("pipe", "link", "none", "pipe/below"):
        with pytest.raises(OSError, match=r".+"):
            safe_open.read(str(tmp_path), path, 10)
    assert len(os.listdir("/proc/self/fd")) == before

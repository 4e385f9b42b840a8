"""What comes out of a sandbox is not trusted."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.errors import InvalidRequest
from dibs.workloads.files import pack, unpack


def archive(*members: tuple[str, dict[str, object]]) -> Iterator[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, changes in members:
            info = tarfile.TarInfo(name)
            info.size = 0
            for key, value in changes.items():
                setattr(info, key, value)
            made.addfile(info, io.BytesIO(b"x" * info.size))
    yield buffer.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../out", {})],
        [("/tmp/out", {})],
        [("a/../../out", {})],
        [("link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})],
        [("link", {"type": tarfile.SYMTYPE, "linkname": "../../out"})],
        [("d", {"type": tarfile.DIRTYPE}), ("d/l", {"type": tarfile.SYMTYPE, "linkname": "../../out"})],
        [("hard", {"type": tarfile.LNKTYPE, "linkname": "../out"})],
        [("node", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})],
        [("pipe", {"type": tarfile.FIFOTYPE})],
    ],
)
def test_a_member_that_leads_outside_is_refused(tmp_path: Path, members: list[tuple[str, dict[str, object]]]) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(InvalidRequest):
        unpack(archive(*members), str(inside))
    assert {path.name for path in tmp_path.iterdir()} == {"inside"}


def test_a_link_that_is_already_there_is_not_followed_out(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "way").symlink_to(tmp_path)
    with pytest.raises(InvalidRequest):
        unpack(archive(("way/out", {})), str(inside))
    assert not (tmp_path / "out").exists()


def test_set_user_id_bits_do_not_come_out(tmp_path: Path) -> None:
    unpack(archive(("tool", {"mode": 0o4755})), str(tmp_path))
    assert (tmp_path / "tool").stat().st_mode & 0o7000 == 0


def test_files_folders_and_inner_links_survive_the_way(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_text("content" * 1000)
    (source / "link").symlink_to("sub/file")
    target = tmp_path / "target"
    target.mkdir()
    unpack(pack(str(source)), str(target))
    assert (target / "source" / "sub" / "file").read_text() == "content" * 1000
    assert (target / "source" / "link").readlink() == Path("sub/file")
    unpack(pack(str(source / "sub" / "file")), str(tmp_path / "renamed"))
    assert (tmp_path / "renamed").read_text() == "content" * 1000

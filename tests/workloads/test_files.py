"""What comes out of a sandbox is not trusted."""

from __future__ import annotations

import io
import os
import socket
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
        [("link", {"type": tarfile.SYMTYPE, "linkname": ".."}), ("link/out", {})],
        [("link", {"type": tarfile.SYMTYPE, "linkname": "a"}), ("link", {"type": tarfile.DIRTYPE})],
        [("hard", {"type": tarfile.LNKTYPE, "linkname": "../out"})],
        [("hard", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})],
        [("hard", {"type": tarfile.LNKTYPE, "linkname": "there"})],
        [("hard", {"type": tarfile.LNKTYPE, "linkname": "later"}), ("later", {})],
        [("one/file", {}), ("two/file", {})],
        [("node", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})],
        [("pipe", {"type": tarfile.FIFOTYPE})],
    ],
)
def test_a_member_that_leads_outside_is_refused(tmp_path: Path, members: list[tuple[str, dict[str, object]]]) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "there").write_text("not of this archive")
    with pytest.raises(InvalidRequest):
        unpack(archive(*members), str(inside), members[0][0].partition("/")[0] if members[0][0] == "one/file" else "")
    assert (inside / "there").stat().st_nlink == 1
    assert {path.name for path in tmp_path.iterdir()} == {"inside"}


def test_a_link_that_is_already_there_is_not_followed_out(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "way").symlink_to(tmp_path)
    with pytest.raises(InvalidRequest):
        unpack(archive(("way/out", {})), str(inside))
    assert not (tmp_path / "out").exists()


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    inside, victim = tmp_path / "inside", tmp_path / "victim"
    inside.mkdir()
    victim.write_text("mine")
    (inside / "file").symlink_to(victim)
    unpack(archive(("file", {"size": 5})), str(inside))
    assert victim.read_text() == "mine"
    assert not (inside / "file").is_symlink()
    (tmp_path / "as").symlink_to(victim)
    unpack(archive(("file", {"size": 5})), str(tmp_path / "as"))
    assert victim.read_text() == "mine"


def test_another_name_of_a_file_is_not_written_through(tmp_path: Path) -> None:
    inside, victim = tmp_path / "inside", tmp_path / "victim"
    inside.mkdir()
    victim.write_text("mine")
    (inside / "file").hardlink_to(victim)
    unpack(archive(("file", {"size": 5, "mode": 0o666})), str(inside))
    assert victim.read_text() == "mine"
    assert victim.stat().st_nlink == 1


def test_links_are_copied_as_they_are_and_those_that_lead_out_are_reported(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    link = tarfile.SYMTYPE
    told = unpack(
        archive(
            ("d/absolute", {"type": link, "linkname": "/etc/passwd"}),
            ("d/back", {"type": link, "linkname": "../../out"}),
            ("d/roundabout", {"type": link, "linkname": "sub/../../.."}),
            ("d/beside", {"type": link, "linkname": "sub/file"}),
            ("d/up", {"type": link, "linkname": "../d/sub"}),
            ("d/twice", {"type": tarfile.LNKTYPE, "linkname": "d/absolute"}),
        ),
        str(inside),
    )
    assert told == ["d/absolute", "d/back", "d/roundabout", "d/twice"]
    assert (inside / "d/absolute").readlink() == Path("/etc/passwd")
    assert (inside / "d/twice").readlink() == Path("/etc/passwd")


def test_a_later_member_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    link: dict[str, object] = {"type": tarfile.SYMTYPE, "linkname": "elsewhere"}
    unpack(archive(("a", link), ("a", {"size": 3}), ("b", {"size": 3}), ("b", link)), str(tmp_path))
    assert (tmp_path / "a").read_bytes() == b"xxx"
    assert (tmp_path / "b").readlink() == Path("elsewhere")


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    folder: dict[str, object] = {"type": tarfile.DIRTYPE, "mode": 0o777}
    unpack(archive((".", folder), ("mine", folder), ("new", folder), ("new/f", {"mode": 0o666})), str(tmp_path))
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new").stat().st_mode & 0o022 == 0  # as for any new file: less what the umask takes
    assert (tmp_path / "new/f").stat().st_mode & 0o022 == 0


def test_an_archive_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nothing came out"):
        unpack(archive(), str(tmp_path))
    with pytest.raises(InvalidRequest, match="ends too early"):
        unpack(iter([]), str(tmp_path))


@pytest.mark.parametrize("what", ["fifo", "socket", "/proc/1", "/proc/uptime", "/sys/kernel"])
def test_what_cannot_be_copied_is_refused_and_not_left_out(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = Path(what) if what.startswith("/") else folder / what
    if what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    with pytest.raises(InvalidRequest) as caught:
        list(pack(what if what.startswith("/") else str(folder)))
    assert what in str(caught.value)


def test_a_file_that_becomes_a_link_while_a_folder_is_packed_is_not_followed(tmp_path: Path) -> None:
    """The folder may be mounted in a sandbox."""
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("secret" * 100)
    for number in range(50):
        (folder / f"f{number}").write_text("x" * (1 << 16))
    pieces = pack(str(folder))
    sent = next(pieces)
    for path in folder.iterdir():
        path.unlink()
        path.symlink_to(secret)
    try:
        sent += b"".join(pieces)
    except InvalidRequest as error:
        assert "exchanged" in str(error)  # noqa: PT017
    assert b"secretsecret" not in sent


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

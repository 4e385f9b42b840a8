"""Nothing outside of the target is touched by an archive, whatever it says, in which order, and however often."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.security.archives import archive, archives, harmless, kept_clean, member, seen, sneaky

from dibs.backends import tar_check, tar_extract
from dibs.backends.tar_reader import LONGEST_HEADER, Reader, Refused
from dibs.errors import InvalidRequest
from dibs.workloads.files import pack, unpack

EXAMPLES = int(os.environ.get("DIBS_ARCHIVE_EXAMPLES", "150"))
TOP = Path(tempfile.gettempdir(), f"dibs-archives-{os.getpid()}")  # generated archives name what is in it
NAMES = st.sampled_from(["a", "b", "c"])
HOSTILE = archives(TOP / "outside")
ORDINARY = harmless(NAMES)
ANY = st.one_of(HOSTILE, sneaky(TOP / "outside"), ORDINARY)


@contextmanager
def surroundings() -> Iterator[Path]:
    """A target with links in it that lead out, and something beside it; afterwards all of that must be as it was."""
    shutil.rmtree(TOP, ignore_errors=True)
    outside, target = TOP / "outside", TOP / "target"
    outside.mkdir(parents=True)
    (outside / "secret").write_text("secret")
    (outside / "tool").write_text("tool")
    (outside / "tool").chmod(0o750)
    (TOP / "a").write_text("beside")
    target.mkdir()
    (target / "way").symlink_to(outside)
    (target / "file").symlink_to(outside / "secret")
    (target / "d").mkdir()
    os.link(outside / "tool", target / "d" / "c")
    before = seen(TOP, target)
    try:
        yield target
        if not (target / "d" / "c").is_symlink() and (target / "d" / "c").exists():
            shared = (target / "d" / "c").samefile(outside / "tool")
        else:
            shared = False
        if not shared:  # it was replaced, as it may be: the other name of the file is alone now
            os.link(outside / "tool", TOP / "shared")
            os.rename(TOP / "shared", target / "shared")
        assert seen(TOP, target) == before
        kept_clean(target)
    finally:
        shutil.rmtree(TOP, ignore_errors=True)


def naively(file: IO[bytes], folder: Path) -> None:
    """Unpack as one does who asks no questions."""
    folder.mkdir()
    words: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=file) as tar:
        for one in tar:
            tar.extract(one, folder, **words)


@settings(max_examples=EXAMPLES)
@given(series=st.lists(ANY, min_size=1, max_size=3), renamed=st.sampled_from(["", "a", "new"]))
def test_copying_out_touches_nothing_but_the_target(series: list[bytes], renamed: str) -> None:
    with surroundings() as target:
        for data in series:
            with suppress(InvalidRequest):
                unpack(iter([data]), str(target), renamed)


@settings(max_examples=EXAMPLES)
@given(series=st.lists(ANY, min_size=1, max_size=3))
def test_copying_in_touches_nothing_but_the_target(series: list[bytes]) -> None:
    """What a sandbox's own helper does, and what an engine that asks no questions makes of what it is given."""
    with surroundings() as target:
        for number, data in enumerate(series):
            with suppress(Refused):
                tar_extract.unpack_into(str(target), tar_check.Stream(iter([data])), lambda: None)
            with suppress(InvalidRequest), tar_check.checked(iter([data]), os.getuid(), os.getgid()) as file:
                naively(file, target / f"naive{number}")


@settings(max_examples=EXAMPLES)
@given(data=ANY)
def test_engines_and_local_take_the_same_archives(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = "", ""
        try:
            tar_extract.unpack_into(folder, tar_check.Stream(iter([data])), lambda: None)
        except Refused as error:
            ours = str(error)
        try:
            tar_check.checked(iter([data]), 0, 0).close()
        except InvalidRequest as error:
            theirs = str(error)
    assert bool(ours) == bool(theirs), (ours, theirs)


def resummed(data: bytes) -> bytes:
    """With checksums that are right again, where a header can be found."""
    out = bytearray(data)
    for at in range(0, len(out) - 511, 512):
        if out[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b" " * 8
            out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
    return bytes(out)


@settings(max_examples=EXAMPLES)
@given(data=HOSTILE, at=st.integers(0, 1 << 14), put=st.binary(min_size=1, max_size=8), sums=st.booleans())
def test_a_damaged_archive_is_refused_and_nothing_else_happens(data: bytes, at: int, put: bytes, sums: bool) -> None:
    at %= max(1, len(data))
    data = data[:at] + put + data[at + len(put) :]
    with surroundings() as target, suppress(InvalidRequest):
        unpack(iter([resummed(data) if sums else data]), str(target))


FILES = st.binary(max_size=2000)


@settings(max_examples=50)
@given(tree=st.dictionaries(NAMES, st.one_of(FILES, st.dictionaries(NAMES, FILES))))
def test_what_is_packed_is_unpacked_the_same(tree: dict[str, bytes | dict[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        source.mkdir()
        target.mkdir()
        for name, data in tree.items():
            if isinstance(data, bytes):
                (source / name).write_bytes(data)
                continue
            (source / name).mkdir()
            for inner, contents in data.items():
                (source / name / inner).write_bytes(contents)
        unpack(pack(str(source)), str(target))
        for path in source.rglob("*"):
            copy = target / "source" / path.relative_to(source)
            assert copy.is_dir() if path.is_dir() else copy.read_bytes() == path.read_bytes()
            assert copy.stat().st_mtime == pytest.approx(path.stat().st_mtime)
        assert len(list(target.rglob("*"))) == len(list(source.rglob("*"))) + 1


# --- memory


def peak(work: Iterator[bytes]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            for _ in Reader(tar_check.Stream(work)):
                pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_header_of_any_announced_size_is_not_taken_into_memory(kind: bytes) -> None:
    def stream() -> Iterator[bytes]:
        info = tarfile.TarInfo("h")
        info.type, info.size = kind, 1 << 32
        yield info.tobuf(tarfile.GNU_FORMAT)
        for _ in range(1 << 16):
            yield b"x" * (1 << 16)

    assert peak(stream()) < 4 * LONGEST_HEADER


def test_many_members_are_not_remembered() -> None:
    """Of a million files nothing stays but the number of each."""

    def stream() -> Iterator[bytes]:
        block = member("f")[0].tobuf(tarfile.GNU_FORMAT)
        for _ in range(200):
            yield block * 100
        yield b"\0" * 512 + b"x"

    assert peak(stream()) < 1 << 20


def test_an_endless_padding_after_the_end_is_refused() -> None:
    def stream() -> Iterator[bytes]:
        while True:
            yield b"\0" * (1 << 16)

    assert peak(stream()) < 1 << 20


def test_folders_and_links_that_must_be_remembered_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_extract, "MOST_MEMORY", 100_000)
    many = archive(member(f"l{number}", "link", "x" * 90) for number in range(1000))
    with pytest.raises(Refused, match="too many"):
        tar_extract.unpack_into(str(tmp_path), tar_check.Stream(iter([many])), lambda: None)
    monkeypatch.setattr(tar_check, "MOST_MEMORY", 100_000)
    with pytest.raises(InvalidRequest, match="too many"):
        tar_check.checked(iter([many]), 0, 0)


def test_a_header_with_a_negative_size_does_not_run_in_circles() -> None:
    info = tarfile.TarInfo("f")
    info.size = -512
    with pytest.raises(Refused, match="negative"):
        list(Reader(tar_check.Stream(iter([info.tobuf(tarfile.GNU_FORMAT)]))))

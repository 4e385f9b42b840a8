"""Files in and out of a running sandbox."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.bench import Bench, to_the_end

from dibs.backends.local import enter_client
from dibs.backends.port import Handle
from dibs.errors import BackendUnavailable, Conflict, InvalidRequest, NotFound


@pytest.fixture
def handle(bench: Bench) -> Handle:
    handle = bench.start("sh", "-c", "mkdir /tmp/in; ln -s /etc /tmp/in/out; echo ready; exec sleep 1000")
    bench.ready(handle)
    return handle


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> Iterator[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()
    return iter([data[:700], data[700:]])


def entry(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def contents(pieces: Iterator[bytes]) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        found: dict[str, bytes | None] = {}
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            found[member.name] = file.read() if file else None
        return found


def say(bench: Bench, handle: Handle, script: str) -> str:
    return to_the_end(bench.exec(handle, "sh", "-c", script))[0]


def test_files_go_in_with_their_modes(bench: Bench, handle: Handle) -> None:
    members = [
        (entry("d", type=tarfile.DIRTYPE, mode=0o750), b""),
        (entry("d/run", mode=0o4755), b"#!/bin/sh\necho ran\n"),
        (entry("d/link", type=tarfile.SYMTYPE, linkname="run"), b""),
        (entry("d/hard", type=tarfile.LNKTYPE, linkname="d/run"), b""),
        (entry("big"), b"x" * 300_000),
    ]
    bench.backend.copy_in(handle, archive(*members), "/tmp/in")
    script = "cd /tmp/in; ./d/link; stat -c %a d d/run; stat -c %h d/run; wc -c < big"
    assert say(bench, handle, script).split() == ["ran", "750", "755", "2", "300000"]


def test_files_come_out_named_after_the_last_part(bench: Bench, handle: Handle) -> None:
    say(bench, handle, "mkdir -p /tmp/a/b/c; echo hello > /tmp/a/b/c/f; ln -s f /tmp/a/b/c/l")
    assert contents(bench.backend.copy_out(handle, "/tmp/a/b")) == {
        "b": None,
        "b/c": None,
        "b/c/f": b"hello\n",
        "b/c/l": None,
    }
    assert contents(bench.backend.copy_out(handle, "/tmp/a/b/c/f")) == {"f": b"hello\n"}


def test_what_comes_out_goes_in_again(bench: Bench, handle: Handle) -> None:
    data = os.urandom(1_000_000)
    (bench.work / "data").write_bytes(data)
    bench.backend.copy_in(handle, bench.backend.copy_out(handle, str(bench.work / "data")), "/tmp/in")
    assert contents(bench.backend.copy_out(handle, "/tmp/in/data")) == {"data": data}


def test_a_relative_path_starts_at_the_working_directory(bench: Bench, handle: Handle) -> None:
    bench.backend.copy_in(handle, archive((entry("f"), b"here")), ".")
    assert (bench.work / "f").read_bytes() == b"here"


@pytest.mark.parametrize(
    "member",
    [
        entry("/etc/absolute"),
        entry("../parent"),
        entry("a/../../parent"),
        entry("hard", type=tarfile.LNKTYPE, linkname="out"),
        entry("pipe", type=tarfile.FIFOTYPE),
        entry("link", type=tarfile.SYMTYPE, linkname="../../etc"),
        entry("hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        entry("hard", type=tarfile.LNKTYPE, linkname="../../etc/passwd"),
        entry("node", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
        entry("node", type=tarfile.BLKTYPE, devmajor=7, devminor=0),
        entry("out/through-a-link"),
    ],
    ids=lambda info: f"{info.name} {info.linkname}".strip(),
)
def test_hostile_archives_are_refused(bench: Bench, handle: Handle, member: tarfile.TarInfo) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bench.backend.copy_in(handle, archive((member, b"")), "/tmp/in")
    assert caught.value.code == "ARCHIVE_REFUSED"
    assert (
        say(bench, handle, "ls /tmp/in; ls /etc/through-a-link /etc/absolute /tmp/parent /parent 2>/dev/null")
        == "out\n"
    )
    for path in ("/etc/absolute", "/tmp/parent", "/etc/through-a-link"):
        assert not Path(path).exists()


def test_absolute_links_go_in_and_out_as_they_are(bench: Bench, handle: Handle) -> None:
    bench.backend.copy_in(
        handle, archive((entry("l", type=tarfile.SYMTYPE, linkname="/usr/bin/python3"), b"")), "/tmp/in"
    )
    assert say(bench, handle, "readlink /tmp/in/l") == "/usr/bin/python3\n"
    with tarfile.open(fileobj=io.BytesIO(b"".join(bench.backend.copy_out(handle, "/tmp/in")))) as tar:
        assert tar.getmember("in/l").linkname == "/usr/bin/python3"


def test_a_compressed_archive_goes_in(bench: Bench, handle: Handle) -> None:
    data = b"".join(archive((entry("f"), b"x" * 100_000)))
    for number, tool in enumerate((gzip, bz2, lzma)):
        bench.backend.copy_in(handle, iter([tool.compress(data)]), "/tmp/in")
        assert say(bench, handle, "wc -c < /tmp/in/f; rm /tmp/in/f") == "100000\n", number


@pytest.mark.parametrize("path", ["/proc", "/proc/1", "/proc/uptime", "/sys", "/dev/null", "/tmp/in/pipe", "/"])
def test_what_cannot_be_copied_out_is_refused(bench: Bench, handle: Handle, path: str) -> None:
    say(bench, handle, "mkfifo /tmp/in/pipe")
    with pytest.raises(InvalidRequest) as caught:
        list(bench.backend.copy_out(handle, path))
    assert caught.value.code == "COPY_FAILED"


def test_a_link_in_the_sandbox_leads_only_to_its_own_files(bench: Bench, handle: Handle) -> None:
    """A path through a link is the sandbox's: what is read is what its own processes would read."""
    say(bench, handle, "echo inner > /tmp/secret; ln -s /tmp/secret /tmp/in/to-secret; ln -s /proc/1/root /tmp/in/root")
    assert contents(bench.backend.copy_out(handle, "/tmp/in/root/tmp/secret")).get("secret") in (b"inner\n", None)
    Path(bench.work / "marker").write_text("x")
    with pytest.raises(NotFound):
        bench.backend.copy_out(handle, f"{bench.home.state}/local-probes-{os.getuid()}.json")


def test_garbage_is_no_archive(bench: Bench, handle: Handle) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        bench.backend.copy_in(handle, iter([b"garbage" * 1000]), "/tmp/in")


def test_a_missing_path_is_not_found(bench: Bench, handle: Handle) -> None:
    with pytest.raises(NotFound):
        bench.backend.copy_out(handle, "/tmp/none")
    with pytest.raises(NotFound):
        bench.backend.copy_in(handle, archive((entry("f"), b"")), "/tmp/none")


def test_copying_needs_a_running_sandbox(bench: Bench, handle: Handle) -> None:
    bench.backend.stop(handle, 0)
    with pytest.raises(Conflict):
        bench.backend.copy_out(handle, "/tmp")


def test_a_reader_that_stops_early_leaves_nothing_behind(bench: Bench, handle: Handle) -> None:
    pieces = bench.backend.copy_out(handle, "/usr/bin")
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert say(bench, handle, "echo fine") == "fine\n"


def test_a_copy_that_the_sandbox_stops_is_given_up(
    bench: Bench, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper is a process of the sandbox, and anybody in there may stop it: no thread waits for it for ever."""
    monkeypatch.setattr(enter_client, "SILENCE", 2.0)
    say(bench, handle, "head -c 50000000 /dev/zero > /tmp/in/big")
    pieces = bench.backend.copy_out(handle, "/tmp/in/big")
    next(pieces)
    bench.backend.pause(handle)
    with pytest.raises(BackendUnavailable, match="did nothing"):
        list(pieces)
    bench.backend.resume(handle)

    def endless() -> Iterator[bytes]:
        info = entry("big")
        info.size = 1 << 30
        yield info.tobuf()
        bench.backend.pause(handle)
        while True:
            yield b"x" * 65536

    with pytest.raises(BackendUnavailable, match="did nothing"):
        bench.backend.copy_in(handle, endless(), "/tmp/in")
    bench.backend.resume(handle)
    assert say(bench, handle, "echo fine") == "fine\n"

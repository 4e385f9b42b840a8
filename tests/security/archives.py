"""Tar streams as an attacker would write them, and an oracle for what they must not touch."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Entry = tuple[tarfile.TarInfo, bytes]  # and its contents

KINDS = {
    "file": tarfile.REGTYPE,
    "old file": tarfile.AREGTYPE,
    "contiguous": tarfile.CONTTYPE,
    "folder": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "sparse": tarfile.GNUTYPE_SPARSE,
    "unknown": b"Z",
}
FORMATS: dict[str, Any] = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def member(name: str, kind: str = "file", target: str = "", data: bytes = b"", **fields: Any) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = KINDS[kind], target, 0o755 if kind == "folder" else 0o644
    info.size = len(data)
    info.pax_headers = {}
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def archive(members: Iterable[Entry], form: str = "pax", end: bytes = b"\0" * 1024) -> bytes:
    """Written header by header: `tarfile` would set a few things right."""
    out = io.BytesIO()
    for one, data in members:
        try:
            out.write(one.tobuf(FORMATS[form], "utf-8", "surrogateescape"))
        except ValueError:  # a name that this format cannot hold
            out.write(one.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        out.write(data + b"\0" * (-len(data) % 512))
    return out.getvalue() + end


def archives(outside: Path) -> st.SearchStrategy[bytes]:
    """Archives full of ways out; `outside` is beside the target."""
    away = ["..", "../..", "../outside", "../outside/secret", str(outside), str(outside / "secret"), "/", "/etc/passwd"]
    part = st.sampled_from(["a", "b", "c", "way", "file", "d", ".", "..", "", "x" * 120, "ü", "\udcff", "new\nline"])
    path = st.one_of(
        st.builds("/".join, st.lists(part, min_size=1, max_size=4)),
        st.builds(lambda tail: "a/" + tail, st.sampled_from(["b", "c", "../a", "way/secret"])),
        st.sampled_from([*away, "a", "a", "b", "way/secret", "way/new", "./a/b", "a//b", "a/b/"]),
    )
    target = st.one_of(path, st.sampled_from([*away, "b/../../outside/secret", "a/../../outside", "../../outside"]))
    pax = st.dictionaries(
        st.sampled_from(["path", "linkpath", "size", "mtime", "GNU.sparse.major", "GNU.sparse.name", "comment"]),
        st.one_of(path, st.sampled_from(["0", "-1", "512", "1e9", "99999999999999999999", "1.5", "nan", ""])),
        max_size=2,
    )
    one = st.builds(
        member,
        name=path,
        kind=st.sampled_from(["file", "file", "folder", "link", "link", "hard link", *KINDS]),
        target=target,
        data=st.sampled_from([b"", b"pwned", b"p" * 513]),
        mode=st.sampled_from([0o644, 0o755, 0o4755, 0o2777, 0o1777, 0, 0o7777]),
        mtime=st.sampled_from([0, 1, 10**9, 2**40, -5]),
        pax_headers=st.one_of(st.just({}), pax),
        devmajor=st.just(1),
        devminor=st.just(3),
    )
    return st.builds(
        archive,
        st.lists(one, max_size=8),
        st.sampled_from(list(FORMATS)),
        st.sampled_from([b"\0" * 1024, b"\0" * 1024, b"\0" * 512, b"", b"\0" * 1024 + b"more"]),
    )


def sneaky(outside: Path) -> st.SearchStrategy[bytes]:
    """Archives without a name that is wrong by itself: only links lead out, those in them and those in the target."""
    name = st.sampled_from(["a", "b", "a/b", "a/secret", "way", "way/secret", "way/new", "file", "d", "d/c", "d/way"])
    out = ["../outside", "../outside/secret", str(outside), str(outside / "secret"), "b/../../outside", "a/../.."]
    one = st.builds(
        member,
        name=name,
        kind=st.sampled_from(["file", "folder", "link", "hard link"]),
        target=st.one_of(name, st.sampled_from(out)),
        data=st.sampled_from([b"", b"pwned"]),
        mode=st.sampled_from([0o644, 0o4777]),
    )
    return st.builds(archive, st.lists(one, max_size=6), st.sampled_from(list(FORMATS)))


def harmless(names: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Archives of which most can be unpacked, so that something is left for the next one to stumble over."""
    one = st.builds(
        member,
        name=st.builds("/".join, st.lists(names, min_size=1, max_size=3)),
        kind=st.sampled_from(["file", "folder", "link", "hard link"]),
        target=st.builds("/".join, st.lists(names, min_size=1, max_size=3)),
        data=st.sampled_from([b"", b"pwned"]),
    )
    return st.builds(archive, st.lists(one, max_size=6), st.sampled_from(list(FORMATS)))


def seen(top: Path, without: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder but for another one: inode, kind, mode, links, time, contents."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(top):
        if Path(folder) == without:
            folders.clear()
            continue
        for path in (Path(folder), *(Path(folder) / name for name in files)):
            if path in (top, without):
                continue
            info = path.lstat()
            contents = path.read_bytes() if stat.S_ISREG(info.st_mode) else b""
            link = os.readlink(path) if path.is_symlink() else ""
            found[str(path)] = (info.st_ino, info.st_mode, info.st_nlink, info.st_mtime_ns, info.st_uid, contents, link)
    return found


def kept_clean(target: Path) -> None:
    """What is in the target is nothing but files, folders and links, without powers."""
    for folder, folders, files in os.walk(target):
        for name in folders + files:
            info = os.lstat(os.path.join(folder, name))
            assert stat.S_IFMT(info.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), name
            assert stat.S_ISLNK(info.st_mode) or not info.st_mode & 0o7000, name

"""Files between the host and a sandbox, as tar streams. Nothing that comes out of a sandbox is trusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dibs.errors import InvalidRequest

if TYPE_CHECKING:
    import tarfile

    from dibs.workloads.service import Workloads

_CHUNK = 1 << 20


def copy_to(service: Workloads, source: str, reference: str, path: str) -> None:
    """A file or folder of the host into a sandbox, below the folder `path`."""
    if not os.path.lexists(source):
        _refuse(source, "there is no such file or folder", "check the path")
    service.copy_in(reference, pack(source), path)


def copy_from(service: Workloads, reference: str, path: str, target: str) -> None:
    """`path` of a sandbox to the host: into `target` if that is a folder, else as `target`."""
    if not os.path.isdir(target) and not os.path.isdir(os.path.dirname(os.path.abspath(target))):
        _refuse(target, "its folder does not exist", "make it first")
    unpack(service.copy_out(reference, path), target)


def _refuse(value: str, reason: str, remedy: str) -> None:
    raise InvalidRequest(reason, field="cp", value=value, code="COPY_INVALID", remedy=remedy)


def pack(path: str) -> Iterator[bytes]:
    """A file or folder as a tar stream, piece by piece."""
    import io
    import tarfile

    buffer = io.BytesIO()
    root = os.path.abspath(path)
    with tarfile.open(fileobj=buffer, mode="w|") as archive:
        for member in _walk(root):
            archive.add(member, os.path.relpath(member, os.path.dirname(root)), recursive=False)
            if buffer.tell() > _CHUNK:
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
    yield buffer.getvalue()


def _walk(root: str) -> Iterator[str]:
    yield root
    if os.path.isdir(root) and not os.path.islink(root):
        for folder, folders, files in os.walk(root):
            yield from (os.path.join(folder, name) for name in sorted(folders + files))


def unpack(chunks: Iterator[bytes], target: str) -> None:
    """A tar stream to the host; a member that would land outside of the target is refused."""
    import tarfile

    into = target if os.path.isdir(target) else os.path.dirname(os.path.abspath(target))
    rename = None if os.path.isdir(target) else os.path.basename(target)
    with tarfile.open(fileobj=ChunkReader(chunks), mode="r|") as archive:
        for member in archive:
            if rename:
                rest = member.name.partition("/")[2]
                member.name = f"{rename}/{rest}" if rest else rename
            wrong = _hostile(member, into)
            if wrong:
                _refuse(member.name, f"the sandbox sent a file that {wrong}", "do not trust this sandbox")
            member.mode &= 0o777
            if hasattr(tarfile, "data_filter"):
                archive.extract(member, into, filter="data", set_attrs=True)
            else:  # Python before 3.11.4; what it would have refused was refused above
                archive.extract(member, into)


def _hostile(member: tarfile.TarInfo, into: str) -> str:
    """Why a member must not be unpacked; empty if it may."""
    root = os.path.realpath(into)

    def leads_out(path: str) -> bool:
        real = os.path.realpath(os.path.join(root, path))
        return real != root and not real.startswith(f"{root}/")

    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is neither a file nor a folder nor a link"
    if member.name.startswith("/") or leads_out(os.path.dirname(member.name)) or ".." in member.name.split("/"):
        return "leads outside"
    if member.issym():
        inside = os.path.join(os.path.dirname(member.name), member.linkname)
        return "links outside" if member.linkname.startswith("/") or leads_out(inside) else ""
    if member.islnk() and leads_out(member.linkname):
        return "links outside"
    return ""


class ChunkReader:
    """Chunks as a file that can only be read on."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        parts = [self._rest]
        have = len(self._rest)
        while size < 0 or have < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            parts.append(chunk)
            have += len(chunk)
        data = b"".join(parts)
        end = len(data) if size < 0 else size
        self._rest = data[end:]
        return data[:end]

    def write(self, _data: bytes) -> int:
        raise OSError("this stream can only be read")

    def tell(self) -> int:
        raise OSError("this stream has no place")

    def seek(self, _place: int) -> int:
        raise OSError("this stream can only be read on")

    def close(self) -> None:
        self._rest = b""

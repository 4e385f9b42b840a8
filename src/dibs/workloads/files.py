"""Files between the host and a sandbox, as tar streams. Nothing that comes out of a sandbox is trusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dibs.errors import InvalidRequest

if TYPE_CHECKING:
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
    try:
        with tarfile.open(fileobj=ChunkReader(chunks), mode="r|") as archive:
            for member in archive:
                if rename:
                    rest = member.name.partition("/")[2]
                    member.name = f"{rename}/{rest}" if rest else rename
                archive.extract(member, into, filter="data")
    except tarfile.FilterError as error:
        _refuse(target, f"the sandbox sent a file that leads outside: {error}", "do not trust this sandbox")


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

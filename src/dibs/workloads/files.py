"""Files between the host and a sandbox, as tar streams. Nothing that comes out of a sandbox is trusted.

The command line and the SDK call it, in process and over a gateway alike: what a gateway sends is not trusted either.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from dibs.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from dibs.workloads.service import Workloads

_NOTHING = bytes(1024)  # a tar stream without members


def copy_to(service: Workloads, source: str, reference: str, path: str) -> None:
    """A file or folder of the host into a sandbox: below `path` if that is a folder there, else as `path`."""
    try:
        service.copy_in(reference, pack(source), path)
    except (NotFound, InvalidRequest):
        folder, name = posixpath.split(path)
        if name in ("", ".", "..") or _is_folder(service, reference, path):
            raise
        service.copy_in(reference, pack(source, name), folder or ".")


def _is_folder(service: Workloads, reference: str, path: str) -> bool:
    """Whether files can be put below `path`: nothing at all is put there."""
    try:
        service.copy_in(reference, iter([_NOTHING]), path)
    except (NotFound, InvalidRequest):
        return False
    return True


def copy_from(service: Workloads, reference: str, path: str, target: str) -> list[str]:
    """`path` of a sandbox to the host: into `target` if that is a folder, else as `target`.

    The symbolic links that were copied and lead out of what was copied: they are as the sandbox made them, and dibs
    follows none of them, but opening one reads or writes where it leads.
    """
    if target.endswith("/") and not os.path.isdir(target):
        _refuse(target, "there is no such folder", "make it first, or leave out the slash for a new name")
    if not os.path.isdir(target) and not os.path.isdir(os.path.dirname(os.path.abspath(target))):
        _refuse(target, "its folder does not exist", "make it first")
    return unpack(service.copy_out(reference, path), target, os.path.basename(os.path.normpath(path)))


def _refuse(value: str, reason: str, remedy: str) -> NoReturn:
    raise InvalidRequest(reason, field="cp", value=value, code="COPY_INVALID", remedy=remedy)


def pack(path: str, name: str = "") -> Iterator[bytes]:
    """A file or folder as a tar stream, piece by piece; `name`: what it is called there, if not as here."""
    from dibs.backends import tar_writer
    from dibs.backends.tar_reader import Refused

    try:
        pieces = tar_writer.pack(path, name)
    except Refused as error:
        if error.kind == "missing":
            _refuse(path, "there is no such file or folder", "check the path")
        _refuse(path, str(error), "leave it out")
    except OSError as error:
        _refuse(path, f"it cannot be read: {(error.strerror or str(error)).lower()}", "check its permissions")

    def rest() -> Iterator[bytes]:
        try:
            yield from pieces
        except Refused as error:
            _refuse(path, str(error), "leave it out, or copy what can be copied one by one")
        except OSError as error:
            what = f": {error.filename}" if isinstance(error.filename, str) else ""
            _refuse(
                path, f"it cannot be read: {(error.strerror or str(error)).lower()}{what}", "check it and try again"
            )

    return rest()


def unpack(chunks: Iterator[bytes], target: str, name: str = "") -> list[str]:
    """A tar stream to the host, below `target` under `name` if that is a folder, else as `target`.

    The links among it that lead out. What was unpacked before something is refused stays.
    """
    from dibs.backends.tar_check import Stream
    from dibs.backends.tar_extract import Target, open_folder
    from dibs.backends.tar_extract import unpack as unpack_below
    from dibs.backends.tar_reader import Refused

    whole = os.path.isdir(target)
    into = target if whole else os.path.dirname(os.path.abspath(target))
    try:
        folder = open_folder(into)
        try:
            below = Target(folder, mask=_umask(), rename=name if whole else os.path.basename(target), any_link=True)
            try:
                if not unpack_below(Stream(chunks), below):
                    _refuse(target, "nothing came out of the sandbox", "check that its path can be read there")
            finally:
                below.close()
        finally:
            os.close(folder)
    except Refused as error:
        trust = "do not trust this sandbox" if error.kind == "hostile" else "check the sandbox and the target"
        _refuse(target, str(error), trust)
    except OSError as error:
        _refuse(target, f"it cannot be written: {(error.strerror or str(error)).lower()}", "check the target")
    return below.leading_out


def _umask() -> int:
    """What new files of this process do not get. Asking the C library means changing it, for all threads."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077

"""Files into and out of a sandbox, with the image's own tar through exec."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from dibs.backends import tar_check
from dibs.backends.kubernetes.exec_stream import NoShell
from dibs.backends.kubernetes.observe import Looks
from dibs.backends.port import Exec, Exit, Handle, Output
from dibs.errors import BackendUnavailable, CommandFailed, DibsError, InvalidRequest, NotFound, Unsupported

_KERNEL = ("/proc", "/sys", "/dev")
_SILENT = 600.0  # seconds in which a tar must have said something
_OWNER = "id -u; id -g"
# Where a link leads is looked at before it is packed: the kernel's own files are no files to copy.
_PACK = """d=$1; n=$2; [ -e "$d/$n" ] || [ -L "$d/$n" ] || exit 44
r=$(cd -P -- "$d" 2>/dev/null && pwd -P) || exit 45
case "$r/$n/" in //*) r=;; esac
case "$r/$n/" in /proc/*|/sys/*|/dev/*) exit 46;; esac
exec tar -cf - -C "$d" -- "$n"
"""
_UNPACK = """[ -d "$1" ] || exit 44
exec tar -xof - -C "$1"
"""


class Files(Looks):
    """Copying. An image without tar is refused by name."""

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        self.running(handle)
        uid, gid = self._owner(handle)
        with tar_check.checked(archive, uid, gid) as file:
            session = self._tar(handle, _UNPACK, path)
            try:
                for piece in tar_check.pieces(file):
                    session.send(piece)
                session.end_of_input()
                self._finish(session, path)
            finally:
                session.close()

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        self.running(handle)
        wanted = posixpath.normpath(path)
        if any(wanted == root or wanted.startswith(root + "/") for root in _KERNEL):
            raise InvalidRequest(
                "the kernel's own files cannot be copied", field="path", value=path, code="PATH_REFUSED",
                remedy="read them with exec",
            )  # fmt: skip
        folder, name = posixpath.split(wanted)
        session = self._tar(handle, _PACK, folder or ".", name or ".")
        return self._pieces(session, path)

    def _tar(self, handle: Handle, script: str, *words: str):  # type: ignore[no-untyped-def]
        has = "command -v tar >/dev/null 2>&1 || exit 43\n"
        try:
            return self.exec(handle, Exec(command=("sh", "-c", has + script, "sh", *words)))
        except (CommandFailed, NoShell) as error:
            raise _no_tar("shell") from error

    def _owner(self, handle: Handle) -> tuple[int, int]:
        try:
            code, out, _ = self.run(handle, ("sh", "-c", _OWNER))
        except NoShell as error:
            raise _no_tar("shell") from error
        words = out.split()
        return (int(words[0]), int(words[1])) if code == 0 and len(words) == 2 else (0, 0)

    def _pieces(self, session, path: str) -> Iterator[bytes]:  # type: ignore[no-untyped-def]
        try:
            # Wait for the first piece here, so that a missing path is reported to the caller, not to the reader.
            _begun, err = False, b""
            while True:
                found = session.receive(_SILENT)
                if not found:
                    raise BackendUnavailable("tar says nothing any more", field="path", value=path, code="EXEC_FAILED")
                for piece in found:
                    if isinstance(piece, Exit):
                        _check(piece, err, path)
                        return
                    if piece.stream == "stdout":
                        yield piece.data
                    else:
                        err = (err + piece.data)[-4000:]
        finally:
            session.close()

    def _finish(self, session, path: str) -> None:  # type: ignore[no-untyped-def]
        err = b""
        while True:
            found = session.receive(_SILENT)
            if not found:
                raise BackendUnavailable("tar says nothing any more", field="path", value=path, code="EXEC_FAILED")
            for piece in found:
                if isinstance(piece, Exit):
                    _check(piece, err, path)
                    return
                if isinstance(piece, Output):
                    err = (err + piece.data)[-4000:]


def _no_tar(what: str) -> Unsupported:
    return Unsupported(
        f"the image has no {what}, and files go in and out of a pod with it", field="files", value=what,
        code="TAR_MISSING", remedy="use an image with a shell and tar, or put the files into a volume",
    )  # fmt: skip


def _check(ended: Exit, err: bytes, path: str) -> None:
    if ended.code == 0:
        return
    said = err.decode("utf-8", "replace").strip()
    if ended.code == 43:
        raise _no_tar("tar")
    if ended.code in (44, 45):
        raise NotFound("it is not there", field="path", value=path, code="PATH_NOT_FOUND")
    if ended.code == 46:
        raise InvalidRequest("the kernel's own files cannot be copied", field="path", value=path, code="PATH_REFUSED")
    failure: DibsError = InvalidRequest(f"tar failed: {said}", field="path", value=path, code="COPY_FAILED")
    raise failure

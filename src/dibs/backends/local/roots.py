"""Root file systems from archives.

`backend` asks for the folder of a tar file: unpacked once, checked while it is unpacked, kept by digest below the state
folder. Sandboxes see it under a private layer, so it never changes. It must leave nothing behind when it refuses.
"""

from __future__ import annotations

import os
from pathlib import Path

from dibs.errors import InvalidRequest, StateError


def digest(path: Path) -> str:
    from hashlib import sha256

    sha = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            sha.update(piece)
    return sha.hexdigest()


def known(path: Path, store: Path) -> str:
    """The digest of an archive; read anew only when the file has changed."""
    from hashlib import sha256

    info = path.stat()
    stamp = sha256(f"{path} {info.st_ino} {info.st_size} {info.st_mtime_ns}".encode()).hexdigest()
    note = store / f"{stamp[:32]}.digest"
    try:
        text = note.read_text().strip()
    except OSError:
        text = ""
    if len(text) == 64:
        return text
    found = digest(path)
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = note.with_suffix(f".{os.getpid()}")
    draft.write_text(found)
    draft.replace(note)
    return found


def unpacked(path: Path, store: Path) -> Path:
    """The folder that holds the archive's files."""
    try:
        folder = store / known(path, store)
        if folder.is_dir():
            return folder
        draft = store / f"{folder.name}.{os.getpid()}"
        draft.mkdir(mode=0o755)
    except OSError as error:
        raise StateError(f"the root archive cannot be kept: {error.strerror}", field="root", value=str(path)) from error
    from dibs.backends import tar_extract, tar_reader  # few sandboxes have an archive for a root

    try:
        with path.open("rb") as stream:
            tar_extract.unpack_into(str(draft), stream, lambda: None, root=True)
        draft.chmod(0o755)
        draft.rename(folder)
    except tar_reader.Refused as error:
        raise InvalidRequest(str(error), field="root", value=str(path), code="ROOT_ARCHIVE_REFUSED") from error
    except OSError as error:
        if folder.is_dir():  # another process was faster
            return folder
        raise StateError(f"the root archive cannot be unpacked: {error}", field="root", value=str(path)) from error
    finally:
        if draft.exists():
            import shutil

            shutil.rmtree(draft, ignore_errors=True)
    return folder

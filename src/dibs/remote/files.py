"""Files that are read and written for other tools' clients: `openshell` and `kubeflow` use it.

Each is replaced as a whole, and is readable by its owner alone: most of them hold a token.
"""

from __future__ import annotations

import os
from pathlib import Path

from dibs.errors import StateError


def read(path: str, what: str) -> str:
    try:
        return Path(path).expanduser().read_text().strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise StateError(
            f"it cannot be read: {reason}", field=what, value=path, code="STATE_FOLDER_UNUSABLE",
            remedy="check the path and its permissions",
        ) from error  # fmt: skip


def write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        raise StateError(
            f"it cannot be written: {error.strerror}", field="file", value=str(path), code="STATE_FOLDER_UNUSABLE",
            remedy="check the permissions of the folder",
        ) from error  # fmt: skip

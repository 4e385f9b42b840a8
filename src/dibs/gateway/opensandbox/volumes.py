"""The volumes of `POST /sandboxes` → mounts. Only folders of the host, and only those that the administrator allows.

A path is compared after its symbolic links are followed, so that a link in an allowed folder leads nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dibs.backends.mounts import real
from dibs.errors import Problem, quoted

_FIELDS = ("name", "mountPath", "readOnly", "subPath", "host", "pvc", "ossfs")


def allowed(path: str, folders: tuple[str, ...]) -> bool:
    """Whether a path without links is one of the folders or below one. Links in it are not followed: what is compared
    here must be what is mounted."""
    tops = [os.path.realpath(folder) for folder in folders]
    return any(path == top or path.startswith(top.rstrip("/") + "/") for top in tops)


def read_volumes(value: Any, folders: tuple[str, ...], problems: list[Problem]) -> list[str]:
    """Mounts as `parse_spec` takes them. What is wrong is added to `problems`."""

    def refuse(code: str, field: str, said: Any, reason: str, remedy: str = "") -> None:
        problems.append(Problem(code, field, quoted(said)[1:-1], reason, remedy))

    if not isinstance(value, list):
        refuse("VOLUME_INVALID", "volumes", value, "must be a list")
        return []
    mounts = []
    for index, volume in enumerate(value):
        field = f"volumes[{index}]"
        if not isinstance(volume, Mapping):
            refuse("VOLUME_INVALID", field, volume, "must be an object")
            continue
        before = len(problems)
        for key in volume:
            if key not in _FIELDS:
                known = f"the known ones are {', '.join(_FIELDS)}"
                refuse("UNKNOWN_FIELD", f"{field}.{key}", volume[key], "there is no such field", known)
        for kind in ("pvc", "ossfs"):
            if volume.get(kind) is not None:
                remedy = "mount a folder of the host"
                refuse("VOLUME_NOT_OFFERED", f"{field}.{kind}", "(not shown)", "dibs has no such volumes", remedy)
        target = volume.get("mountPath")
        if not _is_path(target):
            refuse("VOLUME_INVALID", f"{field}.mountPath", target, "must be an absolute path without a colon")
        read_only = volume.get("readOnly", False)
        if not isinstance(read_only, bool):
            refuse("VOLUME_INVALID", f"{field}.readOnly", read_only, "must be true or false")
        source = _source(volume, field, refuse)
        if source is not None and not allowed(source, folders):
            there = ", ".join(folders) or "none"
            reason = "the administrator has not allowed this folder to be mounted"
            refuse("MOUNT_NOT_ALLOWED", f"{field}.host.path", source, reason, f"allowed are: {there}")
        if len(problems) == before and source is not None:
            mounts.append(f"{source}:{target}:{'ro' if read_only else 'rw'}")
    return mounts


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/") and ":" not in value and value.isprintable()


def _source(volume: Mapping[str, Any], field: str, refuse: Any) -> str | None:
    host = volume.get("host")
    if host is None:
        if volume.get("pvc") is None and volume.get("ossfs") is None:
            refuse("VOLUME_INVALID", field, volume.get("name", ""), "it does not say what to mount", "give host.path")
        return None
    path = host.get("path") if isinstance(host, Mapping) and set(host) == {"path"} else None
    if not isinstance(path, str) or not _is_path(path):
        refuse("VOLUME_INVALID", f"{field}.host", host, "must be an object with an absolute path")
        return None
    below = volume.get("subPath")
    if below is None:
        return real(path)
    if not isinstance(below, str) or below.startswith("/") or ".." in below.split("/") or not _is_path(f"/{below}"):
        refuse("VOLUME_INVALID", f"{field}.subPath", below, "must be a relative path without ..")
        return None
    return real(os.path.join(path, below))

"""The volumes of `POST /sandboxes` → mounts and named volumes. Of the host's folders only those that the administrator
allows; a `pvc` is a volume that the backend keeps by name.

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


def read_volumes(
    value: Any, folders: tuple[str, ...], problems: list[Problem]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Mounts and volumes as `parse_spec` takes them. What is wrong is added to `problems`."""

    def refuse(code: str, field: str, said: Any, reason: str, remedy: str = "") -> None:
        problems.append(Problem(code, field, quoted(said)[1:-1], reason, remedy))

    if not isinstance(value, list):
        refuse("VOLUME_INVALID", "volumes", value, "must be a list")
        return [], []
    mounts: list[str] = []
    named: list[dict[str, Any]] = []
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
        if volume.get("ossfs") is not None:
            remedy = "use a named volume (pvc), or mount a folder of the host"
            refuse("VOLUME_NOT_OFFERED", f"{field}.ossfs", "(not shown)", "dibs has no such volumes", remedy)
        target = volume.get("mountPath")
        if not _is_path(target):
            refuse("VOLUME_INVALID", f"{field}.mountPath", target, "must be an absolute path without a colon")
        read_only = volume.get("readOnly", False)
        if not isinstance(read_only, bool):
            refuse("VOLUME_INVALID", f"{field}.readOnly", read_only, "must be true or false")
        if volume.get("pvc") is not None:
            claim = _claim(volume, field, refuse)
            if len(problems) == before:
                named.append(claim)
            continue
        source = _source(volume, field, refuse)
        if source is not None and not allowed(source, folders):
            there = ", ".join(folders) or "none"
            reason = "the administrator has not allowed this folder to be mounted"
            refuse("MOUNT_NOT_ALLOWED", f"{field}.host.path", source, reason, f"allowed are: {there}")
        if len(problems) == before and source is not None:
            mounts.append(f"{source}:{target}:{'ro' if read_only else 'rw'}")
    return mounts, named


_PVC = {
    "claimName": "name", "createIfNotExists": "create", "storage": "size", "storageClass": "storage_class",
    "accessModes": "access_modes",
}  # fmt: skip
_OF_A_NEW_ONE = ("storage", "storageClass", "accessModes")


def _claim(volume: Mapping[str, Any], field: str, refuse: Any) -> dict[str, Any]:
    """A named volume, as `parse_spec` takes it. Clients create one unless they are told not to, and so does the
    official server."""
    pvc = volume["pvc"]
    if volume.get("host") is not None:
        refuse("VOLUME_INVALID", field, volume.get("name", ""), "host and pvc both say what to mount", "keep one")
    if not isinstance(pvc, Mapping):
        refuse("VOLUME_INVALID", f"{field}.pvc", pvc, "must be an object with a claimName")
        return {}
    for key, said in pvc.items():
        if key == "deleteOnSandboxTermination":
            if said is not False and said is not None:
                reason = "dibs removes no volume with a sandbox: others may use it by then"
                refuse("VOLUME_NOT_OFFERED", f"{field}.pvc.{key}", said, reason, "leave it out, and remove it yourself")
        elif key not in _PVC:
            known = f"the known ones are {', '.join((*_PVC, 'deleteOnSandboxTermination'))}"
            refuse("UNKNOWN_FIELD", f"{field}.pvc.{key}", said, "there is no such field", known)
    found = {ours: pvc[theirs] for theirs, ours in _PVC.items() if pvc.get(theirs) is not None}
    found.setdefault("create", True)
    if found["create"] is False:
        for key in _OF_A_NEW_ONE:
            found.pop(_PVC[key], None)
            if pvc.get(key) is not None:
                reason = "it describes a volume that is created, and createIfNotExists is false"
                refuse("VOLUME_INVALID", f"{field}.pvc.{key}", pvc[key], reason, "leave one of the two out")
    found |= {"target": volume.get("mountPath"), "read_only": volume.get("readOnly", False)}
    if volume.get("subPath") is not None:
        found["sub_path"] = volume["subPath"]
    return found


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

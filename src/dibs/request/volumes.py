"""Named volumes of a request: storage that the backend keeps by name, and that outlives the sandbox.

`spec` reads them, in the short form of the command line or as mappings; `gateway.opensandbox` writes the mappings from
a `pvc`. What a name stands for (a PersistentVolumeClaim, an engine's volume, a managed folder) the backend knows.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dibs.errors import Problem, quoted
from dibs.request.model import MountSpec, VolumeSpec
from dibs.request.parse import memory_bytes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_CLASS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_KEYS = ("name", "target", "sub_path", "read_only", "create", "size", "storage_class", "access_modes")
_REMEDY = "write NAME[/SUBPATH]:TARGET[:OPTION,…]; the options are ro, create, size=SIZE, class=NAME and access=MODE"


def read_volumes(value: Any, problems: list[Problem]) -> tuple[VolumeSpec, ...]:
    """All of them; what is wrong is added to `problems`."""
    items = [value] if isinstance(value, str | Mapping) else value
    if not isinstance(items, list | tuple):
        problems.append(Problem("VOLUME_INVALID", "volumes", quoted(value)[1:-1], "must be a list", _REMEDY))
        return ()
    found: list[VolumeSpec] = []
    for item in items:
        words = _words(item, problems) if isinstance(item, str) else item
        if not isinstance(words, Mapping):
            if words is not None:
                problems.append(Problem("VOLUME_INVALID", "volumes", quoted(item)[1:-1], "not a volume", _REMEDY))
            continue
        one = _volume(words, item, problems)
        if one is not None:
            found.append(one)
    return tuple(found)


def same_target(mounts: Sequence[MountSpec], volumes: Sequence[VolumeSpec]) -> list[Problem]:
    """A volume on the place of another volume or of a mount: one of them would not be seen."""
    taken = {posixpath.normpath(mount.target): str(mount) for mount in mounts}
    found = []
    for volume in volumes:
        target = posixpath.normpath(volume.target)
        if target in taken:
            reason = f"two have this target: {taken[target]} and {volume}"
            found.append(Problem("CONFLICT", "volumes", volume.target, reason, "give each a target of its own"))
        taken[target] = str(volume)
    return found


def _words(text: str, problems: list[Problem]) -> dict[str, Any] | None:
    """The short form as a mapping."""

    def refuse(reason: str) -> None:
        problems.append(Problem("VOLUME_INVALID", "volumes", quoted(text)[1:-1], reason, _REMEDY))

    parts = text.split(":")
    if len(parts) not in (2, 3):
        refuse("this is not a volume")
        return None
    name, _, sub_path = parts[0].partition("/")
    found: dict[str, Any] = {"name": name, "target": parts[1]}
    if "/" in parts[0]:
        found["sub_path"] = sub_path
    for word in parts[2].split(",") if len(parts) == 3 else ():
        key, equals, said = word.partition("=")
        if word in ("ro", "rw"):
            found["read_only"] = word == "ro"
        elif word == "create":
            found["create"] = True
        elif equals and key in ("size", "class"):
            found["size" if key == "size" else "storage_class"] = said
        elif equals and key == "access":
            found.setdefault("access_modes", []).append(said)
        else:
            refuse(f"there is no option {quoted(word)}")
            return None
    return found


def _volume(words: Mapping[str, Any], item: Any, problems: list[Problem]) -> VolumeSpec | None:
    before = len(problems)

    def refuse(field: str, value: Any, reason: str) -> None:
        said = quoted(value)[1:-1]
        problems.append(Problem("VOLUME_INVALID", f"volumes.{field}" if field else "volumes", said, reason, _REMEDY))

    for key in words:
        if key not in _KEYS:
            refuse(str(key), words[key], f"there is no such field; the known ones are {', '.join(_KEYS)}")
    name, target, sub_path = words.get("name"), words.get("target"), words.get("sub_path", "")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        refuse("name", name, "this cannot be the name of a volume; a folder of the host is a mount")
    if not _is_target(target):
        refuse("target", target, "must be an absolute path other than /, without . or .. in it")
    if not _is_sub_path(sub_path) and "sub_path" in words:
        refuse("sub_path", sub_path, "must be a relative path without . or .. in it")
    for key in ("read_only", "create"):
        if not isinstance(words.get(key, False), bool):
            refuse(key, words[key], "must be true or false")
    storage = words.get("storage_class", "")
    if not isinstance(storage, str) or (storage and _CLASS.fullmatch(storage) is None):
        refuse("storage_class", storage, "this cannot be the name of a storage class")
    modes = words.get("access_modes", ())
    if not isinstance(modes, list | tuple) or not all(mode in ACCESS_MODES for mode in modes):
        refuse("access_modes", modes, f"the choices are {', '.join(ACCESS_MODES)}")
    size = memory_bytes(words["size"], "volumes.size", problems) if "size" in words else None
    if not words.get("create") and any(key in words for key in ("size", "storage_class", "access_modes")):
        refuse("", item, "size, class and access modes describe a volume that is created, and it does not say create")
    if len(problems) > before:
        return None
    return VolumeSpec(
        name=str(name),
        target=str(target),
        sub_path=str(sub_path).strip("/"),
        writable=not words.get("read_only", False),
        create=bool(words.get("create", False)),
        size_bytes=size,
        storage_class=storage,
        access_modes=tuple(modes),
    )


def _is_target(path: Any) -> bool:
    return isinstance(path, str) and path.startswith("/") and path.strip("/") != "" and _plain(path)


def _is_sub_path(path: Any) -> bool:
    return isinstance(path, str) and path.strip("/") != "" and not path.startswith("/") and _plain(path)


def _plain(path: str) -> bool:
    return path.isprintable() and ":" not in path and not {".", ".."} & set(path.split("/"))

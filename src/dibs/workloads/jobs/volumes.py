"""The volumes of a job as folders of this host.

`pods` asks where a volume is, `driver` makes it before the ranks are booked and removes it with the job. They lie
beside the state folder, not in it: no sandbox may see anything of the state.

    <state>-volumes/<job id>/<rank>/<volume>    emptyDir: of one rank
    <state>-volumes/<job id>/files/<object>     ConfigMaps and Secrets that belong to the job (MPI)
    <state>-volumes/claims/<tenant>/<name>      persistentVolumeClaim: outlives the job, as on a cluster
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from dibs.home import Home
from dibs.train.refusals import Refusals

Json = dict[str, Any]


class Folder(msgspec.Struct, frozen=True):
    path: str
    read_only: bool = False


class Volumes:
    """The volumes of one job. `objects`: the ConfigMaps and Secrets that it comes with."""

    def __init__(self, home: Home, job_id: str, tenant: str, objects: tuple[Json, ...] = ()) -> None:
        self._base = root(home)
        self._own = self._base / job_id
        self._tenant = tenant or "host"
        self._objects = {(one["kind"], one["metadata"]["name"]): one for one in objects}
        self._files: dict[Path, tuple[bytes, int, int | None]] = {}  # content, mode, owner
        self._folders: set[Path] = set()

    def source(self, rank: str, volume: Json, found: Refusals, path: str, user: int | None = None) -> Folder | None:
        """Where a volume of a rank is; None if it is refused. `user`: who reads it. Nothing is made yet."""
        kind = next((field for field in volume if field != "name"), "")
        if kind == "emptyDir":
            if volume["emptyDir"].get("medium") == "Memory":
                found.invalid(path, volume["emptyDir"], "a volume in memory can be had at /dev/shm only",
                              "mount it there, or leave the medium out")  # fmt: skip
                return None
            if limit := volume["emptyDir"].get("sizeLimit"):
                found.invalid(f"{path}.emptyDir.sizeLimit", limit, "the size of a folder of this host is not limited",
                              "leave it out")  # fmt: skip
                return None
            return self._folder(self._own / rank / volume["name"])
        if kind == "persistentVolumeClaim":
            claim = volume["persistentVolumeClaim"]
            folder = self._folder(self._base / "claims" / self._tenant / claim["claimName"])
            return Folder(folder.path, bool(claim.get("readOnly")))
        if kind == "hostPath":
            return Folder(volume["hostPath"]["path"])
        if kind in ("configMap", "secret"):
            return self._projected(kind, volume, found, path, user)
        found.invalid(path, volume, f"a volume of the kind {kind or '(none)'} cannot be had without a cluster",
                      "use emptyDir, persistentVolumeClaim or hostPath")  # fmt: skip
        return None

    def _folder(self, path: Path) -> Folder:
        self._folders.add(path)
        return Folder(str(path))

    def _projected(self, kind: str, volume: Json, found: Refusals, path: str, user: int | None) -> Folder | None:
        source = volume[kind]
        name = source.get("name") or source.get("secretName", "")
        known = self._objects.get(("ConfigMap" if kind == "configMap" else "Secret", name))
        if known is None:
            reason = f"there is no {kind} {name} without a cluster"
            found.invalid(path, name, reason, "use a hostPath, or put the value into the job")
            return None
        values = {**known.get("data", {}), **known.get("stringData", {})}
        folder = self._own / "files" / (volume["name"] if user is None else f"{volume['name']}-{user}")
        default = source.get("defaultMode", 0o644)
        items = source.get("items") or [{"key": key, "path": key} for key in values]
        for one in items:
            mode = one.get("mode", default)
            if not mode & 0o007:
                mode &= 0o700  # its reader is its owner: OpenSSH takes no key that others of a group can read
            self._files[folder / one["path"]] = (values[one["key"]].encode(), mode, user)
        self._folders.add(folder)
        return Folder(str(folder), read_only=True)

    def make(self) -> None:
        """Make the folders and files that were asked for. Once more does no harm."""
        projected = {file.parent for file in self._files}  # they are not writable, as OpenSSH insists
        for folder in [self._base, self._own, *sorted(self._folders)]:
            for part in reversed([one for one in (folder, *folder.parents) if one.is_relative_to(self._base)]):
                if not part.exists():
                    part.mkdir(mode=0o700 if part in (self._base, self._own) else 0o777)
                    shared = part in self._folders and part not in projected
                    part.chmod(0o700 if part == self._base else 0o777 if shared else 0o755)
        for path, (content, mode, owner) in self._files.items():
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            draft.touch(mode=0o600)
            draft.write_bytes(content)
            if owner is not None and os.geteuid() == 0:
                os.chown(draft, owner, -1)
            draft.chmod(mode)
            draft.rename(path)


def root(home: Home) -> Path:
    return home.state.with_name(f"{home.state.name}-volumes")


def remove(home: Home, job_id: str) -> None:
    """What belongs to a job alone. Idempotent."""
    shutil.rmtree(root(home) / job_id, ignore_errors=True)

"""The spec directories of a host, as one set of devices.

Called by all code that needs a device by name. A `Cache` reads its directories when it is made and again when
`refresh` is called; lookups never touch the disk. A file that cannot be used never hides the others: what is
wrong with it is recorded and can be read by `errors` and `dir_errors`.

Precedence: a later directory wins over an earlier one. The same device in two files of one directory is a
conflict: neither counts, both files get an error. The conflict stays even where a later directory defines the
device: the engines do it so, and a device that exists for dibs only would be of no use.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from dibs.cdi.decode import read_spec
from dibs.cdi.edits import merge_edits
from dibs.cdi.errors import CdiError, StoreError, UnresolvableError, quoted
from dibs.cdi.inject import OciSpec, apply_edits
from dibs.cdi.names import CdiName, is_qualified_name, parse_kind, qualified_name
from dibs.cdi.spec import ContainerEdits, Device, Spec
from dibs.cdi.store import SPEC_SUFFIXES, at_minimum_version, remove_file, spec_path, write_file

DEFAULT_SPEC_DIRS: Final = ("/etc/cdi", "/var/run/cdi")
"""Where the engines look: static specs first, generated ones (which win) second."""

# A file changed this shortly before it was read may change again without a new time stamp: the clock of a file
# system ticks every 1 to 10 ms. Ten times that is arbitrary.
_RACY_NS: Final = 100_000_000


class SpecFile(msgspec.Struct, frozen=True):
    """A spec and where it came from. `priority` is the position of its directory: higher wins."""

    spec: Spec
    path: str
    priority: int

    @property
    def vendor(self) -> str:
        return parse_kind(self.spec.kind)[0]

    @property
    def device_class(self) -> str:
        return parse_kind(self.spec.kind)[1]


class CachedDevice(msgspec.Struct, frozen=True):
    """A device under its qualified name, with the file that defines it."""

    name: CdiName
    device: Device
    file: SpecFile


class EditsPart(msgspec.Struct, frozen=True):
    """Edits and their origin: a whole spec (`name` is its kind) or one device (`name` is qualified)."""

    origin: Literal["spec", "device"]
    name: str
    path: str
    edits: ContainerEdits


class Resolution(msgspec.Struct, frozen=True):
    """What a list of devices means, in the order of application."""

    parts: tuple[EditsPart, ...]

    @property
    def specs(self) -> tuple[EditsPart, ...]:
        """The edits that the specs make once each. A spec without edits of its own has no part."""
        return tuple(part for part in self.parts if part.origin == "spec")

    @property
    def devices(self) -> tuple[EditsPart, ...]:
        """The edits of the devices, as they were asked for."""
        return tuple(part for part in self.parts if part.origin == "device")

    @property
    def merged(self) -> ContainerEdits:
        """All of it, appended."""
        return merge_edits(part.edits for part in self.parts)


_Signature = tuple[int, ...]


class _Read(msgspec.Struct, frozen=True):
    """The outcome of one read, kept until the file's signature changes."""

    signature: _Signature
    outcome: Spec | CdiError
    trusted: bool


class _World(msgspec.Struct, frozen=True):
    """Everything known after one refresh. Replaced as a whole, so that a reader never sees a mixture."""

    reads: dict[str, _Read]
    files: tuple[SpecFile, ...]
    devices: dict[str, CachedDevice]
    conflicts: dict[str, str]
    errors: dict[str, tuple[CdiError, ...]]
    dir_errors: dict[str, CdiError]


class Cache:
    """The devices of some spec directories, given from the lowest priority to the highest."""

    def __init__(self, spec_dirs: Iterable[str | os.PathLike[str]] = DEFAULT_SPEC_DIRS) -> None:
        self.spec_dirs = tuple(os.path.normpath(os.fspath(path)) for path in spec_dirs)
        self._world = _World({}, (), {}, {}, {}, {})
        self.refresh()

    def refresh(self) -> bool:
        """Look at the directories again; tell whether anything changed. Only changed files are read."""
        old = self._world
        reads, order, dir_errors = self._scan(old.reads)
        same_errors = {d: str(e) for d, e in dir_errors.items()} == {d: str(e) for d, e in old.dir_errors.items()}
        if (
            same_errors
            and list(reads) == list(old.reads)
            and all(
                read.outcome is old.reads[path].outcome or _same(read, old.reads[path]) for path, read in reads.items()
            )
        ):
            # Keep the new marks of trust; the meaning is the same.
            self._world = msgspec.structs.replace(old, reads=reads)
            return False
        self._world = _combine(reads, order, dir_errors)
        return True

    def _scan(self, known: Mapping[str, _Read]) -> tuple[dict[str, _Read], list[tuple[str, int]], dict[str, CdiError]]:
        reads: dict[str, _Read] = {}
        order: list[tuple[str, int]] = []
        dir_errors: dict[str, CdiError] = {}
        for priority, directory in enumerate(self.spec_dirs):
            try:
                names = sorted(name for name in os.listdir(directory) if name.endswith(SPEC_SUFFIXES))
            except FileNotFoundError:
                continue  # a host without this directory is a host without specs there
            except (OSError, ValueError) as exc:
                reason = getattr(exc, "strerror", None) or str(exc)
                dir_errors[directory] = StoreError(f"{directory}: cannot be listed: {reason}")
                continue
            for name in names:
                path = os.path.join(directory, name)
                if path not in reads:
                    read = _read(path, known.get(path))
                    if read is None:
                        continue
                    reads[path] = read
                order.append((path, priority))
        return reads, order, dir_errors

    # Lookups

    def devices(self) -> list[CdiName]:
        """All usable devices, by name."""
        return [device.name for _, device in sorted(self._world.devices.items())]

    def device(self, name: str) -> CachedDevice | None:
        """The device of that qualified name, or None."""
        return self._world.devices.get(name)

    def vendors(self) -> list[str]:
        return sorted({file.vendor for file in self._world.files})

    def classes(self) -> list[str]:
        return sorted({file.device_class for file in self._world.files})

    def specs(self, vendor: str | None = None) -> list[SpecFile]:
        """The readable specs, all or those of a vendor, in the order of reading."""
        return [file for file in self._world.files if vendor is None or file.vendor == vendor]

    def errors(self) -> Mapping[str, tuple[CdiError, ...]]:
        """What is wrong with spec files, by path: unreadable, invalid, or in conflict."""
        return MappingProxyType(self._world.errors)

    def dir_errors(self) -> Mapping[str, CdiError]:
        """Directories that exist but cannot be listed."""
        return MappingProxyType(self._world.dir_errors)

    # Use

    def resolve(self, names: Sequence[str]) -> Resolution:
        """What has to be done for these devices. All names must resolve; the error lists those that do not.

        The first device of a spec brings the spec's own edits before its own. A device asked for twice is
        applied twice, as the engines do it.
        """
        world = self._world
        missing = {name: _why_missing(name, world) for name in names if name not in world.devices}
        if missing:
            raise UnresolvableError(missing)
        parts: list[EditsPart] = []
        seen: set[str] = set()
        for name in names:
            found = world.devices[name]
            spec, path = found.file.spec, found.file.path
            if path not in seen:
                seen.add(path)
                if not spec.container_edits.is_empty:
                    parts.append(EditsPart("spec", spec.kind, path, spec.container_edits))
            parts.append(EditsPart("device", name, path, found.device.container_edits))
        return Resolution(tuple(parts))

    def inject(self, oci: OciSpec, names: Sequence[str], *, host_root: str = "/") -> OciSpec:
        """Return the OCI spec with these devices in it; all of them, or an error and no change."""
        return apply_edits(oci, self.resolve(names).merged, host_root=host_root)

    def write_spec(self, spec: Spec, name: str, *, overwrite: bool = True) -> str:
        """Write a spec into the directory of highest priority, at its minimum version; return the path.

        `name` may end in `.json` or `.yaml`; without an ending it is YAML. See `spec_name`.
        """
        path = spec_path(self._write_dir(), name)
        write_file(at_minimum_version(spec), path, overwrite=overwrite)
        self.refresh()
        return path

    def remove_spec(self, name: str) -> bool:
        """Remove a spec written by `write_spec`; tell whether it was there."""
        removed = remove_file(spec_path(self._write_dir(), name))
        self.refresh()
        return removed

    def _write_dir(self) -> str:
        if not self.spec_dirs:
            raise StoreError("no spec directories to write to")
        return self.spec_dirs[-1]


def _why_missing(name: str, world: _World) -> str:
    if not is_qualified_name(name):
        return "not a qualified name; write vendor/class=name"
    return world.conflicts.get(name, "")


def _read(path: str, known: _Read | None) -> _Read | None:
    """Read a file, or take what is known of it if it did not change. None: it is no file, or gone."""
    now = time.time_ns()
    try:
        info = os.stat(path)
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not os.path.islink(path):
            return None  # removed since the directory was listed
        return _Read((), StoreError(f"{path}: cannot be read: {exc.strerror or exc}"), trusted=False)
    if stat.S_ISDIR(info.st_mode):
        return None
    signature = (info.st_dev, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    if known is not None and known.trusted and known.signature == signature:
        return known
    outcome: Spec | CdiError
    try:
        outcome = read_spec(path)
    except CdiError as exc:
        outcome = exc
    # Unreadable files are tried again each time: what hindered us need not show in the signature.
    trusted = not isinstance(outcome, StoreError) and max(info.st_mtime_ns, info.st_ctime_ns) < now - _RACY_NS
    return _Read(signature, outcome, trusted)


def _same(new: _Read, old: _Read) -> bool:
    if isinstance(new.outcome, CdiError) and isinstance(old.outcome, CdiError):
        return str(new.outcome) == str(old.outcome)
    return new.outcome == old.outcome


def _combine(reads: dict[str, _Read], order: list[tuple[str, int]], dir_errors: dict[str, CdiError]) -> _World:
    files: list[SpecFile] = []
    devices: dict[str, CachedDevice] = {}
    conflicts: dict[str, str] = {}
    errors: dict[str, list[CdiError]] = {}
    for path, priority in order:
        outcome = reads[path].outcome
        if isinstance(outcome, CdiError):
            errors.setdefault(path, []).append(outcome)
            continue
        file = SpecFile(outcome, path, priority)
        files.append(file)
        for device in outcome.devices:
            name = qualified_name(file.vendor, file.device_class, device.name)
            other = devices.get(name)
            if other is not None and other.file.priority == priority:
                what = f"conflicting device {quoted(name)} (specs {quoted(path)}, {quoted(other.file.path)})"
                conflicts[name] = f"in conflict: {quoted(other.file.path)} and {quoted(path)} both define it"
                for side in (path, other.file.path):
                    errors.setdefault(side, []).append(CdiError(what))
                continue
            devices[name] = CachedDevice(name, device, file)
    for conflict in conflicts:
        del devices[conflict]
    return _World(
        reads, tuple(files), devices, conflicts, {path: tuple(found) for path, found in errors.items()}, dir_errors
    )

"""Writing and removing spec files, and their names.

Called by `Cache.write_spec` and `Cache.remove_spec`. A reader sees the old file or the new one, never a part:
the content goes to a temporary file beside it, to the disk, and then takes the name. It reads nothing back.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

import msgspec

from dibs.cdi.decode import write_bytes_of
from dibs.cdi.errors import InvalidNameError, SpecError, StoreError, quoted
from dibs.cdi.names import kind_problems, parse_kind
from dibs.cdi.spec import Spec
from dibs.cdi.validate import spec_problems
from dibs.cdi.version import minimum_required_version

SPEC_SUFFIXES: Final = (".yaml", ".json")
"""The endings of spec files. `.yml` is not one of them."""

DEFAULT_SUFFIX: Final = ".yaml"
_FILE_MODE: Final = 0o644


def spec_name(kind: str) -> str:
    """The file name, without ending, of the one spec of a kind: `vendor-class`."""
    problems = kind_problems(kind)
    if problems:
        raise InvalidNameError(kind, "; ".join(problems))
    vendor, cls = parse_kind(kind)
    return f"{vendor}-{cls}"


def transient_spec_name(kind: str, transient_id: str) -> str:
    """The file name of a spec that lives as long as something else, such as a container or a claim."""
    if not transient_id:
        raise InvalidNameError(transient_id, "the id of a transient spec is empty")
    return f"{spec_name(kind)}_{transient_id.replace('/', '_')}"


def spec_path(directory: str, name: str) -> str:
    """The path for a spec name in a directory; the default ending is added where none is given."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise StoreError(f"spec name {quoted(name)}: must be a plain file name")
    ending = "" if name.endswith(SPEC_SUFFIXES) else DEFAULT_SUFFIX
    return os.path.join(directory, name + ending)


def at_minimum_version(spec: Spec) -> Spec:
    """The spec with the oldest version that has all it uses, validated."""
    result = msgspec.structs.replace(spec, cdi_version=minimum_required_version(spec))
    problems = spec_problems(result)
    if problems:
        raise SpecError(problems)
    return result


def write_file(spec: Spec, path: str, *, overwrite: bool) -> None:
    """Write a valid spec to a path, atomically. The directory is made if it is missing."""
    data = write_bytes_of(spec, path)
    directory, name = os.path.split(path)
    # The ending keeps readers from taking the temporary file for a spec.
    temporary = os.path.join(directory, f".{name}.{os.urandom(8).hex()}.tmp")
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        try:
            with open(fd, "wb") as file:
                os.fchmod(fd, _FILE_MODE)  # engines of other users read it, whatever our umask is
                file.write(data)
                file.flush()
                os.fsync(fd)
            if overwrite:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)  # fails if the name is taken, unlike a rename
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        _sync_directory(directory)
    except FileExistsError as exc:
        raise StoreError(f"{path}: exists already") from exc
    except OSError as exc:
        raise StoreError(f"{path}: cannot be written: {exc.strerror or exc}") from exc


def remove_file(path: str) -> bool:
    """Remove a spec file; tell whether it was there."""
    try:
        os.unlink(path)
        _sync_directory(os.path.dirname(path))
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise StoreError(f"{path}: cannot be removed: {exc.strerror or exc}") from exc
    return True


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

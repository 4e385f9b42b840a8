"""What every backend says of named volumes in the same words. Backends call it; it looks at nothing."""

from __future__ import annotations

from collections.abc import Iterator

from dibs.backends.port import Volume
from dibs.errors import Problem


def missing(volume: Volume) -> Problem:
    reason = "there is no such volume, and it was not to be created"
    remedy = f"create it with the sandbox (--volume {volume}:{volume.target}:create), or name one that is there"
    return Problem("VOLUME_NOT_FOUND", "volumes", str(volume), reason, remedy)


def undeliverable(volume: Volume, what: str) -> Iterator[Problem]:
    """Of a volume that is a folder of a host: what only a cluster's storage has."""
    for given, name in ((volume.size_bytes, "size"), (volume.storage_class, "class"), (volume.access_modes, "access")):
        if given:
            value = ", ".join(given) if isinstance(given, tuple) else str(given)
            reason = f"{what} has no {name}: nothing would keep to it"
            yield Problem("VOLUME_UNSUPPORTED", f"volumes.{name}", value, reason, "leave it out, or use kubernetes")

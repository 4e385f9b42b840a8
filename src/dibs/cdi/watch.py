"""Watching spec directories by looking again and again.

Used by `dibs cdi monitor`. No thread and no kernel interface: the caller decides how often to look, and a look
costs one listing per directory and one stat per file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from dibs.cdi.cache import Cache


class Snapshot(msgspec.Struct, frozen=True):
    """What can be seen of a cache, by name, with a value that differs when the thing does."""

    specs: dict[str, object]
    vendors: dict[str, object]
    classes: dict[str, object]
    devices: dict[str, object]
    errors: dict[str, object]

    @classmethod
    def of(cls, cache: Cache) -> Snapshot:
        errors: dict[str, object] = {p: tuple(str(e) for e in found) for p, found in cache.errors().items()}
        errors |= {path: str(error) for path, error in cache.dir_errors().items()}
        return cls(
            specs={file.path: file.spec for file in cache.specs()},
            vendors=dict.fromkeys(cache.vendors()),
            classes=dict.fromkeys(cache.classes()),
            devices={name: cache.device(name) for name in cache.devices()},
            errors=errors,
        )


class Change(msgspec.Struct, frozen=True):
    """One difference between two looks. `what` is specs, vendors, classes, devices or errors."""

    what: str
    action: str
    name: str


def watch_specs(
    cache: Cache, interval: float, *, polls: int | None = None, sleep: Callable[[float], None] | None = None
) -> Iterator[list[Change]]:
    """Yield the changes of each look that found any. Ends after `polls` looks; without it, never."""
    before = Snapshot.of(cache)
    looks = 0
    while polls is None or looks < polls:
        (sleep or time.sleep)(interval)
        looks += 1
        if not cache.refresh():
            continue
        after = Snapshot.of(cache)
        changes = differences(before, after)
        before = after
        if changes:
            yield changes


def differences(before: Snapshot, after: Snapshot) -> list[Change]:
    """Everything added, removed or changed, by kind and name."""
    changes: list[Change] = []
    for what in Snapshot.__struct_fields__:
        old: dict[str, object] = getattr(before, what)
        new: dict[str, object] = getattr(after, what)
        for name in sorted(old.keys() | new.keys()):
            if name not in old:
                changes.append(Change(what, "added", name))
            elif name not in new:
                changes.append(Change(what, "removed", name))
            elif old[name] != new[name]:
                changes.append(Change(what, "changed", name))
    return changes

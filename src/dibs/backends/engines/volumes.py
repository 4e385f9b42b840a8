"""Named volumes of an engine: found, made where that was asked for, and the folder of the host that each of them is.

`create` checks them before a booking and makes them when everything else is settled. A volume is mounted by its
name, so that the engine knows that it is in use; a folder in one is bound like a mount, with no link followed on the
way to it. They are never removed here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from dibs.backends.engines.client import Client, EngineError
from dibs.backends.engines.facts import Facts
from dibs.backends.port import Volume
from dibs.backends.volumes import missing, undeliverable
from dibs.errors import InvalidRequest, Problem, Unsupported
from dibs.home import Home
from dibs.http import segment

_FOLDER = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class PlacedVolume(msgspec.Struct, frozen=True):
    """A volume, and the folder that is mounted for it, as the engine names it."""

    volume: Volume
    folder: str


def problems(engine: str, client: Client, facts: Facts, volumes: Sequence[Volume]) -> list[Problem]:
    """What stands against these volumes; nothing is made."""
    found = [problem for volume in volumes for problem in undeliverable(volume, f"a volume of {engine}")]
    for volume in volumes:
        document = _find(engine, client, volume.name)
        if document is None:
            found += [] if volume.create else [missing(volume)]
            continue
        trouble = _unsuitable(engine, volume, document)
        if trouble is None and volume.sub_path and not volume.create:
            trouble = _no_folder(facts, volume, str(document["Mountpoint"]))
        found += [trouble] if trouble is not None else []
    return found


def ready(engine: str, client: Client, facts: Facts, home: Home, volumes: Sequence[Volume]) -> tuple[PlacedVolume, ...]:
    """All of them, made where that was asked for. Repeatable."""
    return tuple(PlacedVolume(volume, _ready(engine, client, facts, home, volume)) for volume in volumes)


def _ready(engine: str, client: Client, facts: Facts, home: Home, volume: Volume) -> str:
    document = _find(engine, client, volume.name)
    if document is None:
        if not volume.create:
            raise InvalidRequest([missing(volume)])
        labels = {"dibs.home": str(home.state)}
        body = {"Name": volume.name, "Labels" if engine == "docker" else "Label": labels}
        document = client.call("POST", "/volumes/create", json=body)
    trouble = _unsuitable(engine, volume, document)
    if trouble is not None:
        raise Unsupported([trouble])
    top = str(document["Mountpoint"])
    if not volume.sub_path:
        return top
    if volume.create:
        _make_folder(facts, volume, top)
    trouble = _no_folder(facts, volume, top)
    if trouble is not None:
        raise InvalidRequest([trouble])
    return os.path.join(top, volume.sub_path)


def _find(engine: str, client: Client, name: str) -> dict[str, Any] | None:
    path = f"/volumes/{segment(name)}" + ("" if engine == "docker" else "/json")
    try:
        document: dict[str, Any] = client.call("GET", path)
    except EngineError as error:
        if error.status == 404:
            return None
        raise
    return document


def _unsuitable(engine: str, volume: Volume, document: dict[str, Any]) -> Problem | None:
    """A volume that is no plain folder of the engine's host cannot be told from another one once it is mounted."""
    driver, options = str(document.get("Driver") or "local"), document.get("Options") or {}
    if driver == "local" and not options and document.get("Mountpoint"):
        return None
    what = f"the driver {driver}" if driver != "local" else f"the options {', '.join(sorted(options))}"
    reason = f"it has {what}, and what {engine} mounts for it cannot be proved"
    return Problem("VOLUME_UNSUPPORTED", "volumes", volume.name, reason, "use a plain volume, or mount a folder")


def _no_folder(facts: Facts, volume: Volume, top: str) -> Problem | None:
    try:
        with ExitStack() as opened:
            _walk(facts, volume, top, opened)
    except FileNotFoundError:
        return missing(volume)
    except OSError as error:
        reason = f"it cannot be mounted: {(error.strerror or str(error)).lower()}"
        return Problem("VOLUME_INVALID", "volumes", str(volume), reason, "name a folder of the volume, not a link")
    return None


def _make_folder(facts: Facts, volume: Volume, top: str) -> None:
    try:
        with ExitStack() as opened:
            _walk(facts, volume, top, opened, make=True)
    except OSError as error:
        reason = f"it cannot be made: {(error.strerror or str(error)).lower()}"
        raise InvalidRequest(reason, field="volumes", value=str(volume), code="VOLUME_INVALID") from error


def _walk(facts: Facts, volume: Volume, top: str, opened: ExitStack, *, make: bool = False) -> None:
    """Go into its folders one by one: what a container has put there may be a link."""
    fd = os.open(facts.seen(top), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    opened.callback(os.close, fd)
    for part in filter(None, volume.sub_path.split("/")):
        if make:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
        fd = os.open(part, _FOLDER, dir_fd=fd)
        opened.callback(os.close, fd)

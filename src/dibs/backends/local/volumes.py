"""Named volumes of `local`: folders of the state, `<state>/volumes/<name>`, made when they are asked for.

`backend` checks them before a booking, makes them when everything else is settled, and renders them as binds. They are
never removed here: a volume outlives every sandbox that used it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from dibs.backends.mounts import Changed, open_beneath
from dibs.backends.port import Mount, Volume
from dibs.backends.volumes import missing, undeliverable
from dibs.errors import Problem, StateError
from dibs.home import Home


def folder_of(home: Home, volume: Volume) -> str:
    """The folder that is mounted for a volume."""
    top = os.path.join(os.path.realpath(home.state), "volumes", volume.name)
    return os.path.join(top, volume.sub_path) if volume.sub_path else top


def problems(home: Home, volumes: Sequence[Volume]) -> list[Problem]:
    """What stands against these volumes; nothing is made."""
    found = [problem for volume in volumes for problem in undeliverable(volume, "a folder of this host")]
    for volume in volumes:
        try:
            os.close(open_beneath(folder_of(home, volume)))
        except Changed as error:
            reason = f"it cannot be mounted: {error.strerror}"
            found.append(Problem("VOLUME_INVALID", "volumes", str(volume), reason, "name another sub-path"))
        except FileNotFoundError:
            if not volume.create:
                found.append(missing(volume))
        except OSError as error:
            reason = f"it cannot be used: {(error.strerror or str(error)).lower()}"
            found.append(Problem("VOLUME_INVALID", "volumes", str(volume), reason, "name another sub-path"))
    return found


def make(home: Home, volumes: Sequence[Volume]) -> None:
    """Make those that are to be created and are not there yet. What a sandbox has put into a volume may be a link, and
    none is followed. Repeatable."""
    for volume in volumes:
        if not volume.create:
            continue
        home.make_folder(home.state / "volumes")
        with ExitStack() as opened:
            fd = open_beneath(os.path.realpath(home.state / "volumes"))
            opened.callback(os.close, fd)
            try:
                for part in (volume.name, *filter(None, volume.sub_path.split("/"))):
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=fd)
                    fd = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
                    opened.callback(os.close, fd)
            except OSError as error:
                reason = f"it cannot be made: {(error.strerror or str(error)).lower()}"
                raise StateError(reason, field="volumes", value=str(volume), code="VOLUME_INVALID") from error


def mounts_of(home: Home, volumes: Sequence[Volume]) -> tuple[Mount, ...]:
    """The binds of those that are there; the others are made before anything is created."""
    found = [(folder_of(home, volume), volume) for volume in volumes]
    return tuple(Mount(path, volume.target, volume.writable) for path, volume in found if os.path.lexists(path))

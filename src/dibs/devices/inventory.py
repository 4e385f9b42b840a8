"""All devices of this host at one look: the simulated world if one is on, else every source, joined.

Everybody who needs devices calls `look`. It is asked often (each plan, each table), so it reads small files only and
imports a source only when its turn comes. A source that cannot be read is a `SourceError` in the answer; it must never
read as "no devices", and one broken source must not hide the others.
"""

from __future__ import annotations

from collections.abc import Callable

from dibs.devices.model import Inventory, SourceError
from dibs.errors import StateError
from dibs.home import Home


def look(home: Home, *, started_by_dibs: Callable[[int], bool]) -> Inventory:
    """What is there now. `started_by_dibs` tells which processes on a card are our own workloads."""
    from dibs.devices import simulated

    try:
        devices = simulated.load_devices(home)
    except StateError as error:
        problem = error.problems[0]
        broken = SourceError("simulated", f"{problem.value}: {problem.reason}", problem.remedy)
        return Inventory((), (broken,), simulated=True)
    if devices is not None:
        return Inventory(devices, simulated=True)
    return _look_at_host(started_by_dibs)


def _look_at_host(started_by_dibs: Callable[[int], bool]) -> Inventory:
    del started_by_dibs
    return Inventory((), (SourceError("host", "only simulated devices can be read so far"),))

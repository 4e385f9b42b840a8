"""All devices of this host at one look: the simulated world if one is on, else every source, joined.

All code that needs devices calls `look`. It is asked often (each plan, each table), so it reads small files only and
imports a source only when its turn comes. A source that cannot be read is a `SourceError` in the answer; it must never
read as "no devices", and one broken source must not hide the others.

CDI says how a device is attached, NVML and the PCI bus say what it is. A card that only NVML sees is attached by its
nodes, without libraries: enough where the workload sees the host's own root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dibs.devices.host import HOST, Roots
from dibs.devices.model import Inventory, SourceError
from dibs.errors import StateError
from dibs.home import Home

if TYPE_CHECKING:
    from dibs.devices.nvml import Nvml


def look(
    home: Home,
    *,
    started_by_dibs: Callable[[int], bool],
    roots: Roots = HOST,
    spec_dirs: Iterable[str] | None = None,
) -> Inventory:
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
    return look_at_host(started_by_dibs, roots, spec_dirs)


def look_at_host(
    started_by_dibs: Callable[[int], bool],
    roots: Roots = HOST,
    spec_dirs: Iterable[str] | None = None,
    library: Nvml | None = None,
) -> Inventory:
    """The real devices, whether or not a simulated world is on. `library` stands in for NVIDIA's."""
    from dibs.devices import cdi_source, marks, merge_sources, nvml

    specs = cdi_source.read(spec_dirs)
    cards = nvml.read(started_by_dibs, roots, library)
    devices, errors = merge_sources.join(specs.devices, cards, started_by_dibs, roots)
    return Inventory(marks.marked(devices), (*specs.errors, *cards.errors, *errors))

"""What a device is by its hardware: the numbers of its nodes, and its UUID.

`inventory` puts the marks on devices, a lease books them beside the device's own name, and `workloads.world` compares
them. A name in a CDI spec means whatever the file says now; a file that is rewritten while a card is held may give the
same card another name.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable

import msgspec

from dibs.devices.model import Device


def marked(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices with the marks that are theirs alone. Nodes that several devices have (a control node, the card of
    several parts) tell nothing, and simulated nodes are not hardware."""
    found = [(device, marks_of(device)) for device in devices]
    count = Counter(mark for _, marks in found for mark in marks)
    return tuple(
        msgspec.structs.replace(device, marks=tuple(mark for mark in marks if count[mark] == 1)) if marks else device
        for device, marks in found
    )


def marks_of(device: Device) -> tuple[str, ...]:
    """All marks of a device. Parts of a card share its nodes, and are told apart by their units."""
    if device.simulated:
        return ()
    marks = [f"uuid:{device.uuid}"] if device.uuid else []
    if device.cdi is not None and not device.units and device.parent is None:
        marks += [f"node:{numbers}" for node in device.cdi.edits.device_nodes
                  if (numbers := _numbers(node.host_path or node.path))]  # fmt: skip
    return tuple(dict.fromkeys(marks))


def _numbers(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return ""  # a node that is not there cannot be given away either
    kind = "c" if stat.S_ISCHR(found.st_mode) else "b" if stat.S_ISBLK(found.st_mode) else ""
    return f"{kind} {os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if kind else ""

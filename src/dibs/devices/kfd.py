"""Who computes on AMD's cards, from the kernel's own accounting of KFD processes.

`merge_sources` asks for it when there are AMD devices. A process counts on a card while it has memory there: every ROCm
program opens all the cards that it can see, so an open device says nothing. Reading takes no library and no root.
"""

from __future__ import annotations

import os

from dibs.devices.host import HOST, Roots, read_text
from dibs.devices.model import SourceError


def users(roots: Roots = HOST) -> tuple[dict[str, tuple[int, ...]], tuple[SourceError, ...]]:
    """Render node (`/dev/dri/renderD128`) to the processes that have memory on its card."""
    base = f"{roots.sys}/class/kfd/kfd"
    try:
        nodes = _render_nodes(f"{base}/topology/nodes")
        return _processes(f"{base}/proc", nodes), ()
    except OSError as error:
        return {}, (SourceError("kfd", f"{error.filename}: {error.strerror}"),)
    except ValueError as error:
        return {}, (SourceError("kfd", f"{base}: {error}"),)


def _render_nodes(folder: str) -> dict[str, str]:
    """The driver's number of a card to its render node. A processor is a node too, of number 0."""
    found: dict[str, str] = {}
    for name in _listed(folder):
        number = read_text(f"{folder}/{name}/gpu_id")
        if not number or number == "0":
            continue
        for line in (read_text(f"{folder}/{name}/properties") or "").splitlines():
            key, _, value = line.partition(" ")
            if key == "drm_render_minor":
                found[number] = f"/dev/dri/renderD{int(value)}"
    return found


def _processes(folder: str, nodes: dict[str, str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for pid in _listed(folder):
        if not pid.isdigit():
            continue
        for number, node in nodes.items():
            held = read_text(f"{folder}/{pid}/vram_{number}")  # None: the process ended meanwhile
            if held and int(held) > 0:
                found[node] = (*found.get(node, ()), int(pid))
    return found


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []

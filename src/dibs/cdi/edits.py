"""Merging container edits.

Called by `cache` when several devices are resolved together. Pure: nothing is validated or looked up here.
"""

from __future__ import annotations

from collections.abc import Iterable

from dibs.cdi.spec import ContainerEdits


def merge_edits(parts: Iterable[ContainerEdits | None]) -> ContainerEdits:
    """Append edits in order. Nothing is removed as a duplicate; of several RDT settings the last one counts."""
    present = [part for part in parts if part is not None]
    return ContainerEdits(
        env=tuple(entry for part in present for entry in part.env),
        device_nodes=tuple(node for part in present for node in part.device_nodes),
        net_devices=tuple(device for part in present for device in part.net_devices),
        mounts=tuple(mount for part in present for mount in part.mounts),
        hooks=tuple(hook for part in present for hook in part.hooks),
        intel_rdt=next((part.intel_rdt for part in reversed(present) if part.intel_rdt is not None), None),
        additional_gids=tuple(gid for part in present for gid in part.additional_gids),
    )

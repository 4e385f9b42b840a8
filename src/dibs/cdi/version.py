"""CDI versions: which are known, and which one a spec needs at least.

Called by `validate` (a declared version must be high enough) and by `store` (a spec is written at its minimum,
so that old engines can read it). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dibs.cdi.errors import Problem, quoted
from dibs.cdi.names import parse_kind
from dibs.cdi.spec import ContainerEdits, Spec

KNOWN_VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
CURRENT_VERSION: Final = KNOWN_VERSIONS[-1]
EARLIEST_VERSION: Final = "0.3.0"
"""The oldest version that is still accepted; older ones are known by name only."""


def minimum_required_version(spec: Spec) -> str:
    """The oldest version that has everything the spec uses."""
    return max((version for version, _ in _features(spec)), key=_order, default=EARLIEST_VERSION)


def version_problems(spec: Spec) -> list[Problem]:
    """What is wrong with the declared version: unknown, or too old for what the spec uses."""
    declared = spec.cdi_version.removeprefix("v")
    if declared not in KNOWN_VERSIONS:
        what = f"invalid version {quoted(spec.cdi_version)}; known are {', '.join(KNOWN_VERSIONS)}"
        return [Problem("cdiVersion", what)]
    needed = minimum_required_version(spec)
    if _order(declared) >= _order(needed):
        return []
    users = [where for version, where in _features(spec) if version == needed]
    reason = f", because of {users[0]}" if users else ""
    what = f"the spec version must be at least v{needed}{reason}; it is {quoted(spec.cdi_version)}"
    return [Problem("cdiVersion", what)]


def _order(version: str) -> int:
    return KNOWN_VERSIONS.index(version)


def _features(spec: Spec) -> Iterator[tuple[str, str]]:
    """Each use of something that came with a later version: (version, place)."""
    if spec.annotations:
        yield "0.6.0", "annotations"
    vendor, cls = parse_kind(spec.kind)
    if vendor and "." in cls:
        yield "0.6.0", f"the dot in the class of kind {quoted(spec.kind)}"
    yield from _edit_features(spec.container_edits, "containerEdits")
    for index, device in enumerate(spec.devices):
        where = f"devices[{index}]"
        if device.annotations:
            yield "0.6.0", f"{where}.annotations"
        if device.name[:1].isdigit():
            yield "0.5.0", f"{where}.name, which starts with a digit"
        yield from _edit_features(device.container_edits, f"{where}.containerEdits")


def _edit_features(edits: ContainerEdits, where: str) -> Iterator[tuple[str, str]]:
    if edits.net_devices:
        yield "1.1.0", f"{where}.netDevices"
    if edits.intel_rdt is not None:
        yield "0.7.0", f"{where}.intelRdt"
        if edits.intel_rdt.schemata:
            yield "1.1.0", f"{where}.intelRdt.schemata"
        if edits.intel_rdt.enable_monitoring:
            yield "1.1.0", f"{where}.intelRdt.enableMonitoring"
    if edits.additional_gids:
        yield "0.7.0", f"{where}.additionalGids"
    for index, node in enumerate(edits.device_nodes):
        if node.host_path:
            yield "0.5.0", f"{where}.deviceNodes[{index}].hostPath"
    for index, mount in enumerate(edits.mounts):
        if mount.type:
            yield "0.4.0", f"{where}.mounts[{index}].type"

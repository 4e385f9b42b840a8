"""How leased devices get into a container: by CDI name, by NVIDIA's own request, or as plain nodes.

Pure but for looking at specs and nodes; `rendering` calls it. In this order:
1. by CDI name, if the engine has CDI on, knows the name, and means the same device by it: its spec has the same nodes;
2. where the engine has no CDI at all, by NVIDIA's own request with the exact device id, if it is NVIDIA's card;
3. as nodes, variables and mounts, if that is all that the device's spec asks for. What it says is then done by dibs.
Otherwise it is refused, with what would have to change. It never passes a device by count, and never two ways at once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Literal

import msgspec

from dibs.backends.engines.facts import Facts
from dibs.backends.port import GrantedDevice, Mount, NodeFact
from dibs.cdi.errors import CdiError
from dibs.cdi.spec import ContainerEdits, DeviceNode
from dibs.errors import Problem

Way = Literal["none", "cdi", "legacy", "nodes"]
_SPEC_WINS = ("NVIDIA_VISIBLE_DEVICES",)  # `void` in every NVIDIA spec: it keeps the legacy hook away
CONTROL_NODES = frozenset(("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"))


class PlainNode(msgspec.Struct, frozen=True):
    source: str
    target: str
    permissions: str


class Passing(msgspec.Struct):
    """The decision for all devices of a workload."""

    way: Way = "none"
    names: list[str] = []  # CDI names, or the ids of NVIDIA's request
    nodes: list[PlainNode] = []
    mounts: list[Mount] = []
    groups: list[int] = []
    env: dict[str, str] = {}  # what the engine will set by itself, over ours
    expected: list[NodeFact] = []
    notes: list[str] = []
    problems: list[Problem] = []


def decide(
    devices: tuple[GrantedDevice, ...], facts: Facts, env: dict[str, str], cdi_names: tuple[str, ...]
) -> Passing:
    """`env`: the workload's own environment; `cdi_names`: CDI names that were asked for by name on this engine."""
    found = Passing()
    if not devices:
        return found
    edits = [(str(device.id), one) for device in devices for one in _edits(device, devices)]
    for device, one in edits:
        for node in one.device_nodes:
            expect(node, device, facts, found)
    if found.problems:
        return found
    names = list(cdi_names) or [device.attachment.cdi_name for device in devices]
    why_not = _by_name(names, devices, facts, env, found, exact=bool(cdi_names))
    if not why_not or found.problems:
        return found
    if cdi_names:
        for name in cdi_names:
            found.problems.append(
                Problem("CDI_NAME_UNKNOWN", "cdi_devices", name, why_not, "leave the names out, or see `dibs doctor`")
            )
        return found
    if not facts.cdi and _by_legacy(devices, facts, found):
        found.notes.append(f"passed by NVIDIA's own request, by exact id: {why_not}")
        return found
    _as_nodes(edits, facts, why_not, found)
    return found


def _edits(device: GrantedDevice, devices: tuple[GrantedDevice, ...]) -> Iterable[ContainerEdits]:
    """Its own edits, after those of its spec if it is the first device of that spec."""
    attachment = device.attachment
    first = next(one for one in devices if one.attachment.spec == attachment.spec)
    if first is device and not attachment.spec_edits.is_empty:
        yield attachment.spec_edits
    yield attachment.edits


# --- what must be seen


def expect(node: DeviceNode, device: str, facts: Facts, found: Passing) -> None:
    fact = _fact(node, device, facts, found)
    if fact is None or fact in found.expected:
        return
    rival = next((one for one in found.expected if one.path == fact.path), None)
    if rival is not None:
        reason = f"two devices want this path, for {rival.major}:{rival.minor} and for {fact.major}:{fact.minor}"
        found.problems.append(Problem("DEVICES_COLLIDE", f"devices[{device}].deviceNodes", fact.path, reason))
        return
    found.expected.append(fact)


def _fact(node: DeviceNode, device: str, facts: Facts, found: Passing) -> NodeFact | None:
    """The node as it will be inside, from the host's own where there is one; a spec that contradicts it is stale."""
    field = f"devices[{device}].deviceNodes"
    source = node.host_path or node.path
    told = bool(node.type and (node.major or node.minor))
    try:
        info = os.stat(facts.seen(source))
    except OSError:
        facts.check_alive()
        if told and not node.host_path:
            return NodeFact(node.path, "b" if node.type == "b" else "c", node.major, node.minor)
        reason = "there is no such device node where the engine runs"
        found.problems.append(Problem("DEVICE_GONE", field, source, reason, "make the CDI spec anew"))
        return None
    if not (stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)):
        found.problems.append(
            Problem("INVALID_DEVICE_SPEC", field, source, "it is no device node", "make the CDI spec anew")
        )
        return None
    kind = "c" if stat.S_ISCHR(info.st_mode) else "b"
    major, minor = os.major(info.st_rdev), os.minor(info.st_rdev)
    if told and (node.major, node.minor) != (major, minor):
        if not node.host_path:  # the spec's numbers are what the engine makes the node with
            return NodeFact(node.path, "b" if node.type == "b" else "c", node.major, node.minor)
        reason = f"the spec says {node.major}:{node.minor}, the host's node is {major}:{minor}"
        found.problems.append(Problem("DEVICE_CHANGED", field, source, reason, "make the CDI spec anew"))
        return None
    return NodeFact(node.path, kind, major, minor)


# --- by name


def _by_name(
    names: list[str],
    devices: tuple[GrantedDevice, ...],
    facts: Facts,
    env: dict[str, str],
    found: Passing,
    *,
    exact: bool,
) -> str:
    """Why it cannot be done by name; empty: it is done, or refused."""
    if not facts.cdi:
        return "CDI is off in the engine"
    cache = facts.specs()
    unknown = [name for name in names if cache.device(name) is None]
    if unknown:
        if facts.discovered is not None and facts.discovered.issuperset(unknown):
            found.way, found.names = "cdi", names
            return ""  # in a folder that we cannot see: what is attached is checked after the start
        return f"the engine does not read a spec with {', '.join(unknown)} (it reads {', '.join(facts.cdi_dirs)})"
    try:
        resolution = cache.resolve(names)
    except CdiError as error:
        return f"the engine's specs cannot be used: {error}"
    theirs = {_same(node) for part in resolution.parts for node in part.edits.device_nodes}
    ours = {_same(node) for device in devices for one in _edits(device, devices) for node in one.device_nodes}
    if theirs != ours:
        more = ", ".join(sorted(str(node) for node in theirs - ours)) or "nothing"
        less = ", ".join(sorted(str(node) for node in ours - theirs)) or "nothing"
        reason = f"the engine's spec means other nodes by it: {more} instead of {less}"
        what = "cdi_devices" if exact else "devices"
        remedy = "make the specs in the engine's folders and in those of dibs the same; see `dibs doctor`"
        found.problems.append(Problem("CDI_SPECS_DIFFER", what, ", ".join(names), reason, remedy))
        return ""
    said: dict[str, str] = {}
    for part in resolution.parts:
        for line in part.edits.env:
            name, _, value = line.partition("=")
            said[name] = value  # as engines do it: the last one wins
    lost = [name for name, value in said.items() if env.get(name, value) != value and name not in _SPEC_WINS]
    if lost:
        return f"several specs set {', '.join(lost)}, and the engine would keep only the last value"
    if facts.rootless and (elsewhere := _elsewhere(found.expected, facts)):
        paths = ", ".join(elsewhere)
        return f"a rootless engine takes a node from the same path of the host, where {paths} is not that device"
    found.way, found.names, found.env = "cdi", names, said
    return ""


def _elsewhere(expected: list[NodeFact], facts: Facts) -> list[str]:
    """Nodes that are not on the host at the path that they have inside: a user's runtime cannot make nodes."""
    found = []
    for fact in expected:
        try:
            info = os.stat(facts.seen(fact.path))
        except OSError:
            facts.check_alive()
            found.append(fact.path)
            continue
        kind = "c" if stat.S_ISCHR(info.st_mode) else "b" if stat.S_ISBLK(info.st_mode) else ""
        if (kind, os.major(info.st_rdev), os.minor(info.st_rdev)) != (fact.kind, fact.major, fact.minor):
            found.append(fact.path)
    return found


def _same(node: DeviceNode) -> tuple[str, str, int, int]:
    return (node.path, node.host_path or node.path, node.major, node.minor)


# --- NVIDIA's own request


def _by_legacy(devices: tuple[GrantedDevice, ...], facts: Facts, found: Passing) -> bool:
    if not facts.legacy or any(device.simulated for device in devices):
        return False
    ids = []
    for device in devices:
        kind, _, name = device.attachment.cdi_name.partition("=")
        if kind != "nvidia.com/gpu":
            return False
        ids.append(name)
    found.way, found.names = "legacy", ids
    found.env = {"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}  # how Docker tells the hook
    return True


# --- as nodes


def _as_nodes(edits: list[tuple[str, ContainerEdits]], facts: Facts, why: str, found: Passing) -> None:
    for device, one in edits:
        remedy = "put its spec into a folder that the engine reads; see `dibs doctor`"
        for name, there in (
            ("hooks", one.hooks),
            ("netDevices", one.net_devices),
            ("intelRdt", one.intel_rdt),
        ):
            if there:
                reason = f"{why}; and its {name} can only be applied by the engine itself"
                found.problems.append(Problem("CDI_NAME_UNKNOWN", f"devices[{device}]", name, reason, remedy))
        for node in one.device_nodes:
            _plain(node, device, facts, found)
        for mount in one.mounts:
            plain = Mount(mount.host_path, mount.container_path, "ro" not in mount.options)
            if mount.type not in ("", "bind", "none"):
                reason = f"{why}; and a mount of this type can only be made by the engine itself"
                found.problems.append(Problem("CDI_NAME_UNKNOWN", f"devices[{device}]", mount.type, reason, remedy))
            elif plain not in found.mounts:
                found.mounts.append(plain)
        found.groups += [gid for gid in one.additional_gids if gid not in found.groups]
    found.way = "nodes"
    found.notes.append(f"passed as device nodes: {why}")


def _plain(node: DeviceNode, device: str, facts: Facts, found: Passing) -> None:
    source = node.host_path or node.path
    if not os.path.exists(facts.seen(source)):
        facts.check_alive()
        reason = "it is no node of the host, and only a CDI spec that the engine reads can make one"
        found.problems.append(Problem("DEVICE_GONE", f"devices[{device}].deviceNodes", source, reason))
        return
    if node.uid or node.gid or node.file_mode is not None:
        info = os.stat(facts.seen(source))
        wanted = (node.uid or 0, node.gid or 0, stat.S_IMODE(node.file_mode or info.st_mode))
        if wanted != (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)):
            reason = "its spec changes the owner or mode of the node, which only the engine itself can do"
            found.problems.append(Problem("CDI_NAME_UNKNOWN", f"devices[{device}].deviceNodes", source, reason))
            return
    plain = PlainNode(source, node.path, node.permissions or "rwm")
    if plain not in found.nodes:
        found.nodes.append(plain)

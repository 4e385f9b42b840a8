"""CDI edits as bubblewrap options.

`backend.render` calls it with the leased devices. Each field of an edit is applied or refused; the environment is not
looked at: it was merged when the workload was made. It looks at the host's nodes and changes nothing.
"""

from __future__ import annotations

import os
import stat

import msgspec

from dibs.backends.local import hooks as oci_hooks
from dibs.backends.port import GrantedDevice, NodeFact
from dibs.cdi.spec import ContainerEdits, DeviceNode, Hook, Mount
from dibs.errors import Problem

KINDS = {"c": stat.S_ISCHR, "u": stat.S_ISCHR, "b": stat.S_ISBLK}
# What bubblewrap's binds are anyway (no set-user-id, no devices, changes of the host's mounts do not spread back).
HARMLESS = frozenset(
    [
        "bind",
        "rbind",
        "ro",
        "rw",
        "nosuid",
        "nodev",
        "private",
        "rprivate",
        "slave",
        "rslave",
        "exec",
        "relatime",
        "defaults",
    ]
)


class NodeBind(msgspec.Struct, frozen=True):
    """A node of the host, where it goes, and what it must be."""

    source: str
    fact: NodeFact


class MountBind(msgspec.Struct, frozen=True):
    source: str  # empty: a tmpfs
    target: str
    writable: bool


class Applied(msgspec.Struct):
    """All edits of a workload, or the problems that forbid them."""

    nodes: list[NodeBind] = []
    mounts: list[MountBind] = []
    hooks: list[Hook] = []
    problems: list[Problem] = []


def apply(devices: tuple[GrantedDevice, ...]) -> Applied:
    found = Applied()
    seen: set[str] = set()
    for device in devices:
        attachment = device.attachment
        if not attachment.spec_edits.is_empty and attachment.spec not in seen:
            seen.add(attachment.spec)
            _edits(attachment.spec_edits, attachment.spec or str(device.id), found)
        _edits(attachment.edits, str(device.id), found)
    return found


def _edits(edits: ContainerEdits, device: str, found: Applied) -> None:
    def unsupported(name: str, value: object, reason: str, remedy: str = "use another backend for this device") -> None:
        found.problems.append(Problem("FIELD_NOT_SUPPORTED", f"devices[{device}].{name}", str(value), reason, remedy))

    if edits.additional_gids:
        gids = ", ".join(str(gid) for gid in edits.additional_gids)
        unsupported("additionalGids", gids, "an embedded sandbox has only its own user and group")
    if edits.intel_rdt is not None:
        unsupported("intelRdt", edits.intel_rdt.clos_id, "the embedded runtime does not set Intel RDT classes")
    if edits.net_devices:
        names = ", ".join(one.host_interface_name for one in edits.net_devices)
        unsupported("netDevices", names, "the embedded runtime does not move network interfaces")
    for node in edits.device_nodes:
        _node(node, device, found)
    for mount in edits.mounts:
        _mount(mount, device, found)
    for hook in edits.hooks:
        trouble = oci_hooks.problems(hook, device)
        found.problems += trouble
        if not trouble and hook not in found.hooks:
            found.hooks.append(hook)


def _node(node: DeviceNode, device: str, found: Applied) -> None:
    field = f"devices[{device}].deviceNodes"

    def problem(code: str, value: object, reason: str, remedy: str = "") -> None:
        found.problems.append(Problem(code, field, str(value), reason, remedy))

    if not node.path.startswith("/dev/") or ".." in node.path.split("/"):
        problem("FIELD_NOT_SUPPORTED", node.path, "a device node must be below /dev")
        return
    if node.type and node.type not in KINDS:
        problem("FIELD_NOT_SUPPORTED", node.type, "only character and block devices can be given")
        return
    if node.permissions and not {"r", "w"} <= set(node.permissions):
        reason = "access to a device cannot be narrowed here: its node can be read and written"
        problem("FIELD_NOT_SUPPORTED", node.permissions, reason, "use another backend for this device")
        return
    source = node.host_path or node.path
    try:
        info = os.stat(source)
    except FileNotFoundError:
        twin = _same_numbers(node) if node.type and not node.host_path else ""
        if not twin:
            problem("DEVICE_GONE", source, "there is no such device node on this host", "make the CDI spec anew")
            return
        source, info = twin, os.stat(twin)
    except OSError as error:
        problem("DEVICE_NOT_ACCESSIBLE", source, f"the node cannot be looked at: {(error.strerror or '').lower()}")
        return
    if not (stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)):
        problem("INVALID_DEVICE_SPEC", source, "it is no device node", "make the CDI spec anew")
        return
    kind = "c" if stat.S_ISCHR(info.st_mode) else "b"
    fact = NodeFact(node.path, kind, os.major(info.st_rdev), os.minor(info.st_rdev))
    if node.type and not KINDS[node.type](info.st_mode):
        problem("DEVICE_CHANGED", source, f"the spec says type {node.type}, the host's node is of type {kind}")
    elif (node.major or node.minor) and (node.major, node.minor) != (fact.major, fact.minor):
        if not node.host_path and (twin := _same_numbers(node)):
            source, fact = twin, NodeFact(node.path, kind, node.major, node.minor)
            info = os.stat(twin)
        else:
            reason = f"the spec says {node.major}:{node.minor}, the host's node is {fact.major}:{fact.minor}"
            problem("DEVICE_CHANGED", source, reason, "make the CDI spec anew")
    for name, asked, has in (
        ("fileMode", node.file_mode, stat.S_IMODE(info.st_mode)),
        ("uid", node.uid, info.st_uid),
        ("gid", node.gid, info.st_gid),
    ):
        if asked is not None and (asked & 0o7777 if name == "fileMode" else asked) != has:
            shown = (
                f"{asked:o}, the host's node has {has:o}" if name == "fileMode" else f"{asked}, the host's has {has}"
            )
            reason = f"the spec wants {name} {shown}; a bound node keeps the host's"
            problem("FIELD_NOT_SUPPORTED", source, reason, "change it on the host, or use another backend")
    if not os.access(source, os.R_OK | os.W_OK):
        reason = "you may not read and write this device"
        problem("DEVICE_NOT_ACCESSIBLE", source, reason, "become a member of the group that owns it")
    bind = NodeBind(source, fact)
    rival = next((one for one in found.nodes if one.fact.path == fact.path), None)
    if rival is None:
        found.nodes.append(bind)
    elif rival.fact != fact:
        problem("DEVICES_COLLIDE", fact.path, f"two devices want this path: {rival.source} and {source}")


def _same_numbers(node: DeviceNode) -> str:
    """A node of the host with the numbers that the spec gives: making one takes powers that a sandbox must not have."""
    is_kind = KINDS[node.type]
    folders = ["/dev"]
    while folders:
        folder = folders.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue  # not ours to read, so its nodes are not ours to give either
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if is_kind(info.st_mode) and info.st_rdev == os.makedev(node.major, node.minor):
                return entry.path
    return ""


def _mount(mount: Mount, device: str, found: Applied) -> None:
    field = f"devices[{device}].mounts"
    unknown = [option for option in mount.options if option not in HARMLESS]
    if mount.type == "tmpfs":
        sizes = [o for o in unknown if o.startswith(("mode=", "size="))]
        unknown = [o for o in unknown if o not in sizes]
        if sizes:
            reason = "the options of a tmpfs are not applied"
            found.problems.append(Problem("FIELD_NOT_SUPPORTED", field, ",".join(sizes), reason))
    elif mount.type not in ("", "bind", "none"):
        reason = "only folders and files of the host, and tmpfs, can be mounted"
        found.problems.append(Problem("FIELD_NOT_SUPPORTED", field, mount.type, reason))
        return
    if unknown:
        reason = "these mount options cannot be met here"
        found.problems.append(Problem("FIELD_NOT_SUPPORTED", field, ",".join(unknown), reason))
    target = os.path.normpath(mount.container_path)
    if not mount.container_path.startswith("/") or ".." in mount.container_path.split("/") or target == "/":
        reason = "the path in the container must be absolute, without .. and not /"
        found.problems.append(Problem("INVALID_DEVICE_SPEC", field, mount.container_path, reason))
        return
    if mount.type == "tmpfs":
        one = MountBind("", target, writable=True)
    else:
        if not os.path.exists(mount.host_path):
            reason = "the device needs this file, and it is not on this host"
            found.problems.append(
                Problem("MOUNT_SOURCE_MISSING", field, mount.host_path, reason, "make the CDI spec anew")
            )
        one = MountBind(mount.host_path, target, writable="ro" not in mount.options)
    if one not in found.mounts:
        found.mounts.append(one)

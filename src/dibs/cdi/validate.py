"""What makes a spec valid, beyond its types.

Called by `decode` after reading, by `store` before writing and by `inject` on merged edits. Every check
returns problems with their place and raises nothing, so that a caller gets all of them at once. It must not
look at the host: whether a device node exists is not a question of the spec.
"""

from __future__ import annotations

from typing import Final

from dibs.cdi.errors import Problem, quoted
from dibs.cdi.names import device_name_problem, kind_problems
from dibs.cdi.spec import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec
from dibs.cdi.version import version_problems

HOOK_NAMES: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES: Final = ("b", "c", "u", "p")
NO_PERMISSIONS: Final = "none"
"""The permissions of a device node that is created without a cgroup permission to use it."""

_MAX_CLOS_ID: Final = 4096


def spec_problems(spec: Spec) -> list[Problem]:
    """Everything that is wrong with a spec."""
    problems = version_problems(spec)
    problems += [Problem("kind", what) for what in kind_problems(spec.kind)]
    problems += edits_problems(spec.container_edits, "containerEdits")
    if not spec.devices:
        problems.append(Problem("devices", "no devices; a spec needs at least one"))
    first: dict[str, int] = {}
    for index, device in enumerate(spec.devices):
        where = f"devices[{index}]"
        problems += device_problems(device, where)
        if device.name and device.name in first:
            what = f"multiple devices {quoted(device.name)}, the first is devices[{first[device.name]}]"
            problems.append(Problem(f"{where}.name", what))
        first.setdefault(device.name, index)
    return problems


def device_problems(device: Device, where: str = "device") -> list[Problem]:
    """Everything that is wrong with one device. Empty edits are: such a device would do nothing."""
    problems = []
    name = device_name_problem(device.name)
    if name:
        problems.append(Problem(f"{where}.name", name))
    if device.container_edits.is_empty:
        problems.append(Problem(f"{where}.containerEdits", "empty device edits; the device would change nothing"))
    return problems + edits_problems(device.container_edits, f"{where}.containerEdits")


def edits_problems(edits: ContainerEdits, where: str = "containerEdits") -> list[Problem]:
    """Everything that is wrong with container edits."""
    problems = _env_problems(edits.env, f"{where}.env")
    for index, node in enumerate(edits.device_nodes):
        problems += _node_problems(node, f"{where}.deviceNodes[{index}]")
    problems += _net_problems(edits.net_devices, f"{where}.netDevices")
    for index, mount in enumerate(edits.mounts):
        problems += _mount_problems(mount, f"{where}.mounts[{index}]")
    for index, hook in enumerate(edits.hooks):
        problems += _hook_problems(hook, f"{where}.hooks[{index}]")
    if edits.intel_rdt is not None:
        problems += _rdt_problems(edits.intel_rdt, f"{where}.intelRdt")
    return problems


def _env_problems(env: tuple[str, ...], where: str) -> list[Problem]:
    return [
        Problem(f"{where}[{index}]", f"invalid environment variable {quoted(entry)}; write NAME=value")
        for index, entry in enumerate(env)
        if entry.find("=") <= 0
    ]


def _node_problems(node: DeviceNode, where: str) -> list[Problem]:
    problems = []
    if not node.path:
        problems.append(Problem(f"{where}.path", "invalid empty device path"))
    if node.type and node.type not in NODE_TYPES:
        what = f"invalid device type {quoted(node.type)}; known are {', '.join(NODE_TYPES)}"
        problems.append(Problem(f"{where}.type", what))
    # A cgroup rule reads -1 as "every number".
    for field, number in (("major", node.major), ("minor", node.minor)):
        if number < 0:
            problems.append(Problem(f"{where}.{field}", f"invalid negative device number {number}"))
    if node.permissions != NO_PERMISSIONS and set(node.permissions) - set("rwm"):
        what = f"invalid permissions {quoted(node.permissions)}; use letters of rwm, or {NO_PERMISSIONS}"
        problems.append(Problem(f"{where}.permissions", what))
    return problems


def _net_problems(devices: tuple[NetDevice, ...], where: str) -> list[Problem]:
    problems = []
    hosts: set[str] = set()
    names: set[str] = set()
    for index, device in enumerate(devices):
        for field, value, seen in (
            ("hostInterfaceName", device.host_interface_name, hosts),
            ("name", device.name, names),
        ):
            place = f"{where}[{index}].{field}"
            if not value:
                problems.append(Problem(place, "invalid empty network interface name"))
            elif value in seen:
                problems.append(Problem(place, f"network interface {quoted(value)} is given twice"))
            seen.add(value)
    return problems


def _mount_problems(mount: Mount, where: str) -> list[Problem]:
    paths = (("hostPath", mount.host_path), ("containerPath", mount.container_path))
    return [Problem(f"{where}.{field}", "invalid empty mount path") for field, path in paths if not path]


def _hook_problems(hook: Hook, where: str) -> list[Problem]:
    problems = []
    if hook.hook_name not in HOOK_NAMES:
        what = f"invalid hook name {quoted(hook.hook_name)}; known are {', '.join(HOOK_NAMES)}"
        problems.append(Problem(f"{where}.hookName", what))
    if not hook.path:
        problems.append(Problem(f"{where}.path", "invalid empty hook path"))
    return problems + _env_problems(hook.env, f"{where}.env")


def _rdt_problems(rdt: IntelRdt, where: str) -> list[Problem]:
    clos = rdt.clos_id
    if clos == "/":  # the root class has this name, which no other may hold
        return []
    if len(clos.encode(errors="replace")) >= _MAX_CLOS_ID or clos in (".", "..") or "/" in clos or "\n" in clos:
        return [Problem(f"{where}.closID", f"invalid closID {quoted(clos, 60)}; it must be a file name, or /")]
    return []

"""Whether the CDI specs are true: readable, without conflicts, and of the hardware and driver that are here now.

A spec is written once and goes stale: a driver upgrade renames libraries, a reboot renumbers nodes. An engine then
fails late, or worse, gives a workload a card that it can see and not use.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator

from dibs.cdi.cache import SpecFile
from dibs.cdi.spec import ContainerEdits, DeviceNode
from dibs.devices.host import Roots
from dibs.doctor.finding import Finding, Scene
from dibs.doctor.nvidia import loaded_version

_DRIVER_FILE = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.([0-9]+\.[0-9]+(?:\.[0-9]+)?)$")
_TOOLS = {
    "nvidia.com": "sudo nvidia-ctk cdi generate --output={path}",
    "amd.com": "sudo amd-ctk cdi generate --output={path}",
}
_EXAMPLES = 3


def check(scene: Scene) -> Iterable[Finding]:
    found = [*_errors(scene), *_missing_specs(scene)]
    files = scene.specs.specs()
    for file in files:
        found += _stale(file, scene.roots)
    found += _shadowed(scene)
    if found:
        return found
    if not files:
        where = ", ".join(scene.specs.spec_dirs)
        return [Finding("cdi", "skip", "no CDI specs", f"there are none in {where}, and no card that needs one")]
    paths = ", ".join(file.path for file in files)
    return [Finding("cdi", "ok", f"{len(files)} CDI specs are true to this host", paths)]


def _errors(scene: Scene) -> Iterator[Finding]:
    for directory, problem in scene.specs.dir_errors().items():
        yield Finding("cdi.folder", "fail", f"{directory} cannot be read", str(problem), f"sudo chmod a+rx {directory}")
    for path, problems in scene.specs.errors().items():
        texts = list(dict.fromkeys(str(problem) for problem in problems))
        title = f"{path} has a conflict" if "conflict" in texts[0] else f"{path} cannot be used"
        why = f"its devices are not offered: {_some(texts)}"
        yield Finding("cdi.spec", "fail", title, why, f"sudo mv {path} {path}.broken")


def _missing_specs(scene: Scene) -> Iterator[Finding]:
    bare = [device.name for device in scene.inventory.devices if device.source.split("+")[0] == "nvml"]
    if bare:
        path = f"{scene.specs.spec_dirs[-1]}/nvidia.yaml" if scene.specs.spec_dirs else "/etc/cdi/nvidia.yaml"
        why = f"container engines cannot be given {_some(bare)}; sandboxes over the host's own root can"
        fix = _TOOLS["nvidia.com"].format(path=path)
        yield Finding("cdi.missing", "warn", "the driver sees cards that no CDI spec names", why, fix)


def _shadowed(scene: Scene) -> Iterator[Finding]:
    """A spec of which no device counts, since a folder of higher priority has them all."""
    for file in scene.specs.specs():
        names = [f"{file.spec.kind}={device.name}" for device in file.spec.devices]
        winners = {found.file.path for name in names if (found := scene.specs.device(name)) is not None}
        if winners and file.path not in winners:
            why = f"engines use {', '.join(sorted(winners))} instead, so changes to this file have no effect"
            yield Finding("cdi.shadowed", "warn", f"{file.path} is overruled", why, f"sudo rm {file.path}")


def _stale(file: SpecFile, roots: Roots) -> Iterator[Finding]:
    edits = [file.spec.container_edits, *(device.container_edits for device in file.spec.devices)]
    fix = _TOOLS.get(file.vendor, "write it again with its vendor's tool: {path}").format(path=file.path)
    nodes = {node.path: node for edit in edits for node in edit.device_nodes}
    wrong = [complaint for node in nodes.values() if (complaint := _node_complaint(node, roots))]
    if wrong:
        why = f"a workload gets no device, or another one: {_some(wrong)}"
        yield Finding("cdi.stale-nodes", "fail", f"{file.path} names nodes that are not so", why, fix)
    missing = sorted({path for edit in edits for path in _host_paths(edit) if not os.path.exists(roots.file(path))})
    if missing:
        why = f"containers with these devices cannot start: {_some(missing)}"
        yield Finding("cdi.stale-files", "fail", f"{file.path} names files that do not exist", why, fix)
    loaded = loaded_version(roots) if file.vendor == "nvidia.com" else ""
    written_for = {
        match.group(1)
        for edit in edits
        for mount in edit.mounts
        if (match := _DRIVER_FILE.search(mount.host_path)) is not None
    }
    if loaded and written_for and loaded not in written_for:
        why = f"it was written for {_some(sorted(written_for))}, and {loaded} is loaded: CUDA would not start"
        yield Finding("cdi.stale-driver", "fail", f"{file.path} is of another driver", why, fix)


def _node_complaint(node: DeviceNode, roots: Roots) -> str:
    path = node.host_path or node.path
    try:
        state = os.stat(roots.node(path))
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not node.major:
        return ""  # the engine takes the numbers from the node itself
    if not (stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode)):
        return f"{path} is no device node"
    here = (os.major(state.st_rdev), os.minor(state.st_rdev))
    if here != (node.major, node.minor):
        return f"{path} is {here[0]}:{here[1]}, the spec says {node.major}:{node.minor}"
    return ""


def _host_paths(edit: ContainerEdits) -> Iterator[str]:
    yield from (mount.host_path for mount in edit.mounts if mount.host_path.startswith("/"))
    yield from (hook.path for hook in edit.hooks)


def _some(texts: list[str]) -> str:
    more = len(texts) - _EXAMPLES
    return ", ".join(texts[:_EXAMPLES]) + (f" and {more} more" if more > 0 else "")

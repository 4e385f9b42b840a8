"""One whole look at a container's first process, joined with what is known of it from elsewhere.

`observe_prestart` takes it before the command runs, `observe` after. The kernel shows devices, mounts, limits,
namespaces, user and capabilities at any time. The words, folder and environment of the command come from what the
runtime was told, or from the process once it runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from dibs.backends.engines import process_view
from dibs.backends.engines.cgroups import Groups
from dibs.backends.engines.process_view import View
from dibs.backends.port import Observation

INITS = frozenset(("/sbin/docker-init", "/run/podman-init", "/dev/init"))


def look(view: View, env: dict[str, str], told: Mapping[str, str], origin: str) -> Observation:
    """`told`: facts of the process that its files do not show. Raises BackendUnavailable."""
    nodes, mounts, mode = process_view.nodes_and_mounts(view)
    if view.legacy:
        from dibs.backends.engines.device_injection import CONTROL_NODES

        nodes = tuple(node for node in nodes if node.path not in CONTROL_NODES)
        mounts = tuple(one for one in mounts if not process_view.is_drivers(one))
    limits = {**Groups(view.pid).limits(), **process_view.plain(view)}
    process = {
        **process_view.person(view),
        **told,
        "kernel_files": process_view.protected(view),
        "read_only": "yes" if mode == "ro" else "no",
    }
    if not view.seccomp:
        process.pop("seccomp", None)
    isolation = process_view.isolation(view.pid, view.engine)
    return Observation(nodes, env, mounts, limits, isolation, process, {"": origin})


def spoken(words: list[str]) -> dict[str, str]:
    """The command, and whether the engine's init stands before it."""
    init = words[1:2] == ["--"] and words[0] in INITS
    return {"command": shlex.join(words[2:] if init else words), "init": "yes" if init else "no"}

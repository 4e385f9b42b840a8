"""Containers that no engine tells of: killed, frozen or too busy to answer, or started anew without its records.

They run on without it. The inventory looks here as well, so that their cards are not given away. What can be seen is
what runs: processes with a /dev of their own, and the device nodes in it. Whose they are the kernel does not say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection

from dibs.backends import proc
from dibs.backends.engines import process_view
from dibs.backends.engines.external import WORLD, ExternalHolder
from dibs.backends.port import NodeFact
from dibs.errors import BackendUnavailable

_ID = re.compile(r"[0-9a-f]{64}")
_SYS_ADMIN = 1 << 21


def running(ours: Callable[[int], bool], known: Collection[str] | None = None) -> tuple[list[ExternalHolder], bool]:
    """Containers with devices, but for those that are `ours` (asked by process id); whether all could be looked at.

    `known`: the ids of the containers that engines have told of. Then only others with an id are looked for, and no
    sandboxes of other kinds.
    """
    found: dict[int, ExternalHolder] = {}
    looked_at: set[int] = set()
    complete = True
    host = os.stat("/dev").st_dev
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or entry == "1":  # the first process is the host's own, and may be hidden even from root
            continue
        pid = int(entry)
        try:
            container = container_of(pid)
            if known is not None and (not container or container in known):
                continue
            namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
            if namespace in looked_at:
                if namespace in found and not found[namespace].world:
                    found[namespace] = _holder(pid, container, found[namespace].nodes)
                continue
            other = os.stat(f"/proc/{pid}/root/dev").st_dev != host and not ours(pid) and not _privileged(pid)
            nodes = process_view.device_nodes(pid) if other else ()
        except PermissionError:
            complete = False
            continue
        except OSError:
            continue  # it has ended, or has no /dev at all
        except BackendUnavailable:
            complete = complete and not os.path.exists(f"/proc/{pid}")  # it may have ended just now
            continue
        looked_at.add(namespace)  # not before: another process of it may tell what one that ends does not
        if nodes:
            found[namespace] = _holder(pid, container, nodes)
    return list(found.values()), complete


def container_of(pid: int) -> str:
    """The id of the container that a process is in; "" if there is none. OSError if it has ended."""
    with open(f"/proc/{pid}/cgroup") as file:
        named = _ID.search(file.read())
    return named[0] if named else ""


def _privileged(pid: int) -> bool:
    """A privileged container may open every device and need not use any; see `external`."""
    with open(f"/proc/{pid}/status") as file:
        bounding = next((int(line.split()[1], 16) for line in file if line.startswith("CapBnd:")), 0)
    return bool(bounding & _SYS_ADMIN)


def _holder(pid: int, container: str, nodes: tuple[NodeFact, ...]) -> ExternalHolder:
    try:
        world = proc.variables(proc.words(pid, "environ")).get(WORLD, "")
    except OSError:
        world = ""
    return ExternalHolder(
        engine="", container=container, name=container[:12] or f"of process {pid}", image="", pid=pid, nodes=nodes,
        world=world,
    )  # fmt: skip

"""Containers whose engine cannot be asked: killed, frozen, or too busy to answer. They run on without it.

The inventory looks here then, so that their cards are not given away meanwhile. What can be seen is what runs:
processes with a /dev of their own, and the device nodes in it. Whose they are the kernel does not say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from dibs.backends.engines import looking
from dibs.backends.engines.external import ExternalHolder
from dibs.backends.port import NodeFact
from dibs.errors import BackendUnavailable

_ID = re.compile(r"[0-9a-f]{64}")


def running(ours: Callable[[int], bool]) -> tuple[list[ExternalHolder], bool]:
    """Containers with devices, but for those that are `ours` (asked by process id); whether all could be looked at."""
    found: list[ExternalHolder] = []
    looked_at: set[int] = set()
    complete = True
    host = os.stat("/dev").st_dev
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or entry == "1":  # the first process is the host's own, and may be hidden even from root
            continue
        pid = int(entry)
        try:
            namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
            if namespace in looked_at:
                continue
            other = os.stat(f"/proc/{pid}/root/dev").st_dev != host and not ours(pid)
            nodes = looking.device_nodes(pid) if other else ()
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
            found.append(_holder(pid, nodes))
    return found, complete


def _holder(pid: int, nodes: tuple[NodeFact, ...]) -> ExternalHolder:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            named = _ID.search(file.read())
    except OSError:
        named = None
    container = named[0] if named else ""
    return ExternalHolder(
        engine="", container=container, name=container[:12] or f"of process {pid}", image="", pid=pid, nodes=nodes
    )

"""What an engine has on record about a container, in the shape of a look from outside.

Only for containers that ended too early to be looked at. Names of CDI devices are resolved with the specs that the
engine reads; what those say is taken to have been done.
"""

from __future__ import annotations

from typing import Any, Literal

from dibs.backends.engines.facts import Facts
from dibs.backends.engines.passing import Passing, expect
from dibs.backends.port import NodeFact, Observation
from dibs.cdi.errors import CdiError
from dibs.cdi.spec import DeviceNode


def recorded(document: dict[str, Any], facts: Facts) -> Observation:
    host = document.get("HostConfig") or {}
    config = document.get("Config") or {}
    env = dict(line.partition("=")[::2] for line in config.get("Env") or ())
    found = Passing()
    names = [
        str(name)
        for request in host.get("DeviceRequests") or ()
        if request.get("Driver") == "cdi"
        for name in request.get("DeviceIDs") or ()
    ]
    for device in host.get("Devices") or ():
        source = str(device.get("PathOnHost") or "")
        if source.startswith("/"):
            inside = str(device.get("PathInContainer") or source)
            expect(DeviceNode(path=inside, host_path=source), source, facts, found)
        elif source:
            names.append(source)
    if names:
        try:
            edits = facts.specs().resolve(names).merged
        except CdiError:
            edits = None  # its spec is gone since
        for node in edits.device_nodes if edits is not None else ():
            expect(node, ", ".join(names), facts, found)
        env |= dict(line.partition("=")[::2] for line in (edits.env if edits is not None else ()))
    mounts = tuple(
        sorted(f"{one['Destination']} {'rw' if one.get('RW') else 'ro'}" for one in document.get("Mounts") or ())
    )
    network: Literal["host", "own"] = "host" if host.get("NetworkMode") == "host" else "own"
    nodes: tuple[NodeFact, ...] = tuple(sorted(found.expected))
    return Observation(
        nodes, env, mounts, _limits(host), {"network": network, "mount": "own", "pid": "own", "ipc": "own"}
    )


def _limits(host: dict[str, Any]) -> dict[str, int]:
    limits: dict[str, int] = {}
    if host.get("Memory"):
        limits["memory_bytes"] = int(host["Memory"])
    if host.get("NanoCpus"):
        limits["cpu_millis"] = int(host["NanoCpus"]) // 1_000_000
    elif host.get("CpuQuota"):
        limits["cpu_millis"] = int(host["CpuQuota"]) * 1000 // int(host.get("CpuPeriod") or 100_000)
    if (host.get("PidsLimit") or 0) > 0:
        limits["pids"] = int(host["PidsLimit"])
    return limits

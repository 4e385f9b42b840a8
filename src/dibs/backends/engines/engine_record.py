"""What an engine has on record about a container, in the shape of a look from outside.

Only for containers that ended too early to be looked at. Names of CDI devices are resolved with the specs that the
engine reads; what those say is taken to have been done.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.backends.engines.device_injection import Passing, expect
from dibs.backends.engines.facts import Facts
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
    nodes: tuple[NodeFact, ...] = tuple(sorted(found.expected))
    return Observation(nodes=nodes, env=env, limits=_limits(host))


# What may be set by an engine's own configuration, or is proved by the kernel.
_PASSED = frozenset(
    (
        "Annotations", "Binds", "CgroupConf", "CgroupManager", "CgroupMode", "Cgroups", "CgroupnsMode", "ConsoleSize",
        "CpuPeriod", "CpuQuota", "DeviceRequests", "Devices", "Init", "LogConfig", "MaskedPaths", "Memory",
        "MemorySwap", "Mounts", "NanoCpus", "PidsLimit", "ReadonlyPaths", "ReadonlyRootfs", "Runtime",
        "ShmSize", "Tmpfs",
    )
)  # fmt: skip
_USUAL = {
    "RestartPolicy": ({"Name": "", "MaximumRetryCount": 0}, {"Name": "no", "MaximumRetryCount": 0}),
    "IpcMode": ("private", "shareable"),
    "PidMode": ("private",),
    "UTSMode": ("private",),
    "UsernsMode": ("private",),
    "MemorySwappiness": (-1,),
}


def options(document: dict[str, Any], sent: dict[str, Any], *, podman: bool) -> str:
    """What the engine says is set beyond, or other than, what was sent: `as sent` if there is nothing."""
    host = document.get("HostConfig") or {}
    config = document.get("Config") or {}
    passed = _PASSED | {"Ulimits"} if podman else _PASSED  # Podman shows those that it has from its own configuration
    found = []
    for name, value in sorted(host.items()):
        if name in passed or value in _USUAL.get(name, ()):
            continue
        wanted = sent.get(name)
        if (value or None) != (wanted or None):
            found.append(f"{name} {_shown(value)}")
    for name in ("Tty", "OpenStdin"):
        if bool(config.get(name)) != bool(sent.get(name)):
            found.append(f"{name} {_shown(config.get(name))}")
    if _log(host) != sent.get("LogConfig"):
        found.append(f"LogConfig {_log(host)}")
    if (config.get("Healthcheck") or None) != sent.get("Healthcheck"):
        found.append("Healthcheck")
    labels = config.get("Labels") or {}
    found += [f"Labels {key}" for key, value in sorted(sent.get("Labels", {}).items()) if labels.get(key) != value]
    return ", ".join(found) or "as sent"


def _log(host: dict[str, Any]) -> str:
    return str((host.get("LogConfig") or {}).get("Type") or "")


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def words(document: dict[str, Any]) -> list[str]:
    """What is executed first, as the engine says it."""
    return [str(document.get("Path") or ""), *(str(word) for word in document.get("Args") or ())]


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

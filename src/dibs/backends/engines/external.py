"""Containers that have devices and that dibs did not start.

The inventory asks, so that their devices are not given away. What a container has is read from what it was asked for
(CDI names, NVIDIA's request, device paths) and, where its process is visible, from the nodes that it really has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dibs.backends.engines import looking
from dibs.backends.engines.client import Client, EngineError
from dibs.backends.port import NodeFact
from dibs.devices.model import Device, DeviceId
from dibs.errors import BackendUnavailable
from dibs.http import query, segment

PATIENCE = 10.0  # seconds for each answer: whoever wants a device anywhere on this host waits for it


class ExternalHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A running container with devices."""

    engine: str  # "" if that cannot be told
    container: str  # its id
    name: str
    image: str
    pid: int = 0
    cdi_names: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()  # of NVIDIA's request
    first: int = 0  # so many, from the first one on: what a count means there
    everything: bool = False
    paths: tuple[str, ...] = ()  # device nodes of the host that were asked for
    nodes: tuple[NodeFact, ...] = ()  # what is in it
    sandbox: str = ""  # of another installation of dibs, or of one whose lease is gone

    def holds(self, device: Device) -> bool:
        """Whether it has this device, or a part of it, as far as can be told. In doubt it has."""
        attachment = device.attachment
        names = {device.name, device.uuid, *device.aliases, str(device.id)} - {""}
        if attachment is not None:
            names.add(attachment.cdi_name)
        if names & {*self.cdi_names, *self.ids}:
            return True
        if any(name.endswith("=all") and _kind(name) in map(_kind, names) for name in self.cdi_names):
            return True
        if device.vendor == "nvidia" and (self.everything or (device.index is not None and device.index < self.first)):
            return True
        own = attachment.edits.device_nodes if attachment is not None else ()
        sources = {node.host_path or node.path for node in own} - {"/dev/null"}
        if sources & set(self.paths):
            return True
        inside = {node.path for node in self.nodes}
        if device.simulated:
            return bool(own) and {node.path for node in own} <= inside
        numbers = {(node.kind, node.major, node.minor) for node in self.nodes}
        return any(
            (node.type or "c", node.major, node.minor) in numbers or node.path in inside
            for node in own
            if node.path not in _SHARED
        )

    @property
    def phrase(self) -> str:
        return f"{self.engine} container {self.name}".lstrip()


# Nodes that every card's container has: they tell no two cards apart.
_SHARED = frozenset(
    ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/kfd", "/dev/dxg")
)


def _kind(name: str) -> str:
    return name.partition("=")[0]


def held(holders: Iterable[ExternalHolder], devices: Iterable[Device]) -> dict[DeviceId, ExternalHolder]:
    """Which device is in which container."""
    found: dict[DeviceId, ExternalHolder] = {}
    everybody = list(holders)
    for device in devices:
        holder = next((one for one in everybody if one.holds(device)), None)
        if holder is not None:
            found[device.id] = holder
    return found


def holders(engine: str, client: Client, home: str) -> list[ExternalHolder]:
    """All running containers of an engine that have devices and are not this installation's own."""
    found = []
    states = msgspec.json.encode({"status": ["running", "paused"]}).decode()
    for one in client.call("GET", "/containers/json" + query(filters=states), timeout=PATIENCE) or ():
        labels = one.get("Labels") or {}
        if labels.get("dibs.home") == home:
            continue
        try:
            document = client.call("GET", f"/containers/{segment(one['Id'])}/json", timeout=PATIENCE)
        except EngineError as error:
            if error.status == 404:
                continue  # it ended since
            raise
        holder = holder_of(engine, document, str(labels.get("dibs.sandbox", "")))
        if holder is not None:
            found.append(holder)
    return found


def holder_of(engine: str, document: dict[str, Any], sandbox: str = "") -> ExternalHolder | None:
    """A container by its description; None if it has no devices."""
    host = document.get("HostConfig") or {}
    names: list[str] = []
    ids: list[str] = []
    paths: list[str] = []
    first, everything = 0, False
    for request in host.get("DeviceRequests") or ():
        wanted = [str(one) for one in request.get("DeviceIDs") or ()]
        if request.get("Driver") == "cdi":
            names += wanted
        elif any("gpu" in group for group in request.get("Capabilities") or ()) or request.get("Driver") == "nvidia":
            everything = everything or request.get("Count") == -1 or "all" in wanted
            first = max(first, int(request.get("Count") or 0))
            ids += [one for one in wanted if one != "all"]
    for device in host.get("Devices") or ():
        path = str(device.get("PathOnHost") or "")
        (paths if path.startswith("/") else names).append(path)
    for line in (document.get("Config") or {}).get("Env") or ():
        # NVIDIA's runtime takes a variable for a request, if it is the engine's default.
        name, _, value = line.partition("=")
        if name == "NVIDIA_VISIBLE_DEVICES" and host.get("Runtime") == "nvidia" and value not in ("", "void", "none"):
            everything = everything or value == "all"
            ids += [one for one in value.split(",") if one != "all"]
    if host.get("Privileged"):
        everything = True
    pid = int((document.get("State") or {}).get("Pid") or 0)
    nodes: tuple[NodeFact, ...] = ()
    if pid:
        try:
            nodes = looking.device_nodes(pid)
        except BackendUnavailable:
            nodes = ()  # not visible from here: what was asked for has to do
    if not (names or ids or paths or first or everything or nodes):
        return None
    return ExternalHolder(
        engine=engine,
        container=str(document.get("Id", "")),
        name=str(document.get("Name", "")).lstrip("/"),
        image=str((document.get("Config") or {}).get("Image") or document.get("ImageName") or ""),
        pid=pid,
        cdi_names=tuple(dict.fromkeys(names)),
        ids=tuple(dict.fromkeys(ids)),
        first=first,
        everything=everything,
        paths=tuple(dict.fromkeys(paths)),
        nodes=nodes,
        sandbox=sandbox,
    )

"""Containers that have devices and are no live sandbox of this home.

The inventory asks, so that their devices are not given away. Labels prove nothing: a container holds what it has. Ours
are those whose id is in the ledger. What a container has is read from what it was asked for (CDI names, NVIDIA's
request, device paths, device rules) and, where its process is visible, from the nodes that it really has. A privileged
container may open every device and need not use any: it is named (`privileged`, for `dibs doctor`) and holds nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from dibs.backends.engines import process_view
from dibs.backends.engines.client import Client, EngineError
from dibs.backends.port import NodeFact
from dibs.devices.model import Device, DeviceId
from dibs.errors import BackendUnavailable
from dibs.http import segment

PATIENCE = 10.0  # seconds for each answer: every device request on this host waits for it
# Docker waits before it starts a crashed container again. Podman says for a moment that it is ended or new, and takes
# no filter by some of its own states: all of its containers are listed.
FILTERS = {"docker": '{"status":["running","paused","restarting"]}', "podman": None}
_ENDED = frozenset(("exited", "stopped", "dead", "removing", "created", "configured", "initialized"))
_PASSING = frozenset(("exited", "stopped", "created", "configured", "initialized"))  # on the way to a restart
_AGAIN = frozenset(("always", "unless-stopped", "on-failure"))
RECENTLY = 60.0  # seconds in which Podman has surely started a crashed container again
WORLD = "DIBS_WORLD"  # the variable that says of which home's simulation the devices of a sandbox are


class Given(msgspec.Struct, frozen=True):
    """What a runtime was told to let a container open, where its engine does not describe it."""

    rules: tuple[str, ...] = ()  # "c 195:* rwm"
    nodes: tuple[NodeFact, ...] = ()


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
    everything: bool = False  # of NVIDIA's
    paths: tuple[str, ...] = ()  # device nodes of the host that were asked for
    rules: tuple[str, ...] = ()  # devices that it may open wherever it finds a node: "c 195:* rwm"
    nodes: tuple[NodeFact, ...] = ()  # what is in it
    privileged: bool = False
    sandbox: str = ""  # of another home, or one that ended and was started by hand
    world: str = ""  # of which simulation its devices are; "" if that cannot be told

    def holds(self, device: Device, world: str = "") -> bool:
        """Whether it has this device, or a part of it, as far as can be told. In doubt it has.

        `world`: the simulation that a simulated device belongs to.
        """
        if device.simulated:
            return self._holds_simulated(device, world)
        attachment = device.cdi
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
        if {node.host_path or node.path for node in own} - {"/dev/null"} & set(self.paths):
            return True
        numbers = {(node.kind, node.major, node.minor) for node in self.nodes}
        inside = {node.path for node in self.nodes}
        return any(
            (node.type or "c", node.major, node.minor) in numbers
            or node.path in inside
            or any(_permits(rule, node.type or "c", node.major, node.minor) for rule in self.rules)
            for node in own
            if node.path not in _SHARED
        )

    def _holds_simulated(self, device: Device, world: str) -> bool:
        """Every home may simulate a card of the same name, each of them /dev/null: only a home's own count.

        What an engine tells of counts in doubt; what is only seen to run must say that it is of this simulation.
        """
        other = self.world != world if self.world or not self.engine else False
        if device.cdi is None or (other and world):
            return False
        name = device.cdi.cdi_name
        if {name, f"{_kind(name)}=all"} & set(self.cdi_names):
            return True
        own = {node.path for node in device.cdi.edits.device_nodes}
        return bool(own) and own <= {node.path for node in self.nodes}

    @property
    def phrase(self) -> str:
        return f"{self.engine} container {self.name}".lstrip()


# Nodes that every card's container has: they tell no two cards apart.
_SHARED = frozenset(
    ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/kfd", "/dev/dxg")
)


def _kind(name: str) -> str:
    return name.partition("=")[0]


def _permits(rule: str, kind: str, major: int | None, minor: int | None) -> bool:
    """Whether a rule of the device control group lets a container open a node."""
    words = rule.split()
    if len(words) != 3 or words[0] not in (kind, "a") or not {"r", "w"} & set(words[2]):
        return False
    wanted_major, _, wanted_minor = words[1].partition(":")
    return wanted_major in ("*", str(major)) and wanted_minor in ("*", str(minor))


def held(
    holders: Iterable[ExternalHolder], devices: Iterable[Device], world: str = ""
) -> dict[DeviceId, ExternalHolder]:
    """Which device is in which container."""
    found: dict[DeviceId, ExternalHolder] = {}
    known = list(holders)
    for device in devices:
        holder = next((one for one in known if one.holds(device, world)), None)
        if holder is not None:
            found[device.id] = holder
    return found


def holders(
    engine: str, client: Client, ours: Callable[[], Collection[str]], given: Callable[[dict[str, Any]], Given]
) -> list[ExternalHolder]:
    """All running containers of an engine that have devices, but for those whose id is `ours`.

    `ours` is asked after the list was made: the id of a sandbox is in the ledger before its container runs. One that
    ends meanwhile does not run when it is looked at. `given`: what a container may open, by its description.
    """
    found = []
    candidates = [one for one in client.containers(FILTERS[engine], timeout=PATIENCE) if _may_run(one)]
    own = ours() if candidates else ()
    for one in candidates:
        if one["Id"] in own:
            continue
        try:
            document = client.call("GET", f"/containers/{segment(one['Id'])}/json", timeout=PATIENCE)
        except EngineError as error:
            if error.status == 404:
                continue  # it ended since
            raise
        if not _runs(document):
            continue
        holder = holder_of(engine, document, given(document))
        if holder is not None:
            found.append(holder)
    return found


def _may_run(listed: dict[str, Any]) -> bool:
    """Whether to look at one of a list: of those that have ended, only what may be started again just now."""
    if str(listed.get("State", "")).lower() not in _ENDED:
        return True
    return bool(listed.get("Restarts")) or time.time() - float(listed.get("ExitedAt") or 0.0) < RECENTLY


def _runs(document: dict[str, Any]) -> bool:
    state = str((document.get("State") or {}).get("Status") or "").lower()
    if state not in _ENDED:
        return True
    policy = ((document.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name")
    began = state in ("exited", "stopped") or bool(document.get("RestartCount"))
    return state in _PASSING and began and policy in _AGAIN and not _was_stopped(document)


def _was_stopped(document: dict[str, Any]) -> bool:
    """Whether an ended container with a restart policy stays ended: it was stopped, or did what it should."""
    policy = document["HostConfig"]["RestartPolicy"]
    state = document["State"]
    if state.get("StoppedByUser"):
        return True
    if policy.get("Name") != "on-failure":
        return False
    most = int(policy.get("MaximumRetryCount") or 0)
    return int(state.get("ExitCode") or 0) == 0 or bool(most and int(document.get("RestartCount") or 0) >= most)


def holder_of(engine: str, document: dict[str, Any], given: Given = Given()) -> ExternalHolder | None:  # noqa: B008
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
    config = document.get("Config") or {}
    labels = config.get("Labels") or {}
    world = ""
    for line in config.get("Env") or ():
        # NVIDIA's runtime takes a variable for a request, if it is the engine's default.
        name, _, value = line.partition("=")
        if name == "NVIDIA_VISIBLE_DEVICES" and host.get("Runtime") == "nvidia" and value not in ("", "void", "none"):
            everything = everything or value == "all"
            ids += [one for one in value.split(",") if one != "all"]
        elif name == WORLD:
            world = value
    privileged = bool(host.get("Privileged"))
    pid = int((document.get("State") or {}).get("Pid") or 0)
    nodes = given.nodes
    if pid:
        try:
            nodes = process_view.device_nodes(pid)
            if privileged:  # it has all of the host's; what it has beyond those it was given
                nodes = tuple(node for node in nodes if not os.path.exists(node.path))
        except BackendUnavailable:
            nodes = given.nodes  # not visible from here: what was asked for has to do
    if not (names or ids or paths or first or everything or given.rules or nodes or privileged):
        return None
    return ExternalHolder(
        engine=engine,
        container=str(document.get("Id", "")),
        name=str(document.get("Name", "")).lstrip("/"),
        image=str(config.get("Image") or document.get("ImageName") or ""),
        pid=pid,
        cdi_names=tuple(dict.fromkeys(names)),
        ids=tuple(dict.fromkeys(ids)),
        first=first,
        everything=everything,
        paths=tuple(dict.fromkeys(paths)),
        rules=() if privileged else given.rules,
        nodes=nodes,
        privileged=privileged,
        sandbox=str(labels.get("dibs.sandbox", "")),
        world=world,
    )

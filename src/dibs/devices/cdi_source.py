"""Devices from CDI specs.

A spec names hardware several times over: `0`, `GPU-<uuid>` and `all` are one card and the sum of all cards. What makes
two names the same device is the set of device nodes that nothing else has. `inventory` calls `read` and adds what NVML
and the PCI bus know; a spec itself knows neither model nor memory.

Rules
- Names with the same exclusive nodes are one device, called by its uuid where there is one, since indexes move.
- `all` is no device, except where it is all there is: then it stands for every accelerator of the host.
- A device with `/dev/nvidia-caps` nodes is a part (MIG) of the card whose `/dev/nvidiaN` it has.
- A device that overlaps others (a pair of cards, say) takes their units too, so that they exclude each other.
- Specs that other tools write for single claims, or for management, name hardware of another spec: skipped.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from dibs.cdi.cache import DEFAULT_SPEC_DIRS, Cache, CachedDevice
from dibs.cdi.spec import ContainerEdits
from dibs.devices.model import Attribute, CdiAttachment, Device, DeviceId, SourceError, UnitId
from dibs.devices.names import ALL_OF_HOST, CDI_NAME, device_name, driver_name, label, plain_index, pool_name

_CAP = re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]+)", re.ASCII)
_NVIDIA_NODE = re.compile(r"/dev/nvidia([0-9]+)", re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_INDEX = re.compile(r"(?:gpu|mig)?((?:0|[1-9][0-9]*)(?::(?:0|[1-9][0-9]*))?)", re.ASCII)

# Nodes that every device of a kind has: they tell no two devices apart.
_COMMON = frozenset(
    {
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/kfd",
        "/dev/dxg",
        "/dev/vfio/vfio",
    }
)


class Reading(msgspec.Struct, frozen=True):
    """The devices of the specs, and what could not be used."""

    devices: tuple[Device, ...]
    errors: tuple[SourceError, ...]


class _Group(msgspec.Struct):
    """All names of one device: the first is the best."""

    names: list[CachedDevice]
    nodes: frozenset[str]

    @property
    def best(self) -> CachedDevice:
        return self.names[0]


def spec_dirs(environ: dict[str, str] | os._Environ[str] | None = None) -> tuple[str, ...]:
    """Where to look: DIBS_CDI_DIRS, separated by colons, else the folders of the engines."""
    env = os.environ if environ is None else environ
    named = env.get("DIBS_CDI_DIRS")
    return tuple(part for part in named.split(":") if part) if named else DEFAULT_SPEC_DIRS


def read(dirs: Iterable[str] | None = None) -> Reading:
    """All devices of the specs in these folders."""
    return _watched(tuple(dirs) if dirs is not None else spec_dirs()).read()


def cached(dirs: tuple[str, ...]) -> Cache:
    """The specs of some folders, up to date. Only what has changed since the last time is read again."""
    return _watched(dirs).refreshed()


class _Watched:
    """Some folders of specs, and what was made of them when they last changed."""

    def __init__(self, dirs: tuple[str, ...]) -> None:
        self.cache = Cache(dirs)
        self.reading: Reading | None = None
        self.lock = threading.Lock()  # or a slow thread could keep what a quick one has already replaced

    def refreshed(self) -> Cache:
        with self.lock:
            if self.cache.refresh():
                self.reading = None
            return self.cache

    def read(self) -> Reading:
        with self.lock:
            if self.cache.refresh() or self.reading is None:
                self.reading = Reading(tuple(devices_of(self.cache, pool_name())), tuple(_errors(self.cache)))
            return self.reading


@lru_cache(maxsize=4)
def _watched(dirs: tuple[str, ...]) -> _Watched:
    return _Watched(dirs)


def devices_of(cache: Cache, pool: str) -> list[Device]:
    groups = _groups(cache)
    cards = [group for group in groups if not _cap(group.nodes)]
    parts = [group for group in groups if _cap(group.nodes)]
    devices: dict[DeviceId, Device] = {}
    units: dict[str, tuple[UnitId, ...]] = {}  # what taking a node takes

    children: dict[str, list[UnitId]] = {}
    for group in parts:
        part = _part(group, pool)
        devices[part.id] = part
        children.setdefault(part.parent or "", []).extend(part.units)

    # Smaller sets first: what overlaps them later takes their units.
    for group in sorted(cards, key=lambda group: len(group.nodes)):
        device = _card(group, pool, taken=devices)
        overlapped = dict.fromkeys(unit for node in sorted(group.nodes) for unit in units.get(node, ()))
        if overlapped:
            device = msgspec.structs.replace(device, units=(UnitId(device.id), *overlapped))
        elif device.id in children:
            device = msgspec.structs.replace(device, units=tuple(children[device.id]))
        devices[device.id] = device
        for node in group.nodes:
            units[node] = tuple(dict.fromkeys((*units.get(node, ()), *device.booked_units)))
    return list(devices.values())


def exclusive_nodes(edits: ContainerEdits) -> frozenset[str]:
    """The host's nodes (and network interfaces) that these edits take, without the shared ones."""
    nodes = {node.host_path or node.path for node in edits.device_nodes}
    interfaces = {f"net:{device.host_interface_name}" for device in edits.net_devices}
    return frozenset((nodes - _COMMON) | interfaces)


def nvidia_minor(nodes: Iterable[str]) -> int | None:
    """The N of the `/dev/nvidiaN` among these nodes."""
    for node in nodes:
        match = _NVIDIA_NODE.fullmatch(node)
        if match:
            return int(match.group(1))
    return None


def card_name(minor: int) -> str:
    """What a card with the node `/dev/nvidia<minor>` is called by every source. The node number outlives an index."""
    return f"gpu-{minor}"


def part_name(minor: int, cap: int) -> str:
    """What a MIG device is called by every source: its card, and the number of its capability node."""
    return f"{card_name(minor)}-mig-{cap}"


def part_unit(parent: DeviceId, cap: int) -> UnitId:
    return UnitId(f"{parent}#cap{cap}")


def _groups(cache: Cache) -> list[_Group]:
    """One group per device of the host."""
    found: list[CachedDevice] = []
    kinds: dict[str, int] = {}
    for name in cache.devices():
        device = cache.device(name)
        if device is not None and not _belongs_elsewhere(device.file.vendor):
            found.append(device)
            kinds[device.file.spec.kind] = kinds.get(device.file.spec.kind, 0) + 1
    by_key: dict[object, _Group] = {}
    for device in found:
        if device.device.name == "all" and kinds[device.file.spec.kind] > 1:
            continue
        edits = device.device.container_edits
        nodes = exclusive_nodes(edits)
        key: object = nodes or (device.file.spec.kind, msgspec.json.encode(edits))
        group = by_key.setdefault(key, _Group([], nodes))
        group.names.append(device)
    for group in by_key.values():
        group.names.sort(key=_preference)
    return list(by_key.values())


def _belongs_elsewhere(vendor: str) -> bool:
    return vendor.startswith(("k8s.", "management.", "runtime."))


def _preference(device: CachedDevice) -> tuple[bool, bool, bool, str]:
    name = device.device.name
    return (device.file.device_class != "gpu", not _UUID.fullmatch(name), plain_index(name) is None, device.name)


def _cap(nodes: Iterable[str]) -> int | None:
    """The capability of the compute instance: it always has a higher number than that of its GPU instance."""
    return max((int(match.group(1)) for match in map(_CAP.fullmatch, nodes) if match), default=None)


def _card(group: _Group, pool: str, taken: dict[DeviceId, Device]) -> Device:
    best = group.best
    cls = best.file.device_class
    minor = nvidia_minor(group.nodes)
    alone = minor is not None and sum(1 for node in group.nodes if _NVIDIA_NODE.fullmatch(node)) == 1
    index = _index(group)
    plain = next((d.device.name for d in group.names if plain_index(d.device.name) is not None), best.device.name)
    name = card_name(minor) if alone and minor is not None and cls == "gpu" else device_name(cls, plain)
    driver = driver_name(best.file.spec.kind)
    if DeviceId(f"{driver}/{pool}/{name}") in taken:
        name = device_name(cls, best.name)  # of the qualified name, which is unique
    model = ALL_OF_HOST if best.device.name == "all" and cls == "gpu" else ""
    attributes: dict[str, Attribute] = {"type": label(cls) or cls}
    number = plain_index(index) if index is not None else None
    if number is not None:
        attributes["index"] = number
    return _device(group, pool, name, attributes, model=model, index=number)


def _part(group: _Group, pool: str) -> Device:
    minor, cap = nvidia_minor(group.nodes), _cap(group.nodes)
    assert cap is not None
    driver = driver_name(group.best.file.spec.kind)
    if minor is None:  # capabilities without a card: nothing that could be shared is known
        return _device(group, pool, device_name("mig", group.best.device.name), {"type": "mig"})
    parent = DeviceId(f"{driver}/{pool}/{card_name(minor)}")
    part = _device(group, pool, part_name(minor, cap), {"type": "mig"})
    return msgspec.structs.replace(part, parent=parent, units=(part_unit(parent, cap),))


def _device(
    group: _Group,
    pool: str,
    name: str,
    attributes: dict[str, Attribute],
    *,
    model: str = "",
    index: int | None = None,
) -> Device:
    best = group.best
    uuid = next((d.device.name for d in group.names if _UUID.fullmatch(d.device.name)), "")
    if uuid:
        attributes["uuid"] = uuid
    attributes[CDI_NAME] = best.name
    aliases = [str(device.name) for device in group.names]
    spelled = _index(group)
    if spelled is not None and best.file.device_class == "gpu":
        aliases.insert(0, spelled)
    return Device(
        driver=driver_name(best.file.spec.kind),
        pool=pool,
        name=name,
        vendor=vendor_name(best.file.vendor),
        model=model,
        uuid=uuid,
        index=index,
        attributes=attributes,
        aliases=tuple(aliases),
        attachment=CdiAttachment(
            cdi_name=best.name,
            edits=best.device.container_edits,
            spec=best.file.path,
            spec_edits=best.file.spec.container_edits,
        ),
        source="cdi",
    )


def _index(group: _Group) -> str | None:
    """The index that a person would write: `0`, or `0:1` for a part."""
    for device in group.names:
        match = _INDEX.fullmatch(device.device.name)
        if match:
            return match.group(1)
    return None


def vendor_name(domain: str) -> str:
    """The short name of a vendor: `nvidia` for `nvidia.com`."""
    labels = domain.lower().split(".")
    return labels[-2] if len(labels) > 1 else labels[0]


def _errors(cache: Cache) -> Iterable[SourceError]:
    for error in cache.dir_errors().values():
        yield SourceError("cdi", str(error), "make the folder readable, or name others in DIBS_CDI_DIRS")
    for path, errors in cache.errors().items():
        for text in dict.fromkeys(str(error) for error in errors):
            reason = text if path in text else f"{path}: {text}"
            yield SourceError("cdi", reason, f"write the spec again with its vendor's tool, or remove {path}")

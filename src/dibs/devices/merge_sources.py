"""One device out of what several sources know about it.

`inventory` calls `join`. A card of NVML and a device of a CDI spec are the same if they have the same uuid, else the
same `/dev/nvidiaN`, else (where there is no such node) the same index. PCI facts are joined by bus id, or by the DRM
node of the attachment. What a source does not know is left out, never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from dibs.cdi.spec import ContainerEdits, DeviceNode
from dibs.devices import catalogue, pci
from dibs.devices.cdi_source import (
    card_name,
    exclusive_nodes,
    part_name,
    part_unit,
)
from dibs.devices.host import Roots, is_wsl, read_text
from dibs.devices.model import Attribute, CdiAttachment, Device, DeviceId, Health, SourceError, UnitId
from dibs.devices.names import ALL_OF_HOST, CDI_NAME, NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, pool_name, version
from dibs.devices.nvml import NvmlCard, NvmlPart, NvmlReading, external_use

NVIDIA = "gpu.nvidia.com"
CUT = "the card is cut in parts (MIG): a workload can only be given the parts"
NOT_SEEN = "a CDI spec names the card, but the driver does not see it"

_COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def join(
    specs: Sequence[Device], reading: NvmlReading, started_by_dibs: Callable[[int], bool], roots: Roots
) -> tuple[tuple[Device, ...], tuple[SourceError, ...]]:
    """All devices in the order in which they are offered, and what bus and kernel would not tell."""
    errors: list[SourceError] = []
    devices = {device.id: device for device in specs}
    if is_wsl(roots):
        _join_wsl(devices, reading, roots)
    else:
        _join_nvidia(devices, reading, roots, errors)
    _join_amd_users(devices, started_by_dibs, roots, errors)
    joined = [_with_pci(device, roots, errors) for device in devices.values()]
    return tuple(sorted(joined, key=_order)), tuple(dict.fromkeys(errors))


def _join_nvidia(
    devices: dict[DeviceId, Device], reading: NvmlReading, roots: Roots, errors: list[SourceError]
) -> None:
    matched: set[DeviceId] = set()
    whole: set[DeviceId] = set()  # cards of which the driver says that they are not cut
    minors: dict[tuple[int, int, int], int] | None = None
    for card in reading.cards:
        device = _with_nvml(_same_card(devices, card) or _built_in_card(card, roots), card, reading.driver_version)
        if card.parts and minors is None:
            minors = _mig_minors(roots, errors)
        parts = [
            _join_part(devices, device, card, (part, _caps(card, part, minors or {})), roots) for part in card.parts
        ]
        if card.mig:
            device = _cut(device, parts)
        elif card.mig is False:
            whole.add(device.id)
        for joined in (device, *parts):
            devices[joined.id] = joined
            matched.add(joined.id)
    cut = {device.parent for device in devices.values() if device.parent is not None} - whole
    for device in list(devices.values()):
        if device.driver != NVIDIA or device.attributes.get("type") not in ("gpu", "mig"):
            continue
        if device.id in cut and device.cdi is not None:
            device = msgspec.structs.replace(device, attachment=None, unattachable=CUT)  # noqa: PLW2901
        if reading.present and device.id not in matched:
            device = msgspec.structs.replace(device, health=Health(ok=False, reason=NOT_SEEN))  # noqa: PLW2901
        elif reading.unusable:
            device = msgspec.structs.replace(device, health=Health(ok=False, reason=reading.unusable))  # noqa: PLW2901
        devices[device.id] = device


def _same_card(devices: dict[DeviceId, Device], card: NvmlCard) -> Device | None:
    candidates = [d for d in devices.values() if d.driver == NVIDIA and d.attributes.get("type") == "gpu"]
    for device in candidates:
        if card.uuid and device.uuid == card.uuid:
            return device
    for device in candidates:
        if card.uuid and device.uuid:
            continue  # two uuids that differ are two cards, whatever else they share
        if card.minor is not None:
            if device.name == card_name(card.minor):
                return device
        elif device.index == card.index:  # a lost card, or a platform without nodes of that name
            return device
    return None


def _with_nvml(device: Device, card: NvmlCard, driver: str) -> Device:
    attributes: dict[str, Attribute] = {**device.attributes, "type": "gpu", "index": card.index}
    texts = {
        "uuid": card.uuid,
        "productName": card.product,
        "architecture": card.architecture,
        PCI_BUS_ID: card.bus_id,
    }
    attributes.update({name: text for name, text in texts.items() if text})
    for name, text in (("cudaComputeCapability", card.compute), ("driverVersion", driver)):
        value = version(text)
        if value is not None:
            attributes[name] = value
    aliases = dict.fromkeys((str(card.index), *device.aliases, *([card.bus_id] if card.bus_id else [])))
    return msgspec.structs.replace(
        device,
        model=catalogue.short_name(card.product) if card.product else device.model,
        uuid=card.uuid or device.uuid,
        index=card.index,
        attributes=attributes,
        capacity={"memory": card.memory} if card.memory is not None else device.capacity,
        health=card.health,
        used_by=card.used_by,
        aliases=tuple(aliases),
        source=_both(device.source, "nvml"),
    )


def _cut(card: Device, parts: Sequence[Device]) -> Device:
    """A card in MIG mode: it is its parts, and cannot be given as a whole even while it has none."""
    units = tuple(dict.fromkeys(unit for part in parts for unit in part.units))
    return msgspec.structs.replace(
        card, units=units or (UnitId(card.id),), attachment=None, unattachable=CUT if parts else f"{CUT}, and has none"
    )


def _join_part(
    devices: dict[DeviceId, Device],
    card: Device,
    raw: NvmlCard,
    found: tuple[NvmlPart, tuple[int, int] | None],
    roots: Roots,
) -> Device:
    part, caps = found
    known = next((d for d in devices.values() if part.uuid and d.uuid == part.uuid), None)
    if known is None and raw.minor is not None and caps is not None:
        known = devices.get(DeviceId(f"{NVIDIA}/{card.pool}/{part_name(raw.minor, caps[1])}"))
    device = known or _built_in_part(card, raw, part, caps, roots)
    attributes: dict[str, Attribute] = {
        **{k: v for k, v in card.attributes.items() if k not in ("index", "uuid", CDI_NAME)},
        **device.attributes,
        "type": "mig",
        "parentIndex": raw.index,
    }
    texts = {"uuid": part.uuid, "parentUUID": card.uuid, "profile": part.profile}
    attributes.update({name: text for name, text in texts.items() if text})
    return msgspec.structs.replace(
        device,
        model=card.model,
        uuid=part.uuid or device.uuid,
        attributes=attributes,
        capacity={"memory": part.memory} if part.memory is not None else {},
        parent=card.id,
        units=device.units or (UnitId(f"{card.id}#{part.uuid or part.index}"),),
        health=card.health,
        used_by=part.used_by,
        aliases=tuple(dict.fromkeys((f"{raw.index}:{part.index}", *device.aliases))),
        source=_both(device.source, "nvml"),
    )


def _built_in_card(card: NvmlCard, roots: Roots) -> Device:
    """A card without a CDI spec: its node, and the nodes that all cards share."""
    nodes = (f"/dev/nvidia{card.minor}",) if card.minor is not None else ()
    name = card_name(card.minor) if card.minor is not None else card_name(card.index)
    return _built_in(name, card.uuid or str(card.index), nodes, roots)


def _built_in_part(card: Device, raw: NvmlCard, part: NvmlPart, caps: tuple[int, int] | None, roots: Roots) -> Device:
    cdi_name = part.uuid or f"{raw.index}:{part.index}"
    if raw.minor is None or caps is None:
        device = _built_in(f"{card.name}-mig-i{part.index}", cdi_name, (), roots)
        why = "which nodes belong to the MIG device is not known: nvidia-caps/mig-minors does not list it"
        return msgspec.structs.replace(device, unattachable=why, attachment=None)
    nodes = (f"/dev/nvidia{raw.minor}", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps))
    device = _built_in(part_name(raw.minor, caps[1]), cdi_name, nodes, roots)
    return msgspec.structs.replace(device, units=(part_unit(card.id, caps[1]),))


def _built_in(name: str, cdi_device: str, nodes: Sequence[str], roots: Roots) -> Device:
    missing = [node for node in nodes if not os.path.exists(roots.node(node))]
    cdi_name = f"nvidia.com/gpu={cdi_device}"
    attachment: CdiAttachment | None = None
    why = ""
    if missing:
        why = f"{', '.join(missing)} does not exist; run nvidia-modprobe"
    elif not nodes:
        why = "the driver does not say which node the card has"
    else:
        shared = tuple(node for node in _COMMON if os.path.exists(roots.node(node)))
        attachment = CdiAttachment(cdi_name, _nodes(nodes), "nvml", _nodes(shared))
    return Device(
        driver=NVIDIA,
        pool=pool_name(),
        name=name,
        vendor="nvidia",
        attributes={CDI_NAME: cdi_name},
        aliases=(cdi_name,),
        attachment=attachment,
        unattachable=why,
    )


def _nodes(paths: Sequence[str]) -> ContainerEdits:
    return ContainerEdits(device_nodes=tuple(DeviceNode(path=path) for path in paths))


def _join_wsl(devices: dict[DeviceId, Device], reading: NvmlReading, roots: Roots) -> None:
    """On WSL2 every card comes through /dev/dxg, so there is one device however many cards NVML counts."""
    whole = next((d for d in devices.values() if d.driver == NVIDIA and d.attributes.get("type") == "gpu"), None)
    if whole is None:
        if not reading.cards:
            return
        whole = _built_in("gpu-all", "all", ("/dev/dxg",), roots)
    if len(reading.cards) == 1:
        whole = _with_nvml(whole, reading.cards[0], reading.driver_version)
    elif reading.cards:
        reasons = [f"card {c.index}: {c.health.reason}" for c in reading.cards if not c.health.ok]
        whole = msgspec.structs.replace(
            whole,
            model=f"{ALL_OF_HOST} ({len(reading.cards)})",
            attributes={**whole.attributes, "type": "gpu", "cards": len(reading.cards)},
            health=Health(ok=False, reason="; ".join(reasons)) if reasons else Health(),
            used_by=tuple(dict.fromkeys(use for card in reading.cards for use in card.used_by)),
            source=_both(whole.source, "nvml"),
        )
    devices[whole.id] = whole


def _join_amd_users(
    devices: dict[DeviceId, Device], started_by_dibs: Callable[[int], bool], roots: Roots, errors: list[SourceError]
) -> None:
    cards = [device for device in devices.values() if device.vendor == "amd" and device.cdi is not None]
    if not cards:
        return
    from dibs.devices import kfd

    users, failures = kfd.users(roots)
    errors.extend(failures)
    for card in cards:
        pids = dict.fromkeys(pid for path in sorted(_paths(card)) for pid in users.get(path, ()))
        used_by = tuple(external_use(pid, roots) for pid in pids if not started_by_dibs(pid))
        if used_by:
            devices[card.id] = msgspec.structs.replace(card, used_by=used_by)


def _mig_minors(roots: Roots, errors: list[SourceError]) -> dict[tuple[int, int, int], int]:
    """(card minor, GPU instance, compute instance or -1) to the number of the capability node."""
    path = f"{roots.proc}/driver/nvidia-caps/mig-minors"
    try:
        text = read_text(path, 1 << 20)
    except OSError as error:
        errors.append(SourceError("nvml", f"{path}: {error.strerror}"))
        return {}
    table: dict[tuple[int, int, int], int] = {}
    for line in (text or "").splitlines():
        name, _, number = line.rpartition(" ")
        words = name.split("/")
        if len(words) in (3, 4) and words[0].startswith("gpu") and words[-1] == "access":
            numbers = [word.lstrip("gpuci") for word in words[:-1]]
            if all(n.isdigit() for n in (*numbers, number)):
                gpu, gi, *ci = map(int, numbers)
                table[gpu, gi, ci[0] if ci else -1] = int(number)
    return table


def _caps(card: NvmlCard, part: NvmlPart, minors: dict[tuple[int, int, int], int]) -> tuple[int, int] | None:
    if card.minor is None or part.gpu_instance is None or part.compute_instance is None:
        return None
    gi = minors.get((card.minor, part.gpu_instance, -1))
    ci = minors.get((card.minor, part.gpu_instance, part.compute_instance))
    return None if gi is None or ci is None else (gi, ci)


def _with_pci(device: Device, roots: Roots, errors: list[SourceError]) -> Device:
    address = device.attributes.get(PCI_BUS_ID)
    if not isinstance(address, str):
        behind = (pci.address_of_node(path, roots) for path in sorted(_paths(device)))
        address = next((text for text in behind if text), None)
    if address is None:
        return device
    found = pci.describe(address, roots)
    if isinstance(found, SourceError):
        errors.append(found)
        return device
    if found is None:
        return device
    attributes: dict[str, Attribute] = {**device.attributes, PCI_BUS_ID: found.bus_id}
    if found.root:
        attributes[PCIE_ROOT] = found.root
    if found.numa_node is not None:
        attributes[NUMA_NODE] = found.numa_node
    known = catalogue.find_pci(found.vendor_id, found.device_id)
    product = found.product or (known.product if known else "")
    if product:
        attributes.setdefault("productName", product)
    if known:
        attributes.setdefault("architecture", known.architecture)
    is_card = device.parent is None
    uuid = device.uuid or (f"GPU-{found.unique_id}" if found.unique_id and is_card else "")
    if uuid:
        attributes.setdefault("uuid", uuid)
    capacity = device.capacity
    if found.memory is not None and is_card and "memory" not in capacity:
        capacity = {**capacity, "memory": found.memory}
    name = attributes.get("productName", "")
    aliases = dict.fromkeys((*device.aliases, *([found.bus_id] if is_card else [])))
    return msgspec.structs.replace(
        device,
        attributes=attributes,
        capacity=capacity,
        uuid=uuid,
        model=device.model or (known.key if known else catalogue.short_name(str(name))),
        aliases=tuple(aliases),
        source=_both(device.source, "pci"),
    )


def _paths(device: Device) -> frozenset[str]:
    return exclusive_nodes(device.cdi.edits) if device.cdi is not None else frozenset()


def _both(source: str, further: str) -> str:
    return further if not source else source if further in source.split("+") else f"{source}+{further}"


def _order(device: Device) -> tuple[str, tuple[tuple[int, int, str], ...]]:
    """By driver, then by name as a person would count: gpu-2 before gpu-10."""
    parts = [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in device.name.split("-")]
    return device.driver, tuple(parts)

"""What is wrong with the devices themselves: unreadable sources, broken cards, cards that others use or none serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dibs.devices import pci
from dibs.devices.merge_sources import CUT
from dibs.devices.model import Device
from dibs.devices.names import PCI_BUS_ID
from dibs.doctor.finding import Finding, Scene

_NVIDIA, _AMD = 0x10DE, 0x1002


def check(scene: Scene) -> Iterable[Finding]:
    devices = scene.inventory.devices
    found = [*_sources(scene), *_unserved(scene)]
    for device in devices:
        found += _device(device)
    cards = [device for device in devices if device.parent is None]
    if cards:
        counts = Counter(device.model or str(device.attributes.get("type", "device")) for device in cards)
        listed = ", ".join(f"{count} × {model}" for model, count in counts.items())
        found.insert(0, Finding("devices", "ok", f"found {listed}"))
    elif not found:
        if scene.home.simulated.exists():  # its own check says what that means
            return [Finding("devices", "ok", "no real accelerators were found; a simulated world is on")]
        why = "there is nothing to lease; simulated GPUs let you try dibs without hardware"
        found.append(Finding("devices", "warn", "no accelerators were found", why, "dibs gpus simulate 8"))
    return found


def _sources(scene: Scene) -> Iterator[Finding]:
    # Specs and NVIDIA's driver have checks of their own, which say more.
    for error in scene.inventory.errors:
        if error.source not in ("cdi", "nvml"):
            why = f"devices may be missing or badly described: {error.reason}"
            yield Finding(
                "devices.source", "fail", f"{error.source} cannot be read", why, error.remedy or "dmesg | tail"
            )


def _device(device: Device) -> Iterator[Finding]:
    name = f"{device.name} ({device.model})" if device.model else device.name
    if not device.health.ok:
        vendor_tool = {"nvidia": "nvidia-smi -q", "amd": "amd-smi list"}.get(device.vendor, "dmesg | tail")
        why = f"it is not given out: {device.health.reason}"
        yield Finding("devices.health", "fail", f"{name} is broken", why, vendor_tool)
    if device.unattachable and not device.unattachable.startswith(CUT):  # a cut card is as it should be
        why = f"it is not given out: {device.unattachable}"
        fix = "sudo nvidia-modprobe -u -c=0" if device.parent is None else "sudo nvidia-smi mig -lgi"
        yield Finding("devices.attachment", "warn", f"{name} cannot be attached", why, fix)
    if device.used_by:
        users = ", ".join(f"{use.user}'s {use.command} (pid {use.pid})" for use in device.used_by[:3])
        pids = ",".join(str(use.pid) for use in device.used_by)
        why = f"dibs gives it only to requests that allow busy cards: {users}"
        yield Finding("devices.used", "warn", f"{name} is used by others", why, f"ps -o pid,user,etime,cmd -p {pids}")


def _unserved(scene: Scene) -> Iterator[Finding]:
    """Cards on the bus that no source offers. Intel's are left out: most are the display of a processor."""
    cards, _ = pci.scan(scene.roots)  # what cannot be scanned is no reason to doubt the devices that were found
    offered = {device.attributes.get(PCI_BUS_ID) for device in scene.inventory.devices}
    for card in cards:
        if card.bus_id in offered or card.vendor_id not in (_NVIDIA, _AMD):
            continue
        what = f"{pci.VENDORS[card.vendor_id]} {card.vendor_id:04x}:{card.device_id:04x} at {card.bus_id}"
        if card.vendor_id == _NVIDIA and card.kernel_driver != "nvidia":
            driver = card.kernel_driver or "no driver"
            why = f"it has {driver}, so that CUDA cannot use it and dibs does not offer it"
            yield Finding(
                "devices.unserved", "warn", f"{what} is not served", why, "install NVIDIA's driver and reboot"
            )
        elif card.vendor_id == _AMD and card.kernel_driver == "amdgpu":
            why = "no CDI spec names it, so that dibs does not offer it"
            fix = "sudo amd-ctk cdi generate --output=/etc/cdi/amd.json"
            yield Finding("devices.unserved", "warn", f"{what} is not offered", why, fix)

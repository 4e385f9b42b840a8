"""What the PCI bus knows about a card: place, NUMA node, ids, and what its kernel driver adds to sysfs.

`inventory` asks for single cards by bus id or by DRM node and joins the answers; `doctor` scans for accelerators that
no driver serves. It reads a few small files per card, opens no device and must not wake one up.
"""

from __future__ import annotations

import os
import re

import msgspec

from dibs.devices.host import HOST, Roots, read_text
from dibs.devices.model import SourceError
from dibs.devices.names import bus_id

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_DISPLAY, _ACCELERATOR = 0x03, 0x12  # PCI base classes

VENDORS = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel"}


class PciCard(msgspec.Struct, frozen=True):
    """A card as its bus sees it. What the bus does not tell is None or empty."""

    bus_id: str
    vendor_id: int
    device_id: int
    class_id: int
    root: str = ""
    numa_node: int | None = None
    kernel_driver: str = ""
    product: str = ""  # amdgpu's own files, where there are any
    unique_id: str = ""
    memory: int | None = None

    @property
    def is_accelerator(self) -> bool:
        return self.class_id >> 16 in (_DISPLAY, _ACCELERATOR)


def describe(address: str, roots: Roots = HOST) -> PciCard | SourceError | None:
    """The card at an address; None if the bus has none there (no PCI, or the card fell off)."""
    folder = f"{roots.sys}/bus/pci/devices/{bus_id(address)}"
    try:
        return _describe(bus_id(address), folder)
    except OSError as error:
        return SourceError("pci", f"{error.filename or folder}: {error.strerror}")
    except ValueError as error:
        return SourceError("pci", f"{folder}: {error}")


def address_of_node(path: str, roots: Roots = HOST) -> str | None:
    """The PCI address behind a DRM node such as /dev/dri/renderD128; None if it is no DRM node or is on no PCI bus."""
    name = path.removeprefix("/dev/dri/")
    if name == path or "/" in name:
        return None
    try:
        return bus_id(os.path.basename(os.readlink(f"{roots.sys}/class/drm/{name}/device")))
    except (FileNotFoundError, ValueError):
        return None


def scan(roots: Roots = HOST) -> tuple[tuple[PciCard, ...], tuple[SourceError, ...]]:
    """All display controllers and accelerators on the bus."""
    folder = f"{roots.sys}/bus/pci/devices"
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return (), ()  # a machine without PCI
    except OSError as error:
        return (), (SourceError("pci", f"{folder}: {error.strerror}"),)
    cards: list[PciCard] = []
    errors: list[SourceError] = []
    for name in names:
        found = describe(name, roots)
        if isinstance(found, SourceError):
            errors.append(found)
        elif found is not None and found.is_accelerator:
            cards.append(found)
    return tuple(cards), tuple(errors)


def _describe(address: str, folder: str) -> PciCard | None:
    class_id = _number(f"{folder}/class")
    vendor_id = _number(f"{folder}/vendor")
    device_id = _number(f"{folder}/device")
    if class_id is None or vendor_id is None or device_id is None:
        return None
    numa = _number(f"{folder}/numa_node")
    driver = os.path.realpath(f"{folder}/driver") if os.path.islink(f"{folder}/driver") else ""
    return PciCard(
        bus_id=address,
        vendor_id=vendor_id,
        device_id=device_id,
        class_id=class_id,
        root=_root(folder),
        numa_node=numa if numa is not None and numa >= 0 else None,  # -1: the firmware does not say
        kernel_driver=os.path.basename(driver),
        product=read_text(f"{folder}/product_name") or "",
        unique_id=read_text(f"{folder}/unique_id") or "",
        memory=_number(f"{folder}/mem_info_vram_total"),
    )


def _root(folder: str) -> str:
    """The host bridge that a device hangs under: the first `pciDDDD:BB` of its real path."""
    return next((part for part in os.path.realpath(folder).split("/") if _ROOT.fullmatch(part)), "")


def _number(path: str) -> int | None:
    text = read_text(path)
    return None if text is None else int(text, 0)

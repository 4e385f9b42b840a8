"""A host in a temporary folder: device nodes, /proc, /sys, CDI specs, and recorded answers of NVML."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dibs.devices.host import Roots
from dibs.devices.inventory import look_at_host
from dibs.devices.model import Device, Inventory
from dibs.devices.names import pool_name

UUIDS = [f"GPU-{n:08x}-1111-2222-3333-444444444444" for n in range(16)]
MIG_UUIDS = [f"MIG-{n:08x}-aaaa-bbbb-cccc-dddddddddddd" for n in range(16)]


class Fails:
    """A recorded failure: the library's own number."""

    def __init__(self, code: int) -> None:
        self.code = code


class RecordedNvml:
    """Answers as the library gave them, by function. A function without an answer is not supported."""

    def __init__(self, cards: list[dict[str, Any]], **system: Any) -> None:
        self.cards = cards
        self.system = {"nvmlInit": None, "nvmlShutdown": None, "nvmlSystemGetDriverVersion": "580.95.05", **system}
        self.open = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == "nvmlDeviceGetCount":
                return self.answer(self.system.get(name, len(self.cards)))
            if name == "nvmlDeviceGetHandleByIndex":
                card = self.cards[arguments[0]]
                self.answer(card.get(name))
                return card
            if name == "nvmlDeviceGetMigDeviceHandleByIndex":
                parts = arguments[0]["parts"]
                return self.answer(parts[arguments[1]] if arguments[1] < len(parts) else Fails(6))
            source = arguments[0] if arguments else self.system
            value = self.answer(source.get(name, Fails(3)))
            self.open += {"nvmlInit": 1, "nvmlShutdown": -1}.get(name, 0)
            return value

        return call

    @staticmethod
    def answer(value: Any) -> Any:
        if isinstance(value, Fails):
            raise pynvml.NVMLError(value.code)
        return value


def recorded_card(number: int, **answers: Any) -> dict[str, Any]:
    """An H100 as nvmlDevice... functions describe it; keywords replace single answers."""
    card: dict[str, Any] = {
        "nvmlDeviceGetUUID": UUIDS[number],
        "nvmlDeviceGetMinorNumber": number,
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=85520809984, used=0, free=85520809984),
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=f"00000000:{0x1B + number:02X}:00.0"),
        "nvmlDeviceGetArchitecture": 9,
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
        "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=0))],
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetMigMode": (0, 0),
    }
    return card | answers


def recorded_part(number: int, gpu_instance: int, **answers: Any) -> dict[str, Any]:
    part: dict[str, Any] = {
        "nvmlDeviceGetUUID": MIG_UUIDS[number],
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=10 << 30),
        "nvmlDeviceGetGpuInstanceId": gpu_instance,
        "nvmlDeviceGetComputeInstanceId": 0,
        "nvmlDeviceGetComputeRunningProcesses": [],
    }
    return part | answers


class Host:
    """The tree, with one method for each thing that may be there."""

    uuids = UUIDS
    mig_uuids = MIG_UUIDS
    fails = Fails
    recorded = RecordedNvml
    card = staticmethod(recorded_card)
    part = staticmethod(recorded_part)

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("dev", "proc", "sys", "etc", "cdi"):
            (root / name).mkdir()
        self.roots = Roots(*(str(root / name) for name in ("dev", "proc", "sys", "etc")))
        self.specs = str(root / "cdi")

    def nodes(self, *paths: str) -> None:
        for path in paths:
            place = Path(self.roots.node(path))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()

    def file(self, path: str, text: str) -> None:
        place = Path(self.roots.file(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def pci(self, bus: str, root: str = "pci0000:15", *, drm: tuple[str, ...] = (), **files: str) -> None:
        """A card on the bus, under a bridge, as sysfs shows it."""
        real = Path(self.roots.sys, "devices", root, "0000:16:01.0", bus)
        real.mkdir(parents=True)
        defaults = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": "0"}
        for name, text in (defaults | files).items():
            (real / name).write_text(text + "\n")
        link = Path(self.roots.sys, "bus/pci/devices", bus)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(real, link.parent))
        for name in drm:
            node = real / "drm" / name
            node.mkdir(parents=True)
            (node / "device").symlink_to(f"../../../{bus}")
            shown = Path(self.roots.sys, "class/drm", name)
            shown.parent.mkdir(parents=True, exist_ok=True)
            shown.symlink_to(os.path.relpath(node, shown.parent))

    def spec(self, name: str, kind: str, devices: dict[str, list[str]], common: tuple[str, ...] = ()) -> Path:
        """A CDI spec whose devices have these nodes."""
        path = Path(self.specs, name)
        spec: dict[str, Any] = {
            "cdiVersion": "0.6.0",
            "kind": kind,
            "devices": [
                {"name": device, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}
                for device, nodes in devices.items()
            ],
        }
        if common:
            spec["containerEdits"] = {"deviceNodes": [{"path": node} for node in common]}
        path.write_text(json.dumps(spec))
        return path

    def nvidia_spec(self, cards: int = 2, *, parts: int = 0, uuids: bool = True) -> Path:
        """What nvidia-ctk writes: index, uuid and `all`; MIG devices of card 0 as `0:0`, ... with their caps."""
        devices: dict[str, list[str]] = {}
        for number in range(cards):
            nodes = [f"/dev/nvidia{number}", f"/dev/dri/card{number}", f"/dev/dri/renderD{128 + number}"]
            devices[str(number)] = nodes
            if uuids:
                devices[UUIDS[number]] = nodes
        for part in range(parts):
            nodes = ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in self.caps(part))]
            devices[f"0:{part}"] = nodes
            if uuids:
                devices[MIG_UUIDS[part]] = nodes
        devices["all"] = sorted({node for nodes in devices.values() for node in nodes})
        return self.spec("nvidia.json", "nvidia.com/gpu", devices, ("/dev/nvidiactl", "/dev/nvidia-uvm"))

    @staticmethod
    def caps(part: int) -> tuple[int, int]:
        return 3 + 9 * (part + 7), 4 + 9 * (part + 7)

    def mig_minors(self, parts: int, card: int = 0) -> None:
        lines = ["config 1", "monitor 2"]
        for part in range(parts):
            gi, ci = self.caps(part)
            lines += [f"gpu{card}/gi{part + 7}/access {gi}", f"gpu{card}/gi{part + 7}/ci0/access {ci}"]
        self.file("/proc/driver/nvidia-caps/mig-minors", "\n".join(lines) + "\n")

    def look(self, library: RecordedNvml | None = None, ours: tuple[int, ...] = ()) -> Inventory:
        return look_at_host(lambda pid: pid in ours, self.roots, (self.specs,), library)

    @staticmethod
    def named(inventory: Inventory) -> dict[str, Device]:
        assert all(device.pool == pool_name() for device in inventory.devices)
        return {device.name: device for device in inventory.devices}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)

"""Well known accelerators: what their drivers say about them, and what people call them.

`simulated` builds worlds from it, `request` finds out what `H100` or `80GB` means, sources give a found product its
short name. A product that is not here still works; it is only called by its full name.

Memory is what the driver reports, in MiB; `nominal_gb` is the size on the box. The two differ ("80 GB" is 79.65 GiB on
an H100 and exactly 80 GiB on an A100), so one must never be computed from the other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

MIB = 1 << 20

Vendor = Literal["nvidia", "amd", "intel"]


class Model(msgspec.Struct, frozen=True):
    """One product. `also` are further names under which drivers print the same model."""

    key: str
    product: str
    vendor: Vendor
    memory_mib: int
    nominal_gb: int
    architecture: str
    compute: str = ""  # CUDA compute capability; empty where there is no such thing
    also: tuple[str, ...] = ()
    pci: tuple[int, ...] = ()  # device ids, where the kernel driver tells no product name

    @property
    def memory(self) -> int:
        return self.memory_mib * MIB

    @property
    def mig(self) -> bool:
        """Whether it can be cut into seven instances."""
        return self.compute in ("8.0", "9.0", "10.0", "10.3") and self.key != "A30"

    @property
    def driver(self) -> str:
        """The DRA driver of the vendor."""
        return f"gpu.{self.vendor}.com"

    @property
    def products(self) -> tuple[str, ...]:
        return (self.product, *self.also)


MODELS: tuple[Model, ...] = (
    Model("H100", "NVIDIA H100 80GB HBM3", "nvidia", 81559, 80, "Hopper", "9.0", ("NVIDIA H100 PCIe",)),
    Model("H100-NVL", "NVIDIA H100 NVL", "nvidia", 95830, 94, "Hopper", "9.0"),
    Model("H200", "NVIDIA H200", "nvidia", 143771, 141, "Hopper", "9.0", ("NVIDIA H200 NVL",)),
    Model("B200", "NVIDIA B200", "nvidia", 183359, 180, "Blackwell", "10.0"),
    Model("B300", "NVIDIA B300 SXM6 AC", "nvidia", 275040, 288, "Blackwell", "10.3"),
    Model("GB200", "NVIDIA GB200", "nvidia", 189471, 186, "Blackwell", "10.0"),
    Model("A100-40GB", "NVIDIA A100-SXM4-40GB", "nvidia", 40960, 40, "Ampere", "8.0", ("NVIDIA A100-PCIE-40GB",)),
    Model("A100-80GB", "NVIDIA A100-SXM4-80GB", "nvidia", 81920, 80, "Ampere", "8.0", ("NVIDIA A100 80GB PCIe",)),
    Model("A30", "NVIDIA A30", "nvidia", 24576, 24, "Ampere", "8.0"),
    Model("A10", "NVIDIA A10", "nvidia", 23028, 24, "Ampere", "8.6"),
    Model("A10G", "NVIDIA A10G", "nvidia", 23028, 24, "Ampere", "8.6"),
    Model("A40", "NVIDIA A40", "nvidia", 46068, 48, "Ampere", "8.6"),
    Model("RTX-A6000", "NVIDIA RTX A6000", "nvidia", 49140, 48, "Ampere", "8.6"),
    Model("RTX-3090", "NVIDIA GeForce RTX 3090", "nvidia", 24576, 24, "Ampere", "8.6"),
    Model("L4", "NVIDIA L4", "nvidia", 23034, 24, "Ada Lovelace", "8.9"),
    Model("L40S", "NVIDIA L40S", "nvidia", 46068, 48, "Ada Lovelace", "8.9"),
    Model("RTX-4090", "NVIDIA GeForce RTX 4090", "nvidia", 24564, 24, "Ada Lovelace", "8.9"),
    Model("RTX-6000-Ada", "NVIDIA RTX 6000 Ada Generation", "nvidia", 49140, 48, "Ada Lovelace", "8.9"),
    Model("RTX-5090", "NVIDIA GeForce RTX 5090", "nvidia", 32607, 32, "Blackwell", "12.0"),
    Model(
        "RTX-PRO-6000",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "nvidia",
        97887,
        96,
        "Blackwell",
        "12.0",
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
    ),
    # The GB10 shares the memory of its host, and its driver reports none of its own: this is what CUDA sees.
    Model("GB10", "NVIDIA GB10", "nvidia", 122570, 128, "Blackwell", "12.1"),
    Model("T4", "Tesla T4", "nvidia", 15360, 16, "Turing", "7.5", ("NVIDIA T4",)),
    Model("V100-16GB", "Tesla V100-SXM2-16GB", "nvidia", 16384, 16, "Volta", "7.0", ("Tesla V100-PCIE-16GB",)),
    Model("V100-32GB", "Tesla V100-SXM2-32GB", "nvidia", 32768, 32, "Volta", "7.0", ("Tesla V100-PCIE-32GB",)),
    # Each of the two dies of an MI250X is a device of its own, with half of the 128 GB.
    Model("MI250X", "AMD Instinct MI250X", "amd", 65520, 64, "CDNA2", pci=(0x740C, 0x7408)),
    Model("MI210", "AMD Instinct MI210", "amd", 65520, 64, "CDNA2", pci=(0x740F,)),
    Model("MI300X", "AMD Instinct MI300X", "amd", 196592, 192, "CDNA3", pci=(0x74A1,)),
    Model("MI325X", "AMD Instinct MI325X", "amd", 262128, 256, "CDNA3", pci=(0x74A5,)),
    Model("MI355X", "AMD Instinct MI355X", "amd", 294896, 288, "CDNA4", pci=(0x75A3,)),
    Model("Radeon-PRO-W7900", "AMD Radeon PRO W7900", "amd", 49136, 48, "RDNA3", pci=(0x7448,)),
    Model("Max-1550", "Intel Data Center GPU Max 1550", "intel", 131072, 128, "Xe-HPC", pci=(0x0BD5,)),
    Model("Flex-170", "Intel Data Center GPU Flex 170", "intel", 14248, 16, "Xe-HPG", pci=(0x56C0,)),
    Model("Arc-B580", "Intel Arc B580 Graphics", "intel", 12216, 12, "Xe2-HPG", pci=(0xE20B,)),
)
_BY_KEY = {model.key: model for model in MODELS}


def find(name: str) -> Model | None:
    """The model of that short name or product name; case, spaces, hyphens and underscores do not count."""
    known = _BY_KEY.get(name)  # as it is written nearly always
    return known if known is not None else _by_name().get(_squeeze(name))


def find_pci(vendor_id: int, device_id: int) -> Model | None:
    """The model with these PCI ids, for vendors whose kernel driver tells no product name."""
    vendor = {0x1002: "amd", 0x8086: "intel"}.get(vendor_id)
    return next((model for model in MODELS if model.vendor == vendor and device_id in model.pci), None)


def close_matches(name: str) -> tuple[str, ...]:
    """The short names that this may have meant, best first; none if nothing is near."""
    wanted = _squeeze(name)
    if not wanted:
        return ()
    holding = [model.key for model in MODELS if wanted in _squeeze(model.key) or wanted in _squeeze(model.product)]
    keys = {_squeeze(model.key): model.key for model in MODELS}
    import difflib

    near = [keys[match] for match in difflib.get_close_matches(wanted, keys, n=4, cutoff=0.5)]
    return tuple(dict.fromkeys([*holding, *near]))[:5]


def short_name(product: str) -> str:
    """What to call a found product: its short name, or the product's own name where it is not well known."""
    model = find(product)
    return model.key if model else product


def _squeeze(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Model]:
    table: dict[str, Model] = {}
    for model in MODELS:
        for name in (model.key, *model.products):
            known = table.setdefault(_squeeze(name), model)
            if known is not model:
                raise AssertionError(f"{name} names both {known.key} and {model.key}")
        # People write 4090, and NVIDIA H100.
        table.setdefault(_squeeze(model.key.removeprefix("RTX-")), model)
        table.setdefault(_squeeze(f"{model.vendor}{model.key}"), model)
    return table

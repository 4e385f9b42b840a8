"""How devices are called: drivers, pools, DNS-label device names, semver versions.

Every source names its devices here, so that the same card gets the same id whichever source found it. Pure, apart from
asking the kernel for the host's name. It must not know any source.
"""

from __future__ import annotations

import re
from functools import lru_cache

from dibs.devices.model import Version
from dibs.patterns import lazy_pattern
from dibs.process import node_name

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
NUMA_NODE = "resource.kubernetes.io/numaNode"
SIMULATED = "sim.dibs/simulated"
CDI_NAME = "dibs/cdiName"
ALL_OF_HOST = "all GPUs of this host"  # the model of a device that is every card at once, as on WSL2

_LABEL_LENGTH = 63
_ODD = lazy_pattern(r"[^a-z0-9]+")
_PLAIN_INDEX = lazy_pattern(r"0|[1-9][0-9]{0,8}", re.ASCII)
_NUMBER = lazy_pattern(r"[0-9]+", re.ASCII)
_BUS_ID = lazy_pattern(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)


def pool_name() -> str:
    """The pool of this host's devices: its short name as a DNS label."""
    return _pool(node_name())


@lru_cache(maxsize=4)
def _pool(name: str) -> str:
    return label(name.partition(".")[0]) or "localhost"


def label(text: str) -> str:
    """The nearest DNS label; empty if nothing of the text can be kept. Not reversible: see `device_name`."""
    lower = text.lower()
    kept = lower if lower.isascii() and lower.isalnum() else _ODD.sub("-", lower)
    return kept.strip("-")[:_LABEL_LENGTH].rstrip("-")


def driver_name(kind: str) -> str:
    """The DRA driver that stands for a CDI kind: `nvidia.com/gpu` is `gpu.nvidia.com`."""
    vendor, _, cls = kind.partition("/")
    return f"{cls}.{vendor}".lower()


def device_name(cls: str, cdi_name: str) -> str:
    """A DNS label for a device of a CDI spec: `gpu-0` for `0`.

    Two names of one kind never get the same label: a name that does not survive the change of alphabet carries a
    hash of itself. The way back is the device's own CDI name, which stays in its attachment and aliases.
    """
    prefix = label(cls) or "device"
    plain = label(cdi_name)
    if cdi_name == plain and len(prefix) + 1 + len(plain) <= _LABEL_LENGTH and not _looks_hashed(plain):
        return f"{prefix}-{plain}"
    import hashlib

    digest = hashlib.blake2b(cdi_name.encode(), digest_size=4).hexdigest()
    room = _LABEL_LENGTH - len(prefix) - len(digest) - 3
    kept = plain[: max(room, 0)].rstrip("-")
    return "-".join(part for part in (prefix[: _LABEL_LENGTH - 12], kept, f"x{digest}") if part)


def _looks_hashed(plain: str) -> bool:
    """Whether a harmless name ends as our hashed ones do; it is then hashed too, so that the two cannot meet."""
    return re.search(r"(^|-)x[0-9a-f]{8}$", plain) is not None


def plain_index(text: str) -> int | None:
    """The number that a name is, or None: `00` and `1e3` are names, not indexes."""
    return int(text) if _PLAIN_INDEX.fullmatch(text) else None


def version(text: str) -> Version | None:
    """A vendor's version as semver, which wants three numbers without leading zeros; None if there is no number.

    `580.95.05` becomes 580.95.5 and `9.0` becomes 9.0.0, as the vendors' own drivers publish them.
    """
    numbers = _NUMBER.findall(text)
    if not numbers or not text[:1].isdigit():
        return None
    return Version(".".join(str(int(number)) for number in (*numbers, "0", "0")[:3]))


def bus_id(text: str) -> str:
    """A PCI address as sysfs spells it (`0000:1b:00.0`); NVML writes `00000000:1B:00.0`. ValueError if it is none."""
    match = _BUS_ID.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:1b:00.0")
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function}"

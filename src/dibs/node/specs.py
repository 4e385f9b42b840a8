"""The CDI specs that `dibs node` writes: for devices that no other spec names, such as simulated ones.

`prepare` writes one per claim, which goes with the claim; `plugin` one per driver, which stays. Their vendors start
with `k8s.`, so that `devices/cdi_source.py` does not take them for further hardware. A device that has a name in a spec
of the node's folders is called by that name, and nothing is written for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dibs.cdi.cache import Cache
from dibs.cdi.edits import merge_edits
from dibs.cdi.spec import ContainerEdits, Spec
from dibs.cdi.spec import Device as SpecDevice
from dibs.cdi.store import at_minimum_version, remove_file, transient_spec_name, write_file
from dibs.devices.model import Device

_PREFIX = "k8s."


def claim_kind(driver: str) -> str:
    return f"{_PREFIX}{driver}/claim"


def node_kind(driver: str) -> str:
    return f"{_PREFIX}{driver}/node"


def claim_file(folder: Path, driver: str, uid: str) -> Path:
    return folder / f"{transient_spec_name(claim_kind(driver), uid)}.json"


def node_file(folder: Path, driver: str) -> Path:
    return folder / f"{transient_spec_name(node_kind(driver), 'all')}.json"


def claims_with_files(folder: Path, driver: str) -> list[str]:
    """The uids of claims that have a spec here."""
    start = claim_file(folder, driver, "x").name.removesuffix("x.json")
    return sorted(file.name[len(start) : -len(".json")] for file in folder.glob(f"{start}*.json"))


def remove_drafts(folder: Path, driver: str) -> None:
    """What a kill in the middle of a write has left; nothing reads it."""
    start = claim_file(folder, driver, "x").name.removesuffix("x.json")
    for draft in folder.glob(f".{start}*.tmp"):
        draft.unlink()


def named(cache: Cache, device: Device) -> bool:
    """Whether a spec that is there has this device under the name of its attachment."""
    return device.cdi is not None and cache.device(device.cdi.cdi_name) is not None


def spec_of(kind: str, devices: Mapping[str, Device], annotations: Mapping[str, str] | None = None) -> Spec:
    """A spec with these devices, by the names that they have in it. Edits of whole specs are applied once."""
    entries = []
    whole: dict[str, ContainerEdits] = {}
    for name, device in devices.items():
        assert device.cdi is not None
        entries.append(SpecDevice(name=name, container_edits=device.cdi.edits))
        whole[device.cdi.spec] = device.cdi.spec_edits
    return at_minimum_version(
        Spec(
            kind=kind,
            devices=tuple(entries),
            container_edits=merge_edits(whole.values()),
            annotations=dict(annotations or {}),
        )
    )


def write(file: Path, spec: Spec) -> None:
    """In one step; a file that says the same already is left alone."""
    try:
        if msgspec.json.decode(file.read_bytes(), type=Spec) == spec:
            return
    except (FileNotFoundError, msgspec.DecodeError):
        pass  # not there, or not whole: written anew
    write_file(spec, str(file), overwrite=True)


def remove(file: Path) -> bool:
    return remove_file(str(file))

"""Worlds, claims and files for the tests of this folder, in a few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dibs.claims import (
    Allocated,
    Allocator,
    DeviceClass,
    Features,
    Inventory,
    Node,
    Outcome,
    ResourceClaim,
    from_builtins,
)
from dibs.devices import model
from dibs.devices.classes import built_in
from dibs.devices.simulated import devices_of, parse_world
from dibs.devices.slices import slices_of

BOX = "box"


def world(spec: str, partitions: int | None = None, unhealthy: str | None = None) -> model.Inventory:
    """A simulated world as an inventory, in the pool `box`."""
    return model.Inventory(
        devices_of(parse_world(spec, partitions=partitions, unhealthy=unhealthy), BOX), simulated=True
    )


def claim(count: int | None = 1, class_name: str = "gpu", *expressions: str, name: str = "claim", **spec: Any) -> Any:
    """A claim with one request, as plain data; a count of None asks for all devices."""
    exactly: dict[str, Any] = {"deviceClassName": class_name}
    exactly |= {"allocationMode": "All"} if count is None else {"count": count}
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}], **spec}},
    }


def solve(
    inventory: model.Inventory,
    *claims: Any,
    allocated: Allocated | None = None,
    classes: tuple[DeviceClass, ...] | None = None,
) -> Outcome:
    allocator = Allocator(
        Inventory(slices_of(inventory, node=BOX)), classes or built_in(), allocated, Features.default()
    )
    return allocator.allocate(Node(BOX), [from_builtins(one, ResourceClaim) for one in claims])


def given(outcome: Outcome) -> list[str] | None:
    """The names of the devices that all claims got; None if they cannot be had."""
    if outcome.results is None:
        return None
    return [result.device for one in outcome.results for result in one.devices.results]


def save(path: Path, *objects: Any) -> str:
    """Objects as a YAML file of several documents."""
    path.write_text(yaml.safe_dump_all(objects, sort_keys=False))
    return str(path)

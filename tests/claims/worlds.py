"""Small worlds for tests: slices, classes and claims in a few words."""

from __future__ import annotations

from typing import Any

from dibs.claims import objects
from dibs.claims.allocator import Allocator, Outcome
from dibs.claims.features import Features
from dibs.claims.identity import Allocated, DeviceId
from dibs.claims.inventory import Inventory
from dibs.claims.nodes import Node

DRIVER = "gpu.example.com"
HOST = Node("host", {"region": "here"})
JSON = dict[str, Any]


def attributes(**values: Any) -> JSON:
    """Attributes by their Python values; a list becomes a list attribute."""
    kinds = {bool: "bool", int: "int", str: "string"}
    return {
        name: {kinds[type(value[0])] + "s": value} if isinstance(value, list) else {kinds[type(value)]: value}
        for name, value in values.items()
    }


def device(name: str, **fields: Any) -> JSON:
    """A device; keyword arguments are fields of the wire form, `attributes` in Python values."""
    found: JSON = {"name": name, **fields}
    if "attributes" in found:
        found["attributes"] = attributes(**found["attributes"])
    return found


def gpus(count: int, **fields: Any) -> list[JSON]:
    return [device(f"gpu-{index}", **fields) for index in range(count)]


def resource_slice(devices: list[JSON], name: str = "slice", driver: str = DRIVER, **spec: Any) -> JSON:
    fields: JSON = {
        "driver": driver,
        "pool": {"name": "host", "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
        **spec,
    }
    if not any(key in fields for key in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")):
        fields["nodeName"] = HOST.name
    return {"metadata": {"name": name}, "spec": fields}


def device_class(name: str = "gpu", *expressions: str, **spec: Any) -> JSON:
    wanted = expressions or (f'device.driver == "{DRIVER}"',)
    return {"metadata": {"name": name}, "spec": {"selectors": selectors(*wanted), **spec}}


def selectors(*expressions: str) -> list[JSON]:
    return [{"cel": {"expression": text}} for text in expressions]


def exactly(name: str = "gpus", count: int | None = 1, class_name: str = "gpu", **fields: Any) -> JSON:
    """A request; a count of None asks for all devices."""
    mode: JSON = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    return {"name": name, "exactly": {"deviceClassName": class_name, **mode, **fields}}


def first_available(name: str, *alternatives: JSON) -> JSON:
    """A choice between requests made by `exactly`."""
    return {"name": name, "firstAvailable": [{"name": a["name"], **a["exactly"]} for a in alternatives]}


def claim(*requests: JSON, name: str = "claim", **devices: Any) -> JSON:
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests), **devices}}}


def allocator(
    slices: list[JSON],
    *,
    classes: list[JSON] | None = None,
    allocated: Allocated | None = None,
    features: Features | None = None,
) -> Allocator:
    return Allocator(
        Inventory([objects.from_builtins(one, objects.ResourceSlice) for one in slices]),
        [objects.from_builtins(one, objects.DeviceClass) for one in classes or [device_class()]],
        allocated,
        Features.everything() if features is None else features,
    )


def claims(*wanted: JSON) -> list[objects.ResourceClaim]:
    return [objects.from_builtins(one, objects.ResourceClaim) for one in wanted]


def allocate(slices: list[JSON], *wanted: JSON, node: Node = HOST, **options: Any) -> Outcome:
    return allocator(slices, **options).allocate(node, claims(*wanted))


def given(outcome: Outcome) -> list[list[str]] | None:
    """Per claim, `request:device` in the order in which they were given."""
    if outcome.results is None:
        return None
    return [[f"{r.request}:{r.device}" for r in result.devices.results] for result in outcome.results]


def held(*names: str, driver: str = DRIVER, by: str = "somebody") -> Allocated:
    return Allocated({DeviceId(driver, "host", name): by for name in names})

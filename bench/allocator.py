"""How long an allocation takes, here and in the reference, in one run.

    python -m bench allocator

The reference is Kubernetes' own allocator, from its published Go module (`golang`), where a Go toolchain is there.
"here" is what a gateway does per request: a new Allocator on a prepared Inventory. "cold" prepares everything anew.
That keeps what selectors said about each device; the reference has its programs compiled too, but evaluates them anew
in every call. Compare "cold" where that matters. Times are the best of many runs; both sides see the same JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.golang import ask, reference
from bench.measure import title
from dibs.claims import Allocated, Allocator, DeviceId, Features, Inventory, Node
from dibs.claims import objects as o

DRIVER = "gpu.example.com"
GATES = ["DRAAdminAccess", "DRAConsumableCapacity", "DRADeviceTaints", "DRAPartitionableDevices", "DRAPrioritizedList"]
NODE = Node("host")
PER_SLICE = 128
JSON = dict[str, Any]


def device(index: int, *, roots: int = 4, model: str = "H100") -> JSON:
    attributes: JSON = {
        "model": {"string": model},
        "index": {"int": index},
        "uuid": {"string": f"gpu-{index:08}"},
        "root": {"string": f"root-{index % roots}"},
        "driverVersion": {"version": "570.1.0"},
        "healthy": {"bool": True},
    }
    attributes.update({f"extra{n}": {"int": n} for n in range(6)})
    return {"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


def world(
    devices: list[JSON], count: int, *, selector: str = "", match: bool = False, busy: int = 0, also: int = 0
) -> JSON:
    chunks = [devices[start : start + PER_SLICE] for start in range(0, len(devices), PER_SLICE)]
    pool = {"name": "host", "generation": 1, "resourceSliceCount": len(chunks)}
    slices = [
        {
            "metadata": {"name": f"slice-{number:05}"},
            "spec": {"driver": DRIVER, "pool": pool, "nodeName": "host", "devices": chunk},
        }
        for number, chunk in enumerate(chunks)
    ]
    asked: JSON = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    if selector:
        asked["selectors"] = [{"cel": {"expression": selector}}]
    body: JSON = {"requests": [{"name": "gpus", "exactly": asked}]}
    claims = [{"metadata": {"name": "claim"}, "spec": {"devices": body}}]
    if also:
        second = {"requests": [{"name": "gpus", "exactly": {**asked, "count": also}}]}
        claims.append({"metadata": {"name": "second"}, "spec": {"devices": second}})
    if match:
        body["constraints"] = [{"matchAttribute": f"{DRIVER}/root"}]
    expression = f'device.driver == "{DRIVER}"'
    return {
        "features": GATES,
        "node": {"metadata": {"name": "host"}},
        "classes": [{"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}],
        "slices": slices,
        "claims": claims,
        "allocatedDevices": [[DRIVER, "host", f"gpu-{n}"] for n in range(busy)],
    }


SELECTOR = (
    f'device.attributes["{DRIVER}"].model == "H100" && '
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
)


def last_matches(count: int) -> list[JSON]:
    """Only the last device is of the wanted model."""
    return [device(n, model="H100" if n == count - 1 else "A100") for n in range(count)]


def plain(count: int) -> list[JSON]:
    return [device(n) for n in range(count)]


SCENARIOS: list[tuple[str, Callable[[], JSON], int]] = [
    # name, world, milliseconds for the reference (0: it would not come back)
    ("1 of 8, class only", lambda: world(plain(8), 1), 300),
    ("1 of 8, model and memory", lambda: world(plain(8), 1, selector=SELECTOR), 300),
    ("8 of 8, model and memory", lambda: world(plain(8), 8, selector=SELECTOR), 300),
    ("1 of 128, 127 busy", lambda: world(plain(128), 1, busy=127), 300),
    ("32 of 128", lambda: world(plain(128), 32, selector=SELECTOR), 300),
    ("1 of 10,000, the last one", lambda: world(last_matches(10_000), 1, selector=SELECTOR), 500),
    ("8 of 32, match over 4 roots", lambda: world(plain(32), 8, match=True), 300),
    ("infeasible: 9 of 8", lambda: world(plain(8), 9), 300),
    ("infeasible: 17 of 16", lambda: world(plain(16), 17), 300),
    ("infeasible: 21 of 20", lambda: world(plain(20), 21), 1),
    ("infeasible: 32 of 31", lambda: world(plain(31), 32), 0),
    ("infeasible: 33 of 32, in two claims", lambda: world(plain(32), 17, also=16), 0),
    (
        "infeasible: 17 of 32, match over 2 roots",
        lambda: world([device(n, roots=2) for n in range(32)], 17, match=True),
        1,
    ),
]
GROWTH = (100, 1_000, 10_000, 100_000)


def best(call: Callable[[], object], seconds: float = 0.4) -> float:
    """Microseconds of the fastest run."""
    fastest = float("inf")
    end = time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        fastest = min(fastest, now - start)
        if now >= end:
            return fastest * 1e6


class Ours:
    """One world, read."""

    def __init__(self, described: JSON) -> None:
        self.slices = [o.from_builtins(one, o.ResourceSlice) for one in described["slices"]]
        self.classes = [o.from_builtins(one, o.DeviceClass) for one in described["classes"]]
        self.claims = [o.from_builtins(one, o.ResourceClaim) for one in described["claims"]]
        self.allocated = Allocated([DeviceId(*parts) for parts in described["allocatedDevices"]])
        self.features = Features.of(described["features"])
        self.inventory = Inventory(self.slices)

    def warm(self) -> Any:
        allocator = Allocator(self.inventory, self.classes, self.allocated, self.features)
        return allocator.allocate(NODE, self.claims)

    def cold(self) -> Any:
        allocator = Allocator(Inventory(self.slices), self.classes, self.allocated, self.features)
        return allocator.allocate(NODE, self.claims)


def table() -> None:
    """Measure and print, beside Kubernetes' allocator where it can be built."""
    command = reference()
    title("the allocator: here with a prepared inventory, cold without, and Kubernetes' own")
    if isinstance(command, str):
        print(f"  Kubernetes' allocator is not measured: {command}")
    print(f"{'':42}{'here':>12}{'steps':>8}{'cold':>12}{'reference':>16}{'here/ref':>10}")
    for name, make, milliseconds in SCENARIOS:
        described = make()
        ours = Ours(described)
        outcome = ours.warm()
        assert (outcome.results is None) == name.startswith("infeasible"), name
        here, cold = best(ours.warm), best(ours.cold)
        row = f"{name:42}{here:>9,.1f} µs{outcome.steps:>8}{cold:>9,.0f} µs"
        if isinstance(command, list) and milliseconds:
            there = ask(command, described, milliseconds)
            row += f"{there:>13,.1f} µs{here / there:>10.5f}"
        elif isinstance(command, list):
            row += f"{'not run (2^n)':>16}{'':>10}"
        print(row)

    print(f"\n{'growth: 1 of n, the last one matches':42}{'prepared':>12}{'first':>14}{'again':>12}")
    for count in GROWTH:
        ours = Ours(world(last_matches(count), 1, selector=SELECTOR))
        start = time.perf_counter()
        ours.inventory = Inventory(ours.slices)
        prepared = time.perf_counter() - start
        start = time.perf_counter()
        ours.warm()
        first = time.perf_counter() - start
        print(f"{count:<42,}{prepared * 1e3:>9,.1f} ms{first * 1e3:>11,.1f} ms{best(ours.warm):>9,.1f} µs")


if __name__ == "__main__":
    table()

"""Made-up worlds (slices, classes, claims, what is allocated), decided here and by Kubernetes' own allocator.

Small and reproducible from a seed. Both sides see the same JSON, and must give the same devices to the same requests,
consume the same capacity, written the same way, and fail on the same worlds.
"""

from __future__ import annotations

import json
import random
from typing import Any

from bench.golang import Reference

from dibs.claims import Allocated, Allocator, BadClaim, BadPool, DeviceId, Features, GaveUp, Inventory, Node, objects
from dibs.claims.features import GATES

JSON = dict[str, Any]
GPU, NIC = "gpu.example.com", "nic.example.com"
_NODE = {"metadata": {"name": "host", "labels": {"region": "here"}}, "status": {}}
_AMOUNTS = ["1", "2", "4", "1e3", "1k", "2e3", "8Gi", "16Gi", "1500m", "0.5", "10", "4000"]
_ALL = [gate for gate in GATES if gate not in ("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus")]
_MOST = 400_000  # steps of our own search: such a world is in neither allocator's reach
UNDECIDED = "undecided"
_SELECTORS = [
    "true",
    f'device.attributes["{GPU}"].?model == optional.of("a")',
    f'device.attributes["{GPU}"].?model.orValue("") != "b"',
    f'has(device.attributes["{GPU}"].index) && device.attributes["{GPU}"].index < 3',
    f'"memory" in device.capacity["{GPU}"] && device.capacity["{GPU}"].memory.compareTo(quantity("2")) >= 0',
    f'"memory" in device.capacity["{GPU}"]',
    f'device.driver == "{NIC}" || device.attributes["{GPU}"].?root.orValue("") in ["p", "q"]',
    f'device.attributes["{GPU}"].?version.optMap(v, v.isGreaterThan(semver("1.0.0"))).orValue(true)',
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
]
# Selectors that fail on some devices.
_FAILING = [
    f'device.attributes["{GPU}"].model == "a"',
    f'device.capacity["{GPU}"].memory.compareTo(quantity("2")) >= 0',
    f'device.attributes["{GPU}"].root.startsWith("p") || device.attributes["{GPU}"].lane == 1',
]


class Maker:
    """Makes one world."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def world(self) -> JSON:
        """The world."""
        rng = self.rng
        pools = [
            self.pool(rng.choice([GPU, GPU, GPU, NIC]), f"pool-{number}") for number in range(rng.choice([1, 1, 2, 3]))
        ]
        slices = [one for pool in pools for one in pool]
        rng.shuffle(slices)
        devices = [
            ((one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"]), device)
            for one in slices
            for device in one["spec"].get("devices", ())
        ]
        taken: list[list[str]] = []
        shared: list[list[str]] = []
        consumed: list[JSON] = []
        for place, device in devices:
            if not self.chance(8):
                continue
            if device.get("allowMultipleAllocations"):
                shared.append([*place, f"share-{len(shared)}"])
                amounts = {name: rng.choice(["1", "2", "1e3"]) for name in device.get("capacity", {})}
                consumed.append({"device": list(place), "consumed": amounts})
            else:
                taken.append(list(place))
        features = _ALL if self.chance(75) else [gate for gate in _ALL if self.chance(70)]
        return {
            "features": features,
            "node": _NODE,
            "classes": self.classes(),
            "slices": slices,
            "claims": [self.claim(number) for number in range(rng.choice([1, 1, 1, 2]))],
            "allocatedDevices": taken,
            "allocatedSharedDeviceIDs": shared,
            "aggregatedCapacity": consumed,
        }

    def selector(self) -> str:
        return self.rng.choice(_FAILING if self.chance(8) else _SELECTORS)

    def classes(self) -> list[JSON]:
        found: list[JSON] = []
        for name, expression in (("gpu", f'device.driver == "{GPU}"'), ("nic", f'device.driver == "{NIC}"')):
            found.append({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
        picked: JSON = {"selectors": [{"cel": {"expression": self.selector()}}]}
        if self.chance(30):
            parameters = {"key": self.rng.randrange(3)}
            picked["config"] = [{"opaque": {"driver": GPU, "parameters": parameters}}]
        return [*found, {"metadata": {"name": "any"}, "spec": {}}, {"metadata": {"name": "picked"}, "spec": picked}]

    def pool(self, driver: str, name: str) -> list[JSON]:
        """The slices of one pool: counters apart from devices; now and then one is missing, or an old one is left."""
        rng = self.rng
        counted = self.chance(40)
        count = rng.choice([1, 1, 2])
        total = count + counted + self.chance(4)
        pool = {"name": name, "generation": 2, "resourceSliceCount": total}
        where = self.place()
        found: list[JSON] = []
        if counted:
            sets = [
                {
                    "name": f"set-{number}",
                    "counters": {"memory": {"value": str(rng.randint(1, 4))}, "slots": {"value": "3"}},
                }
                for number in range(2)
            ]
            found.append({**where, "sharedCounters": sets})
        index = 0
        for _ in range(count):
            devices = []
            for _ in range(rng.choice([2, 3, 4, 5])):
                devices.append(self.device(index, counted))
                index += 1
            found.append({**where, "devices": devices})
        slices = [
            {"metadata": {"name": f"{name}-{number}"}, "spec": {"driver": driver, "pool": pool, **spec}}
            for number, spec in enumerate(found)
        ]
        if self.chance(5):
            old = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": driver, "pool": old, **where, "devices": [self.device(99, counted=False)]}
            slices.append({"metadata": {"name": f"{name}-old"}, "spec": spec})
        return slices

    def place(self) -> JSON:
        """Where the devices of a pool are."""
        term = {
            "matchExpressions": [
                {"key": "region", "operator": "In", "values": [self.rng.choice(["here", "here", "there"])]}
            ]
        }
        places: list[JSON] = [
            {"nodeName": "host"},
            {"allNodes": True},
            {"nodeSelector": {"nodeSelectorTerms": [term]}},
            {"nodeName": "away"},
        ]
        return self.rng.choices(places, [74, 12, 12, 2])[0]

    def device(self, index: int, counted: bool) -> JSON:
        rng = self.rng
        attributes: JSON = {f"{GPU}/index": {"int": index}}
        if self.chance(85):
            attributes[f"{GPU}/model"] = {"string": rng.choice("aab")}
        if self.chance(85):
            attributes[f"{GPU}/root"] = {"string": rng.choice("pqr")}
        if self.chance(60):
            attributes[f"{GPU}/lane"] = {"int": rng.randrange(3)}
        if self.chance(50):
            attributes[f"{GPU}/version"] = {"version": rng.choice(["1.0.0", "1.2.3", "2.0.0-rc.1"])}
        if self.chance(20):
            attributes[f"{GPU}/roots"] = {"strings": rng.sample("pqr", rng.randint(1, 2))}
        found: JSON = {"name": f"dev-{index}", "attributes": attributes}
        if self.chance(70):
            found["capacity"] = {f"{GPU}/memory": self.capacity()}
            if self.chance(25):
                found["capacity"][f"{GPU}/cores"] = self.capacity()
        if self.chance(35):
            found["allowMultipleAllocations"] = True
        if self.chance(15):
            effect = rng.choice(["NoSchedule", "NoExecute", "None"])
            found["taints"] = [{"key": rng.choice(["sick", "old"]), "value": rng.choice(["x", ""]), "effect": effect}]
        if counted and self.chance(70):
            found["consumesCounters"] = [
                {"counterSet": f"set-{number}", "counters": {name: {"value": str(rng.randint(1, 2))}}}
                for number, name in sorted({0: "memory", rng.randrange(2): rng.choice(["memory", "slots"])}.items())
            ]
        if self.chance(5):
            found["bindsToNode"] = True
        return found

    def capacity(self) -> JSON:
        rng = self.rng
        if self.chance(50):
            return {"value": rng.choice(_AMOUNTS)}
        if self.chance(50):
            values = rng.choice([["1", "2", "4"], ["1e3", "2e3"], ["500m", "1"], ["1", "1k"]])
            return {
                "value": rng.choice(["4", "4k", "1e4", "2"]),
                "requestPolicy": {"default": values[0], "validValues": values},
            }
        low, step = rng.choice([("1", "1"), ("2", "2"), ("1e3", "1e3"), ("500m", "500m"), ("1k", "1e3"), ("1", None)])
        bounds: JSON = {"min": low, **({"step": step} if step else {}), **({"max": "4k"} if self.chance(40) else {})}
        return {"value": rng.choice(["4", "6k", "1e4"]), "requestPolicy": {"default": low, "validRange": bounds}}

    def asked(self) -> JSON:
        """What one request asks for."""
        rng = self.rng
        found: JSON = {"deviceClassName": rng.choices(["gpu", "any", "picked", "nic"], [60, 20, 14, 6])[0]}
        if self.chance(15):
            found["allocationMode"] = "All"
        else:
            found |= {"allocationMode": "ExactCount", "count": rng.choice([1, 1, 1, 2, 2, 3])}
        if self.chance(40):
            found["selectors"] = [{"cel": {"expression": self.selector()}} for _ in range(rng.choice([1, 1, 2]))]
        if self.chance(25):
            found["tolerations"] = [
                rng.choice(
                    [
                        {"operator": "Exists"},
                        {"key": "sick", "operator": "Exists", "effect": "NoSchedule"},
                        {"key": "old", "operator": "Equal", "value": "x"},
                    ]
                )
            ]
        if self.chance(20):
            names = rng.sample(["memory", "cores"], rng.choice([1, 1, 1, 2]))
            found["capacity"] = {"requests": {f"{GPU}/{name}": rng.choice(_AMOUNTS) for name in names}}
        return found

    def claim(self, number: int) -> JSON:
        rng = self.rng
        requests: list[JSON] = []
        names: list[str] = []
        for place in range(rng.choice([1, 1, 1, 2, 2, 3])):
            name = f"r{place}"
            names.append(name)
            if self.chance(25):
                parts = [{"name": f"s{part}", **self.asked()} for part in range(rng.choice([1, 2, 2, 3]))]
                names += [f"{name}/{part['name']}" for part in parts]
                requests.append({"name": name, "firstAvailable": parts})
                continue
            asked = self.asked()
            if self.chance(6):
                asked["adminAccess"] = True
            requests.append({"name": name, "exactly": asked})
        body: JSON = {"requests": requests}
        kinds = rng.choices(["matchAttribute", "distinctAttribute"], k=rng.choice([0, 0, 1, 1, 2]))
        constraints: list[JSON] = [
            {kind: f"{GPU}/{rng.choice(['root', 'root', 'model', 'model', 'lane', 'roots'])}"} for kind in kinds
        ]
        for constraint in constraints:
            if self.chance(50):
                constraint["requests"] = rng.sample(names, rng.randint(1, len(names)))
        if constraints:
            body["constraints"] = constraints
        if self.chance(15):
            body["config"] = [{"requests": [rng.choice(names)], "opaque": {"driver": GPU, "parameters": {"a": 1}}}]
        return {"metadata": {"name": f"claim-{number}", "namespace": "default"}, "spec": {"devices": body}}


def world(seed: int) -> JSON:
    """The world of a seed."""
    return Maker(random.Random(seed)).world()


def ours(described: JSON) -> Any:
    """What is allocated here: per claim the devices, the configuration and the nodes; or that it is refused."""
    allocator = Allocator(
        Inventory([objects.from_builtins(one, objects.ResourceSlice) for one in described["slices"]]),
        [objects.from_builtins(one, objects.DeviceClass) for one in described["classes"]],
        Allocated(
            [DeviceId(*parts) for parts in described["allocatedDevices"]],
            [DeviceId(*parts[:3]) for parts in described["allocatedSharedDeviceIDs"]],
            {DeviceId(*used["device"]): used["consumed"] for used in described["aggregatedCapacity"]},
        ),
        Features.of(described["features"]),
    )
    claims = [objects.from_builtins(one, objects.ResourceClaim) for one in described["claims"]]
    metadata = described["node"]["metadata"]
    try:
        outcome = allocator.allocate(Node(metadata["name"], metadata["labels"]), claims, budget=_MOST)
    except GaveUp:
        return UNDECIDED
    except (BadClaim, BadPool) as error:
        return {"refused": str(error)}
    if outcome.results is None:
        return None
    return [_comparable(objects.to_builtins(result)) for result in outcome.results]


def theirs(reference: Reference, described: JSON) -> Any:
    """What Kubernetes' allocator gives."""
    answer = reference.ask(described)
    if "error" in answer:
        return UNDECIDED if "deadline exceeded" in answer["error"] else {"refused": answer["error"]}
    if not answer["results"]:
        return None
    return [_comparable(result) for result in answer["results"]]


def _comparable(result: JSON) -> JSON:
    """Without what is random (share IDs) and without an order where Kubernetes has none."""
    found: JSON = json.loads(json.dumps(result))
    for device in found.get("devices", {}).get("results", ()):
        if "shareID" in device:
            device["shareID"] = "any"
    for term in found.get("nodeSelector", {}).get("nodeSelectorTerms", ()):
        for part in term.values():
            part.sort(key=json.dumps)
    return found


def differs(reference: Reference, described: JSON) -> tuple[str, Any, Any]:
    """What differs, in a word (empty: nothing), and both answers."""
    mine, their = ours(described), theirs(reference, described)
    if UNDECIDED in (mine, their):
        return "", mine, their
    if isinstance(mine, dict) or isinstance(their, dict):
        same = isinstance(mine, dict) and isinstance(their, dict)
        return "" if same else "error", mine, their
    return "" if mine == their else "allocation", mine, their

"""A plain allocator for small worlds: every alternative, every combination, checked from scratch each time.

It shares no code with the one under test beyond the objects. It knows fewer features, which is enough to find a world
where the clever one is wrong: whole and shared devices, counters, taints, matching and distinct attributes, choices.
Selectors are `true`, or compare the attribute `model` with a string.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

JSON = dict[str, Any]
Placement = list[tuple[int, str, JSON, JSON]]  # claim, request, what was asked, device


def feasible(devices: list[JSON], counters: JSON, claims: list[JSON], held: set[str]) -> bool:
    """Whether there is any way to serve all claims."""
    return any(valid(placement, counters, claims, held) for placement in _placements(devices, claims))


def _placements(devices: list[JSON], claims: list[JSON]) -> Iterator[Placement]:
    """All ways to hand out devices that look right request by request."""
    options = []
    for index, claim in enumerate(claims):
        for request in claim["spec"]["devices"]["requests"]:
            ways: list[Placement] = []
            for name, asked in _alternatives(request):
                fitting = [one for one in devices if selected(asked, one)]
                counts = [len(fitting)] if asked["allocationMode"] == "All" else [asked["count"]]
                if asked["allocationMode"] == "All" and not fitting:
                    continue
                for count in counts:
                    ways.extend(
                        [(index, name, asked, one) for one in chosen] for chosen in combinations(fitting, count)
                    )
            options.append(ways)
    for way in product(*options):
        yield [entry for part in way for entry in part]


def _alternatives(request: JSON) -> Iterator[tuple[str, JSON]]:
    if "exactly" in request:
        yield request["name"], request["exactly"]
    for part in request.get("firstAvailable", ()):
        yield f"{request['name']}/{part['name']}", part


def selected(asked: JSON, one: JSON) -> bool:
    for selector in asked.get("selectors", ()):
        text = selector["cel"]["expression"]
        if text != "true" and one["attributes"]["model"]["string"] != text.split('"')[-2]:
            return False
    return True


def valid(placement: Placement, counters: JSON, claims: list[JSON], held: set[str]) -> bool:
    """Whether nothing is given twice, overdrawn, tainted or against a constraint."""
    return (
        _uses_hold(placement, held)
        and _counters_hold(placement, counters)
        and all(_tolerated(asked, one) for _, _, asked, one in placement)
        and all(_constraints_hold(index, claim, placement) for index, claim in enumerate(claims))
    )


def _uses_hold(placement: Placement, held: set[str]) -> bool:
    whole: set[str] = set()
    sums: dict[str, int] = {}
    per_request: set[tuple[int, str, str]] = set()
    for index, name, asked, one in placement:
        device = one["name"]
        if (index, name, device) in per_request:
            return False
        per_request.add((index, name, device))
        size = int(one["capacity"]["memory"]["value"])
        requested = asked.get("capacity", {}).get("requests", {}).get("memory")
        if one.get("allowMultipleAllocations"):
            sums[device] = sums.get(device, 0) + (size if requested is None else int(requested))
            if sums[device] > size:
                return False
        else:
            if device in whole or device in held or (requested is not None and int(requested) > size):
                return False
            whole.add(device)
    return True


def _counters_hold(placement: Placement, counters: JSON) -> bool:
    drawn = dict.fromkeys(counters, 0)
    for one in {entry[3]["name"]: entry[3] for entry in placement}.values():
        for consumption in one.get("consumesCounters", ()):
            drawn[consumption["counterSet"]] += int(consumption["counters"]["slices"]["value"])
    return all(drawn[name] <= int(counters[name]) for name in counters)


def _tolerated(asked: JSON, one: JSON) -> bool:
    keys = {toleration["key"] for toleration in asked.get("tolerations", ())}
    return all(taint["key"] in keys for taint in one.get("taints", ()))


def _constraints_hold(index: int, claim: JSON, placement: Placement) -> bool:
    for constraint in claim["spec"]["devices"].get("constraints", ()):
        attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
        bare = attribute.split("/")[1]
        names = constraint.get("requests")
        covered = [
            one
            for owner, name, _, one in placement
            if owner == index and (not names or name in names or name.split("/")[0] in names)
        ]
        values = [one["attributes"].get(bare, {}).get("string") for one in covered]
        if None in values:
            return False
        if "matchAttribute" in constraint and len(set(values)) > 1:
            return False
        if "distinctAttribute" in constraint and len(set(values)) < len(values):
            return False
    return True

"""Worlds that are hard to decide: few devices, many requests that could have any of them, and one that nothing serves.

A plain search tries every way to hand out the devices before it can say no: 13 devices for requests of 3, 3 and 2 are
720,720 ways. What makes the last request impossible is something that the bounds of `lookahead` do not see.
"""

from __future__ import annotations

import random

from tests.claims.worlds import DRIVER, JSON, claim, device, exactly, resource_slice, selectors

KINDS = ("everything", "distinct lists", "shares", "two values", "counters")


def world(seed: int, kind: str, count: int = 13) -> tuple[list[JSON], list[JSON]]:
    """Slices and claims."""
    dice = random.Random(f"{seed} {kind}")
    devices = [_device(dice, number, kind) for number in range(count)]
    wanted = [exactly(f"r{number}", count=need) for number, need in enumerate(_needs(dice, count))]
    constraints: list[JSON] = []
    if kind == "everything":
        # All of what the others have taken some of.
        wanted.append({"name": "last", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}})
        constraints.append({"distinctAttribute": f"{DRIVER}/number", "requests": ["last"]})
    elif kind == "distinct lists":
        wanted.append(exactly("last", count=3))
        constraints.append({"distinctAttribute": f"{DRIVER}/lists", "requests": ["last", "r0"]})
    elif kind == "shares":
        wanted.append(exactly("last", count=2, capacity={"requests": {"memory": "7"}}))
    elif kind == "two values":
        wanted.append(exactly("last", count=3))
        for name in ("root", "lane"):
            constraints.append({"matchAttribute": f"{DRIVER}/{name}", "requests": ["last", "r1"]})
    else:
        wanted.append(exactly("last", count=2, selectors=selectors(f'device.attributes["{DRIVER}"].lane < 3')))
        constraints.append({"matchAttribute": f"{DRIVER}/root", "requests": ["last"]})
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 2 if kind == "counters" else 1}
    slices = [resource_slice(devices, "devices", pool=pool)]
    if kind == "counters":
        sets = [{"name": "set", "counters": {"memory": {"value": str(dice.randint(6, 9))}}}]
        slices.append(resource_slice([], "counters", pool=pool, sharedCounters=sets))
    return slices, [claim(*wanted, constraints=constraints)]


def _needs(dice: random.Random, count: int) -> list[int]:
    needs = [3, dice.choice((2, 3)), 2]
    return needs if sum(needs) < count - 2 else needs[:2]


def _device(dice: random.Random, number: int, kind: str) -> JSON:
    attributes: JSON = {"number": number, "root": f"root-{dice.randrange(4)}", "lane": dice.randrange(4)}
    more: JSON = {}
    if kind == "shares":
        more["allowMultipleAllocations"] = True
        more["capacity"] = {"memory": {"value": str(dice.randint(1, 8))}}
    if kind == "counters":
        more["consumesCounters"] = [{"counterSet": "set", "counters": {"memory": {"value": str(dice.randint(1, 2))}}}]
    found = device(f"gpu-{number}", attributes=attributes, **more)
    if kind == "distinct lists":
        found["attributes"][f"{DRIVER}/lists"] = {"strings": [f"v{dice.randrange(4)}", f"v{dice.randrange(4, 8)}"]}
    return found


def tangled(seed: int) -> tuple[list[JSON], list[JSON]]:
    """Slices and claims of few devices, under constraints over several requests: what of an earlier request a later one
    has to fit to depends on who got which device, not only on what is left."""
    dice = random.Random(seed)
    devices = [
        device(
            f"gpu-{number}",
            attributes={"root": f"root-{dice.randrange(3)}", "lane": dice.randrange(4), "kind": dice.randrange(3)},
        )
        for number in range(dice.randint(5, 9))
    ]
    names = [f"r{number}" for number in range(dice.randint(3, 5))]
    wanted = [exactly(name, count=dice.randint(1, 2), **_kinds(dice)) for name in names]
    constraints: list[JSON] = [
        {
            dice.choice(("matchAttribute", "distinctAttribute")): f"{DRIVER}/{dice.choice(('root', 'lane'))}",
            "requests": sorted(dice.sample(names, dice.randint(2, len(names) - 1))),
        }
        for _ in range(dice.randint(1, 3))
    ]
    return [resource_slice(devices)], [claim(*wanted, constraints=constraints)]


def _kinds(dice: random.Random) -> JSON:
    kind = f'device.attributes["{DRIVER}"].kind'
    said = dice.choice(("", f"{kind} != {dice.randrange(3)}", f"{kind} == {dice.randrange(3)}"))
    return {"selectors": selectors(said)} if said else {}

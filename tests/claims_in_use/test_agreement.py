"""A short form and the claim that it stands for get the same devices, by the quick path and by the allocator.

`request.claim` says in CEL what `plan.selectors` checks in Python. Here both are asked, in random worlds. Where the two
mean different things by design, the case is named below and left out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import assume, event, settings
from hypothesis import given as given_values
from hypothesis import strategies as st

from dibs.claims import ResourceClaim, validate
from dibs.devices.model import Device, Inventory
from dibs.devices.simulated import Group, devices_of
from dibs.devices.simulated import World as Simulated
from dibs.devices.slices import device_of, in_use
from dibs.ledger.rows import unit_key
from dibs.plan.decision import DevicePlan, World
from dibs.plan.devices import plan_devices
from dibs.plan.quick import Free
from dibs.request import ALL, Request, parse_request
from dibs.request.claim import claim_of

from .cases import BOX, solve

MOST_OF_A_CLAIM = 32
MODELS = ("H100", "A100-80GB", "A100-40GB", "L4", "MI300X", "Max-1550")


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    groups = draw(
        st.lists(
            st.builds(Group, st.sampled_from(MODELS), st.integers(1, 4), st.sampled_from([0, 0, 0, 2, 7])),
            min_size=1,
            max_size=3,
        )
    )
    cards = sum(group.count for group in groups)
    broken = draw(st.dictionaries(st.integers(0, cards - 1), st.just("broken"), max_size=2))
    devices = devices_of(Simulated(tuple(groups), broken), BOX)
    # The allocator goes through the drivers by name, as Kubernetes does; found devices stand in that order, simulated
    # ones in the order in which they were asked for.
    return Inventory(tuple(sorted(devices, key=lambda device: device.driver)), simulated=True)


FROM = ("", "", "40GB..", "80Gi..")  # no upper bound
UP_TO = ("80GB", "..24GB", "10GB..45GB", "..12GB", "..100GB")


def selectors(memory: tuple[str, ...], *more: str) -> st.SearchStrategy[str]:
    """One selector in its short form. `more`: further counts."""
    return st.builds(
        lambda *parts: ":".join(part for part in parts if part) or "1",
        st.sampled_from(["", "", "nvidia", "amd", "intel"]),
        st.sampled_from(["", "", "", "H100", "A100", "A100-80GB", "H100,L4", "MI300X"]),
        st.sampled_from(["", "", "", "", "1g.10gb", "3g.40gb"]),
        st.sampled_from(memory),
        st.sampled_from(["", "1", "1", "2", "3", *more]),
    )


# -- where the two mean different things: what the tests below leave out
#
# `all` beside another selector means the rest that is free; a claim's All means every one that matches, or nothing.


def all_meets_what_cannot_be_had(request: Request, inventory: Inventory) -> bool:
    """For one selector too: `all` passes over broken cards and over parts of a given card; All does not."""
    return any(selector.count == ALL for selector in request.gpus) and any(
        not device.health.ok or device.parent is not None for device in inventory.devices
    )


def is_more_than_a_claim(devices: tuple[Device, ...] | None) -> bool:
    """A claim can be given at most 32 devices."""
    return devices is not None and len(devices) > MOST_OF_A_CLAIM


# -- the two answers


def planned(request: Request, inventory: Inventory) -> tuple[Device, ...] | None:
    decision = plan_devices(request, World(inventory, {}))
    return decision.devices if isinstance(decision, DevicePlan) else None


def allocated(
    claim: dict[str, Any], inventory: Inventory, held: dict[str, str] | None = None
) -> tuple[Device, ...] | None:
    assert validate(msgspec.convert(claim, ResourceClaim)) == []
    outcome = solve(inventory, claim, allocated=in_use(inventory, held or {}))
    if outcome.results is None:
        return None
    return device_of(outcome.results[0].devices.results, inventory)


def ids(devices: tuple[Device, ...] | None) -> list[str] | None:
    return None if devices is None else sorted(device.id for device in devices)


def agree(request: Request, claim: dict[str, Any] | None, inventory: Inventory) -> None:
    by_plan = planned(request, inventory)
    assume(not is_more_than_a_claim(by_plan))
    assert claim is not None
    by_claim = allocated(claim, inventory)
    event("can be had" if by_plan is not None else "cannot")
    assert ids(by_claim) == ids(by_plan)


@settings(max_examples=150)
@given_values(inventories(), selectors(FROM, "all"))
def test_one_selector_gets_the_same_devices_from_both(inventory: Inventory, selector: str) -> None:
    request = parse_request({"gpu": selector})
    assume(not all_meets_what_cannot_be_had(request, inventory))
    agree(request, claim_of(request, "claim"), inventory)


@settings(max_examples=150)
@given_values(inventories(), selectors(FROM), st.sets(st.integers(0, 11), max_size=4))
def test_the_quick_path_gives_what_the_allocator_gives(inventory: Inventory, selector: str, taken: set[int]) -> None:
    request = parse_request({"gpu": selector})
    held: dict[str, str] = {device.id: "train" for number, device in enumerate(inventory.devices) if number in taken}
    quick = Free(inventory, {unit_key(name, simulated=True) for name in held}).first(request)
    assume(quick is not None)
    claim = claim_of(request, "claim")
    assert claim is not None
    assert ids(quick) == ids(allocated(claim, inventory, held))


@settings(max_examples=150)
@given_values(inventories(), st.lists(selectors(FROM), min_size=2, max_size=3))
def test_several_selectors_get_the_same_devices_from_both(inventory: Inventory, several: list[str]) -> None:
    request = parse_request({"gpu": several})
    agree(request, claim_of(request, "claim"), inventory)


# -- parts of cards: an upper bound of memory takes them too


@settings(max_examples=150)
@given_values(inventories(), selectors(UP_TO))
def test_one_selector_that_may_get_parts_gets_the_same_from_both(inventory: Inventory, selector: str) -> None:
    request = parse_request({"gpu": selector})
    agree(request, claim_of(request, "claim"), inventory)


@settings(max_examples=100)
@given_values(inventories(), st.lists(selectors(FROM + UP_TO), min_size=2, max_size=3))
def test_several_selectors_of_both_kinds_get_the_same_from_both(inventory: Inventory, several: list[str]) -> None:
    request = parse_request({"gpu": several})
    agree(request, claim_of(request, "claim"), inventory)

"""How a device stands is judged in one place, and what lasts comes first."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.plan.frozen import holder, world_of

from dibs.plan.device_state import Judge
from dibs.plan.explanation import Fate

WORLD = {"groups": [["H100", 1, 0]]}
BROKEN = {"broken": {"0": "Xid 79"}}
TAINTED = {"taints": [[0, "NoSchedule"]]}
LOOSE = {"loose": [0]}
HELD = {"held": [0]}
SHARED = {"shares": [0]}
BUSY = {"busy": [0]}


@pytest.mark.parametrize(
    ("what", "state", "fate"),
    [
        ({}, "free", Fate.FREE),
        (BUSY, "external", Fate.EXTERNAL),
        (BUSY | SHARED, "shared", Fate.BUSY),
        (BUSY | HELD, "held", Fate.BUSY),
        (BUSY | HELD | LOOSE, "unusable", Fate.CANNOT),
        (BUSY | HELD | LOOSE | TAINTED, "tainted", Fate.TAINTED),
        (BUSY | HELD | LOOSE | TAINTED | BROKEN, "unhealthy", Fate.UNHEALTHY),
    ],
)
def test_a_table_and_a_plan_say_the_same_and_what_lasts_comes_first(
    what: dict[str, object], state: str, fate: Fate
) -> None:
    world = world_of(WORLD | what)
    device = world.inventory.devices[0]
    judge = Judge(world)
    shown = judge.shown(device)
    assert shown.state == state
    assert judge.verdict(device, allow_busy=False, kept_for="").fate is fate
    assert shown.holder == (holder(0) if "held" in what else holder(9) if "shares" in what else None)


def test_a_remark_does_not_keep_a_device_from_being_given() -> None:
    world = world_of(WORLD | {"taints": [[0, "None"]]})
    shown = Judge(world).shown(world.inventory.devices[0])
    assert (shown.state, shown.note) == ("free", "maintenance=fan:None")


def loaded(code: str) -> list[str]:
    """The modules of the allocator and of CEL that are loaded after some code."""
    show = "import sys; print(*(m for m in sys.modules if m.startswith(('dibs.claims.', 'dibs.cel.'))))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


ASK = """
from dibs.devices.model import Inventory
from dibs.devices.simulated import devices_of, parse_world
from dibs.plan.decision import World
from dibs.plan.devices import plan_devices
from dibs.request import parse_request

def ask(gpu, cards, **more):
    inventory = Inventory(tuple(devices_of(parse_world(cards, **more))), simulated=True)
    return plan_devices(parse_request({"gpu": gpu}), World(inventory, {}))
"""


def test_the_allocator_is_not_loaded_where_the_first_free_devices_do_or_too_few_fit() -> None:
    code = (
        ASK + "ask('H100:2', 'H100:4'); ask('H100:9', 'H100:4'); ask(['1', 'L4'], 'H100:2,L4:2'); ask('all', 'H100:2')"
    )
    assert loaded(code) == []


def test_the_search_decides_without_cel() -> None:
    modules = loaded(ASK + "assert ask(['1', 'H100'], 'H100:1,L4:1').devices")
    assert "dibs.claims.search" in modules
    assert [name for name in modules if name.startswith("dibs.cel.")] == [
        "dibs.cel.errors", "dibs.cel.quantity", "dibs.cel.semver",
    ]  # fmt: skip

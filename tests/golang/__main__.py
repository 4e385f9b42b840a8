"""The differential fuzzer: made-up expressions and worlds, answered here and by Kubernetes' Go code.

    python -m tests.golang --seed 1 --expressions 5000 --worlds 5000

Ends with 1 at an unnamed difference (an expression is printed in its smallest form that was found); with 0 where all is
the same, or where there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from typing import Any

from bench.golang import Reference, reference
from tests.golang import compare, worlds
from tests.golang.expressions import expression
from tests.golang.named import named
from tests.golang.shrink import shrunk

SETTINGS: list[tuple[bool, tuple[str, ...]]] = [
    (False, ("consumable_capacity",)),
    (True, ()),
    (False, ("consumable_capacity", "list_attributes")),
    (False, ()),
]


def compared(running: Reference, text: str, *, stored: bool, gates: tuple[str, ...]) -> tuple[str, str]:
    """What differs for one expression, and the name of the difference; both may be empty."""

    def ask() -> dict[str, Any]:
        return compare.theirs(running, text, stored=stored, gates=gates)

    mine, their = compare.ours(text, stored=stored, gates=gates), ask()
    found = compare.difference(mine, their)
    return found, named(text, found, mine, their, ask) if found else ""


def differs(running: Reference, text: str, *, stored: bool, gates: tuple[str, ...]) -> str:
    """What differs for one expression, unless it has a name."""
    found, name = compared(running, text, stored=stored, gates=gates)
    return "" if name else found


def expressions(
    running: Reference, seed: int, count: int, limit: int, only: str
) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Compare so many expressions: unnamed differences by kind (the first `limit` are printed), and named ones."""
    found: collections.Counter[str] = collections.Counter()
    known: collections.Counter[str] = collections.Counter()
    for number in range(count):
        text = expression(seed * 1_000_003 + number)
        stored, gates = SETTINGS[number % len(SETTINGS)]
        what, name = compared(running, text, stored=stored, gates=gates)
        if name:
            known[name] += 1
        if name or not what:
            continue
        found[what] += 1
        if (not only or only == what) and sum(found.values()) <= limit:
            small = shrunk(
                text,
                lambda t: differs(running, t, stored=stored, gates=gates) == what,  # noqa: B023
            )
            print(f"{what}: {small}  (stored={stored} gates={gates})")
            print(f"   here  {_brief(compare.ours(small, stored=stored, gates=gates))}")
            print(f"   there {_brief(compare.theirs(running, small, stored=stored, gates=gates))}", flush=True)
    return found, known


def allocations(running: Reference, seed: int, count: int, limit: int) -> tuple[collections.Counter[str], int]:
    """Compare so many worlds; the differences by kind, and how many worlds were decided by both."""
    found: collections.Counter[str] = collections.Counter()
    decided = 0
    for number in range(count):
        described = worlds.world(seed * 1_000_003 + number)
        what, here, there = worlds.differs(running, described)
        decided += worlds.UNDECIDED not in (here, there)
        if not what:
            continue
        found[what] += 1
        if sum(found.values()) <= limit:
            print(f"{what}: world {number} of seed {seed}: {json.dumps(described)}")
            print(f"   here  {json.dumps(here)}\n   there {json.dumps(there)}", flush=True)
    return found, decided


def _brief(answer: object) -> str:
    return str(answer)[:600]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golang", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--expressions", type=int, default=2_000)
    parser.add_argument("--worlds", type=int, default=2_000)
    parser.add_argument("--show", type=int, default=20, help="how many differences to print")
    parser.add_argument("--only", default="", help="print differences of this kind only")
    given = parser.parse_args()
    command = reference()
    if isinstance(command, str):
        print(f"nothing to compare with: {command}")
        return 0
    with Reference(command) as running:
        began = time.monotonic()
        found, known = expressions(running, given.seed, given.expressions, given.show, given.only)
        print(
            f"{given.expressions} expressions, seed {given.seed}: {sum(found.values())} unnamed differences "
            f"{dict(found)}, {sum(known.values())} named {dict(known)}, in {time.monotonic() - began:.0f} s"
        )
        began = time.monotonic()
        other, decided = allocations(running, given.seed, given.worlds, given.show)
        print(
            f"{given.worlds} worlds, seed {given.seed}: {sum(other.values())} differences {dict(other)}, "
            f"{given.worlds - decided} too large to decide, in {time.monotonic() - began:.0f} s"
        )
    return 1 if found or other else 0


if __name__ == "__main__":
    sys.exit(main())

"""One flipped bit anywhere in the file: an error with a code, or nothing noticed and nothing wrong. Never a traceback,
never a device that is booked twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.books import RECEIPT, device, sandbox

from dibs.backends.port import Exit, Handle
from dibs.errors import DibsError
from dibs.home import Home
from dibs.ledger.rows import encode
from dibs.ledger.store import Ledger, new_id
from dibs.process import myself
from dibs.request import parse_spec
from dibs.request.model import Request
from dibs.sandbox import SandboxId, SandboxState
from dibs.workloads.service import Workloads

HELD = 6
FLIPS = 300


def _fill(home: Home) -> None:
    """Six devices are held by sandboxes whose processes live, and some have ended."""
    with Ledger(home) as ledger, ledger.writing():
        for number in range(HELD + 4):
            row = sandbox(f"sandbox-{number}", spec=parse_spec({"gpu": 1}))
            ledger.add_sandbox(row)
            ledger.reserve(row.id, [device(f"gpu-{number % HELD}")])
            handle = Handle("fake", row.id, "/nowhere", myself(), myself())
            ledger.attach(row.id, handle=handle, receipt=RECEIPT)
            if number < 4:
                ledger.end(row.id, SandboxState.EXITED, exit=Exit(0), reason="exit code 0")
        ledger.enqueue(myself(), 0, "anna", encode(Request()).encode())


def _book(service: Workloads, number: int) -> None:
    ledger, row = service.ledger, sandbox(new_id("sb"))
    with ledger.writing():
        ledger.add_sandbox(row)
        ledger.reserve(SandboxId(row.id), [device(f"gpu-{number}")])


def _refused(what: Callable[[Workloads], Any], service: Workloads) -> bool:
    """Whether something ends in an error of ours. Any other one is a traceback, and fails the test."""
    try:
        what(service)
    except DibsError:
        return True
    return False


LOOKS: list[Callable[[Workloads], Any]] = [
    lambda service: service.ledger,
    lambda service: service.devices(),
    lambda service: service.sandboxes(all=True),
    lambda service: service.leases(all=True),
    lambda service: service.queue(),
    lambda service: service.events(),
    lambda service: service.explain(parse_spec({"gpu": 1})),
]


@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_books_a_device_twice_or_ends_in_a_traceback(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    original = Home(state=tmp_path / "original", config=tmp_path)
    _fill(original.make())
    data = original.ledger.read_bytes()
    noticed = 0
    for number in range(FLIPS // 4):
        home = Home(state=tmp_path / f"flip-{number}", config=tmp_path).make()
        position = dice.randrange(len(data) * 8)
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        home.ledger.write_bytes(flipped)
        twice = []
        try:
            with Workloads(home) as service:
                for look in LOOKS:
                    noticed += _refused(look, service)
                for held in range(HELD):
                    if not _refused(partial(_book, number=held), service):
                        twice.append(held)
        except DibsError:
            noticed += 1  # it could not even be opened
        assert not twice, f"seed {seed}, bit {position}: {twice} were booked twice"
    assert noticed, "no flip did anything: the test does not test"

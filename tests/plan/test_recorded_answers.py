"""What was answered to short forms before the allocator decided them is answered still, word for word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.plan.frozen import answer_of, request_of, world_of

from dibs.plan.devices import plan_devices

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("answers.json").read_text())


@pytest.mark.parametrize("start", range(0, len(CASES), 50))
def test_a_recorded_request_gets_the_same_devices_and_the_same_words(start: int) -> None:
    for number, case in enumerate(CASES[start : start + 50], start):
        world = world_of(case)
        assert answer_of(plan_devices(request_of(case), world), world) == case["answer"], number

"""What counts against a tenant's quota: what it has, and at the least what it waits for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dibs.request import parse_request
from dibs.workloads.quotas import Holding, least_gpus


def test_a_queued_sandbox_is_left_out_with_all_that_it_asked_for() -> None:
    held = Holding(3, 2000, 10 << 30, 1)
    assert held.without(parse_request({"cpu": "500m", "memory": "4Gi"})) == Holding(2, 1500, 6 << 30, 1)
    assert held.without(parse_request({"gpu": 2})) == Holding(2, 2000, 10 << 30, 1)


@pytest.mark.parametrize(
    ("requests", "least"),
    [
        ([{"name": "a", "exactly": {"deviceClassName": "gpu", "count": 3}}], 3),
        ([{"name": "a", "exactly": {"deviceClassName": "gpu"}}], 1),
        ([{"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}], 1),
        ([{"name": "a", "firstAvailable": [{"name": "x", "count": 4}, {"name": "y", "count": 2}]}], 2),
        ([{"name": "a", "exactly": {"count": 3}}, {"name": "b", "exactly": {"count": 2}}], 5),
    ],
)
def test_a_claim_counts_for_the_least_that_serves_it(requests: list[dict[str, Any]], least: int) -> None:
    request = msgspec.structs.replace(parse_request({}), claim={"devices": {"requests": requests}})
    assert least_gpus(request) == least


def test_wishes_and_exact_devices_add_up() -> None:
    assert least_gpus(parse_request({"gpu": ["H100:2", "all"]})) == 3
    assert least_gpus(parse_request({"device": ["a.b/gpu=0", "a.b/gpu=1"]})) == 2

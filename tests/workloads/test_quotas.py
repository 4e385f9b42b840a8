"""What counts against a tenant's quota: what it has, and at the least what it waits for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dibs.request import parse_request
from dibs.settings import Quota
from dibs.workloads.quotas import Holding, least_gpus, over_quota


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


def test_selectors_and_exact_devices_add_up() -> None:
    assert least_gpus(parse_request({"gpu": ["H100:2", "all"]})) == 3
    assert least_gpus(parse_request({"device": ["a.b/gpu=0", "a.b/gpu=1"]})) == 2


@pytest.mark.parametrize(
    ("quota", "wants", "gpus", "found"),
    [
        (Quota(), {"cpu": 100, "memory": "100Gi"}, 100, []),
        (Quota(sandboxes=3), {}, 0, []),
        (Quota(sandboxes=2), {}, 0, [("QUOTA_EXCEEDED", "sandboxes", "1", "holds 2 of 2")]),
        (Quota(cpu_millis=2000), {"cpu": "1"}, 0, []),
        (Quota(cpu_millis=2000), {"cpu": "1001m"}, 0, [("QUOTA_EXCEEDED", "cpu", "1.001", "holds 1 of 2")]),
        (Quota(cpu_millis=2000), {}, 0, [("QUOTA_NEEDS_LIMIT", "cpu", "", "must say how much")]),
        (Quota(memory_bytes=5 << 30), {"memory": "1Gi"}, 0, []),
        (Quota(memory_bytes=5 << 30), {"memory": "2Gi"}, 0, [("QUOTA_EXCEEDED", "memory", "2Gi", "holds 4Gi of 5Gi")]),
        (Quota(gpus=3), {"gpu": 2}, 2, []),
        (Quota(gpus=3), {"gpu": 3}, 3, [("QUOTA_EXCEEDED", "gpu", "3", "holds 1 of 3")]),
        (
            Quota(sandboxes=2, gpus=1),
            {"gpu": 1},
            1,
            [("QUOTA_EXCEEDED", "sandboxes", "1", "holds 2 of 2"), ("QUOTA_EXCEEDED", "gpu", "1", "holds 1 of 1")],
        ),
    ],
)
def test_everything_that_would_be_too_much_is_reported_at_once(
    quota: Quota, wants: dict[str, Any], gpus: int, found: list[tuple[str, str, str, str]]
) -> None:
    problems = over_quota(Holding(2, 1000, 4 << 30, 1), "red", quota, parse_request(wants), gpus)
    assert [(one.code, one.field, one.value) for one in problems] == [one[:3] for one in found]
    for problem, (*_, words) in zip(problems, found, strict=True):
        assert words in problem.reason
        assert "red" in problem.reason


def test_a_group_counts_for_each_of_its_sandboxes() -> None:
    holding, nothing = Holding(2, 0, 0, 0), parse_request({})
    assert over_quota(holding, "red", Quota(sandboxes=4), nothing, 0, sandboxes=2) == []
    assert over_quota(holding, "red", Quota(sandboxes=4), nothing, 0, sandboxes=3) != []

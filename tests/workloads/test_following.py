"""A reader that has seen the end of a log sees the end of the sandbox."""

from __future__ import annotations

import pytest

from dibs.request import parse_spec
from dibs.workloads.service import Workloads


@pytest.mark.parametrize("code", [0, 5])
def test_the_end_is_recorded_before_a_followed_log_ends(service: Workloads, code: int) -> None:
    row = service.create(parse_spec({"gpu": 1, "command": ["sh", "-c", f"echo said; exit {code}"]}))
    assert b"".join(record.data for record in service.logs(row.id, follow=True)) == b"said\n"
    assert service.sandbox(row.id).state == "exited"
    assert service.leases() == []


def test_reading_a_log_without_following_it_waits_for_nothing(service: Workloads) -> None:
    row = service.create(parse_spec({"command": ["sleep", "1000"]}))
    assert list(service.logs(row.id)) == []
    assert service.sandbox(row.id).state == "running"

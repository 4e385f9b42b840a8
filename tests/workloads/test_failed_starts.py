"""A sandbox whose command could not be executed: what is told, and what is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests import needs

from dibs.errors import BackendUnavailable, CommandFailed, DibsError, InvalidRequest
from dibs.request.spec import parse_spec
from dibs.workloads.service import Workloads


def _fails(service: Workloads, error: type[DibsError], command: str, **fields: object) -> DibsError:
    with pytest.raises(error) as caught:
        service.create(
            parse_spec({"command": [command], "gpu": 1, "backend": "local", **fields}), base_env=dict(os.environ)
        )
    return caught.value


def test_a_command_that_is_not_there_has_no_receipt_of_a_delivery(service: Workloads) -> None:
    _fails(service, CommandFailed, "no-such-command")
    row = service.sandboxes(all=True)[-1]
    receipt = service.receipt(row.id)
    assert (row.state, receipt.verdict) == ("failed", "not started")
    assert receipt.problems
    assert not service.leases()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: only it can have another user")
def test_a_working_directory_that_the_user_may_not_enter_fails_the_delivery(service: Workloads) -> None:
    Path.cwd().chmod(0o700)
    error = _fails(service, BackendUnavailable, "true", user="4567:4567")
    assert error.code == "SANDBOX_SETUP_FAILED"
    row = service.sandboxes(all=True)[-1]
    assert (row.state, service.receipt(row.id).verdict) == ("failed", "not started")
    assert not service.leases()


def test_a_limit_of_processes_without_room_for_the_command_is_refused(service: Workloads) -> None:
    needs.limits()
    error = _fails(service, InvalidRequest, "true", pids=2)
    assert [problem.field for problem in error.problems] == ["pids"]
    assert not service.leases()

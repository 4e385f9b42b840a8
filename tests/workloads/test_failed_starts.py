"""A sandbox whose command could not be executed: what is told, and what is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests import needs

from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import ExitReason, Handle
from dibs.errors import BackendUnavailable, CommandFailed, DibsError, InvalidRequest
from dibs.request.spec import parse_spec
from dibs.workloads.reconcile import reconcile
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


def test_a_comparison_while_a_failed_start_is_undone_tells_the_same_reason(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the removal of its files and its end, nothing but its receipt says why it never ran."""
    delete, ended = LocalBackend.delete, []

    def compared(self: LocalBackend, handle: Handle) -> None:
        delete(self, handle)
        ended.extend(reconcile(service.ledger, service.registry))

    monkeypatch.setattr(LocalBackend, "delete", compared)
    error = _fails(service, CommandFailed, "no-such-command")
    [row] = service.sandboxes(all=True)
    assert ended == [row.id]
    assert (row.state, row.reason) == ("failed", f"COMMAND_NOT_FOUND: {error}".splitlines()[0])
    assert row.exit is not None
    assert (row.exit.reason, row.exit.detail) == (ExitReason.NOT_STARTED, f"COMMAND_NOT_FOUND: {error}")
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

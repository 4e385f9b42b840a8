"""A device is free when the processes that had it are gone, and not a moment earlier."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from dibs.backends.fake import FakeBackend
from dibs.backends.port import Handle, Phase, Status
from dibs.errors import BackendUnavailable, StateError
from dibs.ledger.rows import encode
from dibs.process import ProcessName, absent, name_of
from dibs.request import parse_spec
from dibs.sandbox import Sandbox
from dibs.workloads import orphans
from dibs.workloads.reconcile import finish, handle_of, reconcile
from dibs.workloads.service import Workloads


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def dead() -> ProcessName:
    process = subprocess.Popen(["sleep", "1000"])
    name = name_of(process.pid)
    process.kill()
    process.wait()
    assert name is not None
    return name


def record(service: Workloads, row: Sandbox, **changed: ProcessName | None) -> None:
    """Write into the ledger that other processes are the sandbox's."""
    handle = msgspec.structs.replace(handle_of(row), **changed)
    with service.ledger.writing():
        service.ledger._db.execute(
            "UPDATE sandboxes SET handle = :handle WHERE id = :id", handle=encode(handle), id=row.id
        )


@pytest.mark.parametrize("living", ["keeper", "init"])
def test_a_card_stays_booked_while_one_of_its_processes_lives(
    service: Workloads, child: subprocess.Popen[bytes], living: str
) -> None:
    row = service.create(parse_spec({"gpu": 1, "command": ["true"]}))
    service.backend_of(row).wait(handle_of(row), 60)
    alive = name_of(child.pid)
    assert alive is not None
    record(service, row, **{"keeper": dead(), "init": dead(), living: alive})
    reconcile(service.ledger, service.registry)
    assert absent(alive) or len(service.leases()) == 1
    child.kill()
    child.wait()
    reconcile(service.ledger, service.registry)
    assert service.leases() == []
    assert not service.sandbox(row.id).live


class Counted(FakeBackend):
    """Like an engine, without keepers of its sandboxes; counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.away = False

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if self.away:
            raise BackendUnavailable("it does not answer", code="ENGINE_UNREACHABLE")

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        self._ask("survey")
        return {handle.sandbox_id: super(Counted, self).status(handle) for handle in handles}

    def status(self, handle: Handle) -> Status:
        self._ask("status")
        return super().status(handle)


@pytest.fixture
def counted(service: Workloads) -> Counted:
    backend = service.registry._made["fake", None] = Counted()
    return backend


def test_an_engine_is_asked_once_for_all_of_its_sandboxes(service: Workloads, counted: Counted) -> None:
    rows = [service.create(parse_spec({"backend": "fake", "gpu": 1, "command": ["sleep", "1000"]})) for _ in range(3)]
    counted.asked.clear()
    assert reconcile(service.ledger, service.registry) == []
    assert counted.asked == {"survey": 1}
    counted.stop(handle_of(rows[1]), 0)
    counted.asked.clear()
    assert reconcile(service.ledger, service.registry) == [rows[1].id]
    assert counted.asked["survey"] == 1
    assert sorted(lease.sandbox_id for lease in service.leases()) == sorted([rows[0].id, rows[2].id])


def test_an_engine_that_does_not_answer_frees_nothing_and_is_not_asked_again(
    service: Workloads, counted: Counted
) -> None:
    rows = [service.create(parse_spec({"backend": "fake", "gpu": 1, "command": ["sleep", "1000"]})) for _ in range(2)]
    for row in rows:
        counted.stop(handle_of(row), 0)
    counted.asked.clear()
    counted.away = True
    assert reconcile(service.ledger, service.registry) == []
    assert counted.asked == {"survey": 1}
    assert len(service.leases()) == 2
    counted.away = False
    assert sorted(reconcile(service.ledger, service.registry)) == sorted(row.id for row in rows)
    assert service.leases() == []


def test_what_an_engine_may_still_make_is_looked_for_by_those_who_look_at_everything(
    service: Workloads, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(counted, "discard", lambda handle: removed.append(handle.sandbox_id))
    ledger = service.ledger  # opened, which looks at everything once
    orphans.expect(service.home, Handle("fake", "sb-late", "/nowhere"))
    reconcile(ledger, service.registry, only=[])
    assert removed == []
    reconcile(ledger, service.registry)
    assert removed == ["sb-late"]


@pytest.mark.parametrize("only", [None, ()])
def test_the_place_of_one_who_has_died_is_given_back(
    service: Workloads, child: subprocess.Popen[bytes], only: tuple[str, ...] | None
) -> None:
    ledger, alive = service.ledger, name_of(child.pid)
    assert alive is not None
    request = encode(parse_spec({"gpu": 1}).resources).encode()
    with ledger.writing():
        places = [ledger.enqueue(owner, 0, "anna", request) for owner in (dead(), alive)]
    reconcile(ledger, service.registry, only)
    assert [ticket.id for ticket in ledger.tickets()] == places[1:]


def closed(_: Handle) -> Status:
    raise StateError("its folder is closed", code="STATE_FOLDER_CLOSED")


def test_how_a_sandbox_ended_that_may_not_be_read_is_told_as_lost_once_its_processes_are_gone(
    service: Workloads, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = service.create(parse_spec({"backend": "fake", "gpu": 1, "command": ["sleep", "1000"]}))
    record(service, row, keeper=dead(), init=None)
    monkeypatch.setattr(counted, "status", closed)
    assert reconcile(service.ledger, service.registry) == [row.id]
    assert service.leases() == []
    found = service.sandbox(row.id)
    assert found.state == "failed"
    assert found.exit is not None
    assert (found.exit.code, found.exit.reason) == (1, "lost")
    assert "STATE_FOLDER_CLOSED" in found.exit.detail


def test_a_sandbox_that_may_not_be_read_and_has_no_keeper_stays_booked(
    service: Workloads, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.create(parse_spec({"backend": "fake", "gpu": 1, "command": ["sleep", "1000"]}))
    with monkeypatch.context() as patched:
        patched.setattr(counted, "survey", lambda _: {})
        patched.setattr(counted, "status", closed)
        with pytest.raises(StateError):
            reconcile(service.ledger, service.registry)
    assert len(service.leases()) == 1


@pytest.mark.parametrize("stuck", [False, True])
def test_old_sandboxes_are_forgotten_with_all_that_is_left_of_them(
    service: Workloads, counted: Counted, monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    monkeypatch.setattr("dibs.workloads.reconcile.KEEP_ENDED", 1)
    removed: list[str] = []

    def delete(handle: Handle) -> None:
        removed.append(handle.sandbox_id)
        if stuck:
            raise OSError("it is in use")

    monkeypatch.setattr(counted, "delete", delete)
    rows = [service.create(parse_spec({"backend": "fake", "command": ["sleep", "1000"]})) for _ in range(3)]
    for row in rows:
        counted.stop(handle_of(row), 0)
        assert reconcile(service.ledger, service.registry) == [row.id]
    assert [row.id for row in service.ledger.sandboxes()] == [rows[2].id]
    assert removed == [rows[0].id, rows[1].id]
    left = [event.sandbox_id for event in service.ledger.events() if event.kind == "sandbox.leftover"]
    assert left == (removed if stuck else [])


@pytest.mark.parametrize("stuck", [False, True])
def test_nothing_is_kept_of_a_sandbox_that_was_never_made(
    service: Workloads, counted: Counted, monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    removed: list[str] = []

    def delete(handle: Handle) -> None:
        removed.append(handle.sandbox_id)
        if stuck:
            raise OSError("it is in use")

    made = service.create(parse_spec({"backend": "fake", "command": ["sleep", "1000"]}))
    with service.ledger.writing():
        service.ledger._db.execute("UPDATE sandboxes SET handle = NULL WHERE id = :id", id=made.id)
    monkeypatch.setattr(counted, "delete", delete)
    assert finish(service.ledger, service.registry, service.sandbox(made.id), Status(Phase.ABSENT))
    assert removed == [made.id]
    left = [event.sandbox_id for event in service.ledger.events() if event.kind == "sandbox.leftover"]
    assert left == (removed if stuck else [])


def test_what_is_gone_without_a_word_of_its_end_counts_as_killed(service: Workloads, counted: Counted) -> None:
    row = service.create(parse_spec({"backend": "fake", "gpu": 1, "command": ["sleep", "1000"]}))
    counted.stop(handle_of(row), 0.0)
    assert finish(service.ledger, service.registry, row, Status(Phase.ABSENT))
    found = service.sandbox(row.id)
    assert found.exit is not None
    assert (found.exit.code, found.exit.reason, found.exit.detail) == (137, "lost", "it was killed from outside")

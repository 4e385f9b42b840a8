"""A ledger that was deleted, restored or replaced while sandboxes live gives none of their cards away."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.postgres import server

from dibs.devices.simulated import parse_world, simulate
from dibs.errors import BackendUnavailable, Busy
from dibs.home import Home
from dibs.process import absent
from dibs.request import parse_spec
from dibs.sandbox import Sandbox
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

SLEEP = {"command": ["sleep", "1000"]}


def _remove_ledger(home: Home) -> None:
    for path in home.state.glob("ledger.db*"):
        path.unlink()


def _copy_ledger(source: Home, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in source.state.glob("ledger.db*"):
        shutil.copy(path, target)


def _restore(copy: Path, home: Home) -> None:
    _remove_ledger(home)
    for path in copy.iterdir():
        shutil.copy(path, home.state)


def _delete(home: Home, tmp_path: Path) -> Callable[[], None]:
    return lambda: _remove_ledger(home)


def _old_copy(home: Home, tmp_path: Path) -> Callable[[], None]:
    with Workloads(home) as service:
        other = service.create(parse_spec({"gpu": 1, **SLEEP}))
        _copy_ledger(home, tmp_path / "copy")
        service.remove(other.id, 0.0)
    return lambda: _restore(tmp_path / "copy", home)


def _anothers(home: Home, tmp_path: Path) -> Callable[[], None]:
    elsewhere = Home(state=tmp_path / "elsewhere", config=tmp_path)
    simulate(elsewhere, parse_world("8", model="H100"))
    with Workloads(elsewhere) as service:
        service.remove(service.create(parse_spec({"gpu": 3, **SLEEP})).id, 0.0)
    _copy_ledger(elsewhere, tmp_path / "copy")
    return lambda: _restore(tmp_path / "copy", home)


FATES = pytest.mark.parametrize("fate", [_delete, _old_copy, _anothers], ids=["deleted", "old copy", "replaced"])


@pytest.fixture
def service(eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workloads:
    monkeypatch.chdir(tmp_path)
    return Workloads(eight_gpus)


def _end(service: Workloads, *rows: Sandbox) -> None:
    with Workloads(service.home) as last:
        for row in rows:
            last.remove(row.id, 0.0)
        assert last.leases() == []
        assert list((service.home.state / "live").iterdir()) == []


@FATES
def test_cards_of_live_sandboxes_stay_theirs(
    service: Workloads, tmp_path: Path, fate: Callable[[Home, Path], Callable[[], None]]
) -> None:
    damage = fate(service.home, tmp_path)
    with service:
        held = service.create(parse_spec({"gpu": 6, "name": "lab", "labels": {"team": "blue"}, **SLEEP}))
        paused = service.create(parse_spec({"gpu": 1, **SLEEP}))
        service.pause(paused.id)
    damage()
    with Workloads(service.home) as after:
        assert len(after.leases()) == 2
        with pytest.raises(Busy):
            after.create(parse_spec({"gpu": 2, **SLEEP}))
        free = after.create(parse_spec({"gpu": 1, **SLEEP}))
        again = after.sandbox("lab")
        assert (again.id, again.state, again.labels) == (held.id, "running", {"team": "blue"})
        assert after.receipt("lab").devices == Workloads(service.home).receipt(held.id).devices
        assert after.sandbox(paused.id).state == "paused"
        after.resume(paused.id)
        assert "sandbox.restored" in [event.kind for event in after.events(held.id)]
    _end(service, held, paused, free)


@FATES
def test_a_process_that_has_the_ledger_open_notices(
    service: Workloads, tmp_path: Path, fate: Callable[[Home, Path], Callable[[], None]]
) -> None:
    """A gateway, say. The file it has open is not the one that others see any more."""
    damage = fate(service.home, tmp_path)
    with service:
        held = service.create(parse_spec({"gpu": 8, **SLEEP}))
        damage()
        with pytest.raises(Busy):
            service.create(parse_spec({"gpu": 1, **SLEEP}))
        assert [lease.sandbox_id for lease in service.leases()] == [held.id]
        with Workloads(service.home) as other:
            assert [lease.sandbox_id for lease in other.leases()] == [held.id]
    _end(service, held)


def test_a_booking_is_refused_before_the_forgotten_are_entered(service: Workloads) -> None:
    """Threads of a gateway do not compare the ledger with what lives; another one does, a moment later."""
    with service:
        held = service.create(parse_spec({"gpu": 1, **SLEEP}))
        _remove_ledger(service.home)
        ledger = service.ledger
        with pytest.raises(BackendUnavailable) as caught, ledger.writing():
            ledger.reserve(held.id, ())
        assert caught.value.code == "LEDGER_INCOMPLETE"
        assert held.id in caught.value.problems[0].value
    _end(service, held)


def test_what_had_ended_when_the_ledger_was_lost_is_free(service: Workloads) -> None:
    with service:
        row = service.create(parse_spec({"gpu": 8, **SLEEP}))
        keeper = handle_of(row).keeper
    assert keeper is not None
    _remove_ledger(service.home)
    os.kill(keeper.pid, signal.SIGKILL)
    while not absent(keeper):
        pass
    with Workloads(service.home) as after:
        assert after.leases() == []
        assert after.sandbox(row.id).state == "failed"
    _end(service)


def test_a_sandbox_that_was_finished_after_the_copy_was_made_is_not_taken_for_unfinished(
    service: Workloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs.workloads.delivery import Delivery

    real = Delivery.deliver

    def deliver(self: Delivery, *args: object) -> object:
        _copy_ledger(service.home, tmp_path / "copy")
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Delivery, "deliver", deliver)
    with service:
        held = service.create(parse_spec({"gpu": 8, **SLEEP}))
    _restore(tmp_path / "copy", service.home)
    with Workloads(service.home) as after:
        assert after.sandbox(held.id).state == "running"
        assert len(after.leases()) == 1
    _end(service, held)


@pytest.mark.parametrize("record", ["damaged", "lost"])
def test_what_cannot_be_entered_is_reported_and_nothing_is_given_away_while_it_lives(
    service: Workloads, record: str
) -> None:
    with service:
        held = service.create(parse_spec({"gpu": 1, **SLEEP}))
        keeper = handle_of(held).keeper
    assert keeper is not None
    path = service.home.state / "live" / held.id
    _remove_ledger(service.home)
    if record == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    with Workloads(service.home) as after:
        with pytest.raises(BackendUnavailable) as caught:
            after.create(parse_spec({"gpu": 1, **SLEEP}))
        assert caught.value.code == "LEDGER_INCOMPLETE"
        errors = after.inventory().errors
        assert [error.source for error in errors] == ["ledger"]
        assert held.id in errors[0].reason
        assert f"DIBS_SANDBOX={held.id}" in errors[0].remedy
        os.kill(keeper.pid, signal.SIGKILL)
        while not absent(keeper):
            pass
        again = after.create(parse_spec({"gpu": 8, **SLEEP}))
    _end(service, again)


def test_another_ledger_on_the_same_folder_knows_what_lives(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service:
        held = service.create(parse_spec({"gpu": 8, **SLEEP}))
    monkeypatch.setenv("DIBS_LEDGER", server.shared().new_database())
    with Workloads(service.home) as moved, pytest.raises(Busy):
        moved.create(parse_spec({"gpu": 1, **SLEEP}))
    _end(service, held)


def test_a_name_that_was_given_again_stays_with_the_new_one(service: Workloads) -> None:
    with service:
        old = service.create(parse_spec({"name": "lab", "gpu": 1, **SLEEP}))
        record = service.home.state / "live" / old.id
        kept = record.read_bytes()
        _remove_ledger(service.home)
        record.unlink()
        new = service.create(parse_spec({"name": "lab", **SLEEP}))
        record.write_bytes(kept)
    with Workloads(service.home) as after:
        assert after.sandbox("lab").id == new.id
        assert after.sandbox(old.id).name == old.id
    _end(service, old, new)

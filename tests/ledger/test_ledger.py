"""The ledger's promises: exclusive by index, states in order. The same on both databases."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from tests.ledger.books import RECEIPT, book, device, handle, sandbox

from dibs.errors import Busy, Conflict, DibsError, NotFound, StateError
from dibs.home import Home
from dibs.ledger.database import Duplicate
from dibs.ledger.rows import LeasedDevice, Share
from dibs.ledger.store import Ledger
from dibs.process import myself
from dibs.sandbox import Exit, SandboxState
from dibs.workloads.quotas import Holding, held_by

pytestmark = pytest.mark.usefixtures("database")


def test_a_unit_is_in_at_most_one_live_lease(home: Home) -> None:
    with Ledger(home) as ledger:
        first = book(ledger, device("gpu-0"))
        with pytest.raises(Busy):
            book(ledger, device("gpu-0"))
        assert [lease.sandbox_id for lease in ledger.leases()] == [first.id]
        assert [row.id for row in ledger.sandboxes()] == [first.id], "the refused one must leave no trace"


def test_the_index_itself_forbids_a_second_booking(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        lease = ledger.leases(sandbox_id=row.id)[0]
        database, host = ledger._db, ledger.host
        database.execute(
            "INSERT INTO leases (id, sandbox_id, domain, state, devices, created_at, changed_at)"
            " VALUES ('ls-x', :id, :host, 'reserved', '[]', 0, 0)",
            id=row.id,
            host=host,
        )
        with pytest.raises(Duplicate):
            database.execute("INSERT INTO lease_units VALUES ('ls-x', :host, 'gpu-0', 1)", host=host)
        assert lease.state == "reserved"
        assert [holder.lease_id for holder in ledger.holders().values()] == [lease.id]


def test_a_part_excludes_its_card(home: Home) -> None:
    with Ledger(home) as ledger:
        book(ledger, device("part", "gpu-0/1"))
        with pytest.raises(Busy):
            book(ledger, device("gpu-0", "gpu-0/0", "gpu-0/1"))
        book(ledger, device("other", "gpu-0/0"))


def test_sd_48_simulated_and_real_devices_never_stand_in_each_others_way(home: Home) -> None:
    with Ledger(home) as ledger:
        book(ledger, device("gpu-0", simulated=True))
        book(ledger, device("gpu-0", simulated=False))
        assert len(ledger.holders()) == 2


def test_a_freed_unit_can_be_booked_again(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        with ledger.writing():
            assert ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
            assert not ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done"), "an end is recorded once"
        book(ledger, device("gpu-0"))
        assert [lease.state for lease in ledger.leases(live_only=False)] == ["free", "reserved"]


def test_a_lease_goes_through_its_states_in_order(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        with ledger.writing():
            ledger.attach(row.id, handle=handle(), receipt=RECEIPT)
        assert [lease.state for lease in ledger.leases()] == ["attached"]
        with pytest.raises(Conflict), ledger.writing():
            ledger.attach(row.id, handle=handle(), receipt=RECEIPT)
        with ledger.writing():
            ledger.set_state(row.id, SandboxState.STOPPING, expected=(SandboxState.RUNNING,))
        assert [lease.state for lease in ledger.leases()] == ["draining"]
        with pytest.raises(Conflict, match="the sandbox is stopping"), ledger.writing():
            ledger.set_state(row.id, SandboxState.PAUSED, expected=(SandboxState.RUNNING,))
        with ledger.writing():
            ledger.end(row.id, SandboxState.EXITED, exit=Exit(0), reason="done")
        kinds = [event.kind for event in ledger.events(sandbox_id=row.id)]
        assert kinds == [
            "sandbox.creating", "lease.reserved", "sandbox.running", "sandbox.stopping", "lease.free", "sandbox.exited",
        ]  # fmt: skip


def test_a_name_is_taken_while_its_sandbox_lives(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"), name="train")
        with pytest.raises(Conflict) as caught:
            book(ledger, device("gpu-1"), name="train")
        assert caught.value.code == "NAME_TAKEN"
        with ledger.writing():
            ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
        again = book(ledger, device("gpu-0"), name="train")
        assert ledger.sandbox("train").id == again.id, "the live one is meant"


def test_a_sandbox_is_found_by_the_start_of_its_id(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        assert ledger.sandbox(row.id[:9]).id == row.id
        assert ledger.sandbox(row.id[3:10]).id == row.id
        for nonsense in ("", "x", "sb-", "%", "sb-%", "' OR 1=1 --", "a\0b"):
            with pytest.raises(NotFound):
                ledger.sandbox(nonsense)


def test_the_queue_is_first_come_first_served(home: Home) -> None:
    with Ledger(home) as ledger:
        with ledger.writing():
            tickets = [ledger.enqueue(myself(), 0, "anna", b"{}") for _ in range(3)]
        assert [ticket.id for ticket in ledger.tickets()] == tickets
        with ledger.writing():
            ledger.dequeue(tickets[1], "served")
        assert [ticket.id for ticket in ledger.tickets()] == [tickets[0], tickets[2]]


def test_a_failed_transaction_leaves_nothing(home: Home) -> None:
    with Ledger(home) as ledger:
        with pytest.raises(RuntimeError), ledger.writing():
            row = sandbox()
            ledger.add_sandbox(row)
            ledger.reserve(row.id, [device("gpu-0")])
            raise RuntimeError("crash")
        assert ledger.sandboxes() == []
        assert ledger.holders() == {}


def test_twenty_processes_may_open_a_new_ledger_at_once(home: Home) -> None:
    code = "from dibs.home import find_home; from dibs.ledger.store import Ledger; Ledger(find_home()).sandboxes()"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(20)]
    assert [child.wait() for child in children] == [0] * 20


def test_errors_know_what_the_caller_can_do() -> None:
    assert Busy("x").retryable
    assert not StateError("x").retryable
    assert isinstance(Busy("x"), DibsError)


def shared(name: str, share: str, **consumed: int) -> LeasedDevice:
    return LeasedDevice(name, units=(name,), share=Share(share, consumed))


def test_shares_go_together_and_exclude_the_whole_device(home: Home) -> None:
    with Ledger(home) as ledger:
        first = book(ledger, shared("gpu-0", "s1", memory=5, cores=2))
        book(ledger, shared("gpu-0", "s2"))
        assert ledger.shares_of("gpu-0", simulated=False) == 2
        assert ledger.shares_of("gpu-1", simulated=False) == 0
        rows = ledger._db.rows("SELECT share_id, capacity, amount FROM lease_shares ORDER BY share_id, capacity")
        assert [tuple(row.values() if isinstance(row, dict) else row) for row in rows] == [
            ("s1", "cores", "2"), ("s1", "memory", "5"), ("s2", "", "0"),
        ]  # fmt: skip
        with pytest.raises(Busy, match="parts of the device are held by others"):
            book(ledger, device("gpu-0"))
        ledger.end(first.id, SandboxState.EXITED, exit=None, reason="")
        assert ledger.shares_of("gpu-0", simulated=False) == 1


def test_a_whole_device_excludes_shares_of_it(home: Home) -> None:
    with Ledger(home) as ledger:
        book(ledger, device("gpu-0"))
        with pytest.raises(Busy, match="held whole"):
            book(ledger, shared("gpu-0", "s1", memory=5))


def test_what_was_booked_is_told_as_it_is_kept(home: Home) -> None:
    with Ledger(home) as ledger, ledger.writing():
        row = sandbox()
        ledger.add_sandbox(row)
        lease = ledger.reserve(row.id, (device("gpu-0"),))
        kept = ledger.leases(sandbox_id=row.id)[0]
        assert (lease.id, lease.state, lease.devices) == (kept.id, "reserved", kept.devices)


def test_only_the_newest_events_are_kept(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.ledger.base.KEEP_EVENTS", 5)
    with Ledger(home) as ledger:
        for number in range(20):
            row = book(ledger, device(f"gpu-{number}"))
            ledger.end(row.id, SandboxState.EXITED, exit=None, reason="")
        events = ledger.events()
        assert len(events) == 5
        assert events[-1].sandbox_id == row.id
        assert ledger.leases() == []


def test_bookings_that_do_not_agree_with_their_leases_are_an_error(home: Home) -> None:
    with Ledger(home) as ledger:
        book(ledger, device("gpu-0"))
        with ledger.writing():
            ledger._db.execute("UPDATE lease_units SET live = 0")
    with Ledger(home) as ledger, pytest.raises(StateError, match="do not agree"):
        book(ledger, device("gpu-1"))


def test_a_tenant_without_sandboxes_holds_nothing(home: Home) -> None:
    with Ledger(home) as ledger:
        assert held_by(ledger, "acme") == Holding(0, 0, 0, 0)


def test_a_page_has_only_what_has_all_labels(home: Home) -> None:
    with Ledger(home) as ledger:
        both = book(ledger, device("gpu-0"), labels={"team": "a", "kind": "x"})
        book(ledger, device("gpu-1"), labels={"team": "a"})
        rows, count = ledger.page(tenant=None, states=None, labels={"team": "a", "kind": "x"}, offset=0, limit=10)
        assert ([row.id for row in rows], count) == ([both.id], 1)
        assert ledger.page(tenant=None, states=None, labels={"team": "b"}, offset=0, limit=10) == ([], 0)


def test_what_a_scheduler_has_decided_is_recorded_once_and_anew_when_it_moves(home: Home) -> None:
    with Ledger(home) as ledger:
        row = sandbox()
        with ledger.writing():
            ledger.add_sandbox(row)
            ledger.delegate(row.id, ledger.host, "claim-a")
            assert ledger.bind(row.id, "node-1", [device("gpu-1")])
            assert not ledger.bind(row.id, "node-1", [device("gpu-1")]), "known already"
        [lease] = ledger.leases(sandbox_id=row.id)
        assert (lease.kind, lease.node, [one.id for one in lease.devices]) == ("bound", "node-1", ["gpu-1"])
        with ledger.writing():
            assert ledger.bind(row.id, "node-2", [device("gpu-2")])
        [lease] = ledger.leases(sandbox_id=row.id)
        assert (lease.kind, lease.node, [one.id for one in lease.devices]) == ("bound", "node-2", ["gpu-2"])


def test_what_this_host_has_booked_is_not_bound_by_a_scheduler(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        with ledger.writing():
            assert not ledger.bind(row.id, "node-1", [device("gpu-1")])
        [lease] = ledger.leases(sandbox_id=row.id)
        assert (lease.kind, [one.id for one in lease.devices]) == ("booked", ["gpu-0"])


def test_old_signs_of_life_are_dropped(home: Home) -> None:
    with Ledger(home) as ledger:
        with ledger.writing():
            ledger.beat(myself())
            ledger.forget_beats(0.0)
        assert ledger.beats() == {myself(): 1}
        with ledger.writing():
            ledger.forget_beats(time.time() + 60)
        assert ledger.beats() == {}

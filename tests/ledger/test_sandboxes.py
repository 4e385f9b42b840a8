"""Sandboxes in the ledger: queued and taken over, labelled and renewed, found and paged. The same on both databases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ledger.books import RECEIPT, SECRET, book, device, handle, sandbox

from dibs.errors import Conflict, DibsError, NotFound
from dibs.home import Home
from dibs.ledger.store import Ledger
from dibs.process import ProcessName, myself
from dibs.receipt import Receipt, ReceiptDevice, ReceiptLine, ReceiptSummary, SummaryDevice, SummaryLine
from dibs.sandbox import Pending, Sandbox, SandboxId, SandboxState

pytestmark = pytest.mark.usefixtures("database")

DEAD = ProcessName("host", "boot", 1, 2, 3)
OTHER = ProcessName("host", "boot", 1, 4, 5)


def add(ledger: Ledger, name: str = "", pending: Pending | None = None, **more: Any) -> Sandbox:
    row = sandbox(name, pending=pending, **more)
    with ledger.writing():
        ledger.add_sandbox(row)
    return row


def test_a_row_comes_back_as_it_was_written(home: Home) -> None:
    with Ledger(home) as ledger:
        row = add(
            ledger, "träin", state=SandboxState.QUEUED, tenant="blue", labels={"team": 'a "b"\\', "ü": ""},
            annotations={"image": "x\0y"}, pending=Pending(base_env={"A": "%s :x \0"}), origin="gateway",
            expires_at=1e9 + 0.123456, created_at=1_700_000_000.654321, simulated=True, uid=2**32 - 2,
        )  # fmt: skip
        assert ledger.sandbox(row.id).decoded() == row


def test_a_queued_sandbox_is_served_once_and_leaves_the_queue(home: Home) -> None:
    with Ledger(home) as ledger:
        row = add(ledger, state=SandboxState.QUEUED, tenant="blue")
        with ledger.writing():
            ledger.enqueue(myself(), 0, "anna", b"{}", sandbox_id=row.id, tenant="blue")
        assert [(ticket.sandbox_id, ticket.tenant) for ticket in ledger.tickets()] == [(row.id, "blue")]
        with ledger.writing():
            ledger.book_queued(row.id)
            ledger.reserve(row.id, [device("gpu-0")])
        assert ledger.sandbox(row.id).state == "creating"
        assert ledger.tickets() == []
        with pytest.raises(Conflict, match="no longer queued"), ledger.writing():
            ledger.book_queued(row.id)


def test_a_queued_sandbox_that_ends_leaves_the_queue_and_its_values_go(home: Home) -> None:
    with Ledger(home) as ledger:
        row = add(ledger, state=SandboxState.QUEUED, pending=SECRET)
        with ledger.writing():
            ledger.enqueue(myself(), 0, "anna", b"{}", sandbox_id=row.id)
            other = ledger.enqueue(myself(), 0, "bert", b"{}")
        with ledger.writing():
            assert ledger.end(row.id, SandboxState.FAILED, exit=None, reason="cancelled")
        assert [ticket.id for ticket in ledger.tickets()] == [other]
        assert ledger.sandbox(row.id).pending is None


def test_what_is_attached_may_expire_and_keeps_its_values_until_it_is_started(home: Home) -> None:
    with Ledger(home) as ledger:
        row = add(ledger, pending=SECRET, expires_at=5.0)
        kept = add(ledger, expires_at=5.0)
        with ledger.writing():
            ledger.record_handle(row.id, handle("early"))
        found = ledger.sandbox(row.id)
        assert (found.state, found.handle, found.pending) == ("creating", handle("early"), SECRET)
        with ledger.writing():
            ledger.attach(row.id, handle=handle("late"), receipt=RECEIPT, expires_at=77.5)
            ledger.attach(kept.id, handle=handle(), receipt=RECEIPT)
        found = ledger.sandbox(row.id)
        assert (found.state, found.handle, found.expires_at) == ("running", handle("late"), 77.5)
        assert not found.ready
        with ledger.writing():
            ledger.forget_pending(row.id)
            assert not ledger.reopen(row.id)
        found = ledger.sandbox(row.id)
        assert found.ready
        assert found.pending is None
        assert ledger.sandbox(kept.id).expires_at == 5.0
        with pytest.raises(Conflict, match="no longer being created"), ledger.writing():
            ledger.record_handle(row.id, handle())


def test_what_was_attached_but_not_let_go_is_made_once_more_on_the_same_devices(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"), pending=SECRET, origin="gateway")
        with ledger.writing():
            ledger.attach(row.id, handle=handle("first"), receipt=RECEIPT, expires_at=9.0)
        assert not ledger.sandbox(row.id).ready
        with ledger.writing():
            assert ledger.reopen(row.id)
            assert not ledger.reopen(row.id)
        found = ledger.sandbox(row.id)
        assert (found.state, found.handle, found.receipt, found.expires_at) == ("creating", None, None, None)
        assert [lease.state for lease in ledger.leases()] == ["reserved"]
        with ledger.writing():
            ledger.attach(row.id, handle=handle(), receipt=RECEIPT)
            ledger.forget_pending(row.id)
            assert not ledger.reopen(row.id), "its command runs"
        assert ledger.sandbox(row.id).ready
        assert [lease.state for lease in ledger.leases()] == ["attached"]


def test_of_two_who_take_a_sandbox_over_one_gets_it_with_its_ticket(home: Home) -> None:
    with Ledger(home) as ledger:
        row = add(ledger, state=SandboxState.QUEUED, owner=DEAD, origin="gateway")
        with ledger.writing():
            ledger.enqueue(DEAD, 0, "anna", b"{}", sandbox_id=row.id)
        with ledger.writing():
            assert ledger.adopt(row.id, DEAD, OTHER)
        with ledger.writing():
            assert not ledger.adopt(row.id, DEAD, myself())
        assert ledger.sandbox(row.id).owner == OTHER
        assert [ticket.owner for ticket in ledger.tickets()] == [OTHER]
        with ledger.writing():
            ledger.end(row.id, SandboxState.FAILED, exit=None, reason="gone")
        with ledger.writing():
            assert not ledger.adopt(row.id, OTHER, myself()), "an ended sandbox has no owner"


def test_labels_annotations_and_expiry_are_replaced(home: Home) -> None:
    with Ledger(home) as ledger:
        row = add(ledger, labels={"a": "1"}, annotations={"x": "y"})
        with ledger.writing():
            ledger.set_labels(row.id, {"b": "2"})
            ledger.set_annotations(row.id, {})
            ledger.set_expiry(row.id, 9.5)
        found = ledger.sandbox(row.id)
        assert (found.labels, found.annotations, found.expires_at) == ({"b": "2"}, {}, 9.5)
        with ledger.writing():
            ledger.set_expiry(row.id, None)
        assert ledger.sandbox(row.id).expires_at is None
        with ledger.writing():
            ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
        with pytest.raises(Conflict, match="the sandbox is exited"), ledger.writing():
            ledger.set_expiry(row.id, 9.5)
        with pytest.raises(NotFound), ledger.writing():
            ledger.set_labels(SandboxId("sb-nobody"), {})


def test_a_tenant_finds_nothing_of_another(home: Home) -> None:
    with Ledger(home) as ledger:
        mine, other = add(ledger, "train", tenant="blue"), add(ledger, "train", tenant="red")
        with ledger.writing():
            ledger.reserve(other.id, [device("gpu-0")])
        assert ledger.sandbox("train", tenant="blue").id == mine.id
        for reference in (other.id, other.id[:10], other.id[3:]):
            unknown = _words(ledger, "sb-" + "0" * 12, "blue").replace("sb-" + "0" * 12, reference)
            assert _words(ledger, reference, "blue") == unknown
        assert [row.id for row in ledger.sandboxes(tenant="blue")] == [mine.id]
        assert [event.sandbox_id for event in ledger.events(tenant="blue")] == [mine.id]
        assert {event.sandbox_id for event in ledger.events(tenant="red")} == {other.id}
        assert ledger.leases()[0].tenant == "red"
        assert ledger.holders()["gpu-0"].tenant == "red"


def test_a_tenant_is_told_to_the_end_what_happened_to_its_own(home: Home) -> None:
    with Ledger(home) as ledger:
        mine, other = add(ledger, "train", tenant="blue"), add(ledger, "train", tenant="red")
        ledger.note("something.else")
        for row in (mine, other):
            with ledger.writing():
                ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
                ledger.forget(row.id)
        told = [(event.kind, event.sandbox_id) for event in ledger.events(tenant="blue")]
        assert told == [(f"sandbox.{what}", mine.id) for what in ("creating", "exited", "removed")]
        assert len(ledger.events()) == 7


def _words(ledger: Ledger, reference: str, tenant: str) -> str:
    with pytest.raises(DibsError) as caught:
        ledger.sandbox(reference, tenant=tenant)
    return str(caught.value)


def test_a_name_of_several_tenants_is_the_hosts_own_or_must_be_an_id(home: Home) -> None:
    with Ledger(home) as ledger:
        first = add(ledger, "train", tenant="blue")
        assert ledger.sandbox("train").id == first.id
        add(ledger, "train", tenant="red")
        with pytest.raises(Conflict, match="several sandboxes are meant"):
            ledger.sandbox("train")
        own = add(ledger, "train")
        assert ledger.sandbox("train").id == own.id
        with pytest.raises(Conflict) as caught:
            add(ledger, "train", tenant="red")
        assert caught.value.code == "NAME_TAKEN"


@pytest.mark.parametrize("tenant", ["", "blue"])
def test_a_name_that_was_used_before_is_the_live_one_or_the_newest(home: Home, tenant: str) -> None:
    with Ledger(home) as ledger:
        for number in range(3):
            row = add(ledger, "train", created_at=float(number), tenant=tenant)
            assert ledger.sandbox("train").id == row.id
            with ledger.writing():
                ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
        assert ledger.sandbox("train").id == ledger.sandbox("train", tenant=tenant).id == row.id


def test_a_clock_that_is_set_back_does_not_bring_an_older_sandbox_of_a_name_back(home: Home) -> None:
    with Ledger(home) as ledger:
        for created_at in (2e9, 1e9):
            row = add(ledger, "train", created_at=created_at)
            with ledger.writing():
                ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
        assert ledger.sandbox("train").id == row.id
        assert ledger.page()[0][0].id == ledger.sandboxes()[-1].id == row.id


def test_pages_are_whole_and_in_order(home: Home) -> None:
    with Ledger(home) as ledger:
        rows = [
            add(ledger, tenant="blue" if number % 2 else "", created_at=float(number), labels={"n": str(number % 3)})
            for number in range(20)
        ]
        newest = [row.id for row in reversed(rows)]
        seen: list[str] = []
        while True:
            page, total = ledger.page(offset=len(seen), limit=7)
            assert total == 20
            if not page:
                break
            seen += [row.id for row in page]
        assert seen == newest
        found, total = ledger.page(tenant="blue", labels={"n": "1"}, limit=2, newest_first=False)
        assert [row.id for row in found] == [rows[1].id, rows[7].id]
        assert total == 4
        assert ledger.page(labels={"n": "1"}, offset=100) == ([], 7)
        assert ledger.page(states=[]) == ([], 0)
        with ledger.writing():
            ledger.end(rows[0].id, SandboxState.EXITED, exit=None, reason="done")
        assert [row.id for row in ledger.page(states=["exited"])[0]] == [rows[0].id]
        assert ledger.page(live_only=True)[1] == 19
        assert [row.id for row in ledger.sandboxes(states=["exited", "failed"])] == [rows[0].id]


def test_a_label_in_another_case_is_another_label(home: Home) -> None:
    with Ledger(home) as ledger:
        small, large = add(ledger, labels={"team": "a"}), add(ledger, labels={"team": "A"})
        for row in (small, large):
            assert [found.id for found in ledger.page(labels=row.labels)[0]] == [row.id]


AWKWARD = st.text(st.sampled_from('ab"\\%_!:,{}é\0AB'), max_size=4)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    kept=st.lists(st.dictionaries(AWKWARD, AWKWARD, max_size=3), max_size=4),
    wanted=st.dictionaries(AWKWARD, AWKWARD, min_size=1, max_size=2),
)
def test_labels_are_found_exactly_whatever_they_contain(
    home: Home, kept: list[dict[str, str]], wanted: dict[str, str]
) -> None:
    with Ledger(home) as ledger:
        for old in ledger.sandboxes():
            with ledger.writing():
                ledger.end(old.id, SandboxState.EXITED, exit=None, reason="done")
                ledger.forget(old.id)
        rows = [add(ledger, labels=labels) for labels in kept]
        expected = {row.id for row in rows if wanted.items() <= row.labels.items()}
        found, total = ledger.page(labels=wanted)
        assert {row.id for row in found} == expected
        assert total == len(expected)


def test_the_oldest_ends_are_forgotten_and_nothing_of_them_stays(home: Home) -> None:
    with Ledger(home) as ledger:
        rows = [book(ledger, device("gpu-0")) for _ in range(1)]
        for _ in range(5):
            with ledger.writing():
                ledger.end(rows[-1].id, SandboxState.EXITED, exit=None, reason="done")
            rows.append(book(ledger, device("gpu-0")))
        assert ledger.ended_beyond(5) == []
        assert {row.id for row in ledger.ended_beyond(3)} == {rows[0].id, rows[1].id}
        assert len(ledger.ended_beyond(0, limit=2)) == 2
        with ledger.writing():
            for row in ledger.ended_beyond(0):
                ledger.forget(row.id)
            ledger.forget(rows[-1].id)
        assert [row.id for row in ledger.sandboxes()] == [rows[-1].id], "what lives is not forgotten"
        assert len(ledger.leases(live_only=False)) == 1
        assert list(ledger.holders()) == ["gpu-0"]


def test_events_are_read_on_from_where_one_was(home: Home) -> None:
    with Ledger(home) as ledger:
        with ledger.writing():
            for number in range(10):
                ledger.note("test", detail=str(number))
        first = ledger.events(limit=4)
        rest = ledger.events(after=first[-1].seq)
        assert [event.detail for event in (*first, *rest)] == [str(number) for number in range(10)]


def test_others_see_that_something_has_changed(home: Home) -> None:
    with Ledger(home) as ledger, Ledger(home) as other:
        seen = ledger.changes_by_others()
        assert ledger.changes_by_others() == seen
        with other.writing():
            row = sandbox()
            other.add_sandbox(row)
            assert ledger.changes_by_others() == seen, "uncommitted changes are invisible"
        assert ledger.changes_by_others() != seen
        seen = ledger.changes_by_others()
        with other.writing():
            other.end(row.id, SandboxState.EXITED, exit=None, reason="done")
        assert ledger.changes_by_others() != seen


def test_the_summary_of_a_receipt_is_the_same_from_json_and_from_a_value(home: Home) -> None:
    full = msgspec.structs.replace(
        RECEIPT,
        devices=(ReceiptDevice("gpu-0", "H100", "GPU-1", "nvidia.com/gpu=0", ("/dev/nvidia0",)),),
        lines=(ReceiptLine("cpu", "2", "2", "2", "2 seen", "delivered"),),
    )
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        with ledger.writing():
            ledger.attach(row.id, handle=handle(), receipt=full)
        stored = ledger.sandbox(row.id)
    value = stored.decoded()
    assert isinstance(stored.parts.receipt, str)
    assert isinstance(value.parts.receipt, Receipt)
    assert stored.receipt_summary == value.receipt_summary
    assert stored.receipt_summary == ReceiptSummary(
        "delivered", (SummaryDevice("gpu-0", "H100", "GPU-1"),), (SummaryLine("cpu", "2 seen"),)
    )
    assert row.receipt_summary is None

"""A gateway answers before anything is made: booked, queued or refused, and what it accepted outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests import needs
from tests.workloads.admitting import admit

from dibs.errors import BackendUnavailable, Busy, Conflict, InvalidRequest, NotFound, QuotaExceeded
from dibs.home import Home
from dibs.ledger.rows import Lease, LeasedDevice
from dibs.ledger.store import Ledger
from dibs.request.spec import parse_spec
from dibs.sandbox import Sandbox, SandboxId
from dibs.settings import GatewaySettings, Quota, Settings
from dibs.workloads import admission
from dibs.workloads.admission import Admitted, Asking, admit_all, waiting_for
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.explain import choose
from dibs.workloads.identity import Identity
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

PATIENCE = 60.0


def tenant(service: Workloads, name: str) -> Workloads:
    return service.seen_by(Identity(name=f"{name}-user", uid=os.getuid(), tenant=name, remote=True))


@pytest.fixture(autouse=True)
def removed_by_hands(eight_gpus: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test has only accepted is made or removed by a gateway afterwards, which need not wait for anybody."""
    yield
    monkeypatch.setattr("dibs.workloads.dispatcher._THOROUGH", 0.0)
    hands = Dispatcher(lambda: Workloads(eight_gpus), workers=1)
    hands.start()
    with Workloads(eight_gpus) as service:
        for row in service.sandboxes():
            service.remove(row.id, 0.0)
    hands.stop()


@pytest.fixture
def service(eight_gpus: Home) -> Iterator[Workloads]:
    with Workloads(eight_gpus) as found:
        yield found


@pytest.fixture
def hands(service: Workloads) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(lambda: Workloads(service.home), workers=2)
    dispatcher.start()
    yield dispatcher
    dispatcher.stop()


def until(service: Workloads, sandbox_id: str, *states: str) -> str:
    """Wait for a state."""
    deadline = time.monotonic() + PATIENCE
    while (row := service.sandbox(sandbox_id)).state not in states or (row.state == "running" and not row.ready):
        if row.ended_at is not None:
            pytest.fail(f"it ended: {row.reason}")
        assert time.monotonic() < deadline, f"it is still {row.state}"
        os.sched_yield()
    return row.state


def test_what_is_accepted_is_booked_before_the_answer(service: Workloads) -> None:
    admitted = admit(tenant(service, "acme"), parse_spec({"gpu": 2, "env": {"SECRET": "s3cret"}}))
    assert admitted.row.state == "creating"
    assert [len(lease.devices) for lease in service.leases()] == [2]
    assert "s3cret" not in str(admitted.row.spec)
    assert "s3cret" in str(admitted.row.pending)


def test_what_was_accepted_is_delivered_and_its_values_are_forgotten(service: Workloads, hands: Dispatcher) -> None:
    acme = tenant(service, "acme")
    spec = parse_spec({"gpu": 1, "env": {"SECRET": "s3cret"}, "command": ["sleep", "60"]})
    admitted = admit(acme, spec)
    hands.submit(admitted)
    until(service, admitted.row.id, "running")
    row = acme.sandbox(admitted.row.id)
    assert row.pending is None
    assert acme.receipt(row.id).verdict == "delivered"


def test_a_refusal_has_all_reasons_and_changes_nothing(service: Workloads) -> None:
    with pytest.raises(InvalidRequest) as caught:
        admit(tenant(service, "acme"), parse_spec({"root": "/srv", "mounts": ["/etc:/data", "/home:/more"]}))
    assert [problem.code for problem in caught.value.problems] == [
        "ROOT_NOT_ALLOWED", "MOUNT_NOT_ALLOWED", "MOUNT_NOT_ALLOWED",
    ]  # fmt: skip
    with pytest.raises(Busy):
        admit(tenant(service, "acme"), parse_spec({"gpu": 8}))
        admit(tenant(service, "acme"), parse_spec({"gpu": 1}))
    assert len(service.sandboxes()) == 1


@pytest.mark.parametrize(("ttl", "said"), [("2h", "2h00m"), (None, "")])
def test_a_time_to_live_that_a_gateway_does_not_give_is_refused_with_the_longest_one(
    eight_gpus: Home, ttl: str | None, said: str
) -> None:
    settings = Settings(gateway=GatewaySettings(max_sandbox_ttl=3600.0))
    with Workloads(eight_gpus, registry=Registry(eight_gpus, settings)) as service:
        with pytest.raises(InvalidRequest) as caught:
            admit(tenant(service, "acme"), parse_spec({"ttl": ttl} if ttl else {}))
        (problem,) = caught.value.problems
        assert (problem.code, problem.field, problem.value) == ("TTL_TOO_LONG", "ttl", said)
        assert "1h00m" in problem.remedy
        admit(tenant(service, "acme"), parse_spec({"ttl": "1h"}))


def test_a_link_in_a_shared_folder_leads_nowhere_else(
    eight_gpus: Home, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shared = tmp_path_factory.mktemp("shared")
    (shared / "out").symlink_to("/etc")
    registry = Registry(eight_gpus, Settings(mounts_allow=(str(shared),)))
    with Workloads(eight_gpus, registry=registry) as service:
        with pytest.raises(InvalidRequest) as caught:
            admit(tenant(service, "acme"), parse_spec({"mounts": [f"{shared}/out:/data"]}))
        assert caught.value.code == "MOUNT_NOT_ALLOWED"
        assert admit(tenant(service, "acme"), parse_spec({"mounts": [f"{shared}:/data"]})).row.state == "creating"


def test_a_key_makes_one_sandbox_however_often_it_is_sent(service: Workloads) -> None:
    acme, other = tenant(service, "acme"), tenant(service, "other")
    first = admit(acme, parse_spec({"gpu": 1}), idempotency_key="k")
    again = admit(acme, parse_spec({"gpu": 1}), idempotency_key="k")
    assert again.again
    assert again.row.id == first.row.id
    with pytest.raises(Conflict) as caught:
        admit(acme, parse_spec({"gpu": 2}), idempotency_key="k")
    assert caught.value.code == "IDEMPOTENCY_KEY_REUSED"
    assert admit(other, parse_spec({"gpu": 1}), idempotency_key="k").row.id != first.row.id


def test_a_quota_is_counted_where_it_is_booked(eight_gpus: Home) -> None:
    needs.limits()
    settings = Settings(tenants={"acme": Quota(sandboxes=2, gpus=3, cpu_millis=2000)})
    with Workloads(eight_gpus, registry=Registry(eight_gpus, settings)) as service:
        acme = tenant(service, "acme")
        admit(acme, parse_spec({"gpu": 2, "cpu": "1"}))
        with pytest.raises(QuotaExceeded) as caught:
            admit(acme, parse_spec({"gpu": 2, "cpu": "1500m"}))
        assert [problem.field for problem in caught.value.problems] == ["cpu", "gpu"]
        with pytest.raises(QuotaExceeded) as caught:
            admit(acme, parse_spec({"gpu": 1}))
        assert caught.value.code == "QUOTA_NEEDS_LIMIT"
        admit(tenant(service, "other"), parse_spec({"gpu": 4}))


def test_a_quota_is_counted_again_when_a_queued_request_is_served(eight_gpus: Home) -> None:
    settings = Settings(tenants={"acme": Quota(gpus=2)})
    with Workloads(eight_gpus, registry=Registry(eight_gpus, settings)) as service:
        holder = service.create(parse_spec({"gpu": 8, "name": "holder"}))
        acme, other = tenant(service, "acme"), tenant(service, "other")
        first, second = (admit(acme, parse_spec({"gpu": 2, "wait": "1h"})).row.id for _ in range(2))
        behind = admit(other, parse_spec({"gpu": 4, "wait": "1h"})).row.id
        service.remove(holder.id, 0.0)
        hands = Dispatcher(lambda: Workloads(eight_gpus, registry=Registry(eight_gpus, settings)))
        hands.start()
        try:
            assert until(service, first, "running") == "running"
            assert until(service, behind, "running") == "running"  # what waits for a quota holds up no other tenant
            assert service.sandbox(second).state == "queued"
            assert '"acme" holds 2 of 2 (gpu)' in waiting_for(acme, service.sandbox(second))["waits_for"]
            service.remove(first, 0.0)
            hands.nudge()
            assert until(service, second, "running") == "running"
        finally:
            hands.stop()
            for row in service.sandboxes():
                service.remove(row.id, 0.0)


def test_a_waiter_within_its_quota_is_not_overtaken(eight_gpus: Home) -> None:
    """What it waits for itself is not counted a second time."""
    settings = Settings(tenants={"acme": Quota(sandboxes=1)})
    with Workloads(eight_gpus, registry=Registry(eight_gpus, settings)) as service:
        service.create(parse_spec({"gpu": 7, "name": "holder"}))
        assert admit(tenant(service, "acme"), parse_spec({"gpu": 2, "wait": "1h"})).row.state == "queued"
        with pytest.raises(Busy):
            admit(tenant(service, "other"), parse_spec({"gpu": 1}))


def test_a_claim_that_waits_counts_for_what_it_would_hold(eight_gpus: Home) -> None:
    settings = Settings(tenants={"acme": Quota(gpus=2)})
    with Workloads(eight_gpus, registry=Registry(eight_gpus, settings)) as service:
        service.create(parse_spec({"gpu": 8, "name": "holder"}))
        acme = tenant(service, "acme")
        for requests, fits in (
            ([{"name": "a", "exactly": {"deviceClassName": "gpu", "count": 3}}], False),
            ([{"name": "a", "exactly": {"deviceClassName": "gpu", "count": 2}}], True),
            ([{"name": n, "exactly": {"deviceClassName": "gpu"}} for n in ("a", "b", "c")], False),
        ):
            spec = parse_spec({"claim": {"devices": {"requests": requests}}, "wait": "1h"})
            if fits:
                assert admit(acme, spec).row.state == "queued"
                continue
            with pytest.raises(QuotaExceeded):
                admit(acme, spec)
        service.remove("holder", 0.0)
        for row in service.sandboxes():
            service.remove(row.id, 0.0)


def test_a_tenant_learns_nothing_of_anothers_sandboxes(service: Workloads) -> None:
    hidden = admit(tenant(service, "acme"), parse_spec({"gpu": 8, "name": "project-x"})).row
    other = tenant(service, "other")
    unknown, foreign = (pytest.raises(NotFound), pytest.raises(NotFound))
    with unknown as first:
        other.sandbox("sb-000000000000")
    with foreign as second:
        other.sandbox(hidden.id)
    assert str(second.value).replace(hidden.id, "?") == str(first.value).replace("sb-000000000000", "?")
    assert other.sandboxes() == []
    assert other.leases() == []
    with pytest.raises(Busy) as caught:
        admit(other, parse_spec({"gpu": 1}))
    assert "project-x" not in str(caught.value)
    assert "acme" not in str(caught.value)
    admit(other, parse_spec({"name": "project-x"}))


def test_a_queued_request_is_served_when_devices_are_free(service: Workloads, hands: Dispatcher) -> None:
    holder = service.create(parse_spec({"gpu": 8, "name": "holder"}))
    acme = tenant(service, "acme")
    queued = admit(acme, parse_spec({"gpu": 2, "wait": "1h", "command": ["sleep", "60"]}))
    hands.submit(queued)
    assert queued.row.state == "queued"
    news = waiting_for(acme, queued.row)
    assert (news["place"], news["length"]) == (1, 1)
    service.remove(holder.id, 0.0)
    assert until(service, queued.row.id, "running") == "running"


def test_a_queued_sandbox_can_be_removed_before_it_runs(service: Workloads) -> None:
    service.create(parse_spec({"gpu": 8}))
    acme = tenant(service, "acme")
    queued = admit(acme, parse_spec({"gpu": 1, "wait": "1h"}))
    assert acme.remove(queued.row.id).state == "exited"
    assert acme.queue() == []


def asking(service: Workloads, who: str, key: str = "", **words: object) -> Asking:
    return Asking(workloads=tenant(service, who), spec=parse_spec(words), idempotency_key=key)


def outcomes(answers: list[Admitted | Exception]) -> list[object]:
    """The devices of each, or the code of its refusal."""
    return [
        [device.index for device in answer.devices] if isinstance(answer, Admitted) else getattr(answer, "code", answer)
        for answer in answers
    ]


def test_those_who_are_admitted_together_get_what_they_would_get_one_after_the_other(service: Workloads) -> None:
    answers = admit_all(
        [
            asking(service, "acme", gpu=2),
            asking(service, "other", root="/srv"),
            asking(service, "acme", gpu=5, name="x"),
            asking(service, "acme", name="x"),
            asking(service, "other", gpu=2),
            asking(service, "other", gpu=1),
        ]
    )
    assert outcomes(answers) == [
        [0, 1], "ROOT_NOT_ALLOWED", [2, 3, 4, 5, 6], "NAME_TAKEN", "DEVICES_BUSY", [7],
    ]  # fmt: skip
    accepted = [answer for answer in answers if isinstance(answer, Admitted)]
    assert [service.sandbox(one.row.id).decoded() for one in accepted] == [one.row for one in accepted]
    assert len(service.sandboxes()) == 3
    assert [lease.devices for lease in service.leases()] == [one.devices for one in accepted]


def test_a_queued_request_is_not_overtaken(service: Workloads) -> None:
    answers = admit_all(
        [
            asking(service, "acme", gpu=6),
            asking(service, "acme", gpu=4, wait="1h"),
            asking(service, "acme", gpu=2),
            asking(service, "acme", gpu=2, wait="1h"),
        ]
    )
    assert [answer.row.state if isinstance(answer, Admitted) else type(answer) for answer in answers] == [
        "creating", "queued", Busy, "queued",
    ]  # fmt: skip
    assert [ticket.sandbox_id for ticket in service.queue()] == [
        answer.row.id for answer in (answers[1], answers[3]) if isinstance(answer, Admitted)
    ]


def test_a_key_and_a_quota_count_also_among_those_who_are_admitted_together(eight_gpus: Home) -> None:
    settings = Settings(tenants={"acme": Quota(sandboxes=2)})
    with Workloads(eight_gpus, registry=Registry(eight_gpus, settings)) as service:
        answers = admit_all(
            [
                asking(service, "acme", "k", gpu=1),
                asking(service, "acme", "k", gpu=1),
                asking(service, "acme", "k", gpu=2),
                asking(service, "acme", gpu=1),
                asking(service, "acme", gpu=1),
            ]
        )
        assert outcomes(answers)[2:] == ["IDEMPOTENCY_KEY_REUSED", [1], "QUOTA_EXCEEDED"]
        first, second = answers[:2]
        assert isinstance(first, Admitted)
        assert isinstance(second, Admitted)
        assert (second.again, second.row.id) == (True, first.row.id)


def test_what_fails_for_one_in_the_middle_of_writing_costs_the_others_nothing(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Ledger.reserve

    def fails_for_three(ledger: Ledger, sandbox_id: SandboxId, devices: Sequence[LeasedDevice]) -> Lease:
        if len(devices) == 3:
            raise Busy("the device is held", field="device")
        return reserve(ledger, sandbox_id, devices)

    monkeypatch.setattr(Ledger, "reserve", fails_for_three)
    answers = admit_all([asking(service, "acme", gpu=count) for count in (1, 3, 2)])
    assert outcomes(answers) == [[0], "DEVICES_BUSY", [1, 2]]
    assert len(service.sandboxes()) == 2


def test_while_the_ledger_is_away_no_request_is_admitted_twice(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has heard the end of the transaction cannot be known."""
    tries: list[str] = []

    def goes_away(ledger: Ledger, row: Sandbox) -> None:
        tries.append(row.id)
        raise BackendUnavailable("the ledger cannot be reached", code="LEDGER_UNREACHABLE")

    monkeypatch.setattr(Ledger, "add_sandbox", goes_away)
    answers = admit_all([asking(service, "acme", gpu=1) for _ in range(3)])
    assert outcomes(answers) == ["LEDGER_UNREACHABLE"] * 3
    assert len(tries) == 1


DYING_GATEWAY = """
    import os, signal, sys
    from dibs.home import find_home
    from dibs.request.spec import parse_spec
    from dibs.workloads.admission import Asking, admit_all
    from dibs.workloads.identity import Identity
    from dibs.workloads.service import Workloads

    with Workloads(find_home()) as service:
        acme = service.seen_by(Identity(name="a", uid=os.getuid(), tenant="acme", remote=True))
        for asked in ({"gpu": 8, "ttl": "2s", "env": {"A": "1"}}, {"gpu": 1, "wait": "1h"}):
            spec = parse_spec({"command": ["sleep", "60"], **asked})
            print(admit_all([Asking(workloads=acme, spec=spec)])[0].row.id)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_gateway_had_accepted_the_next_one_makes(eight_gpus: Home) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DYING_GATEWAY)], capture_output=True, text=True, check=False
    )
    assert dead.returncode == -9, dead.stderr
    booked, queued = dead.stdout.split()
    with Workloads(eight_gpus) as service:
        assert service.sandbox(booked).state == "creating"  # reconciliation leaves it to the next gateway
        assert service.sandbox(booked).orphaned
        hands = Dispatcher(lambda: Workloads(eight_gpus), workers=2)
        hands.start()
        try:
            until(service, booked, "running", "exited")
            until(service, queued, "running")  # when the first one's time to live is over
            assert service.sandbox(booked).reason == "its time to live was over"
        finally:
            hands.stop()
        service.remove(queued, 0.0)


def lose_the_last_commit(service: Workloads, row: Sandbox) -> None:
    with service.ledger.writing():
        service.ledger._db.execute(
            "UPDATE sandboxes SET state = 'creating', handle = NULL, receipt = NULL WHERE id = :id", id=row.id
        )


@pytest.mark.parametrize("number", [1, 2])
def test_what_the_ledger_has_forgotten_is_entered_again_before_anything_is_refused(
    service: Workloads, number: int
) -> None:
    """A database that is restarted forgets a commit whose record was written beside it already."""
    lost = service.create(parse_spec({"gpu": 2, "command": ["sleep", "1000"]}))
    lose_the_last_commit(service, lost)
    assert service.ledger.unknown() == [lost.id]
    acme = tenant(service, "acme")
    asked = [Asking(workloads=acme, spec=parse_spec({"gpu": 1})) for _ in range(number)]
    answers = admit_all(asked)
    assert [type(answer) for answer in answers] == [Admitted] * number, answers
    assert service.sandbox(lost.id).live
    held = [device.id for lease in service.leases() for device in lease.devices]
    assert len(held) == len(set(held)) == 2 + number


def test_a_forgotten_sandbox_that_cannot_be_entered_refuses_what_needs_devices(service: Workloads) -> None:
    lost = service.create(parse_spec({"gpu": 2, "command": ["sleep", "1000"]}))
    record = service.home.state / "live" / lost.id
    kept = record.read_bytes()
    lose_the_last_commit(service, lost)
    record.write_bytes(b"damaged")
    (answer,) = admit_all([Asking(workloads=tenant(service, "acme"), spec=parse_spec({"gpu": 1}))])
    assert isinstance(answer, BackendUnavailable)
    assert answer.code == "LEDGER_INCOMPLETE"
    record.write_bytes(kept)


def test_a_key_that_two_send_at_once_makes_one_sandbox(service: Workloads) -> None:
    first, second = admit_all([asking(service, "acme", "k", gpu=1), asking(service, "acme", "k", gpu=1)])
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert (first.again, second.again, second.row.id) == (False, True, first.row.id)


def test_a_key_that_another_gateway_was_faster_with_makes_one_sandbox(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the first look at the key and the transaction."""
    spec = parse_spec({"gpu": 1})
    faster: list[SandboxId] = []

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(admission, "choose", choose)
        with Workloads(service.home) as other:
            faster.append(admit(tenant(other, "acme"), spec, idempotency_key="k").row.id)
        return choose(*arguments)

    monkeypatch.setattr(admission, "choose", overtaken)
    answer = admit(tenant(service, "acme"), spec, idempotency_key="k")
    assert (answer.again, [answer.row.id]) == (True, faster)
    assert len(service.leases()) == 1

"""Devices that a scheduler chooses: later, elsewhere, and not always as it said. On a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.workloads.admitting import admit

from dibs import process
from dibs.backends.fake.cluster import FakeCluster
from dibs.backends.fake.scheduled import FakeClusterBackend
from dibs.backends.port import Exit, ExitReason, Handle, Phase, PlacedDevice, Placement, Status, scheduler_of
from dibs.errors import BackendUnavailable, Busy, Conflict, DeliveryMismatch, InvalidRequest, Timeout, Unsupported
from dibs.home import Home
from dibs.ledger.rows import Bound, Delegated, LeasedDevice
from dibs.ledger.store import Ledger
from dibs.process import ProcessName, boot_id, myself
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.sandbox import SandboxState, Step
from dibs.settings import Settings
from dibs.workloads import delivery
from dibs.workloads.delivery import Delivery, NotYet, Run
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.quotas import held_by
from dibs.workloads.reconcile import finish, reconcile
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

SLEEP = ["sleep", "1000"]
ELSEWHERE = ProcessName("another-host", "another-boot", 1, 4711, 1)


def on_cluster(gpus: int = 1, **more: object) -> SandboxSpec:
    return parse_spec({"gpu": gpus, "backend": "fake-cluster", "command": SLEEP, **more})


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Two nodes of four cards."""
    path = str(tmp_path / "cluster.db")
    monkeypatch.setenv("DIBS_FAKE_CLUSTER", path)
    return FakeCluster.make(path)


@pytest.fixture
def service(home: Home, cluster: FakeCluster) -> Iterator[Workloads]:
    with Workloads(home) as made:
        yield made


class Hands:
    """A gateway's dispatcher without its threads: each step is taken when the test says so."""

    def __init__(self, make: Callable[[], Workloads]) -> None:
        self.now = 0.0
        self.dispatcher = Dispatcher(make, workers=0, clock=lambda: self.now)
        self.workloads = make()

    def take_over(self) -> list[str]:
        """Give a sign of life and look for what others have left; the ids of what is in our hands then."""
        self.dispatcher._beat(self.workloads)
        self.dispatcher._take_over(self.workloads)
        return sorted(self.dispatcher._in_hand)

    def drive(self) -> None:
        """Everything that is to be made goes as far as it goes."""
        for sandbox_id, (_, run) in list(self.dispatcher._parked.items()):
            self.dispatcher._parked[sandbox_id] = (0.0, run)
        self.dispatcher._drive_parked()
        while not self.dispatcher._work.empty():
            work = self.dispatcher._work.get()
            assert work is not None
            self.dispatcher._deliver(self.workloads, *work)
            if work[0].sandbox_id not in self.dispatcher._parked:
                self.dispatcher._in_hand.discard(work[0].sandbox_id)


@pytest.fixture
def hands(home: Home, cluster: FakeCluster) -> Iterator[Hands]:
    made = Hands(lambda: Workloads(home))
    yield made
    made.workloads.close()


# -- one process ------------------------------------------------------------------------------------------------------


def test_a_sandbox_gets_the_devices_that_the_scheduler_chooses(service: Workloads, cluster: FakeCluster) -> None:
    row = service.create(on_cluster(3))
    assert row.state == "running"
    [lease] = service.leases()
    assert lease.allocation == Bound("--gpu 3", "node-0", lease.devices)
    assert [device.id for device in lease.devices] == cluster.cards_of(row.id)
    assert lease.domain == FakeClusterBackend(cluster.path).domain
    receipt = service.receipt(row.id)
    assert receipt.verdict == "delivered"
    assert {line.field: line.outcome for line in receipt.lines}["devices"] == "delegated"
    assert len(receipt.observed.nodes) == 3
    assert {line.field: line.rendered for line in receipt.lines}["devices"] == f"claim {row.id}, request gpu"
    assert {(device.cdi_name, device.attached_as) for device in receipt.devices} == {
        ("", f"claim {row.id}, request gpu")
    }
    service.remove(row.id, 0.0)
    assert service.leases() == []
    assert cluster.pods() == []


def test_devices_that_a_node_does_not_name_are_counted_and_told_as_such(
    service: Workloads, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = FakeClusterBackend.placement

    def names_one(self: FakeClusterBackend, handle: Handle) -> Placement:
        found = says(self, handle)
        if found.state != "bound":
            return found
        rest = ("nvidia.com/gpu",) * (len(found.devices) - 1)
        return msgspec.structs.replace(found, devices=found.devices[:1], unreported=rest)

    monkeypatch.setattr(FakeClusterBackend, "placement", names_one)
    monkeypatch.setattr(FakeClusterBackend, "nodes", lambda *_: None)
    row = service.create(on_cluster(3, labels={"a": "b"}))
    [lease] = service.leases()
    assert [device.id for device in lease.devices] == cluster.cards_of(row.id)[:1]
    receipt = service.receipt(row.id)
    assert len(receipt.devices) == 1
    assert "not reported by node-0: which 2 of nvidia.com/gpu it has given" in receipt.notes
    assert held_by(service.ledger, lease.tenant).gpus == 3


def test_the_hosts_own_cards_are_not_touched_by_a_cluster(eight_gpus: Home, cluster: FakeCluster) -> None:
    with Workloads(eight_gpus) as service:
        row = service.create(on_cluster(4))
        assert {state.state for state in service.devices()[1]} == {"free"}
        assert service.explain(parse_spec({"gpu": 8, "backend": "fake"})).backends[0].ok
        service.remove(row.id, 0.0)


def test_what_the_scheduler_says_is_reported_while_it_is_pending(service: Workloads, cluster: FakeCluster) -> None:
    cluster.hold("0/2 nodes are available: 2 node(s) had untolerated taint")
    with pytest.raises(Timeout) as caught:
        service.create(on_cluster(wait="0s"))
    assert "untolerated taint" in caught.value.problems[0].reason
    [row] = service.sandboxes(all=True)
    assert row.state == "failed"
    told = [event.detail for event in service.ledger.events(sandbox_id=row.id) if event.kind == "sandbox.pending"]
    assert told == ["0/2 nodes are available: 2 node(s) had untolerated taint"]
    assert service.leases() == []
    assert cluster.pods() == []


def test_more_than_any_node_has_stays_pending_with_that_reason(service: Workloads) -> None:
    with pytest.raises(Timeout) as caught:
        service.create(on_cluster(5, wait="0s"))
    assert "0/2 nodes have 5 free cards" in caught.value.problems[0].reason


def test_a_card_that_is_not_there_ends_it(
    service: Workloads, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler says bound, and in the pod one card is missing."""
    start = FakeClusterBackend.start

    def broken(self: FakeClusterBackend, handle: object) -> None:
        start(self, handle)  # type: ignore[arg-type]
        cluster.break_card(cluster.pods()[0].id)

    monkeypatch.setattr(FakeClusterBackend, "start", broken)
    with pytest.raises(DeliveryMismatch):
        service.create(on_cluster(2))
    assert service.leases() == []
    assert cluster.pods() == []


def test_what_a_scheduler_cannot_be_told_is_refused(service: Workloads, cluster: FakeCluster) -> None:
    for field in ({"gpu": "80GB..:1"}, {"device": "nvidia.com/gpu=0"}):
        with pytest.raises(Unsupported):
            service.create(parse_spec({"backend": "fake-cluster", "command": SLEEP, **field}))
    with pytest.raises(InvalidRequest) as refused:
        service.create(parse_spec({"backend": "fake-cluster", "command": SLEEP, "gpu": "all"}))
    assert refused.value.code == "COUNT_NEEDED"
    assert cluster.pods() == []


def test_without_a_cluster_the_backend_says_how_to_name_one(home: Home) -> None:
    with Workloads(home) as service, pytest.raises(Unsupported) as caught:
        service.create(on_cluster())
    assert "DIBS_FAKE_CLUSTER" in caught.value.problems[0].remedy


def test_one_who_interrupts_the_wait_leaves_nothing(
    service: Workloads, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.hold("busy")

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dibs.workloads.delivery.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        service.create(on_cluster())
    assert service.leases() == []
    assert cluster.pods() == []


def test_a_quota_counts_what_a_scheduler_was_asked_for(home: Home, cluster: FakeCluster) -> None:
    from dibs.errors import QuotaExceeded
    from dibs.settings import Quota

    settings = Settings(fake_cluster=cluster.path, tenants={"": Quota(gpus=3)})
    with Workloads(home, registry=Registry(home, settings)) as service:
        service.create(on_cluster(2))
        with pytest.raises(QuotaExceeded):
            service.create(on_cluster(2))
        service.remove(service.sandboxes()[0].id, 0.0)


def unreachable(*_: object) -> None:
    code = "CLUSTER_UNREACHABLE"
    raise BackendUnavailable("the API server does not answer", field="backend", value="fake-cluster", code=code)


def test_a_cluster_that_is_away_before_it_has_the_sandbox_is_reported_at_once(
    service: Workloads, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeClusterBackend, "create", unreachable)
    with pytest.raises(BackendUnavailable, match="the API server does not answer"):
        service.create(on_cluster(wait="0s"))
    assert service.leases() == []
    assert cluster.pods() == []


def test_a_cluster_that_is_away_once_it_has_the_sandbox_is_waited_for(
    service: Workloads, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sees, times = FakeClusterBackend.observe, iter([unreachable])
    monkeypatch.setattr(FakeClusterBackend, "observe", lambda *args, **more: next(times, sees)(*args, **more))
    row = service.create(on_cluster())
    assert row.state == "running"
    told = [event.detail for event in service.ledger.events(sandbox_id=row.id) if event.kind == "sandbox.pending"]
    assert told == ["the API server does not answer"]
    assert [pod.starts for pod in cluster.pods()] == [1]
    service.remove(row.id, 0.0)


# -- a gateway --------------------------------------------------------------------------------------------------------


def test_a_delivery_that_waits_holds_no_thread_and_is_bound_late(hands: Hands, cluster: FakeCluster) -> None:
    cluster.delay(30)
    service = hands.workloads
    admitted = [admit(service, on_cluster(2)) for _ in range(4)]
    for one in admitted:
        hands.dispatcher.submit(one)
    hands.drive()
    rows = service.sandboxes()
    assert {(row.state, row.step, row.waits_for) for row in rows} == {
        ("creating", "created", "the scheduler has not come to it yet")
    }
    assert [lease.allocation for lease in service.leases()] == [Delegated("--gpu 2")] * 4
    assert hands.dispatcher.backlog == 0
    cluster.advance(30)
    hands.drive()
    assert {(row.state, row.waits_for) for row in service.sandboxes()} == {("running", "")}
    cards = [device.id for lease in service.leases() for device in lease.devices]
    assert len(set(cards)) == 8
    for row in service.sandboxes():
        service.remove(row.id, 0.0)


def test_what_is_refused_late_ends_with_the_schedulers_words(hands: Hands, cluster: FakeCluster) -> None:
    cluster.hold("looking")
    service = hands.workloads
    admitted = admit(service, on_cluster())
    hands.dispatcher.submit(admitted)
    hands.drive()
    cluster.refuse(admitted.row.id, "no node will ever have this")
    hands.drive()
    row = service.sandbox(admitted.row.id)
    assert row.state == "failed"
    assert "PLACEMENT_REFUSED" in (row.reason or "")
    assert 'gpu "1": no node will ever have this' in (row.reason or ""), "the value as it was written"
    assert service.leases() == []
    assert cluster.pods() == []


def test_what_is_moved_before_it_is_proved_is_proved_where_it_is(hands: Hands, cluster: FakeCluster) -> None:
    service = hands.workloads
    admitted = admit(service, on_cluster(2))
    assert admitted.work is not None
    delivery, run = Delivery(service.home, service.ledger), Run(*admitted.work)
    assert delivery.advance(run, until=Step.PLACED) is None
    cluster.move(admitted.row.id, "node-1")
    row = service.sandbox(admitted.row.id)
    resumed = delivery.resume(*admitted.work, row)
    assert delivery.advance(resumed) is None
    [lease] = service.leases()
    assert lease.node == "node-1"
    assert [device.id for device in lease.devices] == cluster.cards_of(row.id) == ["node-1/gpu-0", "node-1/gpu-1"]
    assert [event.kind for event in service.ledger.events(sandbox_id=row.id) if "lease." in event.kind] == [
        "lease.delegated", "lease.bound", "lease.moved"
    ]  # fmt: skip
    service.remove(row.id, 0.0)


def test_what_is_moved_while_it_runs_is_booked_and_proved_where_it_is(hands: Hands, cluster: FakeCluster) -> None:
    service = hands.workloads
    admitted = admit(service, on_cluster(2))
    hands.dispatcher.submit(admitted)
    hands.drive()
    cluster.move(admitted.row.id, "node-1")
    hands.dispatcher._follow_moves(service)
    [lease] = service.leases()
    assert lease.node == "node-1"
    assert [device.id for device in lease.devices] == cluster.cards_of(admitted.row.id)
    receipt = service.receipt(admitted.row.id)
    assert ["node-1/gpu-0" in receipt.devices[0].id, "node-1/gpu-1" in receipt.devices[1].id] == [True, True]
    assert any("moved to node-1" in note for note in receipt.notes)
    cluster.break_card(admitted.row.id)
    cluster.move(admitted.row.id, "node-0")
    hands.dispatcher._follow_moves(service)
    row = service.sandbox(admitted.row.id)
    assert row.state == "failed"
    assert "DELIVERY_MISMATCH" in (row.reason or "")
    assert service.leases() == []


def test_what_is_lost_with_its_node_is_reported_and_freed(service: Workloads, cluster: FakeCluster) -> None:
    row = service.create(on_cluster(4))
    cluster.lose(row.id)
    reconcile(service.ledger, service.registry)
    assert service.sandbox(row.id).state == "failed"
    assert service.leases() == []


def test_what_is_lost_before_it_was_placed_ends(hands: Hands, cluster: FakeCluster) -> None:
    cluster.hold("looking")
    service = hands.workloads
    admitted = admit(service, on_cluster())
    hands.dispatcher.submit(admitted)
    hands.drive()
    cluster.lose(admitted.row.id)
    hands.drive()
    assert service.sandbox(admitted.row.id).state == "failed"
    assert service.leases() == []


@pytest.mark.parametrize("held", [True, False])
def test_it_can_be_cancelled_while_it_is_pending_and_before_it_is_submitted(
    hands: Hands, cluster: FakeCluster, held: bool
) -> None:
    cluster.hold("looking")
    service = hands.workloads
    admitted = admit(service, on_cluster())
    hands.dispatcher.submit(admitted)
    if held:
        hands.drive()
        assert service.remove(admitted.row.id, 0.0).state in ("exited", "failed")
    else:
        with service.ledger.writing():
            service.ledger.set_state(admitted.row.id, SandboxState.STOPPING, expected=(SandboxState.CREATING,))
    hands.drive()
    assert service.sandboxes() == []
    assert service.leases() == []
    assert cluster.pods() == []


@pytest.mark.parametrize("seen", [None, Exit(137, ExitReason.NOT_STARTED, 9)])
def test_what_is_removed_while_it_is_pending_was_removed_and_not_killed(
    hands: Hands, cluster: FakeCluster, seen: Exit | None
) -> None:
    cluster.hold("looking")
    service = hands.workloads
    admitted = admit(service, on_cluster())
    hands.dispatcher.submit(admitted)
    hands.drive()
    with service.ledger.writing():
        service.ledger.set_state(admitted.row.id, SandboxState.STOPPING, expected=(SandboxState.CREATING,))
    row = service.sandbox(admitted.row.id)
    cluster.lose(row.id)  # what its delivery does next; a reconciliation sees it before the delivery has recorded it
    assert finish(service.ledger, service.registry, row, Status(Phase.ABSENT, seen))
    found = service.sandbox(row.id)
    assert (found.state, found.reason) == ("exited", "removed before it ran")
    hands.drive()
    assert service.sandbox(row.id).reason == "removed before it ran"
    assert service.leases() == []


@pytest.mark.parametrize("verb", ["create", "placement", "observe"])
def test_a_cluster_that_is_away_is_waited_for(
    verb: str, hands: Hands, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = hands.workloads
    admitted = admit(service, on_cluster())
    with monkeypatch.context() as away:
        away.setattr(FakeClusterBackend, verb, unreachable)
        hands.dispatcher.submit(admitted)
        hands.drive()
        assert service.sandbox(admitted.row.id).waits_for == "the API server does not answer"
    hands.drive()
    assert service.sandbox(admitted.row.id).state == "running"
    assert [pod.starts for pod in cluster.pods()] == [1]
    service.remove(admitted.row.id, 0.0)


def test_the_same_device_twice_from_a_scheduler_is_refused_by_the_index(service: Workloads) -> None:
    first = service.create(on_cluster(1))
    second = service.create(on_cluster(1))
    [taken] = [lease.devices for lease in service.leases() if lease.sandbox_id == first.id]
    with pytest.raises(Busy), service.ledger.writing():
        service.ledger.bind(second.id, "node-0", taken)
    elsewhere = LeasedDevice("node-9/gpu-0", units=("node-9/gpu-0",))
    with service.ledger.writing():
        assert service.ledger.bind(second.id, "node-9", [elsewhere])
    for row in (first, second):
        service.remove(row.id, 0.0)


# -- another gateway --------------------------------------------------------------------------------------------------


def owned_elsewhere(ledger: Ledger, sandbox_id: str, owner: ProcessName = ELSEWHERE) -> None:
    """As if a gateway of another host had accepted it."""
    from dibs.ledger.rows import encode, sealed

    ledger._db.execute("UPDATE sandboxes SET owner = :o WHERE id = :id", o=sealed(encode(owner)), id=sandbox_id)


NEXT_DOOR = ProcessName("other-pod", boot_id(), 4026539999, 1, 1)  # another container on this kernel


@pytest.mark.parametrize("owner", [ELSEWHERE, NEXT_DOOR], ids=["host", "container"])
def test_what_a_silent_gateway_of_another_host_or_container_delivers_is_taken_over(
    hands: Hands, cluster: FakeCluster, owner: ProcessName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_FIRST_NAMESPACE", 0)  # we are in a container too: its processes are not seen
    cluster.hold("looking")
    service = hands.workloads
    admitted = admit(service, on_cluster(2))
    assert admitted.work is not None
    run = Run(*admitted.work)
    delivery = Delivery(service.home, service.ledger)
    assert isinstance(delivery.advance(run), NotYet)
    owned_elsewhere(service.ledger, admitted.row.id, owner)
    with service.ledger.writing():
        service.ledger.beat(owner)
    assert hands.take_over() == []
    hands.now = 14.0
    with service.ledger.writing():
        service.ledger.beat(owner)  # it lives
    assert hands.take_over() == []
    hands.now = 28.0
    assert hands.take_over() == []  # not silent for long enough
    hands.now = 30.0
    assert hands.take_over() == [admitted.row.id]
    cluster.hold("")
    hands.drive()
    row = service.sandbox(admitted.row.id)
    assert (row.state, row.owner, row.fence) == ("running", myself(), 1)
    assert [pod.starts for pod in cluster.pods()] == [1]
    # The first one wakes up, and goes on where it was: it is refused by its fence, and touches nothing.
    with pytest.raises(Conflict):
        delivery.advance(run)
    assert service.sandbox(admitted.row.id).state == "running"
    assert [pod.state for pod in cluster.pods()] == ["running"]
    service.remove(admitted.row.id, 0.0)


def test_a_silent_owner_is_not_taken_over_where_only_its_own_host_can_deliver(eight_gpus: Home) -> None:
    hands = Hands(lambda: Workloads(eight_gpus))
    admitted = admit(hands.workloads, parse_spec({"gpu": 1, "command": SLEEP, "backend": "local"}))
    owned_elsewhere(hands.workloads.ledger, admitted.row.id)
    for now in (0.0, 100.0):
        hands.now = now
        assert hands.take_over() == []
    hands.workloads.close()


def test_what_a_silent_process_of_another_host_had_begun_is_ended(hands: Hands, cluster: FakeCluster) -> None:
    cluster.hold("looking")
    service = hands.workloads
    admitted = admit(service, on_cluster())
    assert admitted.work is not None
    order = msgspec.structs.replace(admitted.work[0], origin="")
    Delivery(service.home, service.ledger).advance(Run(order, admitted.work[1]))
    service.ledger._db.execute("UPDATE sandboxes SET origin = '', pending = NULL")
    owned_elsewhere(service.ledger, admitted.row.id)
    hands.take_over()
    hands.now = 16.0
    hands.take_over()
    assert service.sandbox(admitted.row.id).state == "failed"
    assert service.leases() == []
    assert cluster.pods() == []


@pytest.mark.parametrize(("memory", "capacity"), [(None, {}), (1 << 30, {"memory": 1 << 30})])
def test_the_memory_of_a_placed_device_is_reported_where_the_cluster_says_it(
    memory: int | None, capacity: dict[str, int], service: Workloads
) -> None:
    scheduler = scheduler_of(service.registry.get("fake-cluster"))
    assert scheduler is not None
    placed = Placement("bound", node="node-0", devices=(PlacedDevice("node-0/gpu-0", memory=memory),))
    [device] = delivery._devices(scheduler, placed)
    assert device.capacity == capacity

"""The hands of a gateway touch only what is theirs to make."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.ledger.books import RECEIPT
from tests.workloads.admitting import admit

from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Exec, Exit, ExitReason, Handle, Phase, Status
from dibs.home import Home
from dibs.request.spec import parse_spec
from dibs.sandbox import SandboxId, SandboxState
from dibs.workloads.booking import Order
from dibs.workloads.delivery import Delivery, withdraw
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.reconcile import finish, handle_of
from dibs.workloads.service import Workloads


def test_what_was_delivered_meanwhile_is_not_made_again(eight_gpus: Home) -> None:
    """It was read as unfinished, then finished by other hands, then handed out: it must live on."""
    with Workloads(eight_gpus) as service:
        admitted = admit(service, parse_spec({"gpu": 1, "command": ["sleep", "60"], "grace": 0}))
        assert admitted.work is not None
        order, prepared = admitted.work
        Delivery(service.home, service.ledger).deliver(order, prepared)
        late = Dispatcher(lambda: Workloads(eight_gpus), workers=0)
        late._deliver(service, order, None)
        try:
            row = service.sandbox(order.sandbox_id)
            assert row.state == "running"
            assert order.backend.status(handle_of(row)).phase is Phase.RUNNING
            assert service.leases() != []
        finally:
            service.remove(order.sandbox_id, 0.0)


def test_a_command_for_a_sandbox_that_is_about_to_run_waits_for_that(
    eight_gpus: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the ledger it is running as soon as it is proved, and clients take its state from there."""
    looked = threading.Event()
    start, status = LocalBackend.start, LocalBackend.status

    def seen(backend: LocalBackend, handle: Handle) -> Status:
        found = status(backend, handle)
        looked.set()
        return found

    def ask(sandbox_id: SandboxId) -> int:
        with Workloads(eight_gpus) as client:
            session = client.exec(sandbox_id, Exec(command=("sh", "-c", "exit 3")))
            while True:
                for piece in session.receive():
                    if isinstance(piece, Exit):
                        session.close()
                        return piece.code

    with Workloads(eight_gpus) as service, ThreadPoolExecutor(1) as clients:
        admitted = admit(service, parse_spec({"gpu": 1, "command": ["sleep", "60"], "grace": 0}))
        assert admitted.work is not None
        order, prepared = admitted.work
        asked = []

        def start_late(backend: LocalBackend, handle: Handle) -> None:
            assert service.sandbox(order.sandbox_id).state == "running"
            asked.append(clients.submit(ask, order.sandbox_id))
            assert looked.wait(60)
            start(backend, handle)

        monkeypatch.setattr(LocalBackend, "status", seen)
        monkeypatch.setattr(LocalBackend, "start", start_late)
        Delivery(service.home, service.ledger).deliver(order, prepared)
        try:
            assert asked[0].result(60) == 3
        finally:
            service.remove(order.sandbox_id, 0.0)


def test_a_sandbox_that_is_being_stopped_is_left_to_the_process_that_stops_it(eight_gpus: Home) -> None:
    with Workloads(eight_gpus) as service:
        row = service.create(parse_spec({"gpu": 1, "command": ["sleep", "60"], "grace": 0}))
        with service.ledger.writing():
            service.ledger.set_state(row.id, SandboxState.STOPPING, expected=(SandboxState.RUNNING,))
        order = Order(
            spec=parse_spec({}), backend=service.backend_of(row), sandbox_id=SandboxId(row.id), who=service.identity
        )
        Dispatcher(lambda: Workloads(eight_gpus), workers=0)._deliver(service, order, None)
        assert service.sandbox(row.id).state == "stopping"
        service.remove(row.id, 0.0)


def test_two_who_see_the_same_end_make_it_once_more_and_do_not_end_it(eight_gpus: Home) -> None:
    """A gateway died before the command was let go. Of two who find that, the second must not take it for lost."""
    with Workloads(eight_gpus) as service:
        admitted = admit(service, parse_spec({"gpu": 1, "command": ["sleep", "60"]}))
        with service.ledger.writing():
            service.ledger.attach(admitted.row.id, handle=Handle("local", "x", "/x"), receipt=RECEIPT)
        row = service.sandbox(admitted.row.id)
        gone = Status(Phase.EXITED, Exit(1, ExitReason.NOT_STARTED))
        for _ in range(2):
            assert finish(service.ledger, service.registry, row, gone) is False
        assert service.sandbox(row.id).state == "creating"
        assert [lease.state for lease in service.leases()] == ["reserved"]
        with service.ledger.writing():
            withdraw(service.ledger, row.id)

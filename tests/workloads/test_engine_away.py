"""An engine stops while a request waits for devices: the request keeps waiting until its own timeout."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.workloads.admitting import admit

from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Capability
from dibs.errors import BackendUnavailable, DibsError, InvalidRequest, Timeout
from dibs.home import Home
from dibs.request.spec import parse_spec
from dibs.workloads.admission import waiting_for
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.service import Workloads
from dibs.workloads.waiter import WaitNews

WORDS = "the engine has gone for a walk"


class Walk:
    """Takes a backend away: it refuses to render so many times, and then is back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.asked = 0
        render = LocalBackend.render

        def away(*args: object) -> object:
            self.asked += 1
            if self.left > 0:
                self.left -= 1
                raise BackendUnavailable(WORDS, code="ENGINE_UNREACHABLE")
            return render(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(LocalBackend, "render", away)


@pytest.fixture
def walk(monkeypatch: pytest.MonkeyPatch) -> Walk:
    return Walk(monkeypatch)


@pytest.fixture
def service(eight_gpus: Home) -> Iterator[Workloads]:
    with Workloads(eight_gpus) as found:
        yield found
        for row in found.sandboxes():
            found.remove(row.id, 0.0)


def test_a_request_that_may_wait_is_served_when_it_is_back(service: Workloads, walk: Walk) -> None:
    walk.left = 2
    news: list[WaitNews] = []
    row = service.create(parse_spec({"gpu": 1, "wait": "1h", "command": ["sleep", "60"]}), on_wait=news.append)
    assert row.state == "running"
    assert [(one.place, one.waits_for) for one in news] == [(1, WORDS), (1, WORDS)]
    assert service.queue() == []


def test_a_request_that_may_not_wait_is_refused_at_once(service: Workloads, walk: Walk) -> None:
    walk.left = 1
    with pytest.raises(BackendUnavailable, match=WORDS):
        service.create(parse_spec({"gpu": 1}))
    assert (service.sandboxes(), service.leases(), service.queue()) == ([], [], [])


def test_a_timeout_names_what_was_waited_for(service: Workloads, walk: Walk) -> None:
    walk.left = 1_000_000
    with pytest.raises(Timeout, match=WORDS):
        service.create(parse_spec({"gpu": 1, "wait": "50ms"}))
    assert (service.sandboxes(), service.leases(), service.queue()) == ([], [], [])


def test_what_a_gateway_has_queued_is_served_when_it_is_back(service: Workloads, walk: Walk) -> None:
    holder = service.create(parse_spec({"gpu": 8, "command": ["sleep", "60"]}))
    patient = admit(service, parse_spec({"gpu": 1, "wait": "1h", "command": ["sleep", "60"]}))
    hasty = admit(service, parse_spec({"gpu": 1, "wait": "50ms", "command": ["sleep", "60"]}))
    walk.left, walk.asked = 1_000_000, 0
    hands = Dispatcher(lambda: Workloads(service.home), workers=1)
    hands.start()
    try:
        service.remove(holder.id, 0.0)
        while walk.asked < 3 or service.sandbox(hasty.row.id).state == "queued":
            os.sched_yield()
        assert service.sandbox(hasty.row.id).state == "failed"
        assert service.sandbox(patient.row.id).state == "queued"
        walk.left = 0
        while service.sandbox(patient.row.id).state != "running":
            os.sched_yield()
    finally:
        hands.stop()


def test_a_queued_one_whose_image_became_invalid_does_not_block_the_queue(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = service.create(parse_spec({"gpu": 8, "command": ["sleep", "60"]}))
    first, second = (admit(service, parse_spec({"gpu": 1, "wait": "1h", "command": ["true"]})).row for _ in range(2))
    refused = iter([InvalidRequest(WORDS, code="IMAGE_INVALID")])

    def inspect_image(*_: object) -> None:
        for error in refused:
            raise error

    monkeypatch.setattr(LocalBackend, "inspect_image", inspect_image)
    service.remove(holder.id, 0.0)
    hands = Dispatcher(lambda: Workloads(service.home))
    hands._serve_queue(service)
    assert service.sandbox(first.id).state == "failed"
    assert WORDS in (service.sandbox(first.id).reason or "")
    work = hands._work.get_nowait()
    assert work is not None
    assert work[0].sandbox_id == second.id
    assert hands._deliver(service, *work)


def test_a_queued_sandbox_says_that_its_backend_is_away(service: Workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = service.create(parse_spec({"gpu": 8, "command": ["sleep", "60"]}))
    queued = admit(service, parse_spec({"gpu": 1, "wait": "1h"})).row
    assert holder.name in waiting_for(service, queued)["waits_for"]
    service.remove(holder.id, 0.0)
    assert waiting_for(service, queued)["waits_for"] == "it is served now"
    monkeypatch.setattr(LocalBackend, "available", lambda _: Capability(False, WORDS))
    assert waiting_for(service, queued)["waits_for"] == WORDS


def test_what_could_not_be_cleaned_up_does_not_hide_why_it_failed(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> object:
        raise BackendUnavailable("it cannot be started", code="ENGINE_FAILED")

    def cannot(*_: object) -> object:
        raise DibsError("it cannot be stopped either")

    with monkeypatch.context() as broken:
        broken.setattr(LocalBackend, "start", fails)
        broken.setattr(LocalBackend, "stop", cannot)
        with pytest.raises(BackendUnavailable, match="it cannot be started"):
            service.create(parse_spec({"gpu": 1, "command": ["sleep", "60"]}))
    [row] = service.sandboxes()  # nothing is freed that is not proved gone
    assert [lease.sandbox_id for lease in service.leases()] == [row.id]
    told = [event.detail for event in service.events(row.id) if event.kind == "sandbox.leftover"]
    assert told == ["it cannot be stopped either"]

"""What a gateway hears from an engine: what ends, also after the engine was away, and nothing after the close."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.engines import images
from tests.engines.conftest import PATIENCE, Bench

from dibs.request.spec import parse_spec
from dibs.workloads import dispatcher
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.engine_events import EVERYTHING, Listening
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads


class Ear:
    """Something that listens, and what it was woken for."""

    def __init__(self, bench: Bench) -> None:
        self.woken: queue.Queue[None] = queue.Queue()
        self.listening = Listening(Registry(bench.home), lambda: self.woken.put(None))
        self._heard: set[str] = set()

    def hears(self, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while what not in self._heard:
            self.woken.get(timeout=max(0.01, deadline - time.monotonic()))
            self._heard |= self.listening.heard()
        self._heard.clear()


@pytest.fixture
def ear(bench: Bench) -> Iterator[Ear]:
    one = Ear(bench)
    yield one
    one.listening.close()


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dibs-engine-events"]


def test_the_end_of_a_sandbox_is_heard_and_its_start_is_not(bench: Bench, ear: Ear) -> None:
    ear.listening.follow(["local", bench.engine.kind, bench.engine.kind])
    assert len(_threads()) == 1
    ear.hears(EVERYTHING)
    lives, dies = bench.start("sleep", "1000"), bench.start("sleep", "1000")
    bench.engine.api("DELETE", f"{bench.engine.prefix}/containers/dibs-{dies.sandbox_id}?force=true")
    ear.hears(dies.sandbox_id)
    assert lives.sandbox_id not in ear.listening.heard()


def test_an_engine_that_comes_back_is_heard_again(bench: Bench, ear: Ear) -> None:
    ear.listening.follow([bench.engine.kind])
    ear.hears(EVERYTHING)
    bench.engine.kill()
    bench.engine.start()
    ear.hears(EVERYTHING)
    dies = bench.start("true")
    ear.hears(dies.sandbox_id)


@pytest.mark.parametrize("away", [False, True])
def test_no_thread_listens_after_the_close(bench: Bench, ear: Ear, away: bool) -> None:
    ear.listening.follow([bench.engine.kind])
    ear.hears(EVERYTHING)
    if away:
        bench.engine.kill()
    ear.listening.close()
    assert _threads() == []


def test_a_dispatcher_frees_what_it_hears_of_without_looking_at_everything(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_THOROUGH", float("inf"))
    bench.world("2")
    registry = Registry(bench.home)

    def make() -> Workloads:
        return Workloads(bench.home, registry=registry, compare=False)

    hands = Dispatcher(make, workers=1)
    hands.start()
    try:
        with make() as service:
            wanted = {"gpu": 2, "image": images.REFERENCE, "backend": bench.engine.kind, "command": ["sleep", "1000"]}
            row = service.create(parse_spec(wanted))
            _until(lambda: len(_threads()) == 1)
            bench.engine.api("DELETE", f"{bench.engine.prefix}/containers/dibs-{row.id}?force=true")
            _until(lambda: not service.leases())
            assert not service.sandbox(row.id).live
    finally:
        hands.stop()
    assert _threads() == []


def _until(question: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not question():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)

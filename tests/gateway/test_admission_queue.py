"""Create requests that arrive while a batch is served form the next batch; a slow engine delays no other request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec
import pytest

from dibs.backends.installed import declared
from dibs.errors import Busy, DibsError, InvalidRequest
from dibs.gateway.admission_queue import Desk
from dibs.gateway.threads import Pool
from dibs.home import Home
from dibs.request.spec import parse_spec
from dibs.sandbox import SandboxState
from dibs.workloads.admission import Admitted, Asking
from dibs.workloads.service import Workloads

PATIENCE = 30.0


@pytest.fixture
def pool(eight_gpus: Home) -> Iterator[Pool]:
    found = Pool(lambda: Workloads(eight_gpus), threads=4)
    yield found
    found.close()
    with Workloads(eight_gpus) as service:
        for row in service.sandboxes():
            service.ledger.end(row.id, SandboxState.EXITED, exit=None, reason="never made")


def run(main: Coroutine[Any, Any, None]) -> None:
    """A desk that forgets who asks would let them wait for ever."""

    async def bounded() -> None:
        await asyncio.wait_for(main, PATIENCE)

    asyncio.run(bounded())


class Counter:
    """A desk, and what happens at it."""

    def __init__(self, pool: Pool) -> None:
        self.submitted: list[str] = []
        self.worded = 0
        self.threads: dict[str, list[int]] = {}
        self.first = threading.Event()
        self.go = threading.Event()
        self.desk = Desk(pool, lambda admitted: self.submitted.append(admitted.row.id))

    async def ask(self, name: str, *, slow: bool = False, mute: bool = False, key: str = "", **words: object) -> str:
        def read(workloads: Workloads) -> Asking:
            self.threads.setdefault(name, []).append(threading.get_ident())
            if slow:
                self.first.set()
                self.go.wait(PATIENCE)
            return Asking(workloads=workloads, spec=parse_spec({"name": name, **words}), idempotency_key=key)

        def show(asking: Asking, admitted: Admitted) -> str:
            assert asking.spec.name == admitted.row.name
            if mute:
                raise LookupError(name)
            return admitted.row.id

        def refuse(error: DibsError) -> DibsError:
            error.add_note("worded")
            self.worded += 1
            return error

        return await self.desk.take(read, show, refuse)


def test_requests_that_arrived_meanwhile_are_admitted_with_one_answer_each(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        first = asyncio.create_task(counter.ask("first", slow=True, gpu=1, backend="local"))
        await asyncio.to_thread(counter.first.wait, PATIENCE)
        others = [asyncio.create_task(counter.ask(f"n{number}", gpu=1, backend="local")) for number in range(9)]
        await asyncio.sleep(0)
        assert not counter.submitted
        counter.go.set()
        ids = [await first]
        ids += [await other for other in others[:7]]
        assert counter.submitted == ids
        for other in others[7:]:
            with pytest.raises(Busy) as caught:
                await other
            assert caught.value.__notes__ == ["worded"]

    run(main())


def test_an_invalid_request_is_refused_alone(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        bodies: list[dict[str, Any]] = [{"gpu": 1}, {"gpu": "1.5"}, {"backend": "nowhere"}, {"gpu": 1}]
        asked = [counter.ask(f"n{number}", **body) for number, body in enumerate(bodies)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[1], InvalidRequest)
        assert getattr(answers[2], "code", "") == "BACKEND_UNKNOWN"
        assert counter.submitted == [answers[0], answers[3]]
        assert counter.worded == 1  # what cannot be read is not a refusal
        assert all(len(counter.threads[f"n{number}"]) == 1 for number in range(4))  # no request is admitted twice

    run(main())


def test_a_request_that_may_get_a_container_skips_the_batch(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = msgspec.structs.replace(declared("fake"), inspects_images=True)
    monkeypatch.setattr("dibs.workloads.admission.declared", lambda name: asks if name == "fake" else declared(name))

    async def main() -> None:
        counter = Counter(pool)
        waiting = asyncio.create_task(counter.ask("engine", backend="fake", gpu=1))
        assert await counter.ask("here", backend="local", gpu=1) in counter.submitted
        assert await waiting in counter.submitted
        assert len(counter.threads["engine"]) == 2  # heard in line, then read again where it is served
        assert len(counter.threads["here"]) == 1

    run(main())


def test_a_request_that_only_an_engine_can_serve_is_served_outside_the_batch(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        asked = [counter.ask("image", image="busybox:1"), counter.ask("plain"), counter.ask("local", backend="local")]
        await asyncio.gather(*asked, return_exceptions=True)
        assert [len(counter.threads[name]) for name in ("image", "plain", "local")] == [2, 1, 1]

    run(main())


def test_a_client_that_disconnects_while_waiting_does_not_affect_others(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        first = asyncio.create_task(counter.ask("first", slow=True, backend="local"))
        await asyncio.to_thread(counter.first.wait, PATIENCE)
        gone = asyncio.create_task(counter.ask("gone", backend="local"))
        stays = asyncio.create_task(counter.ask("stays", backend="local"))
        await asyncio.sleep(0)
        gone.cancel()
        counter.go.set()
        assert await first in counter.submitted
        assert await stays in counter.submitted

    run(main())


def test_a_closing_queue_answers_all_that_wait(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        pool.close()
        answers = await asyncio.gather(counter.ask("a"), counter.ask("b"), return_exceptions=True)
        assert [getattr(answer, "code", answer) for answer in answers] == ["STOPPING", "STOPPING"]

    run(main())


def test_a_waiting_client_is_counted_until_it_is_answered(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        first = asyncio.create_task(counter.ask("first", slow=True, backend="local"))
        await asyncio.to_thread(counter.first.wait, PATIENCE)
        wrong = asyncio.create_task(counter.ask("second", gpu="1.5"))
        gone = asyncio.create_task(counter.ask("third", backend="local"))
        await asyncio.sleep(0)
        assert counter.desk.waiting == 3
        gone.cancel()
        counter.go.set()
        await first
        with pytest.raises(InvalidRequest):
            await wrong
        await asyncio.wait([gone])
        assert counter.desk.waiting == 0

    run(main())


def test_what_was_admitted_before_is_shown_again_and_not_submitted_again(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        ids = [await counter.ask("once", backend="local", key="k") for _ in range(2)]
        assert ids[0] == ids[1]
        assert counter.submitted == ids[:1]

    run(main())


def test_two_concurrent_requests_with_one_key_get_one_sandbox(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        first = asyncio.create_task(counter.ask("first", slow=True, backend="local"))
        await asyncio.to_thread(counter.first.wait, PATIENCE)
        both = [asyncio.create_task(counter.ask("once", backend="local", key="k")) for _ in range(2)]
        await asyncio.sleep(0)
        counter.go.set()
        ids = await asyncio.gather(first, *both)
        assert ids[1] == ids[2]
        assert counter.submitted == ids[:2]

    run(main())


def test_an_answer_that_cannot_be_shown_is_an_error_for_its_sender_alone(pool: Pool) -> None:
    async def main() -> None:
        counter = Counter(pool)
        asked = [counter.ask(name, backend="local", mute=name == "b") for name in ("a", "b", "c")]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[1], LookupError)
        assert [answers[0], answers[2]] == [counter.submitted[0], counter.submitted[2]]
        assert len(counter.submitted) == 3  # it was admitted all the same

    run(main())


@pytest.mark.parametrize("many", [1, 2])
def test_an_error_that_is_no_refusal_is_not_worded_as_one(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dibs.workloads.service.Workloads.inventory", broken)

    async def main() -> None:
        counter = Counter(pool)
        asked = [counter.ask(f"n{number}", backend="local", gpu=1) for number in range(many)]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, ZeroDivisionError)
            assert not hasattr(answer, "__notes__")
        assert counter.submitted == []

    run(main())

"""The pool: one service per thread, streams that stop, feeds that hold back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from dibs.errors import BackendUnavailable, NotFound
from dibs.gateway.threads import Pool
from dibs.home import Home
from dibs.workloads.service import Workloads


@pytest.fixture
def pool(home: Home) -> Iterator[Pool]:
    made = Pool(lambda: Workloads(home), threads=4)
    yield made
    made.close()


def test_each_thread_has_a_service_of_its_own(pool: Pool) -> None:
    together = threading.Barrier(4)

    def who(workloads: Workloads) -> tuple[int, int]:
        together.wait(10)
        return id(workloads), threading.get_ident()

    async def ask() -> list[tuple[int, int]]:
        return await asyncio.gather(*(pool.call(who) for _ in range(4)))

    pairs = asyncio.run(ask())
    assert len({service for service, _ in pairs}) == len({thread for _, thread in pairs}) == 4


def test_long_work_does_not_hold_up_short_questions(pool: Pool) -> None:
    free = threading.Event()

    async def ask() -> str:
        slow = [asyncio.ensure_future(pool.call_long(lambda _: free.wait(20))) for _ in range(20)]
        answer = await pool.call(lambda _: "quick")
        free.set()
        await asyncio.gather(*slow)
        return answer

    assert asyncio.run(ask()) == "quick"


def test_an_error_of_a_thread_is_raised_to_the_caller(pool: Pool) -> None:
    async def ask() -> None:
        await pool.call(lambda w: w.sandbox("nothing"))

    with pytest.raises(NotFound):
        asyncio.run(ask())


def test_a_stream_that_is_left_closes_its_iterator(pool: Pool) -> None:
    closed = threading.Event()
    given: list[int] = []

    def numbers(_: Workloads) -> Iterator[int]:
        try:
            for number in range(1_000_000):
                given.append(number)
                yield number
        finally:
            closed.set()

    async def read() -> list[int]:
        found = []
        async with pool.stream(numbers) as stream:
            async for number in stream:
                found.append(number)
                if number == 3:
                    break
        assert await asyncio.to_thread(closed.wait, 10)
        return found

    assert asyncio.run(read()) == [0, 1, 2, 3]
    assert len(given) < 100  # the thread is never far ahead of its reader


def test_a_stream_ends_with_the_error_of_its_iterator(pool: Pool) -> None:
    def broken(_: Workloads) -> Iterator[int]:
        yield 1
        raise NotFound("gone")

    async def read() -> list[int]:
        found = []
        async with pool.stream(broken) as stream:
            async for number in stream:
                found.append(number)
        return found

    with pytest.raises(NotFound, match="gone"):
        asyncio.run(read())


async def chunks(count: int, sent: list[int], error: Exception | None = None) -> AsyncIterator[bytes]:
    for number in range(count):
        sent.append(number)
        yield b"x" * 10
    if error is not None:
        raise error


def test_a_feed_hands_over_everything_in_order(pool: Pool) -> None:
    def gather(_: Workloads, pieces: Iterator[bytes]) -> int:
        return sum(len(piece) for piece in pieces)

    assert asyncio.run(_feed(pool, gather, 500, [])) == 5000


def test_a_feed_without_subscribers_stops(pool: Pool) -> None:
    sent: list[int] = []

    def first(_: Workloads, pieces: Iterator[bytes]) -> int:
        return len(next(pieces))

    assert asyncio.run(_feed(pool, first, 100_000, sent)) == 10
    assert len(sent) < 1000


def test_a_feed_that_breaks_off_is_told_to_both_sides(pool: Pool) -> None:
    heard: list[str] = []

    def gather(_: Workloads, pieces: Iterator[bytes]) -> int:
        try:
            return sum(len(piece) for piece in pieces)
        except BackendUnavailable as error:
            heard.append(error.code)
            raise

    with pytest.raises(ConnectionAbortedError):
        asyncio.run(_feed(pool, gather, 3, [], ConnectionAbortedError("hung up")))
    assert heard == ["UPLOAD_BROKEN"]


async def _feed(
    pool: Pool, work: Callable[[Workloads, Iterator[bytes]], int], count: int, sent: list[int],
    error: Exception | None = None,
) -> int:  # fmt: skip
    return await pool.feed(chunks(count, sent, error), work)


def test_a_closed_pool_says_so(home: Home) -> None:
    pool = Pool(lambda: Workloads(home), threads=1)
    pool.close()

    async def ask() -> None:
        await pool.call(lambda _: None)

    with pytest.raises(BackendUnavailable, match="stopping"):
        asyncio.run(ask())

"""Conversations on the event loop: nothing blocks it, nothing piles up, nothing is waited for in vain."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Iterator

import pytest

from dibs.backends.port import Exit, Output
from dibs.errors import Unsupported
from dibs.gateway.sessions import AsyncSession


class Wire:
    """A session over a socket pair. What the other end writes is output; `exit` ends it."""

    def __init__(self) -> None:
        self.mine, self.other = socket.socketpair()
        self.closed = False
        self.taken = 0

    def fileno(self) -> int:
        return self.mine.fileno()

    def send(self, data: bytes) -> None:
        assert self.mine.send(data, socket.MSG_DONTWAIT) == len(data)  # or the loop would have been blocked

    def end_of_input(self) -> None:
        self.mine.shutdown(socket.SHUT_WR)

    def signal(self, number: int) -> None:
        self.send(f"signal {number}".encode())

    def resize(self, rows: int, columns: int) -> None:
        self.send(f"resize {rows} {columns}".encode())

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        assert timeout == 0
        try:
            data = self.mine.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        self.taken += len(data)
        return [Output("stdout", data)] if data else [Exit(7)]

    def close(self) -> None:
        self.closed = True
        self.mine.close()


class Silent(Wire):
    """One without a descriptor, as the fake backend's."""

    def fileno(self) -> int:
        raise Unsupported("no descriptor")

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        assert timeout is not None
        self.mine.settimeout(timeout)
        try:
            data = self.mine.recv(65536)
        except TimeoutError:
            return []
        return [Output("stdout", data)] if data else [Exit(7)]


class Engine(Wire):
    """One whose descriptor only tells that something has come, as those of engines."""

    def __init__(self) -> None:
        super().__init__()
        self.poller = select.epoll()
        self.poller.register(self.mine.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        return self.poller.fileno()

    def send(self, data: bytes) -> None:
        self.mine.sendall(data)

    def close(self) -> None:
        self.poller.close()
        super().close()


@pytest.fixture(params=[Wire, Silent, Engine])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    made: Wire = request.param()
    yield made
    made.mine.close()
    made.other.close()


def test_output_comes_as_it_is_said_and_the_exit_last_and_again(wire: Wire) -> None:
    async def main() -> None:
        async with AsyncSession(wire) as session:
            assert await session.next(0.01) == []
            asyncio.get_running_loop().call_later(0.01, wire.other.sendall, b"one")
            assert await session.next() == [Output("stdout", b"one")]
            wire.other.close()
            assert await session.next() == [Exit(7)]
            assert await session.next() == [Exit(7)]
        while not wire.closed:  # an engine is told by a thread
            await asyncio.sleep(0.001)

    asyncio.run(main())


def test_waiters_learn_that_it_was_closed() -> None:
    async def main() -> None:
        wire = Wire()
        session = AsyncSession(wire)
        waiting = asyncio.create_task(session.next())
        await asyncio.sleep(0)
        await session.close()
        await session.close()
        with pytest.raises(ConnectionAbortedError):
            await waiting
        await session.send(b"to nobody")
        wire.other.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Wire, Engine])
def test_a_process_that_does_not_read_holds_its_sender_back_but_not_the_loop(kind: type[Wire]) -> None:
    async def main() -> None:
        wire = kind()
        async with AsyncSession(wire) as session:
            sending = asyncio.create_task(session.send(b"x" * 5_000_000))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not sending.done()
            wire.other.sendall(b"still heard")
            if kind is Wire:  # an engine's session listens by itself while it is blocked
                assert await session.next() == [Output("stdout", b"still heard")]
            came = 0
            wire.other.setblocking(False)
            while came < 5_000_000:
                came += len(await asyncio.get_running_loop().sock_recv(wire.other, 65536))
            await sending
            assert came == 5_000_000
        while not wire.closed:
            await asyncio.sleep(0.001)
        wire.other.close()

    asyncio.run(main())


def test_without_a_subscriber_nothing_is_read() -> None:
    async def main() -> None:
        wire = Wire()
        async with AsyncSession(wire) as session:
            wire.other.sendall(b"x" * 100_000)
            await session.next()
            before = wire.taken
            await asyncio.sleep(0.01)
            assert wire.taken == before <= 65536
        wire.other.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Wire, Engine])
def test_signals_and_sizes_are_passed_on(kind: type[Wire]) -> None:
    async def main() -> None:
        wire = kind()
        async with AsyncSession(wire) as session:
            await session.signal(15)
            await session.resize(3, 4)
            await session.end_of_input()
            assert wire.other.recv(100) == b"signal 15resize 3 4"
            assert wire.other.recv(100) == b""
        while not wire.closed:
            await asyncio.sleep(0.001)
        wire.other.close()

    asyncio.run(main())

"""A conversation with a process of a sandbox, on the event loop.

The handlers of `execd`, of the native API and of terminals use it around a `Session` of the port. While a caller waits
in `next`, the session's descriptor is watched by the loop; without a waiter nothing is read, so the process itself
is held back by a slow client and nothing piles up here. The same the other way: input is handed over only as fast as
the process takes it. No thread waits for a running command; only a backend whose sessions have no descriptor (the
fake one) is asked by a thread. Where the descriptor is not the socket itself (engines), it cannot tell whether there is
room, and a signal is a question to the engine: there a thread sends, for as long as that takes.

One reads, any number may send. It must not be used from another loop than its first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from dibs.backends.port import Exit, Output, Session
from dibs.errors import DibsError, Unsupported

PIECE = 32768  # a unix socket that can be written to at all takes this much at once
STUCK = 1.0  # seconds; a session takes what it can take at once, so one that does not in this time is stuck
POLL = 0.05  # seconds that a thread waits at a time for a session without a descriptor


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(64, "dibs-session")


class AsyncSession:
    """`next` gives output and at last the Exit; after that it gives the Exit again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._stirred = asyncio.Event()  # something may have come that the descriptor does not show
        self._room = asyncio.Event()
        self._closed = False
        self.exit: Exit | None = None
        self._counting = False
        self._told = 0  # what `new_count` has given last
        self._using = asyncio.Lock()  # a thread is in the session: what it takes in is not to be taken twice
        try:
            self._fd = session.fileno()
        except Unsupported:
            self._fd = -1
        self._direct = self._fd >= 0 and stat.S_ISSOCK(os.fstat(self._fd).st_mode)

    @property
    def taken(self) -> int | None:
        """How much of its input the command has read, where the backend can tell."""
        found: int | None = getattr(self._session, "taken", None)
        return found

    async def count_input(self) -> bool:
        """Keep `taken` up to date from now on; False where the backend cannot tell it."""
        count = getattr(self._session, "count_input", None)
        self._counting = count is not None and await self._answer(count) is True
        return self._counting

    def new_count(self) -> int | None:
        """How much of its input the command has read, if that is counted and has changed since it was last asked."""
        if not self._counting or self.taken is None or self.taken == self._told:
            return None
        self._told = self.taken
        return self.taken

    async def reading(self) -> bool | None:
        """Whether the command waits for input; None where that cannot be known."""
        found: bool | None = await self._answer(getattr(self._session, "reading", lambda: None))
        return found

    async def _answer(self, ask: Callable[[], bool | None]) -> bool | None:
        if self._closed or self.exit is not None:
            return False
        if self._direct:
            return ask()
        return await self._loop.run_in_executor(_threads(), ask)

    async def next(self, timeout: float | None = None) -> list[Output | Exit]:
        """What has come, waiting for it for at most `timeout` seconds; empty if nothing came in time, or if only
        `taken` has changed."""
        until = None if timeout is None else self._loop.time() + timeout
        while True:
            if self.exit is not None:
                return [self.exit]
            if self._closed:
                raise ConnectionAbortedError("the session was closed")
            self._stirred.clear()
            if self._direct:
                found = self._session.receive(0)
            elif self._fd >= 0:
                async with self._using:
                    found = self._take()
            else:
                found = await asyncio.shield(asyncio.to_thread(self._session.receive, POLL))
            if found and isinstance(found[-1], Exit):
                self.exit = found[-1]
            if found or (self._counting and self.taken not in (None, self._told)):
                return found
            left = None if until is None else until - self._loop.time()
            if left is not None and left <= 0:
                return []
            if self._fd >= 0:
                await self._wait(left)

    def _take(self) -> list[Output | Exit]:
        return [] if self._closed else self._session.receive(0)

    async def _wait(self, timeout: float | None) -> None:
        self._loop.add_reader(self._fd, self._stirred.set)
        try:
            async with asyncio.timeout(timeout):
                await self._stirred.wait()
        except TimeoutError:
            return
        finally:
            if not self._closed:
                self._loop.remove_reader(self._fd)

    async def send(self, data: bytes) -> None:
        """Input for the process. Returns when it was handed over: a slow process holds its sender back."""
        view = memoryview(data)
        async with self._sending:
            while view and not self._closed and self.exit is None:
                piece, view = view[:PIECE], view[PIECE:]
                await self._tell(lambda piece=piece: self._session.send(bytes(piece)))  # type: ignore[misc]

    async def end_of_input(self) -> None:
        async with self._sending:
            await self._tell(self._session.end_of_input)

    async def signal(self, number: int) -> None:
        await self._order(lambda: self._session.signal(number))

    async def kill(self) -> None:
        """End the process. A signal does not get past input that the process does not take; then hanging up ends it."""
        if not self._direct:
            await self.signal(signal.SIGKILL)
            return
        try:
            async with asyncio.timeout(STUCK):
                await self.signal(signal.SIGKILL)
        except TimeoutError:
            self.abandon()

    async def resize(self, rows: int, columns: int) -> None:
        await self._order(lambda: self._session.resize(rows, columns))

    async def _order(self, say: Callable[[], None]) -> None:
        if self._direct:
            async with self._sending:
                await self._tell(say)
        elif not self._closed:
            with contextlib.suppress(DibsError, OSError):  # it has ended
                await self._loop.run_in_executor(_threads(), say)

    async def _tell(self, say: Callable[[], None]) -> None:
        """Wait until the descriptor takes something, so that saying it does not block the loop."""
        if not self._direct:
            async with self._using:
                if not self._closed:
                    with contextlib.suppress(DibsError, OSError):  # the process has ended: `next` tells how
                        await asyncio.shield(self._loop.run_in_executor(_threads(), say))
            self._stirred.set()
            return
        while not self._closed and not self._writable():
            self._room.clear()
            self._loop.add_writer(self._fd, self._room.set)
            try:
                await self._room.wait()
            finally:
                if not self._closed:
                    self._loop.remove_writer(self._fd)
        if self._closed:
            return
        with contextlib.suppress(DibsError, OSError):  # the process has ended: `next` tells how
            say()
        self._stirred.set()  # while it wrote, it may have read

    async def close(self) -> None:
        """Hang up. Safe to call twice, and during a `next`: that one gets ConnectionAbortedError."""
        self.abandon()

    def abandon(self) -> None:
        """As `close`, where nothing can be awaited."""
        if self._closed:
            return
        self._closed = True
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
        if self._direct:
            self._loop.remove_writer(self._fd)
        if self._direct:
            self._hang_up()
        else:
            _threads().submit(self._hang_up)  # an engine may have to be told
        self._stirred.set()
        self._room.set()

    def _hang_up(self) -> None:
        with contextlib.suppress(DibsError, OSError):  # the other side is gone already
            self._session.close()

    def _writable(self) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return bool(poller.poll(0))

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abandon()

"""Where blocking work goes: the ledger and the backends are synchronous, the event loop must never wait for them.

Every handler that touches a sandbox, a device or the ledger calls `Pool.call` (milliseconds) or `Pool.call_long`
(whatever may take seconds: stopping, copying, waiting). Each thread has a `Workloads` of its own, because a connection
to the ledger belongs to one thread. Long work has threads of its own, so that it cannot starve short questions.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from dibs.errors import BackendUnavailable
from dibs.gateway.problems import Refused
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads

T = TypeVar("T")
P = ParamSpec("P")
_LONG_THREADS = 128  # stops, copies and followed logs at once; the next ones wait for a place
_MOST_OF_A_TENANT = _LONG_THREADS // 4  # copies and followed logs of one tenant at once; the next ones are refused
_AHEAD = 8  # pieces that a stream may be ahead of its reader


class Pool:
    """Threads with a `Workloads` each."""

    def __init__(self, make: Callable[[], Workloads], *, threads: int = 16) -> None:
        self._make = make
        self._mine = threading.local()
        self._made: list[_Seat] = []
        self._short = ThreadPoolExecutor(threads, "dibs-short")
        self._long = ThreadPoolExecutor(_LONG_THREADS, "dibs-long")
        self.long_running = 0
        self._streams: set[_Stream[Any]] = set()
        self._places: Counter[str] = Counter()  # long threads that a tenant's streams have now
        self._closed = False
        self._asked = 0  # short calls that were begun, and that have ended: of the loop's thread alone
        self._answered = 0

    def workloads(self) -> Workloads:
        """The `Workloads` of the calling thread."""
        return self._seat().workloads

    def _seat(self) -> _Seat:
        found: _Seat | None = getattr(self._mine, "seat", None)
        if found is None:
            found = self._mine.seat = _Seat(self._make())
            self._made.append(found)
        return found

    def _busy(self, work: Callable[[], T]) -> Callable[[], T]:
        """Work that may outlive the pool: then its ledger is closed when it has ended."""

        def run() -> T:
            seat = self._seat()
            seat.busy = True
            try:
                return work()
            finally:
                seat.busy = False
                if self._closed:
                    seat.workloads.close()

        return run

    async def call(self, work: Callable[Concatenate[Workloads, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work(workloads, …)` in a thread. For what takes milliseconds."""
        return await self._soon(lambda: work(self.workloads(), *args, **kwargs))

    async def call_as(
        self, who: Identity, work: Callable[Concatenate[Workloads, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `call`, with what `who` may see and touch."""
        return await self._soon(lambda: work(self.workloads().seen_by(who), *args, **kwargs))

    async def _soon(self, work: Callable[[], T]) -> T:
        self._asked += 1
        try:
            return await self._submit(self._short, work)
        finally:
            self._answered += 1

    @property
    def in_flight(self) -> int:
        """How many short questions wait for their answer now."""
        return self._asked - self._answered

    async def call_long(self, work: Callable[Concatenate[Workloads, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `call`, for what may take seconds. It is finished even if the caller goes away meanwhile."""
        return await self._submit(self._long, self._busy(lambda: work(self.workloads(), *args, **kwargs)))

    async def finish(self, work: Callable[[], T]) -> T:
        """Run something that blocks in a thread, without a `Workloads`, also while the gateway stops."""
        return await asyncio.get_running_loop().run_in_executor(self._long, work)

    def _submit(self, executor: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._closed:
            raise BackendUnavailable("the gateway is stopping", field="gateway", code="STOPPING", remedy="try again")
        done = asyncio.get_running_loop().run_in_executor(executor, work)
        if executor is self._long:
            self.long_running += 1
            done.add_done_callback(self._one_less)
        return done

    def _one_less(self, _: object) -> None:
        self.long_running -= 1

    @contextlib.contextmanager
    def place(self, who: Identity) -> Iterator[None]:
        """Around a stream: one tenant cannot have all the threads that others need to stop theirs."""
        if who.sees_all:
            yield
            return
        if self._places[who.tenant] >= _MOST_OF_A_TENANT:
            raise Refused(
                429,
                code="TOO_MANY_STREAMS",
                reason=f"the tenant has {_MOST_OF_A_TENANT} copies and followed logs already",
                remedy="end some of them, and try again",
                headers={"Retry-After": "5"},
            )
        self._places[who.tenant] += 1
        try:
            yield
        finally:
            self._places[who.tenant] -= 1

    @contextlib.asynccontextmanager
    async def stream(
        self, work: Callable[Concatenate[Workloads, P], Iterator[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[AsyncIterator[T]]:
        """Iterate in a thread, a few pieces ahead of the reader. Left early, the iterator is closed in its thread."""
        stream: _Stream[T] = _Stream(asyncio.get_running_loop())
        self._streams.add(stream)
        begin = self._busy(lambda: stream.run(lambda: work(self.workloads(), *args, **kwargs)))
        done = self._submit(self._long, begin)
        try:
            yield stream
        finally:
            stream.stop()
            self._streams.discard(stream)
            done.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def feed(
        self, chunks: AsyncIterator[bytes], work: Callable[Concatenate[Workloads, Iterator[bytes], P], T],
        *args: P.args, **kwargs: P.kwargs,
    ) -> T:  # fmt: skip
        """Run `work(workloads, iterator of chunks, …)` in a thread while the chunks come in. The reader sets the pace.

        If the chunks end with an exception (the client went away), the thread's iterator raises it, and so does this.
        """
        feed = _Feed()
        done = self._submit(self._long, self._busy(lambda: work(self.workloads(), feed.chunks(), *args, **kwargs)))
        done.add_done_callback(lambda _: feed.abandon())
        loop = asyncio.get_running_loop()
        try:
            async for chunk in chunks:
                if chunk and not await feed.put(loop, chunk):
                    break  # the work has ended before its input: it says why
            feed.finish(None)
        except BaseException as error:
            feed.finish(error)
            with contextlib.suppress(Exception):
                await asyncio.shield(done)
            raise
        return await done

    def close(self) -> None:
        """End the streams, wait for short work, close the ledgers. What takes long is left to end by itself."""
        self._closed = True
        for stream in list(self._streams):
            stream.stop()
        self._short.shutdown(wait=True, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)
        for seat in list(self._made):
            if not seat.busy:
                seat.workloads.close()


class _Seat:
    """The `Workloads` of one thread, and whether it is in use for something long."""

    def __init__(self, workloads: Workloads) -> None:
        self.workloads = workloads
        self.busy = False


class _End:
    """What a thread puts last."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Stream(AsyncIterator[T]):
    """From a thread to the loop. The thread waits while the reader is `_AHEAD` pieces behind."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: asyncio.Queue[T | _End] = asyncio.Queue()
        self._places = threading.Semaphore(_AHEAD)
        self._stopped = threading.Event()

    def run(self, make: Callable[[], Iterator[T]]) -> None:
        error: BaseException | None = None
        try:
            pieces = make()
            try:
                for piece in pieces:
                    while not self._places.acquire(timeout=0.5):
                        if self._stopped.is_set():
                            break
                    if self._stopped.is_set():
                        break
                    self._hand(piece)
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()
        except BaseException as failure:  # noqa: BLE001 - it is raised where the pieces are read
            error = failure
        self._hand(_End(error))

    def _hand(self, piece: T | _End) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: there is no reader any more
            self._loop.call_soon_threadsafe(self._ready.put_nowait, piece)

    def stop(self) -> None:
        self._stopped.set()
        self._places.release()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        piece = await self._ready.get()
        if isinstance(piece, _End):
            if piece.error is not None:
                raise piece.error
            raise StopAsyncIteration
        self._places.release()
        return piece


class _Feed:
    """From the loop to a thread."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | _End] = queue.Queue()
        self._room = asyncio.Semaphore(_AHEAD)
        self._abandoned = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def put(self, loop: asyncio.AbstractEventLoop, chunk: bytes) -> bool:
        """False if it will not be read."""
        if not self._room.locked() and not self._abandoned.is_set():
            await self._room.acquire()
            self._queue.put(chunk)
            return True
        room = loop.create_task(self._room.acquire())
        gone = loop.create_task(self._abandoned.wait())
        try:
            await asyncio.wait((room, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()
            gone.cancel()
        if self._abandoned.is_set():
            return False
        self._queue.put(chunk)
        return True

    def finish(self, error: BaseException | None) -> None:
        self._queue.put(_End(error))

    def abandon(self) -> None:
        self._abandoned.set()

    def chunks(self) -> Iterator[bytes]:
        while True:
            piece = self._queue.get()
            if isinstance(piece, _End):
                if piece.error is not None:
                    raise BackendUnavailable(
                        "the upload was broken off", field="body", code="UPLOAD_BROKEN", remedy="send it again"
                    )
                return
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._room.release)
            yield piece

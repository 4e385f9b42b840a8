"""Something has changed in the ledger: one look for all waiters.

Followers of events and waiters for a state would each ask the ledger again and again. Here one task asks for all of
them, and only while there are waiters. Changes by other processes and other gateways are seen the same way.
"""

from __future__ import annotations

import asyncio
import contextlib

from dibs.gateway.logs import log
from dibs.gateway.threads import Pool
from dibs.workloads.service import Workloads

_PAUSE = 0.1  # seconds between two looks while there are waiters; halved latency is not worth twice the looks


class Changes:
    """The newest event that was seen, and the waiters for a newer one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._newest = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self.stopped = False

    @property
    def newest(self) -> int:
        return self._newest

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="changes")

    async def stop(self) -> None:
        self.stopping()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def stopping(self) -> None:
        """Wake all waiters: the gateway ends, and so do its streams."""
        self.stopped = True
        self._wake()

    async def wait(self, timeout: float) -> None:
        """Until something has changed since the call, or the time is over, or the gateway stops."""
        if self.stopped:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        self._wanted.set()
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return
        finally:
            self._waiters.discard(waiter)

    async def look(self) -> int:
        """The number of the newest event, now."""
        return await self._pool.call(_newest, self._newest)

    def nudge(self) -> None:
        """This gateway has just changed something."""
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _watch(self) -> None:
        while True:
            if not self._waiters:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                newest = await self._pool.call(_newest, self._newest)
            except Exception as error:  # noqa: BLE001 - the ledger may be away for a while; waiters have their own limits
                log.warning("the ledger cannot be watched: %s", error)
                await asyncio.sleep(1.0)
                continue
            if newest != self._newest:
                self._newest = newest
                self._wake()
            await asyncio.sleep(_PAUSE)


def _newest(workloads: Workloads, known: int) -> int:
    """The number of the newest event. Numbers only grow; some may be missing."""
    ledger = workloads.ledger
    step = 1024
    while True:
        # Far behind (at the start) the steps double, so that a long history is not read through.
        found = ledger.events(after=known + step, limit=1) if step > 1 else ledger.events(after=known, limit=1)
        if found:
            known = found[-1].seq
            step *= 2
        elif step > 1:
            step //= 2
        else:
            return known

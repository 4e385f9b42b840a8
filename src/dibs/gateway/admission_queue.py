"""The queue of create requests: those that arrive while a batch is served form the next batch.

The handlers of both APIs call `Desk.take`. Requests are read, admitted and shown in one thread at a time; a batch
shares one look at the devices and one transaction (`admission.admit_all`). So an answer costs a fraction of what it
costs alone, and no request overtakes another. An engine may be slow to answer: a request that may get a container is
served by a thread of the pool instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dibs.errors import DibsError
from dibs.gateway.threads import Pool
from dibs.workloads.admission import Admitted, Asking, admit_all, asks_no_engine
from dibs.workloads.service import Workloads

T = TypeVar("T")
_TOGETHER = 32  # at most: other writers of the ledger wait meanwhile


class Desk:
    """One per gateway. `submit` is told of everything that was admitted."""

    def __init__(self, pool: Pool, submit: Callable[[Admitted], None]) -> None:
        self._pool = pool
        self._submit = submit
        self._line: deque[_Job[Any]] = deque()
        self._serving: asyncio.Task[None] | None = None
        self.waiting = 0  # how many wait for their answer now

    async def take(
        self,
        read: Callable[[Workloads], Asking],
        show: Callable[[Asking, Admitted], T],
        refuse: Callable[[DibsError], DibsError] = lambda error: error,
    ) -> T:
        """Admit what `read` finds; the answer is what `show` makes of it, both in a thread. What they raise is raised
        here, and so is a refusal, as `refuse` words it."""
        job = _Job(read, show, refuse, self._submit)
        self._line.append(job)
        if self._serving is None:
            self._serving = asyncio.get_running_loop().create_task(self._serve())
        self.waiting += 1
        try:
            await job.done
            if job.asking is not None and job.outcome is None:
                await self._pool.call(job.alone)
        finally:
            self.waiting -= 1
        if isinstance(job.outcome, Exception):
            raise job.outcome
        return job.outcome  # type: ignore[return-value]  # `show` returned it

    async def _serve(self) -> None:
        while self._line:
            jobs = [self._line.popleft() for _ in range(min(len(self._line), _TOGETHER))]
            try:
                await self._pool.call(_together, jobs)
            except Exception as error:  # noqa: BLE001 - the gateway stops, or the ledger cannot be opened: for each
                for job in jobs:
                    job.outcome = error
            for job in jobs:
                if not job.done.done():
                    job.done.set_result(None)
            await asyncio.sleep(0)  # they are answered now; who asks again meanwhile comes with the next ones
        self._serving = None


class _Job(Generic[T]):
    """One who asks."""

    def __init__(
        self,
        read: Callable[[Workloads], Asking],
        show: Callable[[Asking, Admitted], T],
        refuse: Callable[[DibsError], DibsError],
        submit: Callable[[Admitted], None],
    ) -> None:
        self._read = read
        self._show = show
        self._refuse = refuse
        self._submit = submit
        self.asking: Asking | None = None
        self.outcome: T | Exception | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(self, workloads: Workloads) -> Asking | None:
        """What is asked for; None if it cannot be understood."""
        try:
            self.asking = self._read(workloads)
        except Exception as error:  # noqa: BLE001 - raised in `Desk.take`
            self.outcome = error
        return self.asking

    def stays(self, workloads: Workloads) -> bool:
        """Whether it is served in line. Else it has its answer, or is served elsewhere."""
        asking = self.hear(workloads)
        if asking is None:
            return False
        try:
            return asks_no_engine(asking)
        except DibsError as error:
            self.tell(error)
            return False

    def tell(self, answer: Admitted | Exception) -> None:
        if isinstance(answer, Exception):
            self.outcome = self._refuse(answer) if isinstance(answer, DibsError) else answer
            return
        assert self.asking is not None
        if not answer.again:
            self._submit(answer)
        try:
            self.outcome = self._show(self.asking, answer)
        except Exception as error:  # noqa: BLE001 - raised in `Desk.take`
            self.outcome = error

    def alone(self, workloads: Workloads) -> None:
        """In another thread than the one that has heard it: read once more, on the ledger of this one."""
        asking = self.hear(workloads)
        if asking is not None:
            self.tell(*admit_all([asking]))


def _together(workloads: Workloads, jobs: list[_Job[Any]]) -> None:
    here = [job for job in jobs if job.stays(workloads)]
    for job, answer in zip(here, admit_all([job.asking for job in here if job.asking is not None]), strict=True):
        job.tell(answer)

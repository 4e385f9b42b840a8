"""What the ranks of a job write, put together.

`Jobs.logs` calls it. Without following, records are merged by their times; while following, a thread per rank reads and
they come as they are written. A rank that is started again is followed again. If a log cannot be read to its end, that
is raised: what came before is not the whole.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dibs.backends.port import Phase
from dibs.errors import BackendUnavailable, DibsError, NotFound
from dibs.workloads.jobs.model import RankLog
from dibs.workloads.reconcile import handle_of

if TYPE_CHECKING:
    from dibs.workloads.jobs.service import Jobs
    from dibs.workloads.service import Workloads

_LOOK = 0.1  # seconds between two looks whether there are new ranks to follow
_ENDING = 5.0  # seconds in which a rank whose output has ended has ended too


def merged(jobs: Jobs, workloads: Workloads, job_id: str, names: Sequence[str], *, follow: bool) -> Iterator[RankLog]:
    if follow:
        yield from _followed(jobs, workloads, job_id, names)
        return
    ranks = [one for one in jobs.get(job_id).ranks if one.name in names and one.sandbox_id]
    streams = [_of(workloads, one.name, one.sandbox_id) for one in ranks]
    yield from heapq.merge(*streams, key=lambda one: one.record.at)


def _of(workloads: Workloads, name: str, sandbox_id: str) -> Iterator[RankLog]:
    try:
        for record in workloads.logs(sandbox_id):
            yield RankLog(name, record)
    except NotFound:
        return  # it was never finished, or is removed: there is nothing to read


def _followed(jobs: Jobs, workloads: Workloads, job_id: str, names: Sequence[str]) -> Iterator[RankLog]:
    from dibs.workloads.service import Workloads as InProcess

    found: queue.SimpleQueue[RankLog | DibsError | str] = queue.SimpleQueue()
    gone = threading.Event()
    reading: set[str] = set()
    seen: set[str] = set()

    def read(name: str, sandbox_id: str) -> None:
        try:
            with InProcess(workloads.home, identity=workloads.identity, compare=False) as own:
                row = own.sandbox(sandbox_id)
                backend, handle = own.backend_of(row), handle_of(row)
                for record in backend.logs(handle, follow=True):
                    if gone.is_set():
                        return
                    if record.data:
                        found.put(RankLog(name, record))
                if backend.wait(handle, _ENDING).phase not in (Phase.EXITED, Phase.ABSENT):
                    raise _cut(name)  # an engine that is killed ends the stream as if the rank had ended
        except NotFound:
            pass  # it was removed meanwhile
        except DibsError as error:
            found.put(error)
        finally:
            found.put(sandbox_id)

    try:
        while True:
            try:
                job = jobs.get(job_id)
            except NotFound:
                return
            for rank in job.ranks:
                fresh = rank.sandbox_id and rank.sandbox_id not in seen and rank.phase != "Creating"
                if rank.name in names and fresh:
                    seen.add(rank.sandbox_id)
                    reading.add(rank.sandbox_id)
                    threading.Thread(target=read, args=(rank.name, rank.sandbox_id), daemon=True).start()
            over = not job.live or job.state == "suspended"
            while True:
                try:
                    one = found.get(timeout=_LOOK)
                except queue.Empty:
                    break
                if isinstance(one, DibsError):
                    raise one
                if isinstance(one, str):
                    reading.discard(one)
                else:
                    yield one
            if over and not reading:
                return
    finally:
        gone.set()


def _cut(rank: str) -> BackendUnavailable:
    return BackendUnavailable(
        "its log ended, but it still runs: its engine went away", field="rank", value=rank, code="ENGINE_UNREACHABLE",
        remedy="see whether the engine runs, and follow the logs again",
    )  # fmt: skip

"""Who drives a job: a keeper process for a detached one, threads of a gateway for those that it has accepted.

A job says which process drives it. When that process is proved gone, the first to notice goes on: a gateway by
itself, any `dibs` by starting a keeper (`ensure`). A keeper lives as long as its job has something to do.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable

from dibs.errors import DibsError, NotFound
from dibs.home import Home
from dibs.ledger.jobs import JobBook, JobRow
from dibs.ledger.store import Ledger
from dibs.process import absent, myself
from dibs.workloads.identity import Identity, this_process
from dibs.workloads.jobs.driver import Driver, read_spec
from dibs.workloads.service import Workloads

_LOG = logging.getLogger("dibs.jobs")


def has_work(row: JobRow) -> bool:
    """Whether there is something to drive: a suspended job waits for its user, not for a process."""
    return row.live and not (row.state == "suspended" and row.wanted == "suspend")


def orphaned(row: JobRow) -> bool:
    return has_work(row) and absent(row.owner)


def take(workloads: Workloads, row: JobRow) -> JobRow | None:
    """Become the one that drives a job. None if another was faster."""
    with workloads.ledger.writing():
        if not JobBook(workloads.ledger).adopt(row, myself()):
            return None
    return JobBook(workloads.ledger).job(row.id)


def drive_now(workloads: Workloads, row: JobRow) -> JobRow:
    """Take a job that no process drives over, and drive it to its end in this thread."""
    mine = take(workloads, row)
    if mine is None:
        return row
    driver = Driver(workloads, mine)
    driver.take_over()
    return driver.run()


# -- keepers ----------------------------------------------------------------------------------------------------------


def spawn(home: Home, job_id: str, fence: int) -> None:
    """Start a keeper for a job; it takes the job over under the number `fence`, and goes on if no other process has."""
    argv = [sys.executable, "-m", "dibs.workloads.jobs.keepers", job_id, str(fence)]
    env = {**os.environ, "DIBS_HOME": str(home.state)}
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    from dibs.descriptors import closing

    pid = os.posix_spawn(sys.executable, argv, env, file_actions=[*null, *closing()], setsid=True)
    threading.Thread(target=os.waitpid, args=(pid, 0), daemon=True).start()


def ensure(home: Home, ledger: Ledger) -> list[str]:
    """Start a keeper for every job of this user that has lost its driver. The names of those jobs."""
    book = JobBook(ledger)
    if not book.any_jobs():
        return []
    me = this_process()
    lost = [row for row in book.jobs(live_only=True) if me.touches(row) and row.uid == me.uid and orphaned(row)]
    for row in lost:
        if not read_spec(row).options.gateway:
            spawn(home, row.id, row.fence)
    return [row.name for row in lost]


def keep(home: Home, job_id: str, fence: int) -> None:
    """The life of a keeper."""
    with Workloads(home, compare=False) as workloads:
        try:
            row = JobBook(workloads.ledger).job(job_id)
        except NotFound:
            return
        if row.fence != fence or not has_work(row):
            return
        mine = take(workloads, row)
        if mine is not None:
            driver = Driver(workloads, mine)
            driver.take_over()
            driver.run()


# -- gateways ---------------------------------------------------------------------------------------------------------


class Drivers:
    """The threads of a gateway that drive jobs, one each. The watcher of the dispatcher calls `tend`."""

    def __init__(self, make: Callable[[], Workloads], stopping: Callable[[], bool]) -> None:
        self._make = make
        self._stopping = stopping
        self._driven: dict[str, threading.Thread] = {}

    def tend(self, workloads: Workloads) -> None:
        """Start a thread for every job that is ours, or that a dead process has left behind."""
        self._driven = {job: thread for job, thread in self._driven.items() if thread.is_alive()}
        book = JobBook(workloads.ledger)
        if not book.any_jobs():
            return
        for row in book.jobs(live_only=True):
            if row.id in self._driven or not has_work(row):
                continue
            if row.owner != myself() and not absent(row.owner):
                continue
            thread = threading.Thread(target=self._drive, args=(row,), name=f"dibs-job-{row.id}", daemon=True)
            self._driven[row.id] = thread
            thread.start()

    def _drive(self, row: JobRow) -> None:
        try:
            with self._make() as workloads:
                mine = take(workloads, row)
                if mine is None:
                    return
                driver = Driver(workloads, mine, compare=False)
                driver.take_over()
                driver.run(self._stopping)
        except DibsError as error:
            # What it is stays in the ledger; the next look of the watcher starts another thread.
            data = {"job": row.id, "code": error.code, "reason": str(error)}
            _LOG.warning("job not driven", extra={"data": data})
        except Exception:  # noqa: BLE001 - the trace is in the log, and the next look tries again
            _LOG.exception("job not driven", extra={"data": {"job": row.id}})


def as_identity(row: JobRow) -> Identity:
    return Identity(name=row.username, uid=row.uid, tenant=row.tenant)


if __name__ == "__main__":
    from dibs.home import find_home

    keep(find_home(), sys.argv[1], int(sys.argv[2]))

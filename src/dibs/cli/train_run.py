"""`dibs train run`, or just `dibs train`: a whole training job on this host, in the foreground or detached.

How a job is made and looked after is in `workloads.jobs`; here its objects are read, the output of its ranks is shown
with the rank that wrote it, and signals end all of it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any, Literal

from dibs.backends.port import Exit, Output
from dibs.cli.output import say, show_data
from dibs.cli.terminal import FORWARDED, IMPATIENT, write
from dibs.errors import Conflict, InvalidRequest, Problem, Unsupported

if TYPE_CHECKING:
    from types import FrameType

    from dibs.backends.port import Session
    from dibs.cli.train_input import Bundle
    from dibs.workloads.jobs.model import Job, Options
    from dibs.workloads.jobs.plan import PlannedRank
    from dibs.workloads.service import Workloads

Json = dict[str, Any]
_LONGEST_LINE = 65_536  # bytes of a line that are kept until its end comes; a longer one is written in parts


def service_here() -> Workloads:
    """The service of this host. Jobs are submitted to a gateway with Kubeflow's own clients."""
    from dibs.remote.choose import open_service
    from dibs.workloads.service import Workloads as InProcess

    service = open_service()
    if not isinstance(service, InProcess):
        raise Unsupported(
            Problem(
                "JOB_NOT_OVER_GATEWAY", "gateway", "", "dibs train runs jobs on this host, not through a gateway",
                "submit it with Kubeflow's SDK or kubectl, or say --gateway none to run it here",
            )
        )  # fmt: skip
    return service


def run_job(bundle: Bundle, job: Json, values: Json) -> int:
    """Submit, and follow to the end; 0, or the exit code of the first rank that failed."""
    from dibs.cli.train_input import read_ssh_key
    from dibs.train.refusals import Refusals
    from dibs.train.review import review_job
    from dibs.workloads.jobs.keepers import spawn
    from dibs.workloads.jobs.model import Objects
    from dibs.workloads.jobs.service import Jobs

    key = read_ssh_key(values["ssh_key"])
    review = review_job(job, bundle.lookup, bundle.facts(key))
    Refusals(review.refusals).check()
    reference = job["spec"]["runtimeRef"]
    runtime = bundle.lookup(reference["kind"], reference["name"])
    assert runtime is not None  # the review has found it
    options = options_of(values, job)
    with service_here() as service:
        jobs = Jobs(service)
        made = jobs.submit(
            Objects(job, runtime, bundle.claims, key), options, attended=not values["detach"]
        )  # fmt: skip
        for warning in made.status.warnings:
            say(f"warning: {warning}")
        if not values["detach"]:
            return _Attendance(service, made, values["output"]).attend()
        if made.state != "suspended":
            spawn(service.home, made.id, 0)
        if values["output"] == "table":
            print(made.name)
        else:
            from dibs.cli.train_jobs import job_data

            show_data(job_data(made), values["output"])
    return 0


def options_of(values: Json, job: Json) -> Options:
    """What the command line says, or the annotations of the job. Both may say the same."""
    from dibs.request.durations import parse_duration
    from dibs.train import job_annotations
    from dibs.workloads.jobs.model import Options

    wait = None if values["wait"] is None else parse_duration(values["wait"])
    backend, noted = values["backend"] or "", (job_annotations.backend(job), job_annotations.wait_seconds(job))
    said = job["metadata"].get("annotations", {})
    for name, mine, its in (("backend", backend, noted[0]), ("wait", wait, noted[1])):
        annotation = {"backend": job_annotations.BACKEND, "wait": job_annotations.WAIT}[name]
        if mine not in ("", None) and its not in ("", None) and mine != its:
            raise InvalidRequest(
                f"the annotation {annotation} says {said[annotation]}", field=f"--{name}", value=str(values[name]),
                code="CONFLICT", remedy="say it in one place",
            )  # fmt: skip
    return Options(
        backend=backend or noted[0] or "auto",
        network=values["network"] or "",
        workdir=os.getcwd(),
        base_env=dict(os.environ),
        wait_seconds=noted[1] if wait is None else wait,
    )


class _Attendance:
    """The foreground of a job: this process drives it."""

    def __init__(self, service: Workloads, job: Job, output: str) -> None:
        self._service = service
        self._job = job
        self._output = output
        self._sessions: dict[str, Session] = {}
        self._begun: dict[tuple[str, Literal["stdout", "stderr"]], bytes] = {}  # lines that are not complete yet
        self._interrupts = 0
        self._obeyed = 0
        self._told = ""
        self._width = max(len(_short(one.job, one.index)) for one in job.ranks)

    def attend(self) -> int:
        from dibs.ledger.jobs import JobBook
        from dibs.workloads.jobs.driver import Driver, read_status
        from dibs.workloads.jobs.service import Jobs

        row = JobBook(self._service.ledger).job(self._job.id)
        driver = Driver(self._service, row, on_session=self._opened, idle=self._idle)
        before = {number: signal.signal(number, self._interrupted) for number in FORWARDED}
        try:
            row = driver.run()
            self._drain()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        # Not if that ends early: closing says that the ranks may go on without us.
        for session in self._sessions.values():
            session.close()
        if self._interrupts:
            say(f"dibs: interrupted; job {row.name} and its ranks are gone")
            return 130
        if row.state == "suspended":
            say(f"dibs: job {row.name} is suspended; `dibs train resume {row.name}` runs it again, in the background")
            return 0
        status = read_status(row)
        if self._output != "table":
            from dibs.cli.train_jobs import job_data

            show_data(job_data(Jobs(self._service).get(row.id)), self._output)
        failed = next((one for one in status.conditions if one.type == "Failed"), None)
        if failed is None:
            return 0
        say(f"dibs: job {row.name} failed: {failed.message}  [{failed.reason}]")
        if failed.reason == "WaitTimeout":
            return 90
        codes = sorted((one.ended_at or 0.0, one.exit_code) for one in status.ranks if one.phase == "Failed")
        return next((code for _, code in codes if code), 1)

    # -- between two looks of the driver ------------------------------------------------------------------------------

    def _opened(self, rank: PlannedRank, session: Session) -> None:
        self._sessions[_short(rank.job, rank.index)] = session

    def _idle(self, pause: float) -> None:
        if self._interrupts > self._obeyed:
            self._obey()
        self._tell()
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            if not self._sessions:
                time.sleep(left)
                return
            ready, _, _ = select.select([one.fileno() for one in self._sessions.values()], [], [], left)
            for name, session in list(self._sessions.items()):
                if session.fileno() in ready:
                    self._receive(name, session)

    def _drain(self) -> None:
        """What ranks had written when they were ended."""
        for name, session in list(self._sessions.items()):
            until = time.monotonic() + 1.0
            while name in self._sessions and time.monotonic() < until:
                if not select.select([session.fileno()], [], [], 0.2)[0]:
                    break
                self._receive(name, session)
        for (name, stream), line in sorted(self._begun.items()):
            self._write(name, stream, line)
        self._begun.clear()

    def _receive(self, name: str, session: Session) -> None:
        for item in session.receive(0):
            if isinstance(item, Exit):
                session.close()
                self._sessions.pop(name, None)
            else:
                self._show(name, item)

    def _show(self, name: str, item: Output) -> None:
        *lines, rest = (self._begun.pop((name, item.stream), b"") + item.data).split(b"\n")
        for line in lines:
            self._write(name, item.stream, line)
        if len(rest) > _LONGEST_LINE:
            self._write(name, item.stream, rest)
        elif rest:
            self._begun[name, item.stream] = rest

    def _write(self, name: str, stream: Literal["stdout", "stderr"], line: bytes) -> None:
        # With -o json the answer alone goes to stdout.
        target: Literal["stdout", "stderr"] = stream if self._output == "table" else "stderr"
        write(Output(target, b"[%s] %s\n" % (name.ljust(self._width).encode(), line)))

    def _tell(self) -> None:
        """What it waits for, once for each thing."""
        from dibs.ledger.jobs import JobBook
        from dibs.workloads.jobs.driver import read_status

        if self._sessions:
            return
        try:
            status = read_status(JobBook(self._service.ledger).job(self._job.id))
        except Conflict:
            return
        if status.waits_for and status.waits_for != self._told:
            say(f"dibs: queued: {status.waits_for}")
        self._told = status.waits_for

    # -- signals ------------------------------------------------------------------------------------------------------

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupts += 1

    def _obey(self) -> None:
        """The first Ctrl-C ends the job as its user wants it; more of them kill its ranks."""
        from dibs.ledger.jobs import JobBook

        first, self._obeyed = not self._obeyed, self._interrupts
        if first:
            say("dibs: ending the job; Ctrl-C twice more kills its ranks")
            with self._service.ledger.writing():
                book = JobBook(self._service.ledger)
                book.want(book.job(self._job.id), "remove")
        if self._interrupts >= IMPATIENT:
            for session in list(self._sessions.values()):
                try:
                    session.signal(signal.SIGKILL)
                except Conflict:
                    continue  # it has just ended


def _short(job: str, index: int) -> str:
    return f"{job}-{index}"

"""The use cases of training jobs: submit one, look at it, suspend, resume and remove it, read its logs and receipts.

`dibs train` and the gateway call it. Everything that is said of a job is written in the ledger, and the process that
drives the job (`keepers`, `driver`) acts on it; so a caller need not be, nor wait for, the one that drives.

    jobs = Jobs(workloads)
    job = jobs.submit(Objects(job, runtime, claims), Options(backend="local"))     # checked as a whole, then queued
    jobs.get(job.name).ranks                     # each with phase, devices, exit code
    for change in jobs.watch(): ...              # ADDED, MODIFIED, DELETED
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from dibs.backends.installed import declared
from dibs.backends.port import Backend, scheduler_of
from dibs.errors import Conflict, DibsError, InvalidRequest, NotFound, Problem, Unsupported
from dibs.ledger.jobs import JobBook, JobId, JobRow, Wanted
from dibs.ledger.rows import Event
from dibs.ledger.store import new_id
from dibs.plan.decision import Refusal
from dibs.process import absent, myself
from dibs.receipt import Receipt
from dibs.sandbox import SandboxId
from dibs.workloads.admission import check_reach
from dibs.workloads.booking import Booking, Order
from dibs.workloads.explain import choose
from dibs.workloads.jobs import volumes
from dibs.workloads.jobs.driver import read_spec, read_status
from dibs.workloads.jobs.model import Change, Condition, Job, JobSpec, Objects, Options, RankLog, Status
from dibs.workloads.jobs.plan import JobPlan, plan_job
from dibs.workloads.jobs.ranks import rank_statuses

if TYPE_CHECKING:
    from dibs.workloads.service import Workloads

_LOOK = 0.1  # seconds between two looks of a waiter for a change
_PATIENCE = 60.0  # seconds to wait until a job that is removed has ended


class JobReceipt(msgspec.Struct, frozen=True):
    """The receipts of all ranks that were delivered, and what they say together."""

    job: str
    backend: str
    simulated: bool
    ranks: dict[str, Receipt]
    missing: tuple[str, ...] = ()  # ranks that have none, because they were not delivered


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a backend could run a job: now, when what it waits for is free, or not at all."""

    backend: str
    verdict: Literal["can", "waits", "cannot"]
    waits_for: str = ""
    problems: tuple[Problem, ...] = ()


class Jobs:
    """The service, for the identity of `workloads`. Cheap to make; one per thread, like `Workloads`."""

    def __init__(self, workloads: Workloads) -> None:
        self._w = workloads

    # -- submitting ---------------------------------------------------------------------------------------------------

    def check(self, objects: Objects, options: Options | None = None) -> tuple[Backend, JobPlan]:
        """Where a job would run, and as what. Raises with every reason why it cannot; nothing is changed."""
        return self._choose(JobId("job-check"), JobSpec(_with_key(objects), options or Options()))

    def explain(self, objects: Objects, options: Options | None = None) -> tuple[Verdict, ...]:
        """What each backend would say to a job, in the order of `auto`. Nothing is changed."""
        spec = JobSpec(_with_key(objects), options or Options())
        named = spec.options.backend
        found: list[Verdict] = []
        for name in self._w.registry.order if named == "auto" else (named,):
            try:
                _, _, waits_for = self._on(name, JobId("job-check"), spec)
            except DibsError as error:
                found.append(Verdict(name, "cannot", problems=error.problems))
            else:
                found.append(Verdict(name, "waits" if waits_for else "can", waits_for))
        return tuple(found)

    def submit(
        self, objects: Objects, options: Options | None = None, *, attended: bool = False, alone: bool = False
    ) -> Job:
        """Accept a job, or raise with every reason and nothing changed. It is queued, or suspended if it says so; who
        drives it makes it run. `attended`: it ends with this process. `alone`: no ended job may have its name."""
        who, job_id = self._w.identity, JobId(new_id("job"))
        spec = JobSpec(_with_key(objects), options or Options())
        backend, plan = self._choose(job_id, spec)
        suspended, now = bool(objects.job["spec"].get("suspend")), time.time()
        processes = plan.rendered.processes
        status = Status(
            ranks=tuple(rank.status() for rank in plan.ranks),
            warnings=(*plan.rendered.warnings, *plan.notes),
            processes=None if processes is None else processes.per_node,
            processes_reason="" if processes is None else processes.reason,
            queued_at=now,
            conditions=(_suspended(now),) if suspended else (),
        )
        row = JobRow(
            id=job_id, name=objects.job["metadata"]["name"], backend=backend.name,
            state="suspended" if suspended else "queued", wanted="suspend" if suspended else "run", uid=who.uid,
            username=who.name, tenant=who.tenant, owner=myself(), spec=msgspec.json.encode(spec),
            status=msgspec.json.encode(status), created_at=now, attended=attended,
        )  # fmt: skip
        with self._w.ledger.writing():
            JobBook(self._w.ledger).add(row, alone=alone)
        return self.get(job_id)

    def _choose(self, job_id: JobId, spec: JobSpec) -> tuple[Backend, JobPlan]:
        """The first backend that can deliver every rank of every stage, now or when its devices are free."""
        w = self._w
        problems: list[Problem] = []
        names = w.registry.order if spec.options.backend == "auto" else (spec.options.backend,)
        for name in names:
            try:
                backend, plan, _ = self._on(name, job_id, spec)
                return backend, plan
            except Unsupported as error:
                problems += error.problems
        raise Unsupported(problems)

    def _on(self, name: str, job_id: JobId, spec: JobSpec) -> tuple[Backend, JobPlan, str]:
        """The backend, the plan of the job there, and what it would wait for."""
        w, who = self._w, self._w.identity
        plan = plan_job(spec, w.home, job_id, who.tenant, name)
        orders: dict[int, list[Order]] = {}
        backend = w.registry.get(name, who.uid)
        if scheduler_of(backend) is not None:
            reason = "the scheduler of a cluster places sandboxes one by one, so a job could get half of its devices"
            raise Unsupported(
                Problem(
                    "GROUP_INVALID",
                    "backend",
                    name,
                    reason,
                    "choose a backend of this host, or submit it with `dibs train cluster`",
                )
            )
        own_addresses = declared(name).peer_network == "private"
        if "mpi" in spec.objects.runtime["spec"].get("mlPolicy", {}) and len(plan.ranks) > 1 and not own_addresses:
            reason = "its ranks share one network: MPI's launcher would start every process beside itself"
            remedy = "choose docker or podman, where each rank has an address of its own, or one node"
            raise Unsupported(Problem("MPI_NEEDS_ADDRESSES", "backend", name, reason, remedy))
        problems: list[Problem] = []
        for rank in plan.ranks:
            sandbox = rank.spec
            try:
                if who.gateway or spec.options.gateway:
                    sandbox = check_reach(w, sandbox)
                _, sandbox = choose(sandbox, w.registry, who.uid)
            except Unsupported as error:
                problems += [one for one in error.problems if one not in problems]
                continue
            order = Order(
                spec=sandbox, backend=backend, sandbox_id=SandboxId(f"{job_id}-{rank.number}"), who=who,
                base_env=spec.options.base_env,
            )  # fmt: skip
            orders.setdefault(rank.stage, []).append(order)
        if problems:
            raise Unsupported(problems)
        booking, inventory = Booking(w.home, w.ledger, w.registry.settings.tenants), w.inventory()
        waits_for = ""
        for stage in orders.values():
            decision = booking.decide(stage, inventory, waits=True)
            if isinstance(decision, Refusal) and not decision.waitable:
                raise decision.to_error()
            if isinstance(decision, Refusal) and spec.options.wait_seconds == 0:
                raise decision.to_error()
            if isinstance(decision, Refusal):
                waits_for = waits_for or decision.waits_for
        return backend, plan, waits_for

    # -- looking ------------------------------------------------------------------------------------------------------

    def get(self, reference: str) -> Job:
        """By id or name. What the caller may not see does not exist."""
        return self._job(self._row(reference))

    def list(self, *, all: bool = True) -> tuple[Job, ...]:  # noqa: A002
        """Oldest first; `all`: those that have ended too."""
        rows = JobBook(self._w.ledger).jobs(live_only=not all, tenant=self._tenant)
        return tuple(self._job(row) for row in rows)

    def watch(self, *, timeout: float | None = None, stop: Callable[[], bool] = lambda: False) -> Iterator[Change]:
        """Every change of every job that the caller sees: first all that are there, as ADDED. Ends after `timeout`
        seconds, or when `stop` says so. A job that changes twice between two looks is told once."""
        until = None if timeout is None else time.monotonic() + timeout
        known: dict[str, Job] = {}
        while not stop():
            now = {job.id: job for job in self.list()}
            for job_id in [one for one in known if one not in now]:
                yield Change("DELETED", known.pop(job_id))
            for job_id, job in now.items():
                before = known.get(job_id)
                known[job_id] = job
                if before is None:
                    yield Change("ADDED", job)
                elif (before.version, before.ranks) != (job.version, job.ranks):
                    yield Change("MODIFIED", job)
            if until is not None and time.monotonic() >= until:
                return
            self._w.ledger.rest()
            time.sleep(_LOOK)

    def events(self, reference: str) -> tuple[Event, ...]:
        """What has happened to a job and to its ranks, oldest first."""
        job = self.get(reference)
        ids = [job.id, *(rank.sandbox_id for rank in job.ranks if rank.sandbox_id)]
        found = [event for one in ids for event in self._w.ledger.events(sandbox_id=one)]
        return tuple(sorted(found, key=lambda event: event.seq))

    def receipt(self, reference: str) -> JobReceipt:
        """The receipts of its ranks. Raises NotFound if no rank was delivered."""
        job = self.get(reference)
        found: dict[str, Receipt] = {}
        for rank in job.ranks:
            if rank.sandbox_id:
                try:
                    found[rank.name] = self._w.receipt(rank.sandbox_id)
                except NotFound:
                    continue  # it is named as missing
        if not found:
            raise NotFound(
                "there is no receipt: no rank was delivered", field="job", value=job.name, code="NO_RECEIPT",
                remedy=f"it is {job.state}" + (f": {job.status.waits_for}" if job.status.waits_for else ""),
            )  # fmt: skip
        missing = tuple(rank.name for rank in job.ranks if rank.name not in found)
        simulated = any(one.simulated for one in found.values())
        return JobReceipt(job.name, job.backend, simulated, found, missing)

    def logs(self, reference: str, *, rank: str = "", follow: bool = False) -> Iterator[RankLog]:
        """What its ranks have written, by time; `rank`: one of them, by name, by number, or as `node-0`.

        With `follow` it goes on until the job has ended or is suspended, over restarts.
        """
        from dibs.workloads.jobs.logs import merged

        job = self.get(reference)
        names = [one.name for one in job.ranks]
        if rank:
            names = [rank_named(job, rank)]
        return merged(self, self._w, job.id, names, follow=follow)

    # -- changing -----------------------------------------------------------------------------------------------------

    def suspend(self, reference: str) -> Job:
        """End its ranks and give its devices back; it can be resumed. Not an ended job."""
        return self._want(reference, "suspend")

    def resume(self, reference: str) -> Job:
        """Run a suspended job again, from its first stage."""
        return self._want(reference, "run")

    def _want(self, reference: str, wanted: Wanted) -> Job:
        row = self._mine(self._row(reference))
        if not row.live or row.wanted == "remove":
            raise Conflict(
                f"the job is {row.state}", field="job", value=row.name, code="WRONG_STATE", remedy="submit it again"
            )
        with self._w.ledger.writing():
            JobBook(self._w.ledger).want(row, wanted)
        return self.get(row.id)

    def update(self, reference: str, objects: Objects) -> Job:
        """Other objects for a suspended job. What may be changed is the caller's to check (`train.review`)."""
        row = self._mine(self._row(reference))
        spec = msgspec.structs.replace(read_spec(row), objects=objects)
        plan_job(spec, self._w.home, row.id, row.tenant, row.backend)
        with self._w.ledger.writing():
            JobBook(self._w.ledger).replace_spec(row, msgspec.json.encode(spec))
        return self.get(row.id)

    def delete(self, reference: str, *, wait: bool = True) -> None:
        """End it, if it lives, and forget it. `wait`: until it is gone; else its driver sees to that."""
        row = self._mine(self._row(reference))
        book = JobBook(self._w.ledger)
        if not row.live:
            self._forget(row)
            return
        with self._w.ledger.writing():
            book.want(row, "remove")
        if not wait:
            return
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                now = JobBook(self._w.ledger).job(row.id)
            except NotFound:
                return
            if not now.live:
                self._forget(now)
                return
            if now.state == "suspended" or absent(now.owner):
                from dibs.workloads.jobs.keepers import drive_now

                drive_now(self._w, now)
                continue
            time.sleep(_LOOK)
        raise Conflict("the job does not end", field="job", value=row.name, remedy="see `dibs doctor`")

    def _forget(self, row: JobRow) -> None:
        """An ended job, with the sandboxes of its ranks."""
        status = read_status(row)
        for group in status.all_groups:
            for one in self._w.ledger.group(group):
                self._w.remove(one.id, 0.0)
        volumes.remove(self._w.home, row.id)
        with self._w.ledger.writing():
            JobBook(self._w.ledger).forget(row.id)

    def sweep(self) -> None:
        """Forget the jobs whose `ttlSecondsAfterFinished` is over."""
        now = time.time()
        for row in JobBook(self._w.ledger).jobs(tenant=self._tenant):
            if row.ended_at is not None and self._w.identity.touches(row):
                limit = _ttl(read_spec(row))
                if limit is not None and now - row.ended_at >= limit:
                    self._forget(row)

    # -- helpers ------------------------------------------------------------------------------------------------------

    @property
    def _tenant(self) -> str | None:
        return None if self._w.identity.sees_all else self._w.identity.tenant

    def _row(self, reference: str) -> JobRow:
        return JobBook(self._w.ledger).job(reference, tenant=self._tenant, uid=self._w.identity.uid)

    def _mine(self, row: JobRow) -> JobRow:
        if not self._w.identity.touches(row):
            remedy = f"ask {row.username}, or root"
            raise Conflict(
                f"it belongs to {row.username}", field="job", value=row.name, code="NOT_YOURS", remedy=remedy
            )
        return row

    def _job(self, row: JobRow) -> Job:
        status = read_status(row)
        if row.live and status.group:
            rows = self._w.ledger.group(status.group)
            leases = self._w.ledger.leases_of([one.id for one in rows])
            status = msgspec.structs.replace(status, ranks=rank_statuses(status.ranks, rows, leases))
        return Job(
            id=row.id, name=row.name, tenant=row.tenant, uid=row.uid, username=row.username, backend=row.backend,
            state=row.state, wanted=row.wanted, version=row.version, created_at=row.created_at, ended_at=row.ended_at,
            attended=row.attended, owner=row.owner, spec=read_spec(row), status=status,
        )  # fmt: skip


def _suspended(now: float) -> Condition:
    return Condition("Suspended", "True", "Suspended", "TrainJob is suspended", now)


def _ttl(spec: JobSpec) -> float | None:
    found = spec.objects.runtime["spec"].get("template", {}).get("spec", {}).get("ttlSecondsAfterFinished")
    return None if found is None else float(found)


def rank_named(job: Job, rank: str) -> str:
    """The full name of a rank."""
    for number, one in enumerate(job.ranks):
        if rank in (one.name, one.host, str(number), f"{one.job}-{one.index}"):
            return one.name
    known = ", ".join(one.name for one in job.ranks)
    raise InvalidRequest(
        "there is no such rank", field="rank", value=rank, code="RANK_NOT_FOUND", remedy=f"the ranks are {known}"
    )


def _with_key(objects: Objects) -> Objects:
    """With a key pair for this job alone, where it is an MPI job and none was given."""
    if objects.ssh_key is not None or "mpi" not in objects.runtime["spec"].get("mlPolicy", {}):
        return objects
    from dibs.workloads.jobs import ssh_keys

    return msgspec.structs.replace(objects, ssh_key=ssh_keys.made())

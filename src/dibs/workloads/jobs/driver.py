"""What makes a job go on: one process at a time drives it, step by step, and any other can go on with it.

A `dibs train` in the foreground drives its own job, a keeper process a detached one, a thread of a gateway those that
the gateway has accepted (`keepers`). Every step is recorded in the ledger before the next one:

    queued      a place in the queue for all ranks of the stage; in one transaction they are booked, and it is
    creating    created, proved, then started together; if one cannot be, none is, and it is queued again or fails
    running     looked after: a rank that fails, success, the deadline, what the user wants
    stopping    all ranks are ended and proved gone, then it is what `then` says

A driver that is killed leaves one of these states behind. A successor undoes what was being created, goes on
stopping what was being stopped, and looks after what runs. No rank is ever left running alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from dibs.backends.port import Backend, Peers, Session
from dibs.devices.model import Inventory
from dibs.errors import BackendUnavailable, Busy, Conflict, DibsError, NotFound, QuotaExceeded
from dibs.ledger.jobs import JobBook, JobRow, JobState
from dibs.ledger.rows import encode
from dibs.ledger.store import new_id
from dibs.plan.decision import Refusal
from dibs.process import boottime, myself
from dibs.sandbox import Sandbox, SandboxId
from dibs.workloads import orphans
from dibs.workloads.booking import Booking, Order, together
from dibs.workloads.delivery import Delivery, Run, ledger_away
from dibs.workloads.explain import meant_for
from dibs.workloads.group_policy import POLICY
from dibs.workloads.identity import Identity
from dibs.workloads.jobs import ports, stages, volumes
from dibs.workloads.jobs.model import Condition, JobSpec, Status, Then
from dibs.workloads.jobs.plan import JobPlan, PlannedRank, plan_job, with_port
from dibs.workloads.jobs.ranks import rank_statuses
from dibs.workloads.reconcile import handle_of, reconcile
from dibs.workloads.service import Workloads

_SPEC = msgspec.json.Decoder(JobSpec)
_STATUS = msgspec.json.Decoder(Status)
_LOOK = 0.1  # seconds between two looks at what runs or waits
_THOROUGH = 2.0  # and between two comparisons of the ledger with what is there, while it waits
_RETRIES = 5  # deliveries in a row that may fail for a reason that may pass
_PAUSE = 0.5  # seconds before the first of them is tried again; twice as long each time


def read_spec(row: JobRow) -> JobSpec:
    return _SPEC.decode(row.spec)


def read_status(row: JobRow) -> Status:
    return _STATUS.decode(row.status)


class Driver:
    """Drives one job in this thread. `fence`: the number under which this process has it."""

    def __init__(
        self,
        workloads: Workloads,
        row: JobRow,
        *,
        compare: bool = True,
        on_session: Callable[[PlannedRank, Session], None] | None = None,
        idle: Callable[[float], None] = time.sleep,
    ) -> None:
        """`compare`: False where a gateway's watcher compares the ledger with what is there. `on_session`: who shows
        what ranks write; then the job is in the foreground. `idle` is called between two looks."""
        self._w = workloads
        self._row = row
        self._fence = row.fence
        self._compare = compare
        self._on_session = on_session
        self._idle = idle
        self._compared = 0.0
        self._plan: JobPlan | None = None
        self._planned_for = b""
        self._port: ports.Port | None = None

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self, stopping: Callable[[], bool] = lambda: False) -> JobRow:
        """Until the job has ended or is suspended, another process has it, or `stopping` says so; the row as it was
        last seen."""
        try:
            return self._run(stopping)
        finally:
            self._release_port()

    def _run(self, stopping: Callable[[], bool]) -> JobRow:
        pause = 0.0
        while not stopping():
            if pause:
                self._idle(pause)
            try:
                self._row = self._book.job(self._row.id)
            except NotFound:
                return self._row  # removed
            if self._row.fence != self._fence or not self._row.live:
                return self._row
            if self._row.state == "suspended" and self._row.wanted == "suspend":
                return self._row
            try:
                pause = self._step()
            except Conflict as error:
                if error.code != "JOB_TAKEN_OVER":
                    raise
                return self._row
            except BackendUnavailable as error:
                if not ledger_away(error):
                    raise
                pause = _PAUSE  # nothing is decided meanwhile
        return self._row

    def take_over(self) -> None:
        """Undo what another driver was creating; a job in the foreground ends with its terminal."""
        if self._row.attended and self._on_session is None and self._row.state != "stopping":
            self._stop_all("failed", "ClientGone", "the terminal or client that ran it went away")
        elif self._row.state == "creating":
            self._stop_all("queued")

    def _step(self) -> float:
        row = self._row
        if row.state in ("queued", "suspended", "creating", "running") and (pause := self._obey(row)) is not None:
            return pause
        if row.state == "queued":
            return self._queued()
        if row.state == "creating":
            self._stop_all("queued")
            return 0.0
        if row.state == "running":
            return self._running()
        if row.state == "stopping":
            return self._stopping()
        return _LOOK

    def _obey(self, row: JobRow) -> float | None:
        """What its user wants, and its deadline. None: it goes on as it is."""
        status = self._status
        if row.wanted == "remove":
            self._stop_all("failed", "Removed", f"removed by {row.username}")
            return 0.0
        if row.wanted == "suspend":
            self._stop_all("suspended")
            return 0.0
        if row.state == "suspended":
            resumed = self._with(status, Condition("Suspended", "False", "Resumed", "TrainJob is resumed", time.time()))
            resumed = msgspec.structs.replace(resumed, stage=0, started_at=None, queued_at=time.time())
            self._move("queued", resumed)
            return 0.0
        limit = self._planned().deadline_seconds
        since = self._deadline_from(status)
        if limit is not None and time.time() - since >= limit:
            self._stop_all("failed", "DeadlineExceeded", "TrainJob exceeded its active deadline")
            return 0.0
        return None

    def _deadline_from(self, status: Status) -> float:
        """As upstream: from the creation, or from the last time that it was resumed."""
        resumed = next((one for one in status.conditions if one.type == "Suspended" and one.status == "False"), None)
        return self._row.created_at if resumed is None else resumed.at

    # -- queued -------------------------------------------------------------------------------------------------------

    def _queued(self) -> float:
        status = self._status
        if self._groups_left(status):
            return _LOOK
        self._look_around()
        ledger = self._w.ledger
        booking = Booking(self._w.home, ledger, self._w.registry.settings.tenants)
        try:
            ranks = self._planned().of_stage(status.stage)
            orders = self._orders(ranks, status)
            for order in {order.spec.image: order for order in orders}.values():
                booking.check(order)
            inventory = self._w.inventory()
            ticket = self._ticket()
            decision = booking.decide(orders, inventory, ticket, waits=ticket is not None)
            if not isinstance(decision, Refusal):
                booked = self._book_all(booking, orders, inventory, ticket)
                if booked is not None:
                    return self._create(*booked)
                return 0.0
        except BackendUnavailable as error:
            if ledger_away(error):
                raise
            return self._failed_for_now(error)
        except QuotaExceeded as error:
            return self._wait(_quota_words(error), ranks)
        except DibsError as error:
            return self._give_up(error)
        if not decision.waitable:
            return self._give_up(decision.to_error())
        return self._wait(decision.waits_for, ranks)

    def _orders(self, ranks: Sequence[PlannedRank], status: Status) -> list[Order]:
        """The sandboxes of a stage. `port` is filled in when they are booked."""
        row, options = self._row, read_spec(self._row).options
        who = Identity(
            name=row.username, uid=row.uid, tenant=row.tenant, gateway=options.gateway, remote=options.remote
        )  # fmt: skip
        group = f"{row.id}.{status.attempt + 1}"
        backend = self._backend
        everyone = self._planned().ranks
        ids = [SandboxId(new_id("sb")) for _ in ranks]
        hosts = tuple(rank.host for rank in ranks)
        return [
            Order(
                spec=meant_for(rank.spec, backend.name, self._w.registry),
                backend=backend,
                sandbox_id=ids[place],
                peers=Peers(group, hosts, place, ids[0]),
                who=who,
                base_env=options.base_env,
                foreground=self._on_session is not None,
                annotations={POLICY: "continue"},  # the job's own policies decide
                group=group,
                rank=rank.number,
                group_env={
                    "DIBS_GROUP": group, "DIBS_RANK": str(rank.number), "DIBS_NODES": str(len(everyone)),
                    "DIBS_JOB": row.name,
                },
            )
            for place, rank in enumerate(ranks)
        ]  # fmt: skip

    def _book_all(
        self, booking: Booking, orders: list[Order], inventory: Inventory, ticket: str | None
    ) -> tuple[list[Run], Status] | None:
        """Book every rank of the stage, and record that they are being created, in one transaction. None if what was
        decided does not hold any more."""
        status, ledger = self._status, self._w.ledger
        self._planned().volumes.make()
        with ledger.writing():
            row = self._book.job(self._row.id)
            if row.wanted != "run" or row.fence != self._fence:
                return None
            self._release_port()
            self._port = ports.choose(ledger, row.id, orders)
            port = self._port.number
            orders = [msgspec.structs.replace(order, spec=with_port(order.spec, port, ports.USUAL)) for order in orders]
            booked = booking.book(orders, inventory, ticket, waits=ticket is not None)
            if isinstance(booked, Refusal):
                return None
            if ticket is not None:
                ledger.dequeue(ticket, "served")
            group = orders[0].group
            status = msgspec.structs.replace(
                status, attempt=status.attempt + 1, group=group, port=port, waits_for="",
                conditions=tuple(one for one in status.conditions if one.type != "Queued"),
            )  # fmt: skip
            self._move("creating", status)
        waves = {rank.number: rank.wave for rank in self._planned().ranks}
        return [Run(one.order, one.prepared, wave=waves[one.order.rank]) for one in booked], status

    def _release_port(self) -> None:
        if self._port is not None:
            self._port.release()
            self._port = None

    def _create(self, runs: list[Run], status: Status) -> float:
        try:
            Delivery(self._w.home, self._w.ledger, self._w.registry).deliver_all(runs)
        except (BackendUnavailable, Busy) as error:
            if ledger_away(error):
                raise
            return self._failed_for_now(error)
        except DibsError as error:
            return self._give_up(error)
        now = time.time()
        status = msgspec.structs.replace(status, failures=0, started_at=status.started_at or now)
        running = Condition("Running", "True", "RanksRunning", f"all {len(runs)} ranks of this stage run", now)
        self._move("running", self._with(status, running))
        if self._on_session is not None:
            by_number = {rank.number: rank for rank in self._planned().ranks}
            for run in runs:
                if run.session is not None:
                    self._on_session(by_number[run.order.rank], run.session)
        return _LOOK

    def _wait(self, waits_for: str, ranks: Sequence[PlannedRank]) -> float:
        """Not now: take a place in the queue, or answer that we are still there."""
        row, status, ledger = self._row, self._status, self._w.ledger
        limit = read_spec(row).options.wait_seconds
        since = status.queued_at or row.created_at
        if limit is not None and time.time() - since >= limit:
            self._stop_all("failed", "WaitTimeout", f"not served in time, waiting for: {waits_for}")
            return 0.0
        found = next((one for one in ledger.tickets() if one.sandbox_id == row.id), None)
        with ledger.writing():
            if found is None:
                request = encode(together([rank.spec.resources for rank in ranks])).encode()
                ledger.enqueue(myself(), row.uid, row.username, request, sandbox_id=row.id, tenant=row.tenant)
            elif found.called_at is not None:
                ledger.answer(found.id)
            if status.waits_for != waits_for:
                told = Condition("Queued", "True", "WaitingForDevices", waits_for, time.time())
                self._move("queued", self._with(msgspec.structs.replace(status, waits_for=waits_for), told))
        return _LOOK

    def _ticket(self) -> str | None:
        return next((one.id for one in self._w.ledger.tickets() if one.sandbox_id == self._row.id), None)

    def _look_around(self) -> None:
        """A waiting process also frees what has ended."""
        now = boottime()
        if self._compare and now - self._compared >= _THOROUGH:
            self._compared = now
            reconcile(self._w.ledger, self._w.registry)

    def _failed_for_now(self, error: DibsError) -> float:
        """A delivery failed for a reason that may pass: what is left of it goes, and it is tried again."""
        status = self._status
        failures = status.failures + 1
        if failures > _RETRIES:
            return self._give_up(error)
        told = Condition("Queued", "True", error.code, str(error), time.time())
        status = self._with(msgspec.structs.replace(status, failures=failures, waits_for=str(error)), told)
        self._move("stopping", msgspec.structs.replace(status, then="queued"))
        return _PAUSE * float(2 ** (failures - 1))

    def _give_up(self, error: DibsError) -> float:
        self._stop_all("failed", error.code, str(error))
        return 0.0

    # -- running ------------------------------------------------------------------------------------------------------

    def _running(self) -> float:
        status, ledger, plan = self._status, self._w.ledger, self._planned()
        rows = ledger.group(status.group)
        if self._compare:
            reconcile(ledger, self._w.registry, {row.id for row in rows if row.live})
            rows = ledger.group(status.group)
        seen = rank_statuses(status.ranks, rows, ledger.leases_of([row.id for row in rows]))
        by_name = {one.name: one for one in seen}
        ranks = plan.of_stage(status.stage)
        failed = [by_name[rank.name] for rank in ranks if by_name[rank.name].phase in ("Failed", "Stopped")]
        if failed:
            first = min(failed, key=lambda one: one.ended_at or 0.0)
            return self._rank_failed(msgspec.structs.replace(status, ranks=seen), first.name, first.job, first.reason)
        ended: dict[str, list[bool]] = {}
        for rank in ranks:
            ended.setdefault(rank.job, []).append(by_name[rank.name].phase == "Succeeded")
        if not stages.succeeded(plan.jobset, status.stage, ended):
            return _LOOK
        status = msgspec.structs.replace(status, ranks=seen)
        if status.stage < plan.last_stage:
            groups = (*status.groups, status.group)
            onward = msgspec.structs.replace(
                status, stage=status.stage + 1, group="", groups=groups, queued_at=time.time()
            )  # fmt: skip
            self._move("queued", onward)
            return 0.0
        self._move("stopping", msgspec.structs.replace(
            self._with(status, Condition("Complete", "True", "AllJobsCompleted", "jobset completed successfully",
                                         time.time())), then="complete",
        ))  # fmt: skip
        return 0.0

    def _rank_failed(self, status: Status, name: str, job: str, reason: str) -> float:
        verdict, counts = stages.on_failure(self._planned().jobset, job, status.restarts)
        text = f"rank {name} failed: {reason}"
        if verdict == "fail":
            self._stop_all("failed", "FailedJobs", text, status)
            return 0.0
        restarts = status.restarts + 1
        with self._w.ledger.writing():
            self._book.tell(self._row, "job.restarting", f"{text}; restart {restarts}")
            again = msgspec.structs.replace(status, restarts=restarts if counts else status.restarts, then="queued")
            self._move("stopping", again)
        return 0.0

    # -- stopping -----------------------------------------------------------------------------------------------------

    def _stop_all(self, then: Then, reason: str = "", message: str = "", status: Status | None = None) -> None:
        """Record that its ranks are to be ended, and what follows."""
        status = status or self._status
        if reason:
            status = self._with(status, Condition("Failed", "True", reason, message, time.time()))
        self._move("stopping", msgspec.structs.replace(status, then=then))

    def _stopping(self) -> float:
        status = self._status
        if self._groups_left(status, end=True):
            return _LOOK
        ledger = self._w.ledger
        rows = ledger.group(status.group) if status.group else []
        seen = rank_statuses(status.ranks, rows, ledger.leases_of([row.id for row in rows]))
        status = msgspec.structs.replace(status, ranks=seen, then="")
        now = time.time()
        conditions = tuple(one for one in status.conditions if one.type not in ("Running", "Queued"))
        status = msgspec.structs.replace(status, conditions=conditions)
        then = self._status.then
        if then in ("queued", "suspended"):
            fresh = tuple(rank.status() for rank in self._planned().ranks)
            stage = 0 if then == "suspended" else status.stage
            old = (status.previous,) if then == "queued" else (*status.groups, status.previous)
            for group in old:
                self._remove_files(group)
            groups = status.groups if then == "queued" else ()
            restarted = msgspec.structs.replace(
                status, group="", groups=groups, previous=status.group, queued_at=now, stage=stage,
                ranks=tuple(
                    old if new.stage < stage else fresh[new.number]
                    for new, old in zip(self._planned().ranks, status.ranks, strict=True)
                ),
            )  # fmt: skip
            if then == "suspended":
                told = Condition("Suspended", "True", "Suspended", "TrainJob is suspended", now)
                with ledger.writing():
                    self._leave_queue("suspended")
                    self._move("suspended", self._with(restarted, told))
            else:
                self._move("queued", restarted)
            return 0.0
        self._finish(status, "complete" if then == "complete" else "failed", now)
        return 0.0

    def _finish(self, status: Status, state: JobState, now: float) -> None:
        ledger, row = self._w.ledger, self._row
        removed = row.wanted == "remove"
        for group in status.all_groups if removed else ():
            self._remove_files(group)
        status = msgspec.structs.replace(status, finished_at=now)
        with ledger.writing():
            self._leave_queue(state)
            self._move(state, status, ended=True)
            self._book.replace_ended_spec(row, msgspec.json.encode(read_spec(row).without_secrets()))
            if removed:
                self._book.forget(row.id)
        volumes.remove(self._w.home, row.id)

    def _groups_left(self, status: Status, *, end: bool = False) -> bool:
        """Whether something of its ranks is still there; `end`: it is ended now. A lease is freed on proven absence."""
        ledger, registry = self._w.ledger, self._w.registry
        groups = status.all_groups
        live = [row for group in groups for row in ledger.group(group) if row.live]
        if not live:
            return False
        if end:
            running = [row for row in live if row.created and row.state != "creating"]
            if running:
                with ThreadPoolExecutor(len(running)) as threads:
                    list(threads.map(self._end, running))
        reconcile(ledger, registry, {row.id for row in live})
        left = [row for group in groups for row in ledger.group(group) if row.live]
        for row in left:
            # What we were creating ourselves has been undone, or is undone now: no delivery of ours is under way.
            if end and row.state == "creating" and (row.owner == myself() or row.orphaned):
                self._discard(row.id)
        return any(row.live for group in groups for row in ledger.group(group))

    def _end(self, row: Sandbox) -> None:
        """In a thread of its own: it may take as long as the rank's grace."""
        with suppress(DibsError):  # it is tried again at the next look
            grace = self._planned().ranks[row.rank].spec.grace_seconds
            self._w.registry.get(row.backend, row.uid).stop(handle_of(row), grace)

    def _discard(self, sandbox_id: str) -> None:
        row = self._w.ledger.sandbox(sandbox_id)
        if not row.live or row.state != "creating":
            return
        with suppress(BackendUnavailable):
            self._w.registry.get(row.backend, row.uid).discard(handle_of(row))
            Delivery(self._w.home, self._w.ledger).fail(
                row.id, Conflict("its job was stopped before it ran", field="job", value=self._row.name)
            )

    def _remove_files(self, group: str) -> None:
        for row in self._w.ledger.group(group) if group else ():
            if not row.live:
                try:
                    self._w.registry.get(row.backend, row.uid).delete(handle_of(row))
                except BackendUnavailable as error:
                    # Its devices are free. What its engine still has of it is removed when the engine is back.
                    orphans.expect(self._w.home, handle_of(row))
                    self._book.tell(self._row, "job.leftover", f"sandbox {row.id}: {error}")

    def _leave_queue(self, why: str) -> None:
        ticket = self._ticket()
        if ticket is not None:
            self._w.ledger.dequeue(ticket, why)

    # -- what it works on ---------------------------------------------------------------------------------------------

    @property
    def _book(self) -> JobBook:
        return JobBook(self._w.ledger)

    @property
    def _status(self) -> Status:
        return read_status(self._row)

    @property
    def _backend(self) -> Backend:
        return self._w.registry.get(self._row.backend, self._row.uid)

    def _planned(self) -> JobPlan:
        if self._plan is None or self._planned_for != self._row.spec:
            row = self._row
            self._plan = plan_job(read_spec(row), self._w.home, row.id, row.tenant, row.backend)
            self._planned_for = row.spec
        return self._plan

    def _with(self, status: Status, condition: Condition) -> Status:
        """With a condition of one type once; the newest comes last."""
        others = tuple(one for one in status.conditions if one.type != condition.type)
        return msgspec.structs.replace(status, conditions=(*others, condition))

    def _move(self, state: JobState, status: Status, *, ended: bool = False) -> None:
        data = msgspec.json.encode(status)
        told = {"complete": "job.complete", "failed": "job.failed"}.get(state, f"job.{state}")
        book = self._book
        with book.joined():
            book.move(self._row, state, data, self._fence, ended=ended)
            if state != self._row.state:
                last = status.conditions[-1].message if status.conditions and state in ("failed", "queued") else ""
                book.tell(self._row, told, last)
        self._row = msgspec.structs.replace(self._row, state=state, status=data)


def _quota_words(error: QuotaExceeded) -> str:
    return "; ".join(f"{one.reason} ({one.field})" for one in error.problems)

"""`dibs train ls|show|logs|receipt|suspend|resume|rm`: jobs that are there, seen and changed by name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.output import Cell, in_short, output_option, paint, show, show_data, table
from dibs.cli.train_run import service_here

if TYPE_CHECKING:
    from dibs.workloads.jobs.model import Job
    from dibs.workloads.service import Workloads

Json = dict[str, Any]
_COLOURS = {
    "running": "green", "complete": "dim", "failed": "red", "queued": "yellow", "creating": "yellow",
    "stopping": "yellow", "suspended": "yellow", "Running": "green", "Succeeded": "dim", "Failed": "red",
    "Creating": "yellow",
}  # fmt: skip


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Also those that have ended.")
@output_option(wide=False)
def ls(everything: bool, output: str) -> None:
    """The training jobs of this host.

    \b
    Example:
      dibs train ls --all
    """
    from dibs.request.durations import show_duration
    from dibs.workloads.jobs.service import Jobs

    with service_here() as service:
        jobs = Jobs(service)
        jobs.sweep()
        found = jobs.list(all=everything)
    if output != "table":
        show_data({"jobs": [job_data(job) for job in found]}, output)
        return
    if not found:
        click.echo("no jobs" if everything else "no live jobs; --all shows ended ones")
        return
    now = time.time()
    rows: list[list[Cell]] = []
    for job in found:
        running = sum(rank.phase == "Running" for rank in job.ranks)
        devices = sum(len(rank.devices) for rank in job.ranks if rank.phase in ("Creating", "Running"))
        age = show_duration((job.ended_at or now) - job.created_at)
        rows.append(
            [job.name, (job.state, _COLOURS.get(job.state, "")), f"{running}/{len(job.ranks)}", str(devices),
             str(job.status.restarts), job.backend, job.username, age, _why(job)]
        )  # fmt: skip
    headers = ["NAME", "STATE", "RUNNING", "GPUS", "RESTARTS", "BACKEND", "USER", "AGE", "REASON"]
    show(table(headers, rows, right=frozenset({"RUNNING", "GPUS", "RESTARTS", "AGE"})))


@click.command(name="show")
@click.argument("job")
@output_option(wide=False)
def show_one(job: str, output: str) -> None:
    """Everything about one job: its ranks, their devices, what it waits for, what has happened.

    \b
    Example:
      dibs train show demo
    """
    from dibs.request.durations import show_duration
    from dibs.workloads.jobs.service import Jobs

    with service_here() as service:
        jobs = Jobs(service)
        found = jobs.get(job)
        events = jobs.events(found.id)
    told = [{"at": event.at, "kind": event.kind, "detail": event.detail} for event in events]
    if output != "table":
        show_data({**job_data(found), "events": told}, output)
        return
    now, status = time.time(), found.status
    lines = [
        f"job        {found.name}  ({found.id})",
        f"state      {paint(found.state, _COLOURS.get(found.state, ''))}" + (f": {_why(found)}" if _why(found) else ""),
        f"runtime    {found.spec.objects.job['spec']['runtimeRef']['name']}",
        f"backend    {found.backend}",
        f"user       {found.username}",
        f"age        {show_duration((found.ended_at or now) - found.created_at)}",
        f"restarts   {status.restarts}",
    ]
    if status.processes is not None:
        lines.append(f"processes  {status.processes} per node ({status.processes_reason})")
    rows: list[list[Cell]] = [
        [rank.name, (rank.phase, _COLOURS.get(rank.phase, "")), _devices(rank.devices), rank.reason, rank.sandbox_id]
        for rank in found.ranks
    ]
    lines += ["", *table(["RANK", "PHASE", "GPUS", "END", "SANDBOX"], rows)]
    moments = [
        [time.strftime("%H:%M:%S", time.localtime(event.at)), event.kind, event.detail] for event in events[-20:]
    ]
    lines += ["", *table(["AT", "EVENT", "DETAIL"], moments)]
    lines += ["", *(paint(f"warning: {text}", "yellow") for text in status.warnings)] if status.warnings else []
    show(lines)


@click.command()
@click.argument("job")
@click.option("--rank", default="", metavar="RANK", help="One rank only: its number, node-0, or its whole name.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
def logs(job: str, rank: str, follow: bool) -> None:
    """What the ranks of a job have written, each line with its rank.

    \b
    Examples:
      dibs train logs demo
      dibs train logs demo --rank 1 --follow
    """
    from dibs.backends.port import LogRecord, Output
    from dibs.cli.terminal import write
    from dibs.workloads.jobs.service import Jobs
    from dibs.workloads.log_lines import lines

    with service_here() as service:
        jobs = Jobs(service)
        found = jobs.get(job)
        if rank:
            for one in jobs.logs(found.id, rank=rank, follow=follow):
                write(Output(one.record.stream, one.record.data))
            return
        names = {one.name: f"{one.job}-{one.index}" for one in found.ranks}
        width = max(map(len, names.values()))
        begun: dict[str, list[LogRecord]] = {}
        for one in jobs.logs(found.id, follow=follow):
            begun.setdefault(one.rank, []).append(one.record)
            if not one.record.data.endswith(b"\n"):
                continue
            for record in lines(begun.pop(one.rank)):
                write(Output(record.stream, b"[%s] %s" % (names[one.rank].ljust(width).encode(), record.data)))
        for name, records in begun.items():
            for record in lines(records):
                write(Output(record.stream, b"[%s] %s\n" % (names[name].ljust(width).encode(), record.data)))


@click.command()
@click.argument("job")
@click.option("--rank", default="", metavar="RANK", help="The whole receipt of one rank.")
@output_option(wide=False)
def receipt(job: str, rank: str, output: str) -> None:
    """The proof of what a job was given: one line for each rank, or the whole receipt of one.

    \b
    Examples:
      dibs train receipt demo
      dibs train receipt demo --rank 0
    """
    from dibs.cli.receipt import receipt_data, receipt_lines
    from dibs.errors import NotFound
    from dibs.workloads.jobs.service import Jobs, rank_named

    with service_here() as service:
        jobs = Jobs(service)
        found = jobs.receipt(job)
        name = rank_named(jobs.get(job), rank) if rank else ""
    if name and name not in found.ranks:
        raise NotFound("this rank was not delivered", field="rank", value=name, code="NO_RECEIPT")
    if output != "table":
        whole = {one: receipt_data(it) for one, it in found.ranks.items()}
        show_data(
            whole[name] if name else {
                "job": found.job, "backend": found.backend, "simulated": found.simulated, "ranks": whole,
                "missing": found.missing,
            },
            output,
        )  # fmt: skip
        return
    if name:
        show(receipt_lines(found.ranks[name]))
        return
    from dibs.cli.output import simulated_banner

    out = [simulated_banner(), ""] if found.simulated else []
    out += [f"receipt   job {found.job} on {found.backend}", ""]
    rows: list[list[Cell]] = [
        [one, (it.verdict, "green" if it.verdict == "delivered" else "red"), _devices([d.id for d in it.devices])]
        for one, it in found.ranks.items()
    ]
    rows += [[one, ("not delivered", "red"), ""] for one in found.missing]
    show([*out, *table(["RANK", "VERDICT", "GPUS"], rows)])


@click.command()
@click.argument("job")
def suspend(job: str) -> None:
    """End the ranks of a job and give its devices back. `dibs train resume` runs it again from its start.

    \b
    Example:
      dibs train suspend demo
    """
    from dibs.workloads.jobs.service import Jobs

    with service_here() as service:
        found = Jobs(service).suspend(job)
        _keep(service)
        click.echo(found.name)


@click.command()
@click.argument("job")
def resume(job: str) -> None:
    """Run a suspended job again, in the background.

    \b
    Example:
      dibs train resume demo
    """
    from dibs.workloads.jobs.service import Jobs

    with service_here() as service:
        found = Jobs(service).resume(job)
        _keep(service)
        click.echo(found.name)


@click.command()
@click.argument("jobs", nargs=-1, required=True)
def rm(jobs: tuple[str, ...]) -> None:
    """End jobs, if they live, and remove all that is left of them. Returns when their devices are free.

    \b
    Example:
      dibs train rm demo
    """
    from dibs.workloads.jobs.service import Jobs

    with service_here() as service:
        for job in jobs:
            found = Jobs(service).get(job)
            Jobs(service).delete(found.id)
            click.echo(found.name)


def _keep(service: Workloads) -> None:
    """If no process drives it now, one is started."""
    from dibs.workloads.jobs.keepers import ensure

    ensure(service.home, service.ledger)


def job_data(job: Job) -> Json:
    """A job as data."""
    status = job.status
    return {
        "job": job.name,
        "id": job.id,
        "state": job.state,
        "backend": job.backend,
        "user": job.username,
        "tenant": job.tenant,
        "runtime": job.spec.objects.job["spec"]["runtimeRef"]["name"],
        "created_at": job.created_at,
        "ended_at": job.ended_at,
        "restarts": status.restarts,
        "processes": status.processes,
        "waits_for": status.waits_for,
        "conditions": [
            {"type": one.type, "status": one.status, "reason": one.reason, "message": one.message, "at": one.at}
            for one in status.conditions
        ],
        "ranks": [
            {
                "rank": rank.name, "host": rank.host, "replicated_job": rank.job, "index": rank.index,
                "step": rank.step, "phase": rank.phase, "sandbox_id": rank.sandbox_id, "exit_code": rank.exit_code,
                "reason": rank.reason, "devices": list(rank.devices), "started_at": rank.started_at,
                "ended_at": rank.ended_at,
            }
            for rank in job.ranks
        ],
        "warnings": list(status.warnings),
    }  # fmt: skip


def _why(job: Job) -> str:
    failed = job.condition("Failed")
    return failed.message if failed is not None else job.status.waits_for if job.state == "queued" else ""


def _devices(ids: Any) -> str:
    return in_short([name.rpartition("/")[2] for name in ids]) or "–"

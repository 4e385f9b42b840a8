"""`dibs train cluster`: training jobs on a Kubernetes cluster: submit, show why a rank waits, remove."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dibs.cli.output import Cell, output_option, paint, say, show, show_data, table

if TYPE_CHECKING:
    from dibs.workloads.cluster_jobs.service import ClusterJobs

F = TypeVar("F", bound=Callable[..., Any])

_WAYS = {"trainer": "Kubeflow Trainer", "jobset": "JobSet", "jobs": "Indexed Jobs"}
_COLOURS = {"Running": "green", "Succeeded": "green", "Complete": "green", "Failed": "red", "Pending": "yellow"}


@click.group()
def cluster() -> None:
    """Training jobs on a Kubernetes cluster, by what it has: Kubeflow Trainer, JobSet, or Indexed Jobs.

    \b
    Examples:
      dibs train cluster submit -f job.yaml
      dibs train cluster show demo
      dibs train cluster rm demo
    """


def _place(function: F) -> F:
    function = click.option("-n", "--namespace", default="", metavar="NAME", help="Default: that of the context.")(
        function
    )
    return click.option("--cluster", "context", metavar="CONTEXT", help="A context of your kubeconfig.")(function)


@contextmanager
def _jobs(context: str | None, namespace: str) -> Iterator[ClusterJobs]:
    from dibs.kube.client import Cluster
    from dibs.kube.config import find_cluster
    from dibs.workloads.cluster_jobs.service import ClusterJobs

    with Cluster(find_cluster(context)) as opened:
        yield ClusterJobs(opened, namespace)


@cluster.command()
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE", help="The TrainJob; repeatable.")
@click.option("--name", metavar="NAME", help="Which TrainJob of the files.")
@_place
@output_option(wide=False)
def submit(files: tuple[str, ...], name: str | None, context: str | None, namespace: str, output: str) -> None:
    """Submit a TrainJob. It is judged as a whole, and shown to the API server as a dry run, before anything is created.

    The runtime is the one of the files, else the cluster's. What the cluster would drop is refused.

    \b
    Example:
      dibs train cluster submit -f job.yaml -n team-a
    """
    from dibs.backends.installed import declared
    from dibs.cli.train_input import only_job, read_files
    from dibs.errors import InvalidRequest
    from dibs.train.job_annotations import BACKEND, backend

    bundle = read_files(files)
    job = only_job(bundle, name)
    if (elsewhere := backend(job)) and not declared(elsewhere).scheduled:
        remedy = "run it with `dibs train -f`, or take the annotation out"
        raise InvalidRequest(
            "this submits it to a cluster", field=f"metadata.annotations[{BACKEND}]", value=elsewhere, code="CONFLICT",
            remedy=remedy,
        )  # fmt: skip
    reference = job["spec"]["runtimeRef"]
    with _jobs(context, namespace) as jobs:
        done = jobs.submit(job, bundle.runtimes.get((reference["kind"], reference["name"])))
    for text in done.warnings:
        say(paint(f"dibs: warning: {text}", "yellow"))
    if output != "table":
        show_data(done, output, own=False)
        return
    show([f"{done.namespace}/{done.name}: by {_WAYS[done.way]}: {done.reason}"])
    show([f"  created {one}" for one in done.created])


@cluster.command("show")
@click.argument("name")
@_place
@output_option(wide=False)
def show_job(name: str, context: str | None, namespace: str, output: str) -> None:
    """A job rank by rank: phase, node, devices, restarts; for one that waits, why.

    \b
    Example:
      dibs train cluster show demo
    """
    with _jobs(context, namespace) as jobs:
        job = jobs.show(name)
    if output != "table":
        show_data(job, output, own=False)
        return
    state = paint(job.state, _COLOURS.get(job.state, ""))
    more = f", {job.restarts} restarts" if job.restarts else ""
    show([f"{job.namespace}/{job.name} on {job.cluster}, by {_WAYS[job.way]}: {state}{more}"])
    if job.message:
        show([f"  {job.message}"])
    rows: list[list[Cell]] = [
        [rank.name, (rank.phase, _COLOURS.get(rank.phase, "")), rank.node or "–", ", ".join(rank.devices) or "–"]
        for rank in job.ranks
    ]
    show(table(["RANK", "PHASE", "NODE", "DEVICES"], rows))
    for rank in job.ranks:
        for reason in rank.reasons:
            remedy = f"; {reason.remedy}" if reason.remedy else ""
            show([f"{rank.name}: {reason.text}{remedy}  [{reason.code}]"])
        show([paint(f"{rank.name}: {text}", "dim") for text in rank.words])


@cluster.command()
@click.argument("name")
@_place
def rm(name: str, context: str | None, namespace: str) -> None:
    """Remove a job, with everything that was created for it.

    \b
    Example:
      dibs train cluster rm demo
    """
    with _jobs(context, namespace) as jobs:
        jobs.remove(name)
    click.echo(f"{name} is removed")

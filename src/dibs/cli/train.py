"""`dibs train`: TrainJobs of Kubeflow Trainer: check them, see what they mean, and print what would run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dibs.cli.output import output_option, paint, problem_lines, say, show, show_data, table
from dibs.cli.train_jobs import logs, ls, receipt, resume, rm, show_one, suspend

if TYPE_CHECKING:
    from dibs.cli.train_input import Bundle
    from dibs.train.rendering import Rendered
    from dibs.workloads.jobs.service import Verdict

F = TypeVar("F", bound=Callable[..., Any])
Json = dict[str, Any]


class _Train(click.Group):
    """Without the name of a command it is `run`: `dibs train -f job.yaml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Train)
def train() -> None:
    """Training jobs of several nodes (trainer.kubeflow.org/v1alpha1).

    \b
    Examples:
      dibs train -f job.yaml
      dibs train --nodes 2 --gpu H100:2 -- python train.py
      dibs train --detach -f job.yaml
      dibs train logs demo --follow
      dibs train explain -f job.yaml -f claims.yaml
      dibs train render --nodes 2 --gpu 4 -- torchrun train.py

    Without a command it is `run`.
    """


_OPTIONS = (
    click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="TrainJob, runtimes, claims; repeatable"),
    click.option("--name", metavar="NAME", help="Which TrainJob of the files; or the name of a new one."),
    click.option("--runtime", metavar="NAME", help="Short form: the runtime. Default: torch-distributed."),
    click.option("--nodes", type=int, metavar="N", help="Short form: how many nodes."),
    click.option("--gpu", metavar="REQUEST", help="Short form: GPUs per node, as for `dibs run`."),
    click.option("--image", metavar="IMAGE", help="Short form: the image."),
    click.option("--processes", type=int, metavar="N", help="Short form: processes per node. Default: one per GPU."),
    click.option("--ssh-key", metavar="FILE", help="For MPI: a private key, with FILE.pub beside it."),
)  # fmt: skip


def _job_options(function: F) -> F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return click.argument("command", nargs=-1, type=click.UNPROCESSED)(function)


@train.command(context_settings={"allow_interspersed_args": False})
@_job_options
@click.option("--backend", metavar="NAME", help="local, docker or podman. Default: the first that can deliver it.")
@click.option("--network", type=click.Choice(["host", "private"]), help="Of its ranks. Default: what is usual there.")
@click.option("--wait", metavar="TIME", help="How long it may be queued; 0: not at all. Default: as long as it takes.")
@click.option("-d", "--detach", is_flag=True, help="Leave it running, and print its name.")
@output_option(wide=False)
def run(**values: Any) -> int:
    """Run a job on this host: all of its ranks at once, or none of them.

    What the ranks write is shown with the rank in front. Ctrl-C ends the job and removes it. With --detach it goes on
    by itself. The exit code is that of the first rank that failed.

    \b
    Examples:
      dibs train run -f job.yaml
      dibs train --nodes 2 --gpu H100:2 -- python train.py
    """
    from dibs.cli.train_run import run_job

    bundle, job = _given(values)
    return run_job(bundle, job, values)


@train.command(context_settings={"allow_interspersed_args": False})
@_job_options
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Form.")
def render(output: str, **values: Any) -> None:
    """Print what would run: the JobSet and what goes with it. The same job gives the same bytes.

    The output can be given to `kubectl apply` on a cluster that has JobSet; runtime patches, policies and the number of
    processes are in it. Warnings go to the standard error.

    \b
    Examples:
      dibs train render -f job.yaml | kubectl apply -f -
      dibs train render --nodes 2 --gpu 4 -- torchrun train.py
    """
    bundle, job = _given(values)
    rendered = _rendered(bundle, job, values)
    objects = [*_new_templates(bundle, values), *rendered.objects]
    for warning in rendered.warnings:
        say(f"warning: {warning}")
    if output == "json":
        show_data({"apiVersion": "v1", "kind": "List", "items": objects}, "json", own=False)
    else:
        from dibs.cli.output import as_text

        click.echo("---\n".join(as_text(one, "yaml") for one in objects), nl=False)


@train.command(context_settings={"allow_interspersed_args": False})
@_job_options
@click.option("--backend", metavar="NAME", help="One backend. Default: every one that could be chosen here.")
@output_option(wide=False)
def explain(output: str, **values: Any) -> None:
    """What a job means, and where it could run now: its nodes, its processes and why, what every rank gets.

    Creates nothing. A backend that cannot run it says every reason; one that is busy, what the job would wait for.

    \b
    Examples:
      dibs train explain -f job.yaml -f claims.yaml
      dibs train explain --nodes 2 --gpu H100:2 -- torchrun train.py
    """
    from dibs.train.ranks import ranks_of

    bundle, job = _given(values)
    rendered = _rendered(bundle, job, values)
    ranks = ranks_of(rendered, bundle.facts())
    here = _verdicts(bundle, job, values)
    if output != "table":
        data = {
            "job": job["metadata"]["name"],
            "runtime": job["spec"]["runtimeRef"]["name"],
            "nodes": rendered.nodes,
            "processes": rendered.processes,
            "ranks": ranks,
            "warnings": rendered.warnings,
            "here": here,
        }
        show_data(data, output, own=False)
        return
    processes = rendered.processes
    lines = [f"job        {job['metadata']['name']}", f"runtime    {job['spec']['runtimeRef']['name']}"]
    lines.append(f"nodes      {rendered.nodes}")
    if processes is not None:
        lines.append(f"processes  {processes.per_node} per node ({processes.reason})")
    lines.append("")
    rows = [
        [rank.host, rank.job, str(rank.index), str(rank.devices), rank.container.get("image", "")] for rank in ranks
    ]
    lines += table(["RANK", "JOB", "INDEX", "DEVICES", "IMAGE"], rows)
    lines += ["", *(paint(f"warning: {text}", "yellow") for text in rendered.warnings)] if rendered.warnings else []
    show([*lines, "", *_shown_verdicts(here)])


def _verdicts(bundle: Bundle, job: Json, values: Json) -> tuple[Verdict, ...]:
    import msgspec

    from dibs.cli.train_input import read_ssh_key
    from dibs.cli.train_run import options_of, service_here
    from dibs.workloads.jobs.model import Objects
    from dibs.workloads.jobs.service import Jobs

    reference = job["spec"]["runtimeRef"]
    runtime = bundle.lookup(reference["kind"], reference["name"])
    assert runtime is not None  # the review has found it
    objects = Objects(job, runtime, bundle.claims, read_ssh_key(values["ssh_key"]))
    with service_here() as service:
        options = options_of({**values, "wait": None, "network": None}, job)
        return Jobs(service).explain(objects, msgspec.structs.replace(options, wait_seconds=None))


def _shown_verdicts(here: tuple[Verdict, ...]) -> list[str]:
    lines: list[str] = []
    for one in here:
        if one.verdict == "can":
            lines.append(f"{one.backend}: {paint('can run it now', 'green')}")
        elif one.verdict == "waits":
            lines.append(f"{one.backend}: {paint('would queue it', 'yellow')}, waiting for {one.waits_for}")
        else:
            lines.append(f"{one.backend}: {paint('cannot run it', 'red')}")
            lines += [line for problem in one.problems for line in problem_lines(problem, "  ")]
    return lines


@train.command()
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE", help="Objects; may be repeated.")
@click.option("--old", metavar="FILE", help="The TrainJobs as they are now, to check a change of them.")
@output_option(wide=False)
def validate(files: tuple[str, ...], old: str | None, output: str) -> int:
    """Check TrainJobs and runtimes: everything that an API server, its webhooks and the controllers would say, at once.

    Exit code: 0 if all may be, 80 if not. What is merged is checked as well: claims, volumes, amounts, names.

    \b
    Examples:
      dibs train validate -f job.yaml -f runtime.yaml
      dibs train validate -f new.yaml --old job.yaml
    """
    from dibs.cli.train_input import read_files
    from dibs.errors import InvalidRequest
    from dibs.train.review import review_job, review_runtime

    bundle = read_files(files)
    before = read_files([old]).jobs if old else {}
    results: list[Json] = []
    reviews = [(f"{kind} {name}", review_runtime(one)) for (kind, name), one in bundle.runtimes.items()]
    for name, job in bundle.jobs.items():
        review = review_job(job, bundle.lookup, bundle.facts(), old=before.get(name))
        reviews.append((f"TrainJob {name}", review))
    for title, review in reviews:
        problems = [refusal.problem() for refusal in review.refusals]
        results.append({"object": title, "allowed": review.allowed, "warnings": review.warnings, "problems": problems})
    if output != "table":
        show_data({"objects": results}, output, own=False)
        return 80 if any(not one["allowed"] for one in results) else 0
    if not results:
        raise InvalidRequest("the files hold no TrainJob and no runtime", field="-f", code="TRAINJOB_INVALID")
    for one in results:
        show([f"{one['object']}: {'ok' if one['allowed'] else 'refused'}"])
        show(line for problem in one["problems"] for line in problem_lines(problem, "  "))
        show(paint(f"  warning: {text}", "yellow") for text in one["warnings"])
    return 80 if any(not one["allowed"] for one in results) else 0


@train.command()
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Runtimes in files, beside those of dibs.")
@output_option(wide=False)
def runtimes(files: tuple[str, ...], output: str) -> None:
    """The runtimes that a job can refer to: those that come with dibs, and those of files.

    \b
    Examples:
      dibs train runtimes
      dibs train runtimes -o yaml
    """
    from dibs.cli.train_input import read_files
    from dibs.train import shipped
    from dibs.train.names import NODE, TRAINER, ancestor, container

    found = [*shipped.all_runtimes(), *read_files(files).runtimes.values()]
    if output != "table":
        show_data({"apiVersion": "v1", "kind": "List", "items": found}, output, own=False)
        return
    rows = []
    for one in found:
        policy = one["spec"].get("mlPolicy", {})
        kind = next((name for name in policy if name != "numNodes"), "plain")
        jobs = one["spec"].get("template", {}).get("spec", {}).get("replicatedJobs", [])
        images = [(container(job, NODE) or {}).get("image", "") for job in jobs if ancestor(job) == TRAINER]
        rows.append([one["metadata"]["name"], kind, str(policy.get("numNodes", 1)), images[0] if images else ""])
    show(table(["NAME", "POLICY", "NODES", "IMAGE"], rows))


for _command in (ls, show_one, logs, receipt, suspend, resume, rm):
    train.add_command(_command)


def _given(values: Json) -> tuple[Bundle, Json]:
    """The objects of the files, and the job: from them, or from the short form."""
    from dibs.cli.train_input import only_job, read_files, short_form
    from dibs.errors import InvalidRequest

    bundle = read_files(values["files"])
    said = [f"--{key}" for key in ("runtime", "nodes", "gpu", "image", "processes") if values[key] is not None]
    if values["command"]:
        said.append("a command")
    if bundle.jobs and said:
        reason = f"the files hold the job already, and so does the command line: {', '.join(said)}"
        raise InvalidRequest(reason, field="-f", code="CONFLICT", remedy="say it in one place")
    if bundle.jobs or not said:
        return bundle, only_job(bundle, values["name"])
    job = short_form(
        bundle, name=values["name"] or "train", runtime=values["runtime"] or "torch-distributed", nodes=values["nodes"],
        gpu=values["gpu"], image=values["image"], processes=values["processes"], command=values["command"],
    )  # fmt: skip
    return bundle, job


def _rendered(bundle: Bundle, job: Json, values: Json) -> Rendered:
    from dibs.cli.train_input import read_ssh_key
    from dibs.train.refusals import Refusals
    from dibs.train.review import review_job

    review = review_job(job, bundle.lookup, bundle.facts(read_ssh_key(values["ssh_key"])))
    Refusals(review.refusals).check()
    assert review.rendered is not None
    return review.rendered


def _new_templates(bundle: Bundle, values: Json) -> list[Json]:
    """The claim template that a short form made: it has to be created together with the job."""
    made = bundle.claims.get("ResourceClaimTemplate", {}) if values["gpu"] is not None else {}
    return [one for name, one in made.items() if name == f"{values['name'] or 'train'}-gpu"]


def _add_cluster() -> None:
    from dibs.cli.train_cluster import cluster

    train.add_command(cluster)


_add_cluster()

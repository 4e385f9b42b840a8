"""`dibs doctor`: every check with its verdict, why, and the command that fixes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dibs.cli.output import fold, output_option, paint, show, show_data

if TYPE_CHECKING:
    from dibs.doctor.finding import Finding

_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red"), "skip": ("skip", "dim")}


@click.command()
@click.option(
    "--cluster", is_flag=False, flag_value="", metavar="[CONTEXT]",
    help="Examine a Kubernetes cluster instead, by its context; alone: the current one.",
)  # fmt: skip
@output_option(wide=False)
def doctor(output: str, cluster: str | None) -> int:
    """Examine this host: kernel, sandbox runtime, limits, ledger, CDI specs, drivers, devices.

    The exit code is 1 if a check failed; warnings do not fail.

    \b
    Examples:
      dibs doctor
      dibs doctor -o json
      dibs doctor --cluster
    """
    findings = _of_this_host() if cluster is None else _of_cluster(cluster or None)
    failed = sum(finding.verdict == "fail" for finding in findings)
    if output != "table":
        show_data({"failed": failed, "findings": findings}, output)
        return 1 if failed else 0
    width = max(len(finding.id) for finding in findings)
    lines = []
    for finding in findings:
        mark, colour = _MARKS[finding.verdict]
        indent = " " * (width + 8)
        title, *rest = fold(finding.title, indent)
        lines += [f"{paint(mark.ljust(4), colour)}  {finding.id.ljust(width)}  {title.lstrip()}", *rest]
        if finding.why and finding.verdict != "ok":
            lines += [paint(line, "dim") for line in fold(finding.why, indent)]
        if finding.fix and finding.verdict not in ("ok", "skip"):
            fix, *rest = fold(finding.fix, indent + "  ")
            lines += [f"{indent}{paint('→', 'green')} {fix.lstrip()}", *rest]
    warned = sum(finding.verdict == "warn" for finding in findings)
    lines += ["", f"{len(findings)} checks: {failed} failed, {warned} warning{'' if warned == 1 else 's'}"]
    show(lines)
    return 1 if failed else 0


def _of_this_host() -> list[Finding]:
    from dibs.doctor import examine
    from dibs.errors import StateError
    from dibs.home import find_home
    from dibs.remote.choose import about_this_machine
    from dibs.workloads.service import Workloads

    about_this_machine("doctor")
    home = find_home()
    try:
        with Workloads(home) as service:
            return examine(home, started_by_dibs=service.started_by_dibs())
    except StateError:
        return examine(home, started_by_dibs=lambda _pid: False)  # the ledger's own check says what is wrong


def _of_cluster(name: str | None) -> list[Finding]:
    from dibs.doctor.cluster import examine_cluster
    from dibs.kube.client import Cluster
    from dibs.kube.config import find_cluster

    with Cluster(find_cluster(name)) as cluster:
        return examine_cluster(cluster)

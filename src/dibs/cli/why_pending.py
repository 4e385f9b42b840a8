"""`dibs explain pod/NAME` and `claim/NAME`, and `kubectl dibs why`: why something of a cluster waits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from dibs.cli.output import Cell, fold, output_option, paint, show, show_data, table
from dibs.errors import Busy

if TYPE_CHECKING:
    from dibs.kube.verdicts import NodeVerdict, Reason, Waiting

_SUBJECT = re.compile(r"(pods?|po|claims?|resourceclaims?)/([a-z0-9][a-z0-9.-]{0,252})")
_MOST_NODES = 20  # groups of nodes in a table; -o json has them all
_COLOURS = {"pending": "yellow", "not created": "yellow", "bound": "yellow", "allocated": "green", "running": "green"}


def subject_of(words: tuple[str, ...]) -> tuple[str, str] | None:
    """`pod/NAME` or `claim/NAME` as the first word; a command of that name is written ./pod/NAME."""
    found = _SUBJECT.fullmatch(words[0]) if words else None
    if found is None:
        return None
    return ("pod" if found[1].startswith("po") else "claim"), found[2]


@click.command("explain")
@click.argument("subject", metavar="pod/NAME|claim/NAME")
@click.option("-n", "--namespace", metavar="NAME", help="Default: that of the context.")
@click.option("--cluster", metavar="CONTEXT", help="A context of your kubeconfig. Default: the current one.")
@output_option(wide=False)
def why(subject: str, namespace: str | None, cluster: str | None, output: str) -> int:
    """Why a pod or claim of a cluster waits: which request fails on which node, by what, and what to change.

    Nothing is installed in the cluster, nothing is changed, and read access is enough. The exit code is 0 if it does
    not wait, 83 if it does.

    \b
    Examples:
      dibs explain pod/train-0
      dibs explain claim/train-0-gpu -n team-a --cluster prod
    """
    found = subject_of((subject,))
    if found is None:
        raise click.BadParameter(f"{subject}: write pod/NAME or claim/NAME")
    return explain_waiting(*found, namespace, cluster, output)


def explain_waiting(kind: str, name: str, namespace: str | None, cluster: str | None, output: str) -> int:
    from dibs.kube.client import Cluster
    from dibs.kube.config import find_cluster
    from dibs.kube.pending import explain_claim, explain_pod

    with Cluster(find_cluster(cluster)) as opened:
        opened.require_dra() if kind == "claim" else None
        explain = explain_pod if kind == "pod" else explain_claim
        answer = explain(opened, namespace or opened.config.namespace, name)
    if output in ("json", "yaml"):
        show_data(answer, output)
    else:
        show(waiting_lines(answer))
    return Busy.exit_code if answer.waits else 0


def waiting_lines(answer: Waiting) -> list[str]:
    state = paint(answer.state, _COLOURS.get(answer.state, ""))
    since = f" since {answer.since}" if answer.since and answer.waits else ""
    lines = [f"{answer.kind} {answer.namespace}/{answer.name} on {answer.cluster}: {state}{since}", ""]
    for number, reason in enumerate(answer.reasons):
        lines += _reason_lines(reason, "why       " if number == 0 else "          ")
    if not answer.reasons:
        lines.append("why       dibs cannot tell from what it may read")
    for number, word in enumerate(answer.words):
        lines += _folded(f"{word.reason}: {word.message}", "cluster   " if number == 0 else "          ", "dim")
    judged = [verdict for verdict in answer.nodes if verdict.reasons or answer.waits]
    if judged and answer.waits:
        lines += ["", *_node_lines(judged, answer.nearest)]
    if answer.not_judged:
        lines.append(f"not judged by dibs: {', '.join(answer.not_judged)}")
    for problem in answer.unreadable:
        lines += _folded(f"could not be read: {problem.reason}", "", "red")
    for remedy in dict.fromkeys(problem.remedy for problem in answer.unreadable):
        lines += _folded(f"→ {remedy}", "  ", "")
    lines += [paint(note, "dim") for note in answer.notes]
    return lines


def _reason_lines(reason: Reason, head: str) -> list[str]:
    lines = _folded(f"{reason.text}  [{reason.code}]", head, "")
    if reason.remedy:
        lines += _folded(f"→ {reason.remedy}", "          ", "green")
    return lines


def _folded(text: str, head: str, colour: str) -> list[str]:
    first, *rest = fold(" ".join(text.split()), " " * len(head))
    return [head + paint(first[len(head) :], colour), *(paint(line, colour) for line in rest)]


def _node_lines(nodes: list[NodeVerdict], nearest: str) -> list[str]:
    """A row per node; nodes that read alike stand together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for verdict in nodes:
        said = tuple(f"{one.text}  [{one.code}]" for one in verdict.reasons)
        alike.setdefault(said, []).append(verdict.node)
    rows: list[list[Cell]] = []
    for said, names in sorted(alike.items(), key=lambda item: nearest not in item[1]):
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        mark = ("nearest", "yellow") if nearest in names and said else ("", "")
        for number, text in enumerate(said or ("nothing stands against it",)):
            rows.append([shown if number == 0 else "", mark if number == 0 else "", text])
    left = len(rows) - _MOST_NODES
    lines = table(["NODE", "", "WHY NOT"], rows[:_MOST_NODES], whole=True)
    return [*lines, *([f"… and {left} more rows; -o json has all"] if left > 0 else [])]

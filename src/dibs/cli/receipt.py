"""`dibs receipt`: what was asked, planned, rendered and observed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from dibs.cli.output import Cell, output_option, paint, show, show_data, simulated_banner, table

if TYPE_CHECKING:
    from dibs.workloads.receipt import Receipt


@click.command()
@click.argument("sandbox")
@output_option(wide=False)
def receipt(sandbox: str, output: str) -> None:
    """The receipt of a sandbox, by name or id. It is kept after the sandbox has ended.

    Observed means looked at from outside, in the running sandbox: before its command started where the backend can
    hold it back (local), right after that where it cannot (docker, podman).

    \b
    Examples:
      dibs receipt train-1
      dibs receipt sb-4f2a -o yaml
    """
    from dibs.remote.choose import open_service

    with open_service() as service:
        found = service.receipt(sandbox)
    if output == "table":
        show(receipt_lines(found))
    else:
        show_data(found, output)


def receipt_lines(found: Receipt) -> list[str]:
    colours = {"delivered": "green", "not observed": "yellow"}
    verdict = paint(found.verdict, colours.get(found.verdict, "red"))
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.at))
    lines = [simulated_banner(), ""] if found.simulated else []
    lines += [f"receipt   {found.name} on {found.backend}, {when}", f"verdict   {verdict}", ""]
    rows: list[list[Cell]] = [
        [
            line.field,
            line.asked,
            line.planned,
            "the same" if line.observed == line.planned else line.observed,
            (line.outcome, colours.get(line.outcome, "red")),
        ]
        for line in found.lines
    ]
    lines += table(["FIELD", "ASKED", "PLANNED", "OBSERVED", "OUTCOME"], rows)
    for device in found.devices:
        nodes = ", ".join(device.nodes) or "no node of its own"
        lines += ["", f"{device.id}  {device.model}", f"  {device.uuid or 'no uuid'}  {device.cdi_name}  {nodes}"]
        if device.share:
            lines.append(f"  a share of it: {', '.join(f'{name} {amount}' for name, amount in device.share.items())}")
        lines += [paint(f"  also used outside dibs: {use}", "yellow") for use in device.used_outside]
    for problem in found.problems:
        lines.append(paint(f"{problem.field} {problem.value}: {problem.reason}", "red"))
    lines += ["", *(paint(f"note: {note}", "dim") for note in found.notes)] if found.notes else []
    return lines

"""`dibs receipt`: what was asked, planned, rendered and observed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from dibs.cli.output import Cell, output_option, paint, show, show_data, simulated_banner, table, terminal_width

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
    whole = table(["FIELD", "ASKED", "PLANNED", "OBSERVED", "OUTCOME"], rows, whole=True)
    plain = [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in rows]
    wide = sum(max(len(row[column]) for row in plain) for column in range(5)) + 8 <= terminal_width()
    lines += whole if wide else _narrow(found, colours)
    lines += _origins(found)
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


def _narrow(found: Receipt, colours: dict[str, str]) -> list[str]:
    """Where the table is wider than the terminal: nothing is cut, long texts are folded."""
    import textwrap

    field = max(len(line.field) for line in found.lines)
    outcome = max(len(line.outcome) for line in found.lines)
    indent = " " * (field + outcome + 4)
    lines = []
    for line in found.lines:
        text = line.observed if line.observed == line.planned else f"{line.observed}, planned {line.planned}"
        text += f", asked {line.asked}" if line.asked not in ("–", line.planned) else ""
        width = max(terminal_width() - len(indent), 20)
        first, *rest = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
        head = f"{line.field:{field}}  {paint(f'{line.outcome:{outcome}}', colours.get(line.outcome, 'red'))}  {first}"
        lines += [head.rstrip(), *(indent + part for part in rest)]
    return lines


def _origins(found: Receipt) -> list[str]:
    """When it was looked at, where that is not the same for all of it."""
    words = {
        "before start": "seen before the command started",
        "after start": "seen after the command started",
        "engine": "reported by the engine",
    }
    by_origin: dict[str, list[str]] = {}
    for line in found.lines:
        if line.origin:
            by_origin.setdefault(line.origin, []).append(line.field)
    if len(by_origin) < 2:
        return ["", *(f"all of it was {words.get(origin, origin)}" for origin in by_origin)] if by_origin else []
    most = max(by_origin, key=lambda origin: len(by_origin[origin]))
    return [
        "",
        *(
            f"{words.get(origin, origin)}: {'all the rest' if origin == most else ', '.join(dict.fromkeys(fields))}"
            for origin, fields in sorted(by_origin.items(), key=lambda item: len(item[1]))
        ),
    ]

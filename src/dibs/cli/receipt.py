"""`dibs receipt`: what was asked, planned, rendered and observed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.names import sandbox_names
from dibs.cli.output import Cell, output_option, paint, show, show_data, simulated_banner, table, terminal_width

if TYPE_CHECKING:
    from dibs.receipt import Receipt


@click.command()
@click.argument("sandbox", shell_complete=sandbox_names)
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
        show_data(receipt_data(found), output)


def receipt_data(found: Receipt) -> dict[str, Any]:
    """As all answers have it: `sandbox` is a name, `sandbox_id` an id."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {"sandbox_id": plain.pop("sandbox"), "sandbox": plain.pop("name"), **plain}


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
            _short(line.planned, found),
            "the same" if line.observed == line.planned else _short(line.observed, found),
            (line.outcome, colours.get(line.outcome, "red")),
        ]
        for line in found.lines
    ]
    whole = table(["FIELD", "ASKED", "PLANNED", "OBSERVED", "OUTCOME"], rows, whole=True)
    plain = [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in rows]
    wide = sum(max(len(row[column]) for row in plain) for column in range(5)) + 8 <= terminal_width()
    lines += whole if wide else _narrow(found, colours)
    lines += _origins(found)
    if found.devices:
        lines += ["", *_devices(found)]
    for problem in found.problems:
        lines.append(paint(f"{problem.field} {problem.value}: {problem.reason}", "red"))
    lines += ["", *(paint(f"note: {note}", "dim") for note in found.notes)] if found.notes else []
    return lines


def _devices(found: Receipt) -> list[str]:
    """One device per line, and nothing of it cut: what proves that it is this one stands first."""
    rows: list[list[Cell]] = [
        [
            device.id.rpartition("/")[2],
            device.model,
            device.uuid or "no uuid",
            ", ".join(device.nodes) or "no node of its own",
            device.cdi_name or device.attached_as,
            device.id,
        ]
        for device in found.devices
    ]
    lines = table(["DEVICE", "MODEL", "UUID", "NODES", "ATTACHED AS", "ID"], rows, whole=True)
    for device in found.devices:
        name = device.id.rpartition("/")[2]
        if device.share:
            parts = ", ".join(f"{what} {amount}" for what, amount in device.share.items())
            lines.append(f"{name}: a share of it: {parts}")
        lines += [paint(f"{name}: also used outside dibs: {use}", "yellow") for use in device.used_outside]
    return lines


def _short(text: str, found: Receipt) -> str:
    """A list of all the devices' UUIDs, as variables have it, is not repeated: they stand in the table of devices."""
    uuids = [device.uuid for device in found.devices]
    if len(uuids) > 1 and all(uuids) and text == ",".join(uuids):
        return f"the {len(uuids)} UUIDs below, in this order"
    return text


def _narrow(found: Receipt, colours: dict[str, str]) -> list[str]:
    """Where the table is wider than the terminal: nothing is cut, long texts are folded, lists item by item."""
    field = max(len(line.field) for line in found.lines)
    outcome = max(len(line.outcome) for line in found.lines)
    indent = " " * (field + outcome + 4)
    width = max(terminal_width() - len(indent), 20)
    lines = []
    for line in found.lines:
        observed, planned = _short(line.observed, found), _short(line.planned, found)
        texts = [observed] if observed == planned else [observed, f"planned {planned}"]
        texts += [f"asked {line.asked}"] if line.asked not in ("–", line.planned) else []
        if len(", ".join(texts)) <= width:
            texts = [", ".join(texts)]
        parts = [part for text in texts for part in _folded(_spaced(text), width)]
        first, *rest = parts or [""]
        head = f"{line.field:{field}}  {paint(f'{line.outcome:{outcome}}', colours.get(line.outcome, 'red'))}  {first}"
        lines += [head.rstrip(), *(indent + part for part in rest)]
    return lines


def _folded(text: str, width: int) -> list[str]:
    """A list is folded between its items, `gpu-2 H100` stays together; what is no list between its words."""
    import textwrap

    items = text.split(", ")
    if len(items) > 1 and all(len(item) < width for item in items):
        text = ", ".join(item.replace(" ", "\xa0") for item in items)  # which textwrap takes for a letter
    return [part.replace("\xa0", " ") for part in textwrap.wrap(text, width, break_on_hyphens=False)]


def _spaced(text: str) -> str:
    """A list that has no blanks, such as the value of a variable, is folded at its commas."""
    return text if " " in text or len(text) < 60 else text.replace(",", ", ")


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

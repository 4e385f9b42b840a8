"""`dibs table`: the delivery table, as it is in the code."""

from __future__ import annotations

import click

from dibs.cli.names import backend_names, field_names
from dibs.cli.output import Cell, output_option, show, show_data
from dibs.cli.output import table as columns
from dibs.errors import NotFound

_MARKS = {"delivered": ("yes", "green"), "delegated": ("delegated", "yellow"), "refused": ("refused", "red")}


@click.command()
@output_option()
@click.option("--backend", shell_complete=backend_names, help="Only this backend, with how it is done.")
@click.option("--field", shell_complete=field_names, help="Only this field, with how it is done.")
def table(output: str, backend: str | None, field: str | None) -> None:
    """Each field of a request on each backend: delivered, delegated or refused. There is no fourth.

    \b
    Examples:
      dibs table
      dibs table --backend local
      dibs table --field memory
    """
    from dibs.workloads.explain import table_rows

    rows = [row for row in table_rows() if backend in (None, row["backend"]) and field in (None, row["field"])]
    if not rows:
        given = [("field", field)] if field else [("backend", backend)]
        raise NotFound(
            "the table has no such row", field=given[0][0], value=given[0][1] or "", remedy="see `dibs table`"
        )
    if output in ("json", "yaml"):
        show_data(rows, output)
        return
    if output == "wide" or backend or field:
        show(columns(["FIELD", "BACKEND", "OUTCOME", "HOW"], [[*row.values()] for row in rows]))
        return
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    matrix: dict[str, list[Cell]] = {}
    for row in rows:
        matrix.setdefault(row["field"], [row["field"]]).append(_MARKS[row["outcome"]])
    show(columns(["FIELD", *(name.upper() for name in backends)], list(matrix.values())))
    show(["", "`dibs table --field NAME` says how; -o wide says everything"])

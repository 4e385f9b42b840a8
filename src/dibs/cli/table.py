"""`dibs table`: the delivery table, as it is in the code."""

from __future__ import annotations

import click

from dibs.cli.output import output_option, show, show_data
from dibs.cli.output import table as columns


@click.command()
@output_option(wide=False)
@click.option("--backend", help="Only this backend.")
def table(output: str, backend: str | None) -> None:
    """Each field of a request on each backend: delivered, delegated or refused. There is no fourth.

    \b
    Example:
      dibs table --backend local
    """
    from dibs.workloads.explain import table_rows

    rows = [row for row in table_rows() if backend in (None, row["backend"])]
    if output != "table":
        show_data(rows, output)
        return
    show(columns(["FIELD", "BACKEND", "OUTCOME", "HOW"], [[*row.values()] for row in rows]))

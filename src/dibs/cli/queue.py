"""`dibs queue`: who waits for devices, and removing a ticket from the queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.names import ticket_names
from dibs.cli.output import Cell, output_option, show, show_data, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.ledger.rows import Ticket
    from dibs.request.model import Request


@click.group(invoke_without_command=True)
@output_option()
@click.pass_context
def queue(context: click.Context, output: str) -> None:
    """The queue: who waits for devices, first come first.

    \b
    Examples:
      dibs queue
      dibs queue -o json
      dibs queue rm tk-4f0c9a3be1d2
    """
    if context.invoked_subcommand is not None:
        return
    from dibs.remote.choose import open_service

    with open_service() as service:
        tickets = service.queue()
    if output in ("json", "yaml"):
        show_data({"queue": queue_data(tickets)}, output)
        return
    show(queue_table(tickets, wide=output == "wide") if tickets else ["the queue is empty"])


@queue.command("rm")
@click.argument("tickets", nargs=-1, required=True, metavar="TICKET...", shell_complete=ticket_names)
def remove(tickets: tuple[str, ...]) -> None:
    """Remove tickets from the queue.

    A `dibs run --wait` ends with exit code 88 and says why; a queued sandbox of a gateway is removed.
    """
    from dibs.remote.choose import open_service

    with open_service() as service:
        for ticket in tickets:
            service.remove_ticket(ticket)
            click.echo(ticket)


def queue_data(tickets: Sequence[Ticket]) -> list[dict[str, Any]]:
    """The queue for programs."""
    return [
        {
            "ticket": ticket.id,
            "place": place,
            "user": ticket.username,
            "request": _request(ticket).short(),
            "since": ticket.created_at,
            **({"sandbox_id": ticket.sandbox_id} if ticket.sandbox_id else {}),
        }
        for place, ticket in enumerate(tickets, start=1)
    ]


def queue_table(tickets: Sequence[Ticket], *, wide: bool = False) -> list[str]:
    """The queue for a person."""
    from dibs.request.durations import show_duration

    now = time.time()
    rows: list[list[Cell]] = [
        [
            str(place),
            ticket.id,
            ticket.username,
            _request(ticket).flags(),
            show_duration(now - ticket.created_at),
            *([ticket.sandbox_id or "", str(ticket.owner.pid or "")] if wide else []),
        ]
        for place, ticket in enumerate(tickets, start=1)
    ]
    headers = ["PLACE", "TICKET", "USER", "WAITS FOR", "SINCE", *(["SANDBOX", "PID"] if wide else [])]
    return table(headers, rows, right=frozenset({"PLACE", "SINCE"}))


def _request(ticket: Ticket) -> Request:
    from dibs.workloads.queue import request_of

    return request_of(ticket.request)

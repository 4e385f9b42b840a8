"""`dibs leases`: what is held, by whom, and what waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from dibs.cli.output import Cell, in_short, output_option, show, show_data, table

if TYPE_CHECKING:
    from dibs.ledger.rows import LeasedDevice

_COLOURS = {"attached": "green", "reserved": "yellow", "draining": "yellow", "free": "dim"}


def _device(device: LeasedDevice) -> str:
    """Its name; of a shared one also how much of it."""
    from dibs.quantity import human_bytes

    name = device.id.rpartition("/")[2]
    if device.share is None:
        return name
    parts = ", ".join(f"{human_bytes(amount // 10**9)} {what}" for what, amount in device.share.consumed.items())
    return f"{name} ({parts})"


@click.command()
@output_option()
@click.option("-a", "--all", "everything", is_flag=True, help="Also the leases that have ended.")
def leases(output: str, everything: bool) -> None:
    """The leases: which devices are held, by which sandbox, since when; and the queue.

    \b
    Examples:
      dibs leases
      dibs leases --all -o json
    """
    from dibs.cli.queue import queue_data, queue_table
    from dibs.cli.until import ends_of
    from dibs.remote.choose import open_service
    from dibs.request.durations import show_duration

    with open_service() as service:
        found = service.leases(all=everything)
        queue = service.queue()
        ends = ends_of(service, output) if found else {}
    now = time.time()
    if output in ("json", "yaml"):
        show_data({"leases": found, "queue": queue_data(queue)}, output)
        return
    rows: list[list[Cell]] = [
        [
            lease.id,
            (lease.state, _COLOURS[lease.state]),
            in_short([_device(device) for device in lease.devices]),
            lease.sandbox_name,
            lease.username,
            show_duration(now - lease.created_at),
            *([ends.get(lease.sandbox_id, "")] if ends else []),
            *([", ".join(device.uuid for device in lease.devices)] if output == "wide" else []),
        ]
        for lease in found
    ]
    headers = [
        "LEASE",
        "STATE",
        "DEVICES",
        "SANDBOX",
        "USER",
        "AGE",
        *(["UNTIL"] if ends else []),
        *(["UUIDS"] if output == "wide" else []),
    ]
    show(
        table(headers, rows, right=frozenset({"AGE", "UNTIL"}), whole=output == "wide") if rows else ["nothing is held"]
    )
    if queue:
        show(["", *queue_table(queue)])

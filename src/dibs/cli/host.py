"""`dibs host`: one service for all users of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from dibs.cli.output import output_option, paint, show, show_data

if TYPE_CHECKING:
    from dibs.gateway.host import Step


@click.group()
def host() -> None:
    """One dibs for all users of this machine: one ledger, one queue.

    Once it is installed, `dibs run` finds it by itself. No token is needed: the service knows the user of each caller,
    and runs sandboxes as that user.

    \b
    Examples:
      sudo dibs host install
      dibs host status
      sudo dibs host uninstall
    """


@host.command()
@click.option("--no-start", is_flag=True, help="Set everything up, but do not start it.")
@click.option("--print", "only_print", is_flag=True, help="Show the systemd unit, and change nothing.")
def install(no_start: bool, only_print: bool) -> None:
    """Set the service up and start it: systemd unit, group dibs, socket, state folder. Safe to run twice.

    Where systemd does not run, everything else is set up, and the command for another supervisor is shown.

    \b
    Examples:
      sudo dibs host install
      dibs host install --print
    """
    from dibs.gateway.host import Machine, unit_text
    from dibs.gateway.host import install as set_up

    if only_print:
        click.echo(unit_text(), nl=False)
        return
    _tell(set_up(Machine.this(), start=not no_start))


@host.command()
@output_option(wide=False)
def status(output: str) -> int:
    """Whether the service runs, since when, what it serves, and whether you may use it. The exit code is 1 if not.

    \b
    Example:
      dibs host status
    """
    from dibs.gateway.host import Machine
    from dibs.gateway.host import status as look

    found = look(Machine.this())
    if output != "table":
        show_data(found, output)
        return 0 if found.usable and found.running else 1
    if found.running:
        word = paint("runs", "green") + f", version {found.version}"
    elif not found.installed:
        word = "not installed; `sudo dibs host install` sets it up"
    elif found.usable or not found.version:
        word = paint("does not answer", "red") + (f" (systemd: {found.unit})" if found.unit else "")
    else:
        word = "?"
    lines = [f"service   {word}"]
    if found.running and found.usable:
        since = f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found.since))}" if found.since else ""
        lines += [f"process   {found.pid}, run by {found.user}{since}"]
        simulated = " (simulated)" if found.simulated else ""
        cards = f"{found.gpus} GPU{'' if found.gpus == 1 else 's'}{simulated}, {found.free} free"
        boxes = f"{found.sandboxes} sandbox{'' if found.sandboxes == 1 else 'es'}"
        lines += [f"serves    {cards}; {boxes}; {found.waiting} waiting"]
    if found.installed:
        may = "you may use it" if found.usable else "you may not use it: only root and the group dibs may"
        lines += [f"socket    {found.socket}; {may}", f"state     {found.state}"]
        lines += [f"group     dibs: {', '.join(found.members) or 'no members yet; usermod -aG dibs NAME'}"]
    show(lines)
    return 0 if found.usable and found.running else 1


@host.command()
@click.option("--force", is_flag=True, help="End the sandboxes that run.")
@click.option("--purge", is_flag=True, help="Also remove the ledger with all receipts, the configuration, the group.")
def uninstall(force: bool, purge: bool) -> None:
    """Stop the service and take it away. Refused while sandboxes run. The ledger stays.

    \b
    Examples:
      sudo dibs host uninstall
      sudo dibs host uninstall --force --purge
    """
    from dibs.gateway.host import Machine
    from dibs.gateway.host import uninstall as take_away

    _tell(take_away(Machine.this(), force=force, purge=purge))


def _tell(steps: Iterable[Step]) -> None:
    for step in steps:
        mark = paint("done", "green") if step.done else paint("  ok", "dim")
        click.echo(f"{mark}  {step.what}")
        if step.note:
            click.echo(f"      {paint('→', 'green')} {step.note}")

"""`dibs sandbox`: sandboxes that stay: make, look, run in them, copy, pause, remove."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.options import read_spec, resource_options, workload_options
from dibs.cli.output import Cell, output_option, say, show, show_data, table
from dibs.errors import InvalidRequest, Problem

if TYPE_CHECKING:
    from dibs.ledger.rows import Lease, SandboxRow
    from dibs.workloads.service import Workloads

_MOST_TOLD = 10  # links, before they are only counted
_COLOURS = {"running": "green", "paused": "yellow", "creating": "yellow", "stopping": "yellow", "failed": "red"}


@click.group()
def sandbox() -> None:
    """Sandboxes that stay until they are removed.

    \b
    Examples:
      dibs sandbox create --name lab --gpu H100:1
      dibs sandbox exec lab -- python train.py
      dibs sandbox cp ./data lab:/tmp
      dibs sandbox rm lab
    """


@sandbox.command(context_settings={"allow_interspersed_args": False})
@resource_options
@workload_options
@output_option(wide=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def create(command: tuple[str, ...], output: str, **values: Any) -> None:
    """Make a sandbox and leave it running. Without COMMAND it waits for `dibs sandbox exec`.

    \b
    Examples:
      dibs sandbox create --name lab --gpu 1
      dibs sandbox create --gpu 2 --ttl 8h -- jupyter lab
    """
    from dibs.cli.progress import Progress
    from dibs.remote.choose import open_service

    spec = read_spec(values, command)
    with open_service() as service:
        progress = Progress(quiet=False)
        try:
            row = service.create(
                spec,
                base_env={} if values["clean_env"] else os.environ,
                on_wait=progress.waiting,
                on_note=lambda note: say(f"dibs: {note}"),
            )
        finally:
            progress.done()
        if output == "table":
            click.echo(row.name)
        else:
            show_data(_data(row, _lease_of(service, row)), output)


@sandbox.command()
@output_option()
@click.option("-a", "--all", "everything", is_flag=True, help="Also those that have ended.")
def ls(output: str, everything: bool) -> None:
    """List the sandboxes.

    \b
    Example:
      dibs sandbox ls --all
    """
    from dibs.remote.choose import open_service
    from dibs.request.durations import show_duration

    with open_service() as service:
        rows = service.sandboxes(all=everything)
        leases = service.leases(all=everything)
    held = {lease.sandbox_id: lease for lease in leases}
    if output in ("json", "yaml"):
        show_data({"sandboxes": [_data(row, held.get(row.id)) for row in rows]}, output)
        return
    if not rows:
        click.echo("no sandboxes" if everything else "no live sandboxes; --all shows ended ones")
        return
    now = time.time()
    lines: list[list[Cell]] = []
    for row in rows:
        lease = held.get(row.id)
        devices = ", ".join(device.id.rpartition("/")[2] for device in lease.devices) if lease else "–"
        ended = f"{row.reason or ''}" if row.ended_at else ""
        line: list[Cell] = [row.name, (row.state, _COLOURS.get(row.state, "dim")), devices, row.username]
        line += [show_duration((row.ended_at or now) - row.created_at), ended]
        lines.append(line + ([row.id, row.backend] if output == "wide" else []))
    headers = ["NAME", "STATE", "GPUS", "USER", "AGE", "END", *(["ID", "BACKEND"] if output == "wide" else [])]
    show(table(headers, lines, right=frozenset({"AGE"})))


@sandbox.command(name="show")
@click.argument("sandbox")
@output_option(wide=False)
def show_one(sandbox: str, output: str) -> None:
    """Everything about one sandbox: request, devices, state, events.

    \b
    Example:
      dibs sandbox show lab -o yaml
    """
    from dibs.remote.choose import open_service

    with open_service() as service:
        row = service.sandbox(sandbox)
        data = _data(row, _lease_of(service, row))
        events = service.events(row.id)
    data["events"] = [{"at": event.at, "kind": event.kind, "detail": event.detail} for event in events]
    if output != "table":
        show_data(data, output)
        return
    told = {key: value for key, value in data.items() if key != "events" and value not in (None, "", [], {})}
    lines = [f"{key:<11} {_flat(value)}" for key, value in told.items()]
    lines += ["", *table(
        ["TIME", "EVENT", "DETAIL"],
        [[time.strftime("%H:%M:%S", time.localtime(event.at)), event.kind, event.detail] for event in events],
    )]  # fmt: skip
    show(lines)


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_flat(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_flat(item) for item in value)
    return str(value)


def _lease_of(service: Workloads, row: SandboxRow) -> Lease | None:
    """What a sandbox holds, or held."""
    return next((lease for lease in service.leases(all=True) if lease.sandbox_id == row.id), None)


def _data(row: SandboxRow, lease: Lease | None) -> dict[str, Any]:
    import msgspec

    from dibs.request.spec import SandboxSpec
    from dibs.workloads.service import exit_of

    spec = msgspec.json.decode(row.spec, type=SandboxSpec)
    stamp = "%Y-%m-%dT%H:%M:%SZ"
    result = exit_of(row)
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "backend": row.backend,
        "user": row.username,
        "simulated": row.simulated,
        "request": spec.resources.short(),
        "command": list(spec.command),
        "labels": spec.labels,
        "devices": [device.id for device in lease.devices] if lease else [],
        "created": time.strftime(stamp, time.gmtime(row.created_at)),
        "started": time.strftime(stamp, time.gmtime(row.started_at)) if row.started_at else None,
        "ended": time.strftime(stamp, time.gmtime(row.ended_at)) if row.ended_at else None,
        "exit": msgspec.to_builtins(result) if result else None,
        "reason": row.reason,
    }


@sandbox.command(name="exec", context_settings={"allow_interspersed_args": False})
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable for this command.")
@click.option("-w", "--workdir", metavar="DIR", help="Where it runs. Default: the sandbox's working directory.")
@click.option("-t", "--tty/--no-tty", default=None, help="With a terminal. Default: if you have one.")
@click.argument("sandbox")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(sandbox: str, command: tuple[str, ...], env: tuple[str, ...], workdir: str | None, tty: bool | None) -> int:
    """Run one more COMMAND in a running sandbox. Its exit code is passed on.

    \b
    Examples:
      dibs sandbox exec lab -- nvidia-smi
      dibs sandbox exec lab bash
    """
    from dibs.backends.port import Exec
    from dibs.cli.terminal import converse, is_terminal
    from dibs.remote.choose import open_service

    pairs = [word.partition("=") for word in env]
    lonely = [name for name, equals, _ in pairs if not equals]
    if lonely:
        problems = [Problem("ENV_INVALID", "env", name, "has no value", f"write {name}=VALUE") for name in lonely]
        raise InvalidRequest(problems)
    if command[0] == "--":
        command = command[1:]
    use_tty = is_terminal() if tty is None else tty
    variables = {name: value for name, _, value in pairs}
    with open_service() as service:
        session = service.exec(sandbox, Exec(command=command, env=variables, workdir=workdir, tty=use_tty))
        try:
            return converse(session, tty=use_tty, stdin=True, kill=lambda: session.signal(9)).code
        finally:
            session.close()


@sandbox.command()
@click.argument("sandbox")
@click.option("-f", "--follow", is_flag=True, help="Go on until the sandbox ends.")
@click.option("--timestamps", is_flag=True, help="The time before each piece.")
def logs(sandbox: str, follow: bool, timestamps: bool) -> None:
    """The output of a sandbox's command, also after it has ended.

    \b
    Example:
      dibs sandbox logs -f lab
    """
    from dibs.backends.port import Output
    from dibs.cli.terminal import write
    from dibs.remote.choose import open_service

    with open_service() as service:
        for record in service.logs(sandbox, follow=follow):
            data = record.data
            if timestamps:
                data = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(record.at)).encode() + data
            write(Output(record.stream, data))


@sandbox.command()
@click.argument("source")
@click.argument("target")
def cp(source: str, target: str) -> None:
    """Copy files into a sandbox or out of it. One side is SANDBOX:PATH; folders are copied whole.

    \b
    Examples:
      dibs sandbox cp ./data lab:/tmp
      dibs sandbox cp lab:/tmp/result.json .
    """
    from dibs.remote.choose import open_service
    from dibs.workloads.files import copy_from, copy_to

    inside_source, inside_target = _split(source), _split(target)
    with open_service() as service:
        if inside_target and not inside_source:
            copy_to(service, source, *inside_target)
        elif inside_source and not inside_target:
            leading_out = copy_from(service, *inside_source, target)
            for name in leading_out[:_MOST_TOLD]:
                say(f"dibs: {name} is a link that leads out of what was copied")
            if len(leading_out) > _MOST_TOLD:
                say(f"dibs: so are {len(leading_out) - _MOST_TOLD} more")
        else:
            reason, remedy = "exactly one side must be in a sandbox", "write it as lab:/tmp/data"
            raise InvalidRequest(Problem("COPY_INVALID", "cp", f"{source} {target}", reason, remedy))


def _split(side: str) -> tuple[str, str] | None:
    """`lab:/tmp/x` → (lab, /tmp/x); None for a path of the host. A path that has a colon starts with . or /."""
    name, colon, path = side.partition(":")
    return (name, path) if colon and name and not name.startswith((".", "/")) and path.startswith("/") else None


@sandbox.command()
@click.argument("sandbox")
def pause(sandbox: str) -> None:
    """Stop the sandbox's processes where they are. It keeps its GPUs.

    \b
    Example:
      dibs sandbox pause lab
    """
    from dibs.remote.choose import open_service

    with open_service() as service:
        service.pause(sandbox)


@sandbox.command()
@click.argument("sandbox")
def resume(sandbox: str) -> None:
    """Let a paused sandbox go on.

    \b
    Example:
      dibs sandbox resume lab
    """
    from dibs.remote.choose import open_service

    with open_service() as service:
        service.resume(sandbox)


@sandbox.command()
@click.argument("sandbox")
@click.option("--grace", metavar="TIME", help="Between asking and killing. Default: what it was made with, 10s.")
def stop(sandbox: str, grace: str | None) -> None:
    """Stop a sandbox: ask, then force. Its GPUs are free when this returns; its log and receipt stay.

    \b
    Example:
      dibs sandbox stop lab --grace 2s
    """
    from dibs.remote.choose import open_service

    with open_service() as service:
        service.stop(sandbox, _grace(grace))


@sandbox.command()
@click.argument("sandboxes", nargs=-1, required=True, metavar="SANDBOX...")
@click.option("--grace", metavar="TIME", help="Between asking and killing. Default: what it was made with, 10s.")
def rm(sandboxes: tuple[str, ...], grace: str | None) -> None:
    """Stop sandboxes and remove their files. Receipts stay.

    \b
    Example:
      dibs sandbox rm lab old-lab
    """
    from dibs.remote.choose import open_service

    seconds = _grace(grace)
    with open_service() as service:
        for name in sandboxes:
            service.remove(name, seconds)
            click.echo(name)


def _grace(text: str | None) -> float | None:
    from dibs.request.durations import parse_duration

    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        remedy = "write it as 2s, 1m"
        raise InvalidRequest(Problem("DURATION_INVALID", "grace", text, str(error), remedy)) from error

"""`dibs sandbox`: sandboxes that stay: make, look, run in them, copy, pause, remove."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.clicked import SectionedCommand, options
from dibs.cli.names import sandbox_names, sides_of_a_copy
from dibs.cli.options import REQUEST, read_spec, two_values
from dibs.cli.output import Cell, in_short, moment, output_option, say, show, show_data, table, terminal_width
from dibs.cli.until import until
from dibs.errors import DibsError, InvalidRequest, Problem
from dibs.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dibs.ledger.rows import Lease
    from dibs.sandbox import Sandbox
    from dibs.workloads.service import Workloads

_MOST_LISTED = 100  # of those that have ended; there may be very many
_ROOM_FOR_GROUPS = 110  # columns
_MOST_TOLD = 10  # links, before they are only counted
_RELATIVE = lazy_pattern(r"[a-z0-9-]+:[^/].*")  # lab:data
_COLOURS = {"running": "green", "paused": "yellow", "creating": "yellow", "stopping": "yellow", "failed": "red"}


@click.group()
def sandbox() -> None:
    """Sandboxes that stay until they are removed.

    \b
    Examples:
      dibs sandbox create --name lab --gpu H100:1
      dibs exec lab -- python train.py
      dibs cp ./data lab:/tmp
      dibs sandbox rm lab
    """


@sandbox.command(cls=SectionedCommand, context_settings={"allow_interspersed_args": False})
@options(*REQUEST)
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
            show_data(sandbox_data(service, row.id), output)


@sandbox.command()
@output_option()
@click.option("-a", "--all", "everything", is_flag=True, help="Also those that have ended.")
@click.option("-q", "--quiet", is_flag=True, help="Only their names.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many; 0: no limit.  [default: 100 with --all]")
def ls(output: str, everything: bool, quiet: bool, limit: int | None) -> None:
    """List the sandboxes, newest first.

    \b
    Examples:
      dibs sandbox ls
      dibs sandbox ls --all --limit 20
      dibs rm $(dibs ps -q)
    """
    from dibs.remote.choose import open_service
    from dibs.request.durations import show_duration

    with open_service() as service:
        rows, leases, total = service.recent(
            (_MOST_LISTED if everything else 0) if limit is None else limit, all=everything
        )
    held = {lease.sandbox_id: lease for lease in leases}
    if output in ("json", "yaml"):
        show_data({"sandboxes": [_data(row, held.get(row.id)) for row in rows], "total": total}, output)
        return
    if quiet:
        show([row.name for row in rows])
        return
    if not rows:
        click.echo("no sandboxes" if everything else "no live sandboxes; --all shows ended ones")
        return
    now = time.time()
    lines: list[list[Cell]] = []
    for row in rows:
        lease = held.get(row.id)
        devices = in_short([device.id.rpartition("/")[2] for device in lease.devices]) if lease else "–"
        ended = f"{row.reason or ''}" if row.ended_at else ""
        line: list[Cell] = [row.name, (row.state, _COLOURS.get(row.state, "dim")), devices, row.username]
        line += [show_duration((row.ended_at or now) - row.created_at), until(row, now), ended]
        lines.append(line + ([row.id, row.backend] if output == "wide" else []))
    # On a narrow terminal the name has to do, which begins with that of the group.
    grouped = any(row.group for row in rows) and (output == "wide" or terminal_width() >= _ROOM_FOR_GROUPS)
    for line, row in zip(lines, rows, strict=True) if grouped else ():
        line.append(f"{row.group} rank {row.rank}" if row.group else "")
    headers = ["NAME", "STATE", "GPUS", "USER", "AGE", "UNTIL", "END", *(["ID", "BACKEND"] if output == "wide" else [])]
    headers += ["GROUP"] if grouped else []
    show(table(headers, lines, right=frozenset({"AGE", "UNTIL"})))
    if len(rows) < total:
        say(f"dibs: {total - len(rows)} older ones are not shown; --limit 0 shows all")


@sandbox.command(name="show")
@click.argument("sandbox", shell_complete=sandbox_names)
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
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_flat(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_flat(item) for item in value)
    return str(value)


def _lease_of(service: Workloads, row: Sandbox) -> Lease | None:
    """What a sandbox holds, or held."""
    return next((lease for lease in service.leases(all=True) if lease.sandbox_id == row.id), None)


def sandbox_data(service: Workloads, reference: str) -> dict[str, Any]:
    """Everything that is told of a sandbox, as data."""
    row = service.sandbox(reference)
    return _data(row, _lease_of(service, row))


def _data(row: Sandbox, lease: Lease | None) -> dict[str, Any]:
    import msgspec

    spec, result = row.spec, row.exit
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
        **({"group": row.group, "rank": row.rank} if row.group else {}),
        "created_at": moment(row.created_at),
        "started_at": moment(row.started_at) if row.started_at else None,
        "ended_at": moment(row.ended_at) if row.ended_at else None,
        "expires_at": moment(row.expires_at) if row.expires_at else None,
        "exit": msgspec.to_builtins(result) if result else None,
        "reason": row.reason,
    }


@sandbox.command(name="exec", context_settings={"allow_interspersed_args": False})
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable for this command.")
@click.option("-w", "--workdir", metavar="DIR", help="Where it runs. Default: the sandbox's working directory.")
@click.option("-t", "--tty/--no-tty", default=None, help="With a terminal. Default: if you have one.")
@click.argument("sandbox", shell_complete=sandbox_names)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(sandbox: str, command: tuple[str, ...], env: tuple[str, ...], workdir: str | None, tty: bool | None) -> int:
    """Run one more COMMAND in a running sandbox. Its exit code is passed on.

    \b
    Examples:
      dibs exec lab -- nvidia-smi
      dibs exec lab bash
    """
    from dibs.backends.port import Exec
    from dibs.cli.terminal import converse, is_terminal
    from dibs.remote.choose import open_service

    pairs = [word.partition("=") for word in env]
    lonely = [name for name, equals, _ in pairs if not equals]
    problems = [Problem("ENV_INVALID", "env", name, "has no value", f"write {name}=VALUE") for name in lonely]
    for at, (name, _, value) in enumerate(pairs):
        problems += two_values({other: text for other, _, text in pairs[:at]}, name, value)
    if problems:
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
@click.argument("sandbox", shell_complete=sandbox_names)
@click.option("-f", "--follow", is_flag=True, help="Go on until the sandbox ends.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of the past.")
@click.option("--since", metavar="TIME", help="Only lines from then on: 10m (ago), 2026-05-04T12:00:00Z.")
@click.option("-t", "--timestamps", is_flag=True, help="The time before each line.")
def logs(sandbox: str, follow: bool, tail: int | None, since: str | None, timestamps: bool) -> None:
    """The output of a sandbox's command, also after it has ended.

    \b
    Examples:
      dibs logs -f lab
      dibs logs --tail 20 --timestamps lab
    """
    from dibs.backends.port import Output
    from dibs.cli.terminal import write
    from dibs.remote.choose import open_service
    from dibs.workloads import log_lines

    start = None if since is None else _moment(since)
    with open_service() as service:
        records = service.logs(sandbox, follow=follow)
        if tail is not None or start is not None or timestamps:
            records = log_lines.lines(records)
        if start is not None:
            records = log_lines.since(records, start)
        if tail is not None:
            records = log_lines.tail(records, tail, time.time())
        if timestamps:
            records = log_lines.stamped(records)
        for record in records:
            write(Output(record.stream, record.data))


def _moment(text: str) -> float:
    """A time as seconds: so long ago, or a date and time as ISO 8601 writes it (local unless it names a zone)."""
    import datetime as dt

    from dibs.request.durations import parse_duration

    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass  # not a length of time: a date, then
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        remedy = "write it as 10m, or as 2026-05-04T12:00:00Z"
        raise InvalidRequest(Problem("TIME_INVALID", "since", text, "this is not a time", remedy)) from error


@sandbox.command()
@click.argument("sandboxes", nargs=-1, required=True, metavar="SANDBOX...", shell_complete=sandbox_names)
@click.option("--timeout", metavar="TIME", help="Give up after this time. Default: as long as it takes.")
@output_option(wide=False)
def wait(sandboxes: tuple[str, ...], timeout: str | None, output: str) -> int:
    """Wait for sandboxes to end. Prints how each ended; the exit code is that of the first that failed.

    \b
    Examples:
      dibs wait train-1
      dibs wait train-1 train-2 --timeout 2h
    """
    from dibs.remote.choose import open_service
    from dibs.workloads.reconcile import describe

    limit = _duration(timeout, "timeout")
    until = None if limit is None else time.monotonic() + limit
    ends: dict[str, Any] = {}
    with open_service() as service:
        for name in sandboxes:
            left = None if until is None else max(0.0, until - time.monotonic())
            row = service.wait(name, left)
            end = row.exit
            assert end is not None  # it has ended, or `wait` would have raised Timeout
            ends[row.name] = end
    if output == "table":
        for name, end in ends.items():
            show([f"{name}: {describe(end)}" if len(ends) > 1 else describe(end)])
    else:
        show_data([{"name": name, "exit": end} for name, end in ends.items()], output)
    return next((end.code for end in ends.values() if end.code), 0)


@sandbox.command()
@click.argument("source", shell_complete=sides_of_a_copy)
@click.argument("target", shell_complete=sides_of_a_copy)
def cp(source: str, target: str) -> None:
    """Copy files into a sandbox or out of it. One side is SANDBOX:PATH; folders are copied whole.

    Below TARGET if that is a folder, else under that name.

    \b
    Examples:
      dibs cp ./data lab:/tmp
      dibs cp ./data lab:/tmp/input
      dibs cp lab:/tmp/result.json .
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
            relative = next((side for side in (source, target) if _RELATIVE.fullmatch(side)), "")
            if relative and not (inside_source or inside_target):
                name, _, path = relative.partition(":")
                reason, remedy = "a path in a sandbox is absolute", f"write it as {name}:/{path}"
            raise InvalidRequest(Problem("COPY_INVALID", "cp", f"{source} {target}", reason, remedy))


def _split(side: str) -> tuple[str, str] | None:
    """`lab:/tmp/x` → (lab, /tmp/x); None for a path of the host. A path that has a colon starts with . or /."""
    name, colon, path = side.partition(":")
    return (name, path) if colon and name and not name.startswith((".", "/")) and path.startswith("/") else None


@sandbox.command()
@click.argument("sandbox", shell_complete=sandbox_names)
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
@click.argument("sandbox", shell_complete=sandbox_names)
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
@click.argument("sandboxes", nargs=-1, required=True, metavar="SANDBOX...", shell_complete=sandbox_names)
@click.option("--grace", metavar="TIME", help="Between asking and killing. Default: what it was made with, 10s.")
def stop(sandboxes: tuple[str, ...], grace: str | None) -> None:
    """Stop sandboxes: ask, then force. Their GPUs are free when this returns; logs and receipts stay.

    \b
    Example:
      dibs stop lab --grace 2s
    """
    from dibs.remote.choose import open_service

    seconds = _duration(grace, "grace")
    with open_service() as service:
        _each(sandboxes, lambda name: service.stop(name, seconds))


def _each(names: Sequence[str], act: Callable[[str], object]) -> None:
    """One that fails keeps none of the others from it; what went wrong is told at the end."""
    failures: list[DibsError] = []
    for name in names:
        try:
            act(name)
        except DibsError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise type(failures[0])([problem for error in failures for problem in error.problems])


@sandbox.command()
@click.argument("sandboxes", nargs=-1, required=True, metavar="SANDBOX...", shell_complete=sandbox_names)
@click.option("--grace", metavar="TIME", help="Between asking and killing. Default: what it was made with, 10s.")
def rm(sandboxes: tuple[str, ...], grace: str | None) -> None:
    """Stop sandboxes and remove their files. Receipts stay.

    \b
    Example:
      dibs sandbox rm lab old-lab
    """
    from dibs.remote.choose import open_service

    seconds = _duration(grace, "grace")
    with open_service() as service:

        def remove(name: str) -> None:
            service.remove(name, seconds)
            click.echo(name)

        _each(sandboxes, remove)


def _duration(text: str | None, field: str) -> float | None:
    from dibs.request.durations import parse_duration

    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        remedy = "write it as 2s, 1m"
        raise InvalidRequest(Problem("DURATION_INVALID", field, text, str(error), remedy)) from error

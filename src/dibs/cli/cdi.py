"""`dibs cdi`: the CDI specs of this host, from the command line.

The verbs are those of the reference tool. Everything is read from the spec directories; only `inject` and
`resolve` look at device nodes, and nothing here writes a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.output import ascii_controls, say, show

if TYPE_CHECKING:
    from dibs.cdi import Cache, CdiError, Resolution

_FORMATS = click.Choice(["table", "json", "yaml"])
_MONITORED = ("specs", "vendors", "classes", "devices", "errors")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-d",
    "--spec-dirs",
    multiple=True,
    metavar="DIR[,DIR...]",
    help="Read specs from these directories; a later one wins. Default: /etc/cdi, then /var/run/cdi.",
)
@click.pass_context
def cdi(ctx: click.Context, spec_dirs: tuple[str, ...]) -> None:
    """Look at the CDI specs of this host, and use them.

    CDI specs say what a container needs to have a device. Vendors' tools write them.

    \b
    Example:
      dibs cdi devices
      dibs cdi -d /etc/cdi,/run/cdi validate
    """
    ctx.obj = [path for given in spec_dirs for path in given.split(",") if path]


@cdi.command()
@click.option("-v", "--verbose", is_flag=True, help="Show what each device changes in a container.")
@click.option("-o", "--output", type=_FORMATS, default="table", show_default=True)
@click.pass_obj
def devices(spec_dirs: list[str], verbose: bool, output: str) -> None:
    """List the devices that can be asked for.

    \b
    Example:
      dibs cdi devices
      dibs cdi devices -v -o yaml
    """
    cache = _cache(spec_dirs)
    found = [device for name in cache.devices() if (device := cache.device(name)) is not None]
    if output != "table":
        records = []
        for device in found:
            record: dict[str, Any] = {"name": device.name, "spec": device.file.path, "priority": device.file.priority}
            if verbose:
                record |= {
                    "annotations": device.device.annotations,
                    "specEdits": device.file.spec.container_edits,
                    "containerEdits": device.device.container_edits,
                }
            records.append(record)
        _structured(records, output)
    elif verbose:
        for device in found:
            show([f"{device.name}  ({device.file.path})"])
            _indented(device.device.container_edits)
            if not device.file.spec.container_edits.is_empty:
                show(["  with every device of this spec:"])
                _indented(device.file.spec.container_edits, "    ")
    else:
        _columns(("DEVICE", "SPEC"), [(device.name, device.file.path) for device in found], "no CDI devices")
    _hint_errors(cache)


@cdi.command()
@click.pass_obj
def dirs(spec_dirs: list[str]) -> None:
    """List the spec directories. A higher priority wins.

    \b
    Example:
      dibs cdi dirs
    """
    cache = _cache(spec_dirs)
    rows = []
    for priority, directory in enumerate(cache.spec_dirs):
        error = cache.dir_errors().get(directory)
        usable = [file for file in cache.specs() if file.priority == priority]
        state = _count(usable, "usable spec") if os.path.isdir(directory) else "missing"
        if error:
            state = "unreadable"
        rows.append((directory, str(priority), state))
    _columns(("DIRECTORY", "PRIORITY", "STATE"), rows, "no spec directories")
    _hint_errors(cache)


@cdi.command()
@click.pass_obj
def vendors(spec_dirs: list[str]) -> None:
    """List the vendors that have specs here.

    \b
    Example:
      dibs cdi vendors
    """
    cache = _cache(spec_dirs)
    rows = [(vendor, str(len(cache.specs(vendor)))) for vendor in cache.vendors()]
    _columns(("VENDOR", "SPECS"), rows, "no CDI vendors")
    _hint_errors(cache)


@cdi.command()
@click.pass_obj
def classes(spec_dirs: list[str]) -> None:
    """List the device classes, with their vendors.

    \b
    Example:
      dibs cdi classes
    """
    cache = _cache(spec_dirs)
    rows = []
    for name in cache.classes():
        makers = sorted({file.vendor for file in cache.specs() if file.device_class == name})
        rows.append((name, ", ".join(makers)))
    _columns(("CLASS", "VENDORS"), rows, "no CDI classes")
    _hint_errors(cache)


@cdi.command()
@click.argument("vendor", nargs=-1)
@click.option("-v", "--verbose", is_flag=True, help="Show the content of each spec.")
@click.option("-o", "--output", type=_FORMATS, default="table", show_default=True)
@click.pass_obj
def specs(spec_dirs: list[str], vendor: tuple[str, ...], verbose: bool, output: str) -> None:
    """List the spec files, of all vendors or of those named.

    \b
    Example:
      dibs cdi specs
      dibs cdi specs nvidia.com -v
    """
    cache = _cache(spec_dirs)
    unknown = [name for name in vendor if name not in cache.vendors()]
    if unknown:
        raise click.ClickException(f"no specs of vendor {', '.join(unknown)}; known are {_listed(cache.vendors())}")
    found = [file for file in cache.specs() if not vendor or file.vendor in vendor]
    if output != "table":
        _structured([{"path": f.path, "priority": f.priority, "spec": f.spec} for f in found], output)
    elif verbose:
        for file in found:
            show([file.path])
            _indented(file.spec)
    else:
        rows = [(f.spec.kind, f.spec.cdi_version, str(len(f.spec.devices)), f.path) for f in found]
        _columns(("KIND", "VERSION", "DEVICES", "SPEC"), rows, "no CDI specs")
    _hint_errors(cache)


@cdi.command()
@click.argument("oci", metavar="OCI.json|-")
@click.argument("glob", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), default="json", show_default=True)
@click.pass_obj
def inject(spec_dirs: list[str], oci: str, glob: tuple[str, ...], output: str) -> None:
    """Add devices to an OCI runtime spec and print the result.

    A GLOB is a device name, or a pattern of names; `*` does not cross the slash. All devices are added, or none.
    Use - to read the OCI spec from standard input.

    \b
    Example:
      dibs cdi inject config.json nvidia.com/gpu=0
      dibs cdi inject - 'vendor.com/*=*' < config.json
    """
    from dibs.cdi import apply_edits

    cache = _cache(spec_dirs)
    with _errors():
        names = _matching(cache, glob)
        resolution = cache.resolve(names)
        _structured(apply_edits(_read_oci(oci), resolution.merged), output)
    _report(resolution)


@cdi.command()
@click.argument("oci", metavar="OCI.json|-")
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), default="json", show_default=True)
@click.pass_obj
def resolve(spec_dirs: list[str], oci: str, output: str) -> None:
    """Replace the CDI names in an OCI runtime spec by what they mean, and print the result.

    An entry of linux.devices whose path is a CDI name (vendor.com/class=name) asks for that device.

    \b
    Example:
      dibs cdi resolve config.json
    """
    from dibs.cdi import apply_edits, take_device_references

    cache = _cache(spec_dirs)
    with _errors():
        rest, names = take_device_references(_read_oci(oci))
        resolution = cache.resolve(names)
        _structured(apply_edits(rest, resolution.merged), output)
    _report(resolution)


@cdi.command()
@click.argument("file", nargs=-1, metavar="[FILE|-]...")
@click.pass_obj
def validate(spec_dirs: list[str], file: tuple[str, ...]) -> None:
    """Check spec files. Without a FILE, check everything in the spec directories.

    Prints every problem with its place. The exit code is 1 if there is any.

    \b
    Example:
      dibs cdi validate
      dibs cdi validate ./new-spec.yaml
    """
    if file:
        failed = [path for path in file if not _validate_file(path)]
        if failed:
            raise click.exceptions.Exit(1)
        return
    cache = _cache(spec_dirs)
    for directory, error in sorted(cache.dir_errors().items()):
        _problems(directory, [error])
    for path, errors in sorted(cache.errors().items()):
        _problems(path, errors)
    if cache.errors() or cache.dir_errors():
        raise click.exceptions.Exit(1)
    show([f"{_count(cache.specs(), 'spec')}, {_count(cache.devices(), 'device')}: no problems"])


@cdi.command()
@click.argument("what", nargs=-1, type=click.Choice([*_MONITORED, "all"]))
@click.option("-i", "--interval", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Seconds.")
@click.option("-n", "--polls", type=click.IntRange(min=1), help="Look so many times, then end.  [default: no end]")
@click.pass_obj
def monitor(spec_dirs: list[str], what: tuple[str, ...], interval: float, polls: int | None) -> None:
    """Print what changes in the spec directories. Stop it with Ctrl-C.

    \b
    Example:
      dibs cdi monitor
      dibs cdi monitor devices errors --interval 5
    """
    from dibs.cdi import watch_specs

    wanted = set(_MONITORED) if not what or "all" in what else set(what)
    cache = _cache(spec_dirs)
    say(f"watching {', '.join(cache.spec_dirs)}: {_count(cache.devices(), 'device')}")
    for changes in watch_specs(cache, interval, polls=polls):
        for change in changes:
            if change.what in wanted:
                # "specs" is the name of the set; one line is about one of them.
                show([f"{change.action} {_singular(change.what)} {change.name}"])


# Helpers


def _cache(spec_dirs: Sequence[str]) -> Cache:
    from dibs.cdi import DEFAULT_SPEC_DIRS, Cache

    return Cache(spec_dirs or DEFAULT_SPEC_DIRS)


@contextmanager
def _errors() -> Iterator[None]:
    from dibs.cdi import CdiError

    try:
        yield
    except CdiError as exc:
        raise click.ClickException(str(exc)) from exc


def _matching(cache: Cache, globs: Iterable[str]) -> list[str]:
    """The devices that match any glob, each once, by name. A glob that matches none is an error."""
    from fnmatch import fnmatchcase

    from dibs.cdi import UnresolvableError

    found: set[str] = set()
    missing: dict[str, str] = {}
    for glob in globs:
        kind, _, rest = glob.partition("/")
        matches = {
            name
            for name in cache.devices()
            if name == glob or (fnmatchcase(name.partition("/")[0], kind) and fnmatchcase(name.partition("/")[2], rest))
        }
        if matches:
            found |= matches
        elif set(glob) & set("*?["):
            missing[glob] = "matches no device"
        else:
            try:
                cache.resolve([glob])
            except UnresolvableError as exc:
                missing |= exc.reasons
    if missing:
        raise UnresolvableError(missing)
    return sorted(found)


def _read_oci(path: str) -> dict[str, Any]:
    from dibs.cdi import SpecError
    from dibs.cdi.decode import read_bytes
    from dibs.cdi.errors import Problem
    from dibs.cdi.tree import parse_text

    data = _stdin() if path == "-" else read_bytes(path)
    try:
        tree = parse_text(data)
    except SpecError as exc:
        raise SpecError(exc.problems, path) from exc
    if not isinstance(tree, dict):
        raise SpecError([Problem("", "an OCI runtime spec must be an object")], path)
    return tree


def _stdin() -> bytes:
    return sys.stdin.buffer.read()


def _validate_file(path: str) -> bool:
    from dibs.cdi import CdiError, parse_spec, read_spec

    try:
        spec = parse_spec(_stdin()) if path == "-" else read_spec(path)
    except CdiError as exc:
        _problems(path, [exc])
        return False
    show([f"{path}: ok, {spec.kind} with {_count(spec.devices, 'device')}"])
    return True


def _problems(path: str, errors: Sequence[CdiError]) -> None:
    from dibs.cdi import SpecError

    show([f"{path}:"])
    for error in errors:
        lines = [str(p) for p in error.problems] if isinstance(error, SpecError) else [str(error)]
        for line in lines:
            show([f"  {line.removeprefix(f'{path}: ')}"])


def _hint_errors(cache: Cache) -> None:
    count = len(cache.errors()) + len(cache.dir_errors())
    if count:
        files = "1 spec file or directory has" if count == 1 else f"{count} spec files or directories have"
        say(f"{files} problems; to see them: dibs cdi validate")


def _report(resolution: Resolution) -> None:
    say(f"injected: {_listed([part.name for part in resolution.devices])}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _count(things: Sequence[object], what: str) -> str:
    return f"1 {what}" if len(things) == 1 else f"{len(things)} {what}s"


def _singular(what: str) -> str:
    return {"classes": "class"}.get(what, what.removesuffix("s"))


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    if not rows:
        say(empty)
        return
    widths = [max(len(row[index]) for row in [head, *rows]) for index in range(len(head))]
    for row in [head, *rows]:
        show(["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()])


def _structured(value: Any, output: str) -> None:
    from dibs.cdi import encode_json, encode_yaml

    text = (encode_yaml if output == "yaml" else encode_json)(value).decode()
    click.echo(text if output == "yaml" else ascii_controls(text), nl=False)


def _indented(value: Any, indent: str = "  ") -> None:
    from dibs.cdi import encode_yaml

    for line in encode_yaml(value).decode().splitlines()[1:]:
        show([indent + line])

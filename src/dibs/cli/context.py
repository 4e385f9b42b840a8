"""`dibs context`: gateways that are remembered by name, and which of them is used."""

from __future__ import annotations

import sys

import click

from dibs.cli.output import Cell, output_option, show, show_data, table


@click.group()
def context() -> None:
    """Gateways by name. The one in use is taken by every command, until another is.

    \b
    Examples:
      dibs context set lab --url https://lab.example --token-file ~/.token
      dibs context use lab
      dibs context ls
      dibs context use none
    """


@context.command()
@output_option(wide=False)
def ls(output: str) -> None:
    """The contexts; a star marks the one in use. Tokens are not shown.

    \b
    Example:
      dibs context ls
    """
    from dibs.remote.target import load

    kept = load()
    if output != "table":
        found = [
            {"name": name, "url": one.url, "token": "file" if one.token_file else "kept" if one.token else "none"}
            for name, one in kept.contexts.items()
        ]
        show_data({"current": kept.current, "contexts": found}, output)
        return
    if not kept.contexts:
        show(["no contexts; `dibs context set NAME --url URL` makes one"])
        return
    rows: list[list[Cell]] = [
        ["*" if name == kept.current else "", name, one.url, one.token_file or ("kept" if one.token else "–")]
        for name, one in kept.contexts.items()
    ]
    show(table(["", "NAME", "URL", "TOKEN"], rows))


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Use a context from now on; `none` stands for no gateway: everything is done on this machine.

    \b
    Examples:
      dibs context use lab
      dibs context use none
    """
    import msgspec

    from dibs.remote.choose import NOWHERE
    from dibs.remote.target import load, save, unknown

    kept = load()
    if name != NOWHERE and name not in kept.contexts:
        raise unknown(kept, name)
    save(msgspec.structs.replace(kept, current=name))
    click.echo("no gateway is used" if name == NOWHERE else f"{name}: {kept.contexts[name].url}")


@context.command(name="set")
@click.argument("name")
@click.option("--url", required=True, metavar="URL", help="unix:///path, http://host:port or https://host.")
@click.option("--token-file", metavar="FILE", help="A file with the token; it is read at every use.")
@click.option("--token-stdin", is_flag=True, help="Read the token from the standard input, and keep it.")
@click.option("--ca-file", metavar="FILE", help="Trust these certificates, for https.")
def set_(name: str, url: str, token_file: str | None, token_stdin: bool, ca_file: str | None) -> None:
    """Remember a gateway under NAME, in place of one that had it.

    \b
    Examples:
      dibs context set lab --url https://lab.example --token-file ~/.token
      dibs context set ci --url http://127.0.0.1:8080 --token-stdin < token
    """
    import os

    from dibs.remote.target import Context, Contexts, address_of, check_name, checked_token, load, read_token, save

    check_name(name)
    if token_file and token_stdin:
        raise click.UsageError("--token-file does not go together with --token-stdin")
    address = address_of(url, "url")
    token = checked_token(sys.stdin.read().strip(), "token-stdin") if token_stdin else ""
    if token_file:
        token_file = os.path.abspath(os.path.expanduser(token_file))
        read_token(token_file)  # refused now rather than at the first use
    kept = load()
    made = Context(address, token_file or "", token, os.path.abspath(os.path.expanduser(ca_file)) if ca_file else "")
    save(Contexts(kept.current, {**kept.contexts, name: made}))
    click.echo(f"{name}: {address}" + ("" if kept.current == name else f"; use it with `dibs context use {name}`"))


@context.command()
@click.argument("name")
def rm(name: str) -> None:
    """Forget a context.

    \b
    Example:
      dibs context rm lab
    """
    from dibs.remote.target import Contexts, load, save, unknown

    kept = load()
    if name not in kept.contexts:
        raise unknown(kept, name)
    rest = {one: context for one, context in kept.contexts.items() if one != name}
    save(Contexts("" if kept.current == name else kept.current, rest))


@context.group()
def export() -> None:
    """Tell another tool's client to use dibs.

    \b
    Examples:
      dibs context export openshell
      dibs context export kubeflow
    """


@export.command(name="openshell")
@click.option("--name", default="dibs", metavar="NAME", help="What OpenShell calls the gateway. Default: dibs.")
@click.option("--url", default="", metavar="URL", help="http(s)://host:port. Default: your gateway's.")
@click.option("--token-file", default="", metavar="FILE", help="A file with the token. Default: your gateway's own.")
@click.option("--ca-file", default="", metavar="FILE", help="Trust this authority, for https.")
@click.option("--certificate", default="", metavar="FILE", help="The client's certificate, for mTLS.")
@click.option("--key", default="", metavar="FILE", help="The key of that certificate.")
def export_openshell(name: str, url: str, token_file: str, ca_file: str, certificate: str, key: str) -> None:
    """Make a gateway of dibs the active one of OpenShell's SDK.

    The SDK then finds it by itself. The token is written to a file that only you can read.

    \b
    Examples:
      dibs context export openshell
      dibs context export openshell --url https://lab.example:50051 --ca-file ca.crt --token-file ~/.token
    """
    from dibs.home import find_home
    from dibs.remote.openshell import export
    from dibs.remote.target import check_name

    check_name(name)
    done = export(
        find_home(), name=name, url=url, token_file=token_file, ca_file=ca_file, certificate=certificate, key=key
    )
    for path in done.files:
        click.echo(f"wrote {path}")
    click.echo(f"{done.name} ({done.endpoint}) is the active gateway of OpenShell's SDK now")
    if done.before:
        click.echo(f"it was {done.before} before; `echo {done.before} > {done.files[-1]}` goes back")


@export.command(name="kubeflow")
@click.option("--name", default="dibs", metavar="NAME", help="What the context is called. Default: dibs.")
@click.option("--url", default="", metavar="URL", help="http(s)://host:port. Default: your gateway's.")
@click.option("--token-file", default="", metavar="FILE", help="A file with the token. Default: your gateway's own.")
@click.option("--ca-file", default="", metavar="FILE", help="Trust this authority, for https.")
@click.option("--namespace", default="", metavar="NAME", help="Default: the tenant of the token.")
@click.option("--file", default="", metavar="FILE", help="Where to write it. Default: kubeconfig in the state folder.")
def export_kubeflow(name: str, url: str, token_file: str, ca_file: str, namespace: str, file: str) -> None:
    """Write a kubeconfig with which the Kubeflow SDK and kubectl use a gateway of dibs.

    It is a file of its own, readable by you alone; your other kubeconfigs stay as they are.

    \b
    Examples:
      dibs context export kubeflow
      dibs context export kubeflow --url https://lab.example --ca-file ca.crt --token-file ~/.token
    """
    from dibs.home import find_home
    from dibs.remote.kubeflow import export
    from dibs.remote.target import check_name

    check_name(name)
    done = export(
        find_home(), name=name, url=url, token_file=token_file, ca_file=ca_file, namespace=namespace, file=file
    )
    click.echo(f"wrote {done.path}")
    click.echo(f"export KUBECONFIG={done.path}  # {done.server}, namespace {done.namespace}")
    if done.tokenless:
        click.echo("the SDK sends the token over http; kubectl does so only over https")

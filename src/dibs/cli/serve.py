"""`dibs serve`: the gateway. Says what it opens and how to connect, and runs until it is told to stop."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.output import output_option, say, show_data
from dibs.errors import InvalidRequest, Problem

if TYPE_CHECKING:
    from dibs.gateway.app import App
    from dibs.gateway.server import Listener
    from dibs.home import Home
    from dibs.settings import Settings


@click.command()
@click.option("--listen", multiple=True, metavar="HOST:PORT", help="Repeat for more. Default: 127.0.0.1:8080.")
@click.option("--socket", metavar="PATH", help="The unix socket, or off. Default: gateway.sock in the state folder.")
@click.option("--openshell", metavar="HOST:PORT", help="Serve OpenShell's SDK there too. Needs dibs[openshell].")
@click.option("--ledger", metavar="URL", help="A PostgreSQL URL, for several gateways on one ledger.")
@click.option("--config", metavar="FILE", help="The settings. Default: config.toml in the configuration folder.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How log lines look. Default: text.")
@click.option("--host-service", is_flag=True, help="Serve all users of this host; see `dibs host`. Needs root.")
@click.option("--check", is_flag=True, help="Check the settings, say what would be opened, open nothing.")
@output_option(wide=False)
def serve(
    listen: tuple[str, ...],
    socket: str | None,
    openshell: str | None,
    ledger: str | None,
    config: str | None,
    log_format: str | None,
    host_service: bool,
    check: bool,
    output: str,
) -> int:
    """Serve sandboxes over HTTP: dibs' own API, and OpenSandbox's for the clients that people have.

    It listens on a unix socket, where the kernel says who is calling, and on loopback, where a token is needed. The
    token that it prints when it starts is kept for you in the state folder. Stopping it touches no sandbox.

    \b
    Examples:
      dibs serve
      dibs serve --listen 127.0.0.1:9000 --log-format json
      dibs serve --openshell 127.0.0.1:50051
      dibs serve --listen 0.0.0.0:8080 --ledger postgresql://dibs@db/dibs
      dibs serve --check
    """
    from dibs.home import find_home

    flags: dict[str, Any] = {"listen": list(listen) or None, "socket": socket, "ledger": ledger}
    flags["log_format"] = log_format
    flags["openshell"] = openshell
    if host_service:
        from dibs.gateway.host import serving

        home = serving(flags, config)
    else:
        home = find_home()
    settings = _settings(home, config, flags)
    if not check and settings.gateway.log_format != "json":
        say("dibs serve: starting")  # loading a server takes a moment, and silence looks like a fault
    from dibs.gateway import server, tracing
    from dibs.gateway.logs import set_up

    listeners = server.plan_listeners(settings.gateway, home)
    tracing.check(settings.gateway)
    _check_openshell(settings)
    if check:
        _refuse_open_without_tokens(settings, home, listeners)
        _show_plan(settings, home, listeners, output)
        return 0
    gc.enable()
    home.make()
    _refuse_open_without_tokens(settings, home, listeners)
    set_up(settings.gateway.log_format, settings.gateway.log_level)
    server.serve(settings, home, ready=_tell, host_service=host_service)
    return 0


def _settings(home: Home, config: str | None, flags: dict[str, Any]) -> Settings:
    """File, environment and flags; the problems of all three at once."""
    from dibs.settings import Settings, load_settings, with_flags

    problems: list[Problem] = []
    found = Settings()
    try:
        found = load_settings(home, path=config)
    except InvalidRequest as error:
        problems += error.problems
    try:
        found = with_flags(found, flags)
    except InvalidRequest as error:
        problems += error.problems
    if problems:
        raise InvalidRequest(problems)
    return found


def _check_openshell(settings: Settings) -> None:
    """Whether OpenShell's service can be served as the settings say, and is installed."""
    place = settings.gateway.openshell
    if not place:
        return
    missing = [name for name in ("grpc", "google.rpc", "jwt", "cryptography") if not _there(name)]
    if missing:
        raise InvalidRequest(
            f"OpenShell's service needs packages that are not installed ({', '.join(missing)})",
            field="gateway.openshell", value=place, code="OPENSHELL_MISSING",
            remedy="pip install 'dibs[openshell]', or leave it out",
        )  # fmt: skip
    from dibs.gateway.openshell.server import check

    check(settings.gateway)


def _there(module: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package that it is in
        return False


def _refuse_open_without_tokens(settings: Settings, home: Home, listeners: list[Listener]) -> None:
    """Beyond this host only tokens say who is calling, so there must be one that was made on purpose."""
    beyond = [one for one in listeners if one.kind == "tcp" and not one.loopback]
    if not beyond:
        return
    from dibs.gateway.keys import usable_tokens

    if not usable_tokens(settings, home):
        remedy = "make one first: dibs token create NAME"
        reason = "it is reached from other hosts, and no token exists"
        raise InvalidRequest([Problem("TOKENS_NEEDED", "gateway.listen", one.where, reason, remedy) for one in beyond])


def _show_plan(settings: Settings, home: Home, listeners: list[Listener], output: str) -> None:
    gateway = settings.gateway
    rows: list[dict[str, Any]] = []
    for one in listeners:
        if one.kind == "unix":
            who = f"the peer's uid; mode {gateway.socket_mode:04o}" + (
                f", group {gateway.socket_group}" if gateway.socket_group else ""
            )
        else:
            who = "all users of this host, without a token" if one.loopback and gateway.loopback_open else "a token"
        rows.append({"address": str(one), "identity": who})
    if gateway.openshell:
        who = "a token" + (", or a client's certificate" if gateway.openshell_client_ca else "")
        rows.append({"address": f"grpc {gateway.openshell}", "identity": f"{who}; OpenShell's service"})
    ledger = "PostgreSQL" if settings.ledger else str(home.ledger)
    if output != "table":
        show_data({"listen": rows, "ledger": ledger, "tenants": sorted(settings.tenants)}, output)
        return
    width = max(len(row["address"]) for row in rows)
    for row in rows:
        click.echo(f"would open  {row['address']:<{width}}  identity: {row['identity']}")
    click.echo(f"ledger      {ledger}")
    if settings.tenants:
        click.echo(f"tenants     {', '.join(sorted(settings.tenants))}")
    click.echo("the settings are good")


def _tell(app: App) -> None:
    """What a person needs to connect. To stdout: logs go to stderr."""
    from dibs.gateway.keys import keep_own_token

    gateway = app.gateway
    lines = [f"dibs serve: listening on {', '.join(gateway.urls)}"]
    if gateway.openshell:
        keep_own_token(gateway.settings, gateway.home)
        (gateway.home.state / "openshell.address").write_text(gateway.openshell + "\n")
        lines.append(f"OpenShell on {gateway.openshell}; `dibs context export openshell` makes it the SDK's gateway")
    tcp = [url for url in gateway.urls if url.startswith("http://")]
    if tcp:
        # The token itself is not printed: this may be a log that others read.
        place = keep_own_token(gateway.settings, gateway.home)
        (gateway.home.state / "gateway.address").write_text(_reachable(tcp[0]) + "\n")
        domain = _reachable(tcp[0]).removeprefix("http://")
        lines.append(f'export OPEN_SANDBOX_DOMAIN={domain} OPEN_SANDBOX_API_KEY="$(cat {place})"')
    click.echo("\n".join(lines))
    sys.stdout.flush()


def _reachable(url: str) -> str:
    """The address as a client on this host would use it."""
    return url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - not a bind

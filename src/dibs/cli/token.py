"""`dibs token`: who may call a gateway. A secret is printed once, when it is made; the ledger keeps its hash."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.output import Cell, output_option, say, show, show_data, table
from dibs.errors import InvalidRequest, Problem

if TYPE_CHECKING:
    from dibs.ledger.tokens import TokenRow

_COLOURS = {"good": "green", "expired": "yellow", "revoked": "red"}


@click.group()
def token() -> None:
    """Tokens for `dibs serve`: make, list, revoke.

    \b
    Examples:
      dibs token create ci --tenant red --ttl 30d
      dibs token ls
      dibs token revoke ci
    """


@token.command()
@click.argument("name")
@click.option("--tenant", default="", metavar="NAME", help="Whose sandboxes it sees. Default: the host's own.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help="sandboxes:read, sandboxes:write, devices:write or admin. Repeat for more. Default: the first two.",
)
@click.option("--ttl", metavar="TIME", help="How long it is good, as in 30d. Default: until it is revoked.")
@output_option(wide=False)
def create(name: str, tenant: str, scopes: tuple[str, ...], ttl: str | None, output: str) -> None:
    """Make a token and print it. It cannot be shown again.

    \b
    Examples:
      dibs token create ci --tenant red --ttl 30d
      dibs token create prometheus --scope admin
    """
    from dibs.ledger.tokens import Tokens
    from dibs.workloads.service import Workloads

    seconds = _checked(name, tenant, scopes, ttl)
    with Workloads() as service:
        token_id, secret = Tokens(service.ledger).create(
            name, scopes or ("sandboxes:read", "sandboxes:write"), tenant, seconds
        )
    if output == "table":
        click.echo(secret)
        say("dibs: keep it now, it is not shown again")
    else:
        show_data({"id": token_id, "name": name, "token": secret}, output)


def _checked(name: str, tenant: str, scopes: tuple[str, ...], ttl: str | None) -> float | None:
    from dibs.request.durations import parse_duration
    from dibs.settings import NAME
    from dibs.workloads.identity import SCOPES

    problems: list[Problem] = []
    remedy = "up to 63 lower-case letters, digits and -"
    if NAME.fullmatch(name) is None:
        problems.append(Problem("NAME_INVALID", "name", name, "this cannot be the name of a token", remedy))
    if tenant and NAME.fullmatch(tenant) is None:
        problems.append(Problem("TENANT_INVALID", "tenant", tenant, "this cannot be the name of a tenant", remedy))
    for scope in scopes:
        if scope not in SCOPES:
            known = f"the scopes are {', '.join(SCOPES)}"
            problems.append(Problem("SCOPE_INVALID", "scope", scope, "there is no such scope", known))
    if tenant and "admin" in scopes:
        reason = "an administrator is not bound to a tenant"
        problems.append(Problem("CONFLICT", "scope", "admin", reason, "leave out --tenant, or --scope admin"))
    seconds: float | None = None
    if ttl is not None:
        try:
            seconds = parse_duration(ttl)
        except ValueError as error:
            problems.append(Problem("DURATION_INVALID", "ttl", ttl, str(error), "write it as 12h or 30d"))
    if problems:
        raise InvalidRequest(problems)
    return seconds


@token.command()
@output_option(wide=False)
def ls(output: str) -> None:
    """List the tokens, without their secrets.

    \b
    Example:
      dibs token ls -o json
    """
    from dibs.ledger.tokens import Tokens
    from dibs.request.durations import show_duration
    from dibs.workloads.service import Workloads

    with Workloads() as service:
        found = Tokens(service.ledger).list()
    now = time.time()
    if output != "table":
        show_data({"tokens": [_data(row, now) for row in found]}, output)
        return
    if not found:
        click.echo("no tokens; make one with: dibs token create NAME")
        return
    rows: list[list[Cell]] = []
    for row in found:
        state = _state(row, now)
        left = show_duration(row.expires_at - now) if row.expires_at and state == "good" else "–"
        used = show_duration(now - row.last_used_at) if row.last_used_at else "never"
        rows.append(
            [row.name, (state, _COLOURS[state]), row.tenant or "–", ", ".join(sorted(row.scopes)), left, used, row.id]
        )
    show(table(["NAME", "STATE", "TENANT", "SCOPES", "EXPIRES IN", "USED", "ID"], rows))


def _state(row: TokenRow, now: float) -> str:
    return "revoked" if row.revoked_at is not None else "expired" if row.expired(now) else "good"


def _data(row: TokenRow, now: float) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "state": _state(row, now),
        "tenant": row.tenant,
        "scopes": sorted(row.scopes),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
        "last_used_at": row.last_used_at,
    }


@token.command()
@click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")
def revoke(tokens: tuple[str, ...]) -> None:
    """Refuse tokens from now on; by name or id. Gateways that run refuse them within a second.

    \b
    Example:
      dibs token revoke ci
    """
    from dibs.ledger.tokens import Tokens
    from dibs.workloads.service import Workloads

    with Workloads() as service:
        for one in tokens:
            row = Tokens(service.ledger).revoke(one)
            click.echo(f"{row.name} is revoked")

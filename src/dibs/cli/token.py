"""`dibs token`: who may call a gateway. A secret is printed once, when it is made; the ledger keeps its hash."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.output import Cell, output_option, say, show, show_data, table
from dibs.errors import InvalidRequest, Problem

if TYPE_CHECKING:
    from dibs.ledger.tokens import TokenRow

_SHORTEST = 32
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
@click.option(
    "--secret-file",
    metavar="FILE",
    help="Take the secret in this file, as a deployment has it. Doing so again changes nothing.",
)
@output_option(wide=False)
def create(
    name: str, tenant: str, scopes: tuple[str, ...], ttl: str | None, secret_file: str | None, output: str
) -> None:
    """Make a token and print it. It cannot be shown again.

    \b
    Examples:
      dibs token create ci --tenant red --ttl 30d
      dibs token create prometheus --scope admin
      dibs token create admin --scope admin --secret-file /run/secrets/token
    """
    from dibs.ledger.tokens import Tokens
    from dibs.workloads.service import Workloads

    seconds = _checked(name, tenant, scopes, ttl)
    wanted = frozenset(scopes or ("sandboxes:read", "sandboxes:write"))
    given = _secret(secret_file) if secret_file is not None else ""
    with Workloads() as service:
        tokens = Tokens(service.ledger)
        there = tokens.find(given) if given else None
        if there is not None:
            _same(there, name, wanted, tenant)
            token_id = there.id
        else:
            token_id, secret = tokens.create(name, wanted, tenant, seconds, given)
    if given:
        if output == "table":
            say(f"dibs: token {name} is {'there' if there is not None else 'made'}")
        else:
            show_data({"id": token_id, "name": name, "token": ""}, output)  # it stands in the file, and nowhere else
    elif output == "table":
        click.echo(secret)
        say("dibs: keep it now, it is not shown again")
    else:
        show_data({"id": token_id, "name": name, "token": secret}, output)


def _secret(file: str) -> str:
    """The secret of a file. Its hash is a quick one, so a secret that could be guessed is refused."""
    from pathlib import Path

    try:
        text = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"cannot be read: {error}", field="--secret-file", value=file, code="FILE_INVALID"
        ) from error
    if len(text) < _SHORTEST or not text.isascii() or any(c.isspace() for c in text):
        raise InvalidRequest(
            f"the secret must have at least {_SHORTEST} characters of ASCII, without spaces",
            field="--secret-file", value=file, code="FILE_INVALID", remedy="make one with: openssl rand -hex 32",
        )  # fmt: skip
    return text


def _same(there: TokenRow, name: str, scopes: frozenset[str], tenant: str) -> None:
    """A secret that is known already must be the same token, and good."""
    from dibs.errors import Conflict

    if there.revoked_at is not None or there.expired(time.time()):
        reason = "its secret belongs to a token that is revoked or expired"
    elif (there.name, there.scopes, there.tenant) != (name, scopes, tenant):
        reason = f"its secret belongs to token {there.name}, with other scopes or another tenant"
    else:
        return
    raise Conflict(reason, field="token", value=name, code="TOKEN_NAME_TAKEN", remedy="give it another secret")


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

"""Who is calling: by a token, by the peer of the unix socket, or by the secret of one sandbox.

`middleware.Edge` asks `Auth.identify` for every request but the open ones, and puts the answer into the request's
state; handlers ask `require` for a scope. A secret is compared by its hash and is never logged or kept. Ledger look-ups
are cached for one second, so a revoked token is refused within that time on every gateway.

    unix socket               the peer's uid
    TCP                       Authorization: Bearer TOKEN, or OPEN-SANDBOX-API-KEY: TOKEN
    a sandbox's own surface   also OpenSandbox-Secure-Access: the sandbox's secret
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from litestar.connection import ASGIConnection

from dibs.errors import NotFound
from dibs.gateway.loopback_peers import Neighbours
from dibs.gateway.problems import Refused
from dibs.gateway.threads import Pool
from dibs.ledger.tokens import TokenRow, Tokens
from dibs.settings import GatewaySettings
from dibs.workloads.identity import SCOPES, Identity, this_process
from dibs.workloads.service import Workloads

Look = Callable[[Workloads], "Identity | Refused"]
_BELIEVED = 1.0  # seconds
_KEPT = 4096
_SANDBOX_PATH = re.compile(r"(?:/v1)?/sandboxes/([^/]+)/proxy/", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,256}", re.ASCII)
OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/openapi.json", "/v1/health", "/v1/version"})


class Credentials(NamedTuple):
    """What a request carries."""

    token: str = ""
    sandbox_secret: str = ""


class Peer(NamedTuple):
    """The process at the other end of a unix socket."""

    pid: int
    uid: int
    gid: int


class Auth:
    """One per gateway."""

    def __init__(self, pool: Pool, settings: GatewaySettings, *, host_service: bool = False) -> None:
        self._pool = pool
        self._host_service = host_service
        self._loopback_open = settings.loopback_open
        self._me = msgspec.structs.replace(this_process(), gateway=True)
        self._neighbours = Neighbours()
        self._known: OrderedDict[str, tuple[float, Identity | Refused]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Identity | Refused]] = {}
        self._tenants: OrderedDict[str, str] = OrderedDict()
        self._secret = b""

    async def start(self) -> None:
        """Read the secret of this ledger's gateways."""

        def read(workloads: Workloads) -> bytes:
            from dibs.ledger.secrets import gateway_secret

            return gateway_secret(workloads.ledger)

        self._secret = await self._pool.call(read)

    async def identify(self, scope: Any) -> Identity:
        """Who calls; raises Refused (401) if that cannot be told."""
        given = credentials(scope["headers"])
        if given.sandbox_secret and (match := _SANDBOX_PATH.match(scope["path"])):
            return await self._sandbox_owner(match.group(1), given.sandbox_secret)
        if given.token:
            return await self._by_token(given.token)
        peer: Peer | None = scope["state"].get("peer")
        if peer is not None:
            return self.of_peer(peer)
        if self._loopback_open and _is_loopback(scope.get("client")):
            _no_browser(scope["headers"])
        return await self.without_token(scope.get("client"), scope.get("server"))

    async def without_token(self, client: Any, server: Any) -> Identity:
        """Who calls over TCP with no credentials at all: where loopback is open, a program of this host."""
        if self._loopback_open and _is_loopback(client):
            if await self._neighbours.ours(client, server):
                return self._me
            reason = "it does not come from a program of this host that the gateway can see: sandboxes need a token"
            raise refuse("TOKEN_MISSING", reason, "send Authorization: Bearer TOKEN; `dibs token create`")
        raise refuse("TOKEN_MISSING", "a token is needed", "send Authorization: Bearer TOKEN; `dibs token create`")

    @property
    def me(self) -> Identity:
        """The gateway's own user."""
        return self._me

    async def by_token(self, token: str) -> Identity:
        """Whose token it is; raises Refused (401) if it is not good."""
        if _TOKEN.fullmatch(token) is None:
            raise refuse("TOKEN_UNKNOWN", "this cannot be a token", "make one with `dibs token create`")
        return await self._by_token(token)

    def of_peer(self, peer: Peer) -> Identity:
        """A caller on this host is who the kernel says. The gateway's own user and root may do everything.

        Only a host service runs sandboxes as other users. Elsewhere they would run as the gateway's user, so any other
        user who may connect is treated as remote: no folder of the host is shared.
        """
        mine = peer.uid in (0, self._me.uid)
        remote = not mine and not self._host_service
        scopes = frozenset(SCOPES) if mine else frozenset({"sandboxes:read", "sandboxes:write"})
        return Identity(
            name=name_of(peer.uid),
            uid=peer.uid,
            scopes=scopes,
            sees_all=True,
            owns_all=mine,
            gateway=True,
            remote=remote,
        )

    async def _by_token(self, token: str) -> Identity:
        digest = hashlib.sha256(token.encode()).hexdigest()
        now = time.monotonic()
        known = self._known.get(digest)
        if known is not None and now - known[0] <= _BELIEVED:
            found = known[1]
        else:
            found = await self._find(digest, lambda workloads: self._look_up(Tokens(workloads.ledger).find(token)))
        if isinstance(found, Refused):
            raise found
        return found

    async def _by_token_id(self, token_id: str) -> None:
        """Raise Refused unless the token of this id would be let in now."""
        key = f"id {token_id}"
        known = self._known.get(key)
        if known is not None and time.monotonic() - known[0] <= _BELIEVED:
            found = known[1]
        else:
            found = await self._find(key, lambda workloads: self._look_up(Tokens(workloads.ledger).get(token_id)))
        if isinstance(found, Refused):
            raise found

    async def _find(self, key: str, look: Look) -> Identity | Refused:
        """Ask the ledger. Concurrent callers with the same token share the answer."""
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(key, look))
        return await asyncio.shield(asking)

    async def _ask(self, key: str, look: Look) -> Identity | Refused:
        now, mine = time.monotonic(), asyncio.current_task()
        try:
            found = await self._pool.call(look)
        finally:
            current = self._asking.get(key) is mine  # else tokens were changed since we asked
            if current:
                del self._asking[key]
        if not current:
            return await self._find(key, look)
        self._known[key] = (now, found)
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found

    def _look_up(self, row: TokenRow | None) -> Identity | Refused:
        if row is None:
            return refuse("TOKEN_UNKNOWN", "this token is not known here", "make one with `dibs token create`")
        if row.revoked_at is not None:
            return refuse("TOKEN_REVOKED", "this token was revoked", "ask for a new one")
        if row.expires_at is not None and row.expires_at <= time.time():
            return refuse("TOKEN_EXPIRED", "this token has expired", "ask for a new one")
        admin = "admin" in row.scopes
        return Identity(
            name=row.name,
            uid=self._me.uid,
            tenant=row.tenant,
            scopes=frozenset(SCOPES) if admin else frozenset(row.scopes),
            sees_all=admin,
            owns_all=admin,
            gateway=True,
            remote=True,
            token=row.id,
        )

    def forget(self) -> None:
        """Ask the ledger again: tokens were changed by this gateway."""
        self._known.clear()
        self._asking.clear()

    # -- the secret of one sandbox ----------------------------------------------------------------------------------

    def sandbox_token(self, sandbox_id: str, token_id: str) -> str:
        """Opens this sandbox and nothing else, for as long as the token that it was given to is valid (none: always).

        The same on all gateways of a ledger, and after a restart.
        """
        seal = hmac.new(self._secret, f"sandbox:{sandbox_id}:{token_id}".encode(), hashlib.sha256).hexdigest()
        return f"{token_id}.{seal}" if token_id else seal

    async def _sandbox_owner(self, sandbox_id: str, secret: str) -> Identity:
        """The tenant that the sandbox belongs to, with no more than what its own surface needs."""
        token_id = secret.rpartition(".")[0]
        if not hmac.compare_digest(self.sandbox_token(sandbox_id, token_id).encode(), secret.encode()):
            raise refuse("TOKEN_UNKNOWN", "this is not the secret of the sandbox", "ask for its endpoint again")
        if token_id:
            await self._by_token_id(token_id)
        if sandbox_id not in self._tenants:
            try:
                row = await self._pool.call(lambda workloads: workloads.ledger.sandbox(sandbox_id))
            except NotFound:
                raise refuse("TOKEN_UNKNOWN", "there is no such sandbox", "make a new one") from None
            self._tenants[sandbox_id] = row.tenant
            while len(self._tenants) > _KEPT:
                self._tenants.popitem(last=False)
        return Identity(
            name=f"sandbox {sandbox_id}",
            uid=self._me.uid,
            tenant=self._tenants[sandbox_id],
            scopes=frozenset({"sandboxes:read", "sandboxes:write"}),
            owns_all=True,
            gateway=True,
            remote=True,
        )


def require(connection: ASGIConnection[Any, Any, Any, Any], scope: str) -> Identity:
    """The caller, if it has the scope; else Refused (403)."""
    identity: Identity = connection.scope["state"]["identity"]
    if scope not in identity.scopes and "admin" not in identity.scopes:
        if not identity.token and not identity.remote:
            raise Refused(
                403, code="ADMINISTRATOR_NEEDED", reason=f"only an administrator may do this (scope {scope})",
                field="user", value=identity.name, remedy="run it as root: sudo dibs …",
            )  # fmt: skip
        remedy = f"use one with it: dibs token create NAME --scope {scope}"
        raise Refused(403, code="SCOPE_MISSING", reason=f"the token does not have the scope {scope}", remedy=remedy)
    return identity


def credentials(headers: list[tuple[bytes, bytes]]) -> Credentials:
    """The secrets in the headers. Two different ones are refused: which one was meant must not be guessed."""
    tokens: list[str] = []
    sandbox_secret = ""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.decode("latin-1").strip().partition(" ")
            if scheme.lower() != "bearer" or not rest.strip():
                raise refuse("TOKEN_UNKNOWN", "the only scheme is Bearer", "send Authorization: Bearer TOKEN")
            tokens.append(rest.strip())
        elif name == b"open-sandbox-api-key":
            tokens.append(value.decode("latin-1").strip())
        elif name == b"opensandbox-secure-access":
            sandbox_secret = value.decode("latin-1").strip()
    tokens = [token for token in tokens if token]
    if len(set(tokens)) > 1:
        raise refuse("TOKEN_UNKNOWN", "two different tokens were sent", "send one of them")
    for text in (*tokens, sandbox_secret):
        if text and _TOKEN.fullmatch(text) is None:
            raise refuse("TOKEN_UNKNOWN", "this cannot be a token", "make one with `dibs token create`")
    return Credentials(tokens[0] if tokens else "", sandbox_secret)


def refuse(code: str, reason: str, remedy: str) -> Refused:
    return Refused(401, code, reason, field="token", remedy=remedy, headers={"WWW-Authenticate": "Bearer"})


def _no_browser(headers: list[tuple[bytes, bytes]]) -> None:
    """Any page that a user opens can make the browser call loopback. Without a token such a call must do nothing."""
    for name, value in headers:
        host = value.decode("latin-1").rpartition(":")[0] or value.decode("latin-1")
        elsewhere = name == b"host" and host != "localhost" and not _is_loopback((host.strip("[]"), 0))
        if elsewhere or name in (b"origin", b"sec-fetch-site"):
            raise Refused(
                403, code="BROWSER_REFUSED", reason="this looks like a web page, which needs a token",
                field=name.decode(), remedy="send Authorization: Bearer TOKEN",
            )  # fmt: skip


def _is_loopback(client: Any) -> bool:
    if not client:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

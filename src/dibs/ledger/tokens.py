"""Tokens: who may call a gateway, with which scopes, for which tenant. `dibs token` and the gateway's door ask here.

A secret is shown once, when it is made; the ledger keeps its SHA-256. Secrets are 256 random bits, so a slow hash would
add nothing. What a scope allows is decided by the gateway.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from dibs.errors import Conflict, NotFound
from dibs.ledger.base import Beside, new_id
from dibs.ledger.database import Duplicate
from dibs.ledger.rows import encode

PREFIX = "dibs_"
_NOTED_EVERY = 60.0  # seconds; the last use is a hint for people, not worth a write per request
_SCOPES = msgspec.json.Decoder(frozenset[str])


class TokenRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token without its secret."""

    id: str
    name: str
    scopes: frozenset[str]
    tenant: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class Tokens(Beside):
    def create(
        self, name: str, scopes: Iterable[str], tenant: str, ttl: float | None = None, secret: str = ""
    ) -> tuple[str, str]:
        """A new token: its id, and its secret, which cannot be shown again. `secret`: one that was made elsewhere."""
        import secrets

        token, secret, now = new_id("tok"), secret or PREFIX + secrets.token_urlsafe(32), time.time()
        try:
            with self._joined():
                self._db.execute(
                    "INSERT INTO tokens (id, name, hash, scopes, tenant, created_at, expires_at)"
                    " VALUES (:id, :name, :hash, :scopes, :tenant, :now, :expires)",
                    id=token, name=name, hash=_hash(secret), scopes=encode(sorted(set(scopes))), tenant=tenant,
                    now=now, expires=None if ttl is None else now + ttl,
                )  # fmt: skip
                self.note("token.created", detail=f"{token}: {name}")
        except Duplicate as error:
            raise Conflict(
                "a token of that name is in use", field="name", value=name, code="TOKEN_NAME_TAKEN",
                remedy=f"take another name, or revoke it with `dibs token revoke {name}`",
            ) from error  # fmt: skip
        return token, secret

    def list(self) -> list[TokenRow]:
        """All that there are, oldest first; those that are revoked or expired too."""
        return [_token(row) for row in self._db.rows("SELECT * FROM tokens ORDER BY created_at, id")]

    def revoke(self, id_or_name: str) -> TokenRow:
        """Refuse a token from now on. Once more is no mistake, an unknown one is."""
        with self._joined():
            rows = self._db.rows("SELECT * FROM tokens WHERE id = :ref", ref=id_or_name) or self._db.rows(
                "SELECT * FROM tokens WHERE name = :ref ORDER BY revoked_at IS NOT NULL, created_at DESC LIMIT 1",
                ref=id_or_name,
            )
            if not rows:
                raise NotFound(
                    "there is no such token", field="token", value=id_or_name, code="TOKEN_NOT_FOUND",
                    remedy="`dibs token ls` shows what there is",
                )  # fmt: skip
            row = _token(rows[0])
            if row.revoked_at is None:
                row = msgspec.structs.replace(row, revoked_at=time.time())
                self._db.execute("UPDATE tokens SET revoked_at = :at WHERE id = :id", at=row.revoked_at, id=row.id)
                self.note("token.revoked", detail=f"{row.id}: {row.name}")
        return row

    def find(self, secret: str) -> TokenRow | None:
        """The token of a secret; None if there is none. A revoked or expired one is found: the caller says which."""
        rows = self._db.rows("SELECT * FROM tokens WHERE hash = :hash", hash=_hash(secret))
        if not rows:
            return None
        row, now = _token(rows[0]), time.time()
        usable = row.revoked_at is None and not row.expired(now)
        if usable and now - (row.last_used_at or 0.0) >= _NOTED_EVERY:
            self._db.execute("UPDATE tokens SET last_used_at = :now WHERE id = :id", now=now, id=row.id)
        return row

    def get(self, token_id: str) -> TokenRow | None:
        """The token of an id, as it is now."""
        rows = self._db.rows("SELECT * FROM tokens WHERE id = :id", id=token_id)
        return _token(rows[0]) if rows else None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _token(row: Any) -> TokenRow:
    return TokenRow(
        row["id"], row["name"], _SCOPES.decode(row["scopes"]), row["tenant"], row["created_at"], row["expires_at"],
        row["revoked_at"], row["last_used_at"],
    )  # fmt: skip

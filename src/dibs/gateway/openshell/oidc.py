"""JWTs of an OIDC issuer as callers: signature, issuer, audience and times are checked, roles become scopes.

Only loaded where the settings name an issuer. Keys come from the issuer's JWKS (or from the address or file that the
settings name) and are fetched again when a token is signed with one that is not known, at most every few seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

from dibs.errors import BackendUnavailable
from dibs.gateway.auth import refuse
from dibs.settings import GatewaySettings
from dibs.workloads.identity import Identity

_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
_LEEWAY = 30  # seconds that clocks may differ
_LONGEST = 16384
_PAUSE = 5.0  # seconds between two looks for new keys
_LARGEST = 1 << 20  # bytes of a key set
# What a role or scope of a token allows. Others allow nothing.
SCOPE_OF = {
    "sandbox:read": ("sandboxes:read",),
    "sandbox:write": ("sandboxes:read", "sandboxes:write"),
    "openshell-user": ("sandboxes:read", "sandboxes:write"),
    "openshell-admin": ("admin",),
}


def looks_like_jwt(token: str) -> bool:
    return len(token) <= _LONGEST and _JWT.fullmatch(token) is not None


class Oidc:
    """One issuer."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._issuer = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._place = settings.oidc_jwks
        self._tenant_claim = settings.oidc_tenant_claim
        self._keys: dict[str, Any] = {}
        self._looked = -_PAUSE
        self._looking = asyncio.Lock()

    async def identify(self, token: str, uid: int) -> Identity:
        import jwt

        try:
            kid = jwt.get_unverified_header(token).get("kid", "")
            key = await self._key(str(kid))
            claims = jwt.decode(
                token, key, algorithms=_ALGORITHMS, audience=self._audience, issuer=self._issuer, leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.ExpiredSignatureError:
            raise refuse("TOKEN_EXPIRED", "this token has expired", "log in again") from None
        except jwt.PyJWTError as error:
            raise refuse("TOKEN_UNKNOWN", f"this token is not good here: {error}", "log in again") from None
        return self._caller(claims, uid)

    def _caller(self, claims: dict[str, Any], uid: int) -> Identity:
        from dibs.gateway.openshell.auth import ADMINISTRATORS, identity_of

        words = _words(claims.get("scope")) | _words(claims.get("roles")) | _words(claims.get("scp"))
        realm = claims.get("realm_access")
        if isinstance(realm, dict):
            words |= _words(realm.get("roles"))
        scopes = frozenset(scope for word in words for scope in SCOPE_OF.get(word, ()))
        name = str(claims.get("preferred_username") or claims["sub"])
        if "admin" in scopes:
            return identity_of(name, ADMINISTRATORS, uid)
        tenant = claims.get(self._tenant_claim)
        if not isinstance(tenant, str) or not tenant:
            reason = f"the token says no tenant (claim {self._tenant_claim})"
            raise refuse("TENANT_MISSING", reason, "have the issuer add it, or set gateway.oidc_tenant_claim")
        if not scopes:
            known = ", ".join(SCOPE_OF)
            raise refuse("SCOPE_MISSING", "no role or scope of the token means anything here", f"known are {known}")
        return identity_of(name, tenant, uid, scopes)

    async def _key(self, kid: str) -> Any:
        if kid not in self._keys:
            async with self._looking:
                if kid not in self._keys and time.monotonic() - self._looked >= _PAUSE:
                    self._looked = time.monotonic()
                    self._keys = await asyncio.to_thread(self._fetch)
        if kid in self._keys:
            return self._keys[kid]
        raise refuse("TOKEN_UNKNOWN", "the token is signed with a key that the issuer does not have", "log in again")

    def _fetch(self) -> dict[str, Any]:
        import jwt

        try:
            place = self._place or _read(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")["jwks_uri"]
            found = jwt.PyJWKSet.from_dict(_read(str(place)))
        except (OSError, ValueError, KeyError, TypeError, jwt.PyJWTError) as error:
            raise BackendUnavailable(
                f"the keys of the issuer cannot be read: {error}", field="gateway.oidc_jwks",
                value=self._place or self._issuer, code="OIDC_KEYS_UNREADABLE", remedy="see that it can be reached",
            ) from error  # fmt: skip
        return {str(key.key_id or ""): key for key in found.keys}


def _words(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(value.split())
    return {one for one in value if isinstance(one, str)} if isinstance(value, list) else set()


def _read(place: str) -> dict[str, Any]:
    if place.startswith("/"):
        data = Path(place).read_bytes()
    else:
        import urllib.request

        # The settings allow http and https only, the issuer's document is trusted as the issuer is.
        if not place.startswith(("https://", "http://")):
            raise ValueError(f"{place} is neither a path nor a URL")
        with urllib.request.urlopen(place, timeout=10) as answer:  # noqa: S310 - the scheme was checked
            data = answer.read(_LARGEST)
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - told with the others
    return found

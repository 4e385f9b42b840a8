"""Who is calling over gRPC: by a bearer token, by a client certificate, or by being a program of this host.

    bearer         dibs' own tokens, and JWTs of the issuer in the settings (`oidc`)
    certificate    mTLS: the common name is who, the organization is the tenant; `dibs:admins` may do everything
    unix socket    only its owner can open it
    loopback       without a token only where `loopback_open` says so

`server` asks for every call but Health. A bearer token says more than a certificate, so it comes first.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from dibs.gateway.auth import Auth, refuse
from dibs.gateway.openshell.oidc import Oidc, looks_like_jwt
from dibs.gateway.problems import Refused
from dibs.workloads.identity import SCOPES, Identity

ADMINISTRATORS = "dibs:admins"


class Callers:
    """One per server. `secure`: it speaks TLS, so certificates were checked."""

    def __init__(self, auth: Auth, oidc: Oidc | None, *, server_port: int) -> None:
        self._auth = auth
        self._oidc = oidc
        self._server_port = server_port

    async def identify(self, context: Any) -> Identity:
        """Who calls; raises Refused (401) if that cannot be told."""
        token = _bearer(context.invocation_metadata() or ())
        if token:
            if self._oidc is not None and looks_like_jwt(token):
                return await self._oidc.identify(token, self._auth.me.uid)
            return await self._auth.by_token(token)
        certificate = context.auth_context().get("x509_pem_cert")
        if certificate:
            return self._of_certificate(bytes(certificate[0]))
        kind, _, where = context.peer().partition(":")
        if kind == "unix":
            return self._auth.me
        return await self._auth.without_token(_address(unquote(where)), ("", self._server_port))

    def _of_certificate(self, pem: bytes) -> Identity:
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        subject = x509.load_pem_x509_certificate(pem).subject
        names = [str(one.value) for one in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        tenants = [str(one.value) for one in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
        if len(names) != 1 or len(tenants) != 1:
            reason = "the certificate must have one common name and one organization, which is the tenant"
            raise refuse("CERTIFICATE_INVALID", reason, f"write O=TENANT, or O={ADMINISTRATORS} for administrators")
        return identity_of(names[0], tenants[0], self._auth.me.uid)


def identity_of(name: str, tenant: str, uid: int, scopes: frozenset[str] | None = None) -> Identity:
    """A caller whom another authority vouches for. `scopes`: what it may do, where the authority says so."""
    from dibs.settings import NAME

    admin = tenant == ADMINISTRATORS
    if not admin and NAME.fullmatch(tenant) is None:
        raise refuse("TENANT_INVALID", f'"{tenant[:64]}" cannot be a tenant', "up to 63 lower-case letters, digits, -")
    given = frozenset(SCOPES) if admin else scopes or frozenset({"sandboxes:read", "sandboxes:write"})
    return Identity(
        name=name[:64], uid=uid, tenant="" if admin else tenant, scopes=given, sees_all=admin, owns_all=admin,
        gateway=True, remote=True,
    )  # fmt: skip


def require(identity: Identity, scope: str) -> None:
    if scope in identity.scopes or "admin" in identity.scopes:
        return
    raise Refused(
        403, code="SCOPE_MISSING", reason=f"{identity.name} does not have the scope {scope}",
        remedy=f"use a token with it: dibs token create NAME --scope {scope}",
    )  # fmt: skip


def _bearer(metadata: Any) -> str:
    values = {
        value if isinstance(value, str) else bytes(value).decode("latin-1")
        for key, value in metadata
        if key == "authorization"
    }
    if not values:
        return ""
    scheme, _, token = values.pop().strip().partition(" ")
    if values or scheme.lower() != "bearer" or not token.strip():
        raise refuse("TOKEN_UNKNOWN", "send one token, as Bearer TOKEN", "make one with `dibs token create`")
    return token.strip()


def _address(where: str) -> tuple[str, int] | None:
    """`127.0.0.1:4711` or `[::1]:4711`, as gRPC names its peers."""
    host, _, port = where.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None

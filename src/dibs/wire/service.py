"""What a gateway says of itself, of the caller, and of what went wrong."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

ClaimName = Annotated[str, Meta(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$(?!\n)")]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong."""

    code: str
    field: str
    value: str
    reason: str
    remedy: str = ""


class ProblemDetails(msgspec.Struct, frozen=True):
    """RFC 9457, with every problem. `error` is the class in dibs' tree of errors."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    error: str
    retryable: bool
    problems: tuple[Problem, ...]
    request_id: str


class Health(msgspec.Struct, frozen=True):
    status: str


class Version(msgspec.Struct, frozen=True):
    name: str
    version: str
    api: str


class WhoAmI(msgspec.Struct, frozen=True):
    """The caller, as the gateway sees it."""

    name: str
    tenant: str
    uid: int
    scopes: tuple[str, ...]
    sees_all: bool


class Delivery(msgspec.Struct, frozen=True):
    """What happens to a field on a backend."""

    field: str
    backend: str
    outcome: str
    how: str


class BackendAbility(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    available: bool
    reason: str = ""
    remedy: str = ""


class Capabilities(msgspec.Struct, frozen=True):
    """The delivery table, and which backends work here."""

    backends: tuple[BackendAbility, ...]
    auto: tuple[str, ...]
    images: tuple[str, ...]
    table: tuple[Delivery, ...]


class Claims(msgspec.Struct, frozen=True):
    claims: tuple[str, ...]


class ClaimRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ResourceClaim or a ResourceClaimTemplate, as kubectl takes it."""

    claim: dict[str, Any]


class ClaimCheck(msgspec.Struct, frozen=True):
    ok: bool
    problems: tuple[Problem, ...]

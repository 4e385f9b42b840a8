"""`renew-expiration`: another end for a sandbox that has one."""

from __future__ import annotations

import datetime as dt
import re
import time

from dibs.errors import Conflict, InvalidRequest, as_written
from dibs.gateway.opensandbox import types
from dibs.gateway.opensandbox.requests import decode_object
from dibs.sandbox import Sandbox
from dibs.workloads.service import Workloads

# RFC 3339: a date, T, a time, and where that time is told. `fromisoformat` takes more than that.
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)
_FURTHEST = 10 * 366 * 86400.0  # seconds; a typing error beyond it


def read_renewal(body: bytes, now: float | None = None) -> float:
    """The new end in seconds since the epoch, or InvalidRequest."""
    asked = decode_object(body)
    unknown = sorted(set(asked) - {"expiresAt"})
    if unknown:
        remedy = "the known one is expiresAt"
        raise InvalidRequest(
            "there is no such field",
            field=unknown[0],
            value=as_written(asked[unknown[0]]),
            code="UNKNOWN_FIELD",
            remedy=remedy,
        )
    text = asked.get("expiresAt")
    if not isinstance(text, str) or _RFC3339.fullmatch(text) is None:
        raise _wrong(text, "must be a time as in RFC 3339, with its zone")
    try:
        at = dt.datetime.fromisoformat(_six_digits(text)).timestamp()
    except (ValueError, OverflowError) as error:
        raise _wrong(text, f"there is no such time: {error}") from error
    now = time.time() if now is None else now
    if at <= now:
        raise _wrong(text, "it is in the past")
    if at > now + _FURTHEST:
        raise _wrong(text, "it is more than ten years away")
    return at


def _six_digits(text: str) -> str:
    """Python reads at most microseconds; what is finer is cut off."""
    return re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text.upper())


def _wrong(value: object, reason: str) -> InvalidRequest:
    remedy = "write it as 2030-01-31T12:00:00Z"
    return InvalidRequest(reason, field="expiresAt", value=as_written(value), code="EXPIRY_INVALID", remedy=remedy)


def renew(mine: Workloads, row: Sandbox, at: float) -> types.Renewed:
    if row.live and row.expires_at is None and row.spec.ttl_seconds is None:
        raise Conflict(
            "it was made without a time to live", field="sandbox", value=row.id, code="NO_EXPIRY",
            remedy="it lives until it is deleted",
        )  # fmt: skip
    row = mine.renew(row.id, at)
    return types.Renewed(types.moment(row.expires_at if row.expires_at is not None else at))

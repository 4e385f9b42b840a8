"""Request ids of calls that are not to happen twice, and what was answered. Asked by OpenShell's API of a gateway.

`begin` writes a call down before anything is done, `finish` keeps its answer, and `forget` takes back a call that was
refused. A repetition with the same id, on any gateway, is given the answer; while there is none yet, the call may have
had its effect or not, and is not made again. They are values of the ledger (its table `settings`), as `objects` are.
"""

from __future__ import annotations

import hashlib
import time

import msgspec

from dibs.errors import Conflict
from dibs.ledger.base import Beside
from dibs.ledger.database import Duplicate
from dibs.ledger.rows import decoded, encode

KEPT = 24 * 3600.0  # seconds, as OpenShell keeps them


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """`answer` is None as long as the call has not ended."""

    digest: str
    created_at: float
    answer: bytes | None = None


class Replies(Beside):
    def begin(self, tenant: str, call: str, request_id: str, digest: str) -> Reply | None:
        """What is known of a call with this id; None if it is new, and then it is written down as begun.

        Raises Conflict if the id belongs to another call.
        """
        now = time.time()
        today, before = (_key(now - days * KEPT, tenant, call, request_id) for days in (0, 1))
        row = Reply(digest, now)
        try:
            with self._joined():
                self._db.execute(
                    "DELETE FROM settings WHERE key LIKE 'reply/%' AND key < :oldest", oldest=_day(now - KEPT)
                )
                found = self._db.rows("SELECT value FROM settings WHERE key = :key", key=before)
                if not found or decoded(Reply, found[0]["value"], "reply").created_at <= now - KEPT:
                    self._db.execute(
                        "INSERT INTO settings (key, value) VALUES (:key, :value)", key=today, value=encode(row)
                    )
                    return None
        except Duplicate:
            found = self._db.rows("SELECT value FROM settings WHERE key = :key", key=today)
        if not found:  # it was taken back just now
            return self.begin(tenant, call, request_id, digest)
        known = decoded(Reply, found[0]["value"], "reply")
        if known.digest != digest:
            raise Conflict(
                "the id was used for another request", field="request_id", value=request_id,
                code="IDEMPOTENCY_KEY_REUSED", remedy="take a new id for a new request",
            )  # fmt: skip
        return known

    def finish(self, tenant: str, call: str, request_id: str, answer: bytes) -> None:
        for key in self._keys(tenant, call, request_id):
            rows = self._db.rows("SELECT value FROM settings WHERE key = :key", key=key)
            if rows:
                row = msgspec.structs.replace(decoded(Reply, rows[0]["value"], "reply"), answer=answer)
                with self._joined():
                    self._db.execute("UPDATE settings SET value = :value WHERE key = :key", value=encode(row), key=key)
                return

    def forget(self, tenant: str, call: str, request_id: str) -> None:
        with self._joined():
            for key in self._keys(tenant, call, request_id):
                self._db.execute("DELETE FROM settings WHERE key = :key", key=key)

    @staticmethod
    def _keys(tenant: str, call: str, request_id: str) -> list[str]:
        """A call may have begun on the day before."""
        now = time.time()
        return [_key(now - days * KEPT, tenant, call, request_id) for days in (0, 1)]


def _day(at: float) -> str:
    return f"reply/{int(at // KEPT):06}"


def _key(at: float, tenant: str, call: str, request_id: str) -> str:
    name = hashlib.sha256("\0".join((tenant, call, request_id)).encode()).hexdigest()
    return f"{_day(at)}/{name}"

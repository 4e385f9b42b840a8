"""Idempotency keys: the same question twice makes one sandbox. Asked by the admission of a gateway.

`recall`, then `remember`, in the transaction that enters the sandbox: the second request with the key, on any
gateway, finds the first one's sandbox. A key belongs to its tenant.
"""

from __future__ import annotations

import time

from dibs.errors import Conflict
from dibs.ledger.base import Beside

KEPT = 24 * 3600.0  # seconds; as long as a client may reasonably repeat itself


class Idempotency(Beside):
    def recall(self, tenant: str, key: str, body_hash: str) -> str | None:
        """The sandbox that was made for this key; None if it is new. Conflict if the key was for another question."""
        rows = self._db.rows(
            "SELECT body_hash, sandbox_id FROM idempotency"
            " WHERE tenant = :tenant AND key = :key AND created_at > :oldest",
            tenant=tenant, key=key, oldest=time.time() - KEPT,
        )  # fmt: skip
        if not rows:
            return None
        if rows[0]["body_hash"] != body_hash:
            raise _reused(key)
        return str(rows[0]["sandbox_id"])

    def remember(self, tenant: str, key: str, body_hash: str, sandbox_id: str) -> None:
        """Keep what a key was used for. Those that are too old to be repeated are dropped."""
        now = time.time()
        with self._joined():
            self._db.execute("DELETE FROM idempotency WHERE created_at <= :oldest", oldest=now - KEPT)
            added = self._db.execute(
                "INSERT INTO idempotency (tenant, key, body_hash, sandbox_id, created_at)"
                " VALUES (:tenant, :key, :body, :sandbox, :now) ON CONFLICT DO NOTHING",
                tenant=tenant, key=key, body=body_hash, sandbox=sandbox_id, now=now,
            )  # fmt: skip
            if added != 1:
                raise _reused(key)


def _reused(key: str) -> Conflict:
    return Conflict(
        "the key was used for another request", field="Idempotency-Key", value=key, code="IDEMPOTENCY_KEY_REUSED",
        remedy="take a new key for a new request",
    )  # fmt: skip

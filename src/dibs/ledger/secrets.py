"""The secret that all gateways of one ledger share. Tokens of single sandboxes are derived from it, so that they stay
good after a restart and on every gateway. Made on first use; it never leaves the gateways."""

from __future__ import annotations

import os

from dibs.ledger.base import Beside, Books

_KEY = "gateway-secret"
_BYTES = 32


def gateway_secret(ledger: Books) -> bytes:
    return _Secrets(ledger).get()


class _Secrets(Beside):
    def get(self) -> bytes:
        return self._kept() or self._make()

    def _kept(self) -> bytes:
        rows = self._db.rows("SELECT value FROM settings WHERE key = :key", key=_KEY)
        return bytes.fromhex(rows[0]["value"]) if rows else b""

    def _make(self) -> bytes:
        with self._joined():
            self._db.execute(
                "INSERT INTO settings (key, value) VALUES (:key, :value) ON CONFLICT DO NOTHING",
                key=_KEY, value=os.urandom(_BYTES).hex(),
            )  # fmt: skip
            return self._kept()

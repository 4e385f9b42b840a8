"""Taints that people have put on devices. A part of `store.Ledger`; what they mean is decided by `plan`."""

from __future__ import annotations

import time

from dibs.ledger.leases import Leases
from dibs.ledger.rows import Taint


class Taints(Leases):
    def taint(self, device_id: str, taint: Taint) -> None:
        """Put a taint on a device, in place of one with the same key and effect. Those who hold it are told."""
        self._db.execute(
            "INSERT INTO taints (domain, device_id, key, value, effect, username, created_at)"
            " VALUES (:domain, :device, :key, :value, :effect, :username, :now)"
            " ON CONFLICT (domain, device_id, key, effect)"
            " DO UPDATE SET value = :value, username = :username, created_at = :now",
            domain=self.host, device=device_id, key=taint.key, value=taint.value, effect=taint.effect,
            username=taint.username, now=time.time(),
        )  # fmt: skip
        self.tell_holders(device_id, "lease.tainted", f"{device_id}: {taint}")

    def untaint(self, device_id: str, key: str) -> int:
        """Take the taints of a key (all for "") off a device; how many there were."""
        gone = self._db.execute(
            "DELETE FROM taints WHERE domain = :domain AND device_id = :device AND (key = :key OR :key = '')",
            domain=self.host, device=device_id, key=key,
        )  # fmt: skip
        if gone:
            self.tell_holders(device_id, "lease.untainted", f"{device_id}: {key or 'all taints'}")
        return gone

    def taints(self) -> dict[str, tuple[Taint, ...]]:
        """The taints of this host's devices that people have put there, by device."""
        found: dict[str, tuple[Taint, ...]] = {}
        rows = self._db.rows("SELECT * FROM taints WHERE domain = :domain ORDER BY device_id, key", domain=self.host)
        for row in rows:
            one = Taint(row["key"], row["value"], row["effect"], row["username"], row["created_at"])
            found[row["device_id"]] = (*found.get(row["device_id"], ()), one)
        return found

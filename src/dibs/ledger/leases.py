"""Leases of units of hardware and of shares of devices. The unique index on live units prevents double booking.

    reserved → attached → draining → free
        └─────────┴──────────┴──→ free

A part of `store.Ledger`. `sandboxes` drives the transitions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from dibs.errors import Busy
from dibs.ledger.base import Books, new_id
from dibs.ledger.rows import Holder, Lease, LeasedDevice, LeaseId, Share, decoded, encode, unit_key
from dibs.sandbox import SandboxId, damaged

_DEVICES = tuple[LeasedDevice, ...]


class Leases(Books):
    def reserve(self, sandbox_id: SandboxId, devices: Sequence[LeasedDevice]) -> Lease:
        """Book the units of the devices. Raises Busy if any is booked: the unique index decides, not a look before."""
        if not self._verified:
            self.verify()
            self._verified = True  # within this transaction nothing else changes
        now = time.time()
        lease = Lease(LeaseId(new_id("ls")), sandbox_id, "reserved", tuple(devices), now, now)
        self._db.execute(
            "INSERT INTO leases (id, sandbox_id, domain, state, devices, created_at, changed_at)"
            " VALUES (:id, :sandbox, :domain, 'reserved', :devices, :now, :now)",
            id=lease.id, sandbox=sandbox_id, domain=self.host, devices=encode(lease.devices), now=now,
        )  # fmt: skip
        for device in devices:
            if device.share is not None:
                self._share(lease, device, device.share)
                continue
            if self.shares_of(device.id, simulated=device.simulated):
                raise Busy("parts of the device are held by others", field="device", value=device.id)
            for unit in (*device.units, *device.marks):
                if not self._book(lease.id, unit_key(unit, simulated=device.simulated)):
                    raise Busy("the device is held", field="device", value=device.id)
        self.note("lease.reserved", sandbox_id=sandbox_id, lease_id=lease.id, detail=_names(devices))
        return lease

    def delegate(self, sandbox_id: SandboxId, domain: str, claim: str) -> Lease:
        """Leave the choice of devices to the scheduler of a domain. Nothing is booked until it has decided: `bind`."""
        now = time.time()
        lease = Lease(
            LeaseId(new_id("ls")), sandbox_id, "reserved", (), now, now, domain=domain, kind="delegated", claim=claim
        )
        self._db.execute(
            "INSERT INTO leases (id, sandbox_id, domain, state, devices, created_at, changed_at, allocation, claim)"
            " VALUES (:id, :sandbox, :domain, 'reserved', '[]', :now, :now, 'delegated', :claim)",
            id=lease.id, sandbox=sandbox_id, domain=domain, now=now, claim=claim,
        )  # fmt: skip
        self.note("lease.delegated", sandbox_id=sandbox_id, lease_id=lease.id, detail=claim)
        return lease

    def bind(self, sandbox_id: SandboxId, node: str, devices: Sequence[LeasedDevice]) -> bool:
        """Record what the scheduler has decided, or decided anew; False if that is known. The unique index holds in
        every domain: raises Busy if another live lease of it has one of the devices."""
        changed = False
        for lease in self.leases(sandbox_id=sandbox_id):
            if lease.kind == "booked" or (
                lease.kind == "bound" and (lease.node, lease.devices) == (node, tuple(devices))
            ):
                continue
            self._db.execute("DELETE FROM lease_units WHERE lease_id = :id", id=lease.id)
            for device in devices:
                for unit in (*device.units, *device.marks):
                    if not self._book(lease.id, unit_key(unit, simulated=device.simulated), lease.domain):
                        raise Busy(
                            "the scheduler has given a device that another holds", field="device", value=device.id
                        )
            self._db.execute(
                "UPDATE leases SET allocation = 'bound', node = :node, devices = :devices, changed_at = :now"
                " WHERE id = :id",
                id=lease.id, node=node, devices=encode(tuple(devices)), now=time.time(),
            )  # fmt: skip
            kind = "lease.moved" if lease.kind == "bound" else "lease.bound"
            self.note(kind, sandbox_id=sandbox_id, lease_id=lease.id, detail=f"{node}: {_names(devices)}")
            changed = True
        return changed

    def _share(self, lease: Lease, device: LeasedDevice, share: Share) -> None:
        """Book a share. That the shares fit together was computed in this transaction; that no lease has the whole
        device is checked here again."""
        held = self.holders()
        if any(unit_key(unit, simulated=device.simulated) in held for unit in device.units):
            raise Busy("the device is held whole", field="device", value=device.id)
        for name, amount in (share.consumed or {"": 0}).items():
            self._db.execute(
                "INSERT INTO lease_shares (lease_id, domain, device_id, share_id, capacity, amount, live)"
                " VALUES (:lease, :domain, :device, :share, :capacity, :amount, 1)",
                lease=lease.id, domain=self.host, device=unit_key(device.id, simulated=device.simulated),
                share=share.id, capacity=name, amount=str(amount),
            )  # fmt: skip

    def shares_of(self, device_id: str, *, simulated: bool) -> int:
        """How many shares of a device are held."""
        rows = self._db.rows(
            "SELECT count(DISTINCT share_id) AS n FROM lease_shares"
            " WHERE live = 1 AND domain = :domain AND device_id = :device",
            domain=self.host, device=unit_key(device_id, simulated=simulated),
        )  # fmt: skip
        return int(rows[0]["n"])

    def leases_of(self, sandboxes: Sequence[str]) -> list[Lease]:
        """All leases of a few sandboxes, also those that are free again."""
        return [lease for one in sandboxes for lease in self.leases(sandbox_id=SandboxId(one), live_only=False)]

    def leases(self, *, sandbox_id: SandboxId | None = None, live_only: bool = True) -> list[Lease]:
        where = self._here("l.domain")
        where += " AND l.sandbox_id = :sandbox" if sandbox_id else ""
        where += " AND l.state <> 'free'" if live_only else ""
        rows = self._db.rows(
            "SELECT l.*, s.name AS sandbox_name, s.username, s.tenant, s.backend"  # noqa: S608 - fixed text
            " FROM leases l JOIN sandboxes s ON s.id = l.sandbox_id"
            f" WHERE {where} ORDER BY s.seq, l.id",
            **self._domains, sandbox=sandbox_id,
        )  # fmt: skip
        return [_lease(row, self.host) for row in rows]

    def holders(self) -> dict[str, Holder]:
        """Every booked unit of this host, and who has it. Keys are those of `unit_key`."""
        rows = self._db.rows(
            "SELECT u.unit_id, l.id AS lease_id, l.sandbox_id, s.name, s.username, s.tenant, l.created_at, l.state"
            " FROM lease_units u JOIN leases l ON l.id = u.lease_id JOIN sandboxes s ON s.id = l.sandbox_id"
            " WHERE u.live = 1 AND u.domain = :domain",
            domain=self.host,
        )
        return {
            row["unit_id"]: Holder(
                row["lease_id"], row["sandbox_id"], row["name"], row["username"], row["created_at"], row["state"],
                row["tenant"],
            )
            for row in rows
        }  # fmt: skip

    def held_units(self) -> set[str]:
        """The keys of all booked units of this host: what a plan needs where the holders do not matter."""
        rows = self._db.rows("SELECT unit_id FROM lease_units WHERE live = 1 AND domain = :domain", domain=self.host)
        return {row["unit_id"] for row in rows}

    def any_shares(self) -> bool:
        """Whether a share of any device of this host is held."""
        found = self._db.rows(
            "SELECT 1 FROM lease_shares WHERE live = 1 AND domain = :domain LIMIT 1", domain=self.host
        )
        return bool(found)

    def tell_holders(self, device_id: str, kind: str, detail: str) -> None:
        """An event for every live lease that has a device."""
        for lease in self.leases():
            if any(device.id == device_id for device in lease.devices):
                self.note(kind, sandbox_id=lease.sandbox_id, lease_id=lease.id, detail=detail)

    def verify(self) -> None:
        """What is booked must be what the live leases name: each is kept twice, and damage to one shows in the other.
        Raises StateError: a decision on half of it could give a device away twice."""
        claims, booked = self._claims_and_bookings()
        if claims.keys() != booked:
            odd = sorted(claims.keys() ^ booked, key=str)
            raise damaged(", ".join(map(str, odd[:5])), "leases and booked units do not agree")

    def _claims_and_bookings(self) -> tuple[dict[str, LeaseId], set[str]]:
        """The units that live leases name, and those that are booked. In one statement, so that both are of the same
        moment, whatever else is committed meanwhile."""
        claims: dict[str, LeaseId] = {}
        booked: set[str] = set()
        for row in self._db.rows(
            "SELECT id, devices, NULL AS unit_id FROM leases WHERE domain = :domain AND state <> 'free'"
            " UNION ALL SELECT lease_id, NULL, unit_id FROM lease_units WHERE live = 1 AND domain = :domain",
            domain=self.host,
        ):
            if row["unit_id"] is not None:
                booked.add(row["unit_id"])
                continue
            for device in decoded(_DEVICES, row["devices"], f"lease {row['id']}"):
                if device.share is None:
                    units = (*device.units, *device.marks)
                    claims.update({unit_key(unit, simulated=device.simulated): row["id"] for unit in units})
        return claims, booked

    def _book(self, lease_id: str, unit: str, domain: str = "") -> bool:
        """Book a unit, by its key, in a domain; "" is this host. False if another lease has it: the index decides."""
        return self._db.execute(
            "INSERT INTO lease_units (lease_id, domain, unit_id, live) VALUES (:lease, :domain, :unit, 1)"
            " ON CONFLICT DO NOTHING",
            lease=lease_id, domain=domain or self.host, unit=unit,
        ) == 1  # fmt: skip

    def _free(self, sandbox_id: SandboxId, now: float) -> None:
        """Give back all that a sandbox holds, whose absence is proved."""
        self._free_leases(sandbox_id, now)
        # A device that a forgotten sandbox has too is now its alone.
        claims, booked = self._claims_and_bookings()
        for unit in claims.keys() - booked:
            self._book(claims[unit], unit)

    def _free_leases(self, sandbox_id: SandboxId, now: float) -> None:
        for lease in self.leases(sandbox_id=sandbox_id, live_only=True):
            self._db.execute("UPDATE lease_units SET live = 0 WHERE lease_id = :id", id=lease.id)
            self._db.execute("UPDATE lease_shares SET live = 0 WHERE lease_id = :id", id=lease.id)
            self._db.execute("UPDATE leases SET state = 'free', changed_at = :now WHERE id = :id", id=lease.id, now=now)
            self._freed()
            self.note("lease.free", sandbox_id=sandbox_id, lease_id=lease.id, detail=_names(lease.devices))

    def _forget_leases(self, sandbox_id: SandboxId) -> None:
        """Drop the free leases of a sandbox from the books."""
        for table in ("lease_units", "lease_shares"):
            self._db.execute(
                f"DELETE FROM {table} WHERE live = 0"  # noqa: S608 - names of ours
                " AND lease_id IN (SELECT id FROM leases WHERE sandbox_id = :id AND state = 'free')",
                id=sandbox_id,
            )
        self._db.execute("DELETE FROM leases WHERE sandbox_id = :id AND state = 'free'", id=sandbox_id)


def _names(devices: Sequence[LeasedDevice]) -> str:
    return ", ".join(device.id for device in devices)


# A field is left out of what is printed only if its value is the very object that is its default.
_KINDS: dict[str, Literal["booked", "delegated", "bound"]] = {one: one for one in ("booked", "delegated", "bound")}


def _lease(row: Any, host: str) -> Lease:
    kind = _KINDS.get(row["allocation"])
    if kind is None:
        raise damaged(f"lease {row['id']}", f"allocation {row['allocation']!r}")
    return Lease(
        row["id"], row["sandbox_id"], row["state"], decoded(_DEVICES, row["devices"], f"lease {row['id']}"),
        row["created_at"], row["changed_at"], row["sandbox_name"], row["username"], row["tenant"], row["backend"],
        "" if row["domain"] == host else row["domain"], kind, row["claim"], row["node"],
    )  # fmt: skip

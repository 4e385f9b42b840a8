"""The ledger's verbs. Each is one short transaction, or part of one that the caller has opened with `writing()`.

`workloads` is the only caller. The ledger knows nothing of backends: who is alive is decided above and told here.

    lease     reserved → attached → draining → free        sandbox   creating → running ⇄ paused → stopping → exited
                  └─────────────────────┴──→ free                        └──────────┴──────────→ failed
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from dibs.errors import Busy, Conflict, NotFound
from dibs.home import Home
from dibs.ledger.database import Database
from dibs.ledger.rows import (
    Event,
    Holder,
    Lease,
    LeasedDevice,
    LeaseId,
    SandboxId,
    SandboxRow,
    Share,
    Taint,
    Ticket,
    encode,
    unit_key,
)
from dibs.process import ProcessName, host_id

_DEVICES = msgspec.json.Decoder(tuple[LeasedDevice, ...])
_PROCESS = msgspec.json.Decoder(ProcessName)


def new_id(prefix: str) -> str:
    """Short enough to type, long enough not to meet: 48 random bits."""
    return f"{prefix}-{os.urandom(6).hex()}"


class Ledger:
    """One open ledger of one host."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.host = host_id()
        self._db = Database(home.make().ledger)
        if home.shared:
            _share(home)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction around several verbs. Nobody else writes meanwhile; on an exception nothing has happened."""
        with self._db.write():
            yield

    def changes_by_others(self) -> int:
        return self._db.changes_by_others()

    # -- leases -----------------------------------------------------------------------------------------------------

    def add_sandbox(self, row: SandboxRow) -> None:
        """Enter a sandbox that is about to be created. Its name must be free."""
        try:
            self._db.execute(
                "INSERT INTO sandboxes (id, host, name, backend, state, uid, username, owner, spec, folder, simulated,"
                " created_at) VALUES (:id, :host, :name, :backend, :state, :uid, :username, :owner, :spec, :folder,"
                " :simulated, :created_at)",
                id=row.id,
                host=self.host,
                name=row.name,
                backend=row.backend,
                state=row.state,
                uid=row.uid,
                username=row.username,
                owner=encode(row.owner),
                spec=row.spec.decode(),
                folder=row.folder,
                simulated=int(row.simulated),
                created_at=row.created_at,
            )
        except sqlite3.IntegrityError as error:
            raise Conflict(
                "a sandbox of that name is alive", field="name", value=row.name, code="NAME_TAKEN",
                remedy=f"take another name, or remove it with `dibs sandbox rm {row.name}`",
            ) from error  # fmt: skip
        self.note("sandbox.creating", sandbox_id=row.id)

    def reserve(self, sandbox_id: SandboxId, devices: Sequence[LeasedDevice]) -> Lease:
        """Book the units of the devices. Raises Busy if any is booked: the unique index decides, not a look before."""
        now = time.time()
        lease = Lease(LeaseId(new_id("ls")), sandbox_id, "reserved", tuple(devices), now, now)
        self._db.execute(
            "INSERT INTO leases (id, sandbox_id, host, state, devices, created_at, changed_at)"
            " VALUES (:id, :sandbox, :host, 'reserved', :devices, :now, :now)",
            id=lease.id, sandbox=sandbox_id, host=self.host, devices=encode(lease.devices), now=now,
        )  # fmt: skip
        for device in devices:
            if device.share is not None:
                self._share(lease, device, device.share)
                continue
            if self.shares_of(device.id, simulated=device.simulated):
                raise Busy("parts of the device are held by others", field="device", value=device.id)
            for unit in device.units:
                try:
                    self._db.execute(
                        "INSERT INTO lease_units (lease_id, host, unit_id, live) VALUES (:lease, :host, :unit, 1)",
                        lease=lease.id, host=self.host, unit=unit_key(unit, simulated=device.simulated),
                    )  # fmt: skip
                except sqlite3.IntegrityError as error:
                    raise Busy("the device is held", field="device", value=device.id) from error
        self.note("lease.reserved", sandbox_id=sandbox_id, lease_id=lease.id, detail=_names(devices))
        return lease

    def _share(self, lease: Lease, device: LeasedDevice, share: Share) -> None:
        """Book a share. That the shares fit together was computed in this transaction; that nobody has the whole
        device is checked here again."""
        held = self.holders()
        if any(unit_key(unit, simulated=device.simulated) in held for unit in device.units):
            raise Busy("the device is held whole", field="device", value=device.id)
        for name, amount in (share.consumed or {"": 0}).items():
            self._db.execute(
                "INSERT INTO lease_shares (lease_id, host, device_id, share_id, capacity, amount, live)"
                " VALUES (:lease, :host, :device, :share, :capacity, :amount, 1)",
                lease=lease.id, host=self.host, device=unit_key(device.id, simulated=device.simulated), share=share.id,
                capacity=name, amount=str(amount),
            )  # fmt: skip

    def shares_of(self, device_id: str, *, simulated: bool) -> int:
        """How many shares of a device are held."""
        rows = self._db.rows(
            "SELECT count(DISTINCT share_id) AS n FROM lease_shares"
            " WHERE live = 1 AND host = :host AND device_id = :device",
            host=self.host, device=unit_key(device_id, simulated=simulated),
        )  # fmt: skip
        return int(rows[0]["n"])

    # -- taints -----------------------------------------------------------------------------------------------------

    def taint(self, device_id: str, taint: Taint) -> None:
        """Put a taint on a device, in place of one with the same key and effect. Those who hold it are told."""
        self._db.execute(
            "INSERT INTO taints (host, device_id, key, value, effect, username, created_at)"
            " VALUES (:host, :device, :key, :value, :effect, :username, :now)"
            " ON CONFLICT (host, device_id, key, effect)"
            " DO UPDATE SET value = :value, username = :username, created_at = :now",
            host=self.host, device=device_id, key=taint.key, value=taint.value, effect=taint.effect,
            username=taint.username, now=time.time(),
        )  # fmt: skip
        self.tell_holders(device_id, "lease.tainted", f"{device_id}: {taint}")

    def untaint(self, device_id: str, key: str) -> int:
        """Take the taints of a key (all for "") off a device; how many there were."""
        gone = self._db.execute(
            "DELETE FROM taints WHERE host = :host AND device_id = :device AND (key = :key OR :key = '')",
            host=self.host, device=device_id, key=key,
        )  # fmt: skip
        if gone:
            self.tell_holders(device_id, "lease.untainted", f"{device_id}: {key or 'all taints'}")
        return gone

    def taints(self) -> dict[str, tuple[Taint, ...]]:
        """The taints of this host's devices that people have put there, by device."""
        found: dict[str, tuple[Taint, ...]] = {}
        rows = self._db.rows("SELECT * FROM taints WHERE host = :host ORDER BY device_id, key", host=self.host)
        for row in rows:
            one = Taint(row["key"], row["value"], row["effect"], row["username"], row["created_at"])
            found[row["device_id"]] = (*found.get(row["device_id"], ()), one)
        return found

    def tell_holders(self, device_id: str, kind: str, detail: str) -> None:
        """An event for every live lease that has a device."""
        for lease in self.leases():
            if any(device.id == device_id for device in lease.devices):
                self.note(kind, sandbox_id=lease.sandbox_id, lease_id=lease.id, detail=detail)

    # -- sandboxes while they live ----------------------------------------------------------------------------------

    def attach(self, sandbox_id: SandboxId, *, handle: bytes, receipt: bytes) -> None:
        """The workload is ready and was seen to have what was planned. Only after this may its command run."""
        now = time.time()
        changed = self._db.execute(
            "UPDATE sandboxes SET state = 'running', handle = :handle, receipt = :receipt, started_at = :now"
            " WHERE id = :id AND state = 'creating'",
            id=sandbox_id, handle=handle.decode(), receipt=receipt.decode(), now=now,
        )  # fmt: skip
        if changed != 1:
            raise Conflict("the sandbox is no longer being created", field="sandbox", value=sandbox_id)
        self._db.execute(
            "UPDATE leases SET state = 'attached', changed_at = :now WHERE sandbox_id = :id AND state = 'reserved'",
            id=sandbox_id, now=now,
        )  # fmt: skip
        self.note("sandbox.running", sandbox_id=sandbox_id)

    def keep_receipt(self, sandbox_id: SandboxId, receipt: bytes) -> None:
        self._db.execute(
            "UPDATE sandboxes SET receipt = :receipt WHERE id = :id", id=sandbox_id, receipt=receipt.decode()
        )

    def set_state(self, sandbox_id: SandboxId, state: str, *, expected: Sequence[str]) -> None:
        """Move a live sandbox on, if it is where the caller believes it to be."""
        marks = ", ".join(f":e{i}" for i in range(len(expected)))
        values = {f"e{i}": value for i, value in enumerate(expected)}
        changed = self._db.execute(
            f"UPDATE sandboxes SET state = :state WHERE id = :id AND state IN ({marks})",  # noqa: S608 - marks are ours
            id=sandbox_id, state=state, **values,
        )  # fmt: skip
        if changed != 1:
            row = self.sandbox(sandbox_id)
            raise Conflict(
                f"the sandbox is {row.state}", field="sandbox", value=row.name, code="WRONG_STATE",
                remedy=f"this needs a sandbox that is {' or '.join(expected)}",
            )  # fmt: skip
        if state == "stopping":
            self._db.execute(
                "UPDATE leases SET state = 'draining', changed_at = :now WHERE sandbox_id = :id AND state <> 'free'",
                id=sandbox_id, now=time.time(),
            )  # fmt: skip
        self.note(f"sandbox.{state}", sandbox_id=sandbox_id)

    def end(self, sandbox_id: SandboxId, state: str, *, exit: bytes | None, reason: str) -> bool:  # noqa: A002
        """The workload is proved gone: record how it ended and free its devices. False if that was done before."""
        now = time.time()
        changed = self._db.execute(
            "UPDATE sandboxes SET state = :state, exit = :exit, reason = :reason, ended_at = :now"
            " WHERE id = :id AND ended_at IS NULL",
            id=sandbox_id, state=state, exit=exit.decode() if exit else None, reason=reason, now=now,
        )  # fmt: skip
        if changed != 1:
            return False
        for lease in self.leases(sandbox_id=sandbox_id, live_only=True):
            self._db.execute("UPDATE lease_units SET live = 0 WHERE lease_id = :id", id=lease.id)
            self._db.execute("UPDATE lease_shares SET live = 0 WHERE lease_id = :id", id=lease.id)
            self._db.execute("UPDATE leases SET state = 'free', changed_at = :now WHERE id = :id", id=lease.id, now=now)
            self.note("lease.free", sandbox_id=sandbox_id, lease_id=lease.id, detail=_names(lease.devices))
        self.note(f"sandbox.{state}", sandbox_id=sandbox_id, detail=reason)
        return True

    def forget(self, sandbox_id: SandboxId) -> None:
        """Drop an ended sandbox from the books. Its events stay."""
        self._db.execute(
            "DELETE FROM lease_units WHERE live = 0"
            " AND lease_id IN (SELECT id FROM leases WHERE sandbox_id = :id AND state = 'free')",
            id=sandbox_id,
        )
        self._db.execute(
            "DELETE FROM lease_shares WHERE live = 0"
            " AND lease_id IN (SELECT id FROM leases WHERE sandbox_id = :id AND state = 'free')",
            id=sandbox_id,
        )
        self._db.execute("DELETE FROM leases WHERE sandbox_id = :id AND state = 'free'", id=sandbox_id)
        changed = self._db.execute("DELETE FROM sandboxes WHERE id = :id AND ended_at IS NOT NULL", id=sandbox_id)
        if changed:
            self.note("sandbox.removed", sandbox_id=sandbox_id)

    def leases(self, *, sandbox_id: SandboxId | None = None, live_only: bool = True) -> list[Lease]:
        where = "l.host = :host"
        where += " AND l.sandbox_id = :sandbox" if sandbox_id else ""
        where += " AND l.state <> 'free'" if live_only else ""
        rows = self._db.rows(
            "SELECT l.*, s.name AS sandbox_name, s.username FROM leases l JOIN sandboxes s ON s.id = l.sandbox_id"  # noqa: S608 - fixed text
            f" WHERE {where} ORDER BY l.created_at, l.id",
            host=self.host, sandbox=sandbox_id,
        )  # fmt: skip
        return [_lease(row) for row in rows]

    def holders(self) -> dict[str, Holder]:
        """Every booked unit of this host, and who has it. Keys are those of `unit_key`."""
        rows = self._db.rows(
            "SELECT u.unit_id, l.id AS lease_id, l.sandbox_id, s.name, s.username, l.created_at, l.state"
            " FROM lease_units u JOIN leases l ON l.id = u.lease_id JOIN sandboxes s ON s.id = l.sandbox_id"
            " WHERE u.live = 1 AND u.host = :host",
            host=self.host,
        )
        return {
            row["unit_id"]: Holder(
                row["lease_id"], row["sandbox_id"], row["name"], row["username"], row["created_at"], row["state"]
            )
            for row in rows
        }

    # -- sandboxes --------------------------------------------------------------------------------------------------

    def sandboxes(self, *, live_only: bool = False) -> list[SandboxRow]:
        where = " AND ended_at IS NULL" if live_only else ""
        rows = self._db.rows(
            f"SELECT * FROM sandboxes WHERE host = :host{where} ORDER BY created_at, id",  # noqa: S608 - fixed text
            host=self.host,
        )
        return [_sandbox(row) for row in rows]

    def sandbox(self, reference: str) -> SandboxRow:
        """By id, by the start of an id, or by name: the live one, else the newest that had it."""
        rows = self._db.rows("SELECT * FROM sandboxes WHERE id = :ref", ref=reference) or self._db.rows(
            "SELECT * FROM sandboxes WHERE host = :host AND name = :ref"
            " ORDER BY ended_at IS NOT NULL, created_at DESC LIMIT 1",
            host=self.host, ref=reference,
        )  # fmt: skip
        if not rows and len(reference) >= 4 and reference.replace("-", "").isalnum():
            rows = self._db.rows(
                "SELECT * FROM sandboxes WHERE host = :host AND (id LIKE :start OR id LIKE :long) LIMIT 2",
                host=self.host, start=f"{reference}%", long=f"sb-{reference}%",
            )  # fmt: skip
        if not rows:
            remedy = "`dibs sandbox ls --all` shows what there is"
            raise NotFound("there is no such sandbox", field="sandbox", value=reference, remedy=remedy)
        if len(rows) > 1:
            remedy = "write more of the id"
            raise Conflict("several sandboxes begin so", field="sandbox", value=reference, remedy=remedy)
        return _sandbox(rows[0])

    # -- the queue --------------------------------------------------------------------------------------------------

    def enqueue(self, owner: ProcessName, uid: int, username: str, request: bytes) -> str:
        ticket = new_id("tk")
        self._db.execute(
            "INSERT INTO tickets (id, host, uid, username, owner, request, created_at)"
            " VALUES (:id, :host, :uid, :username, :owner, :request, :now)",
            id=ticket, host=self.host, uid=uid, username=username, owner=encode(owner), request=request.decode(),
            now=time.time(),
        )  # fmt: skip
        self.note("queue.joined", detail=ticket)
        return ticket

    def tickets(self) -> list[Ticket]:
        """Those who wait, first come first."""
        rows = self._db.rows("SELECT * FROM tickets WHERE host = :host ORDER BY seq", host=self.host)
        return [
            Ticket(
                row["seq"], row["id"], row["username"], _PROCESS.decode(row["owner"]), row["request"].encode(),
                row["created_at"],
            )
            for row in rows
        ]  # fmt: skip

    def dequeue(self, ticket: str, why: str) -> None:
        if self._db.execute("DELETE FROM tickets WHERE id = :id", id=ticket):
            self.note("queue.left", detail=f"{ticket}: {why}")

    # -- events -----------------------------------------------------------------------------------------------------

    def note(self, kind: str, *, sandbox_id: str | None = None, lease_id: str | None = None, detail: str = "") -> None:
        self._db.execute(
            "INSERT INTO events (at, kind, sandbox_id, lease_id, detail)"
            " VALUES (:at, :kind, :sandbox, :lease, :detail)",
            at=time.time(), kind=kind, sandbox=sandbox_id, lease=lease_id, detail=detail,
        )  # fmt: skip

    def events(self, *, sandbox_id: str | None = None, after: int = 0, limit: int = 1000) -> list[Event]:
        where = " AND sandbox_id = :sandbox" if sandbox_id else ""
        rows = self._db.rows(
            f"SELECT * FROM events WHERE seq > :after{where} ORDER BY seq LIMIT :limit",  # noqa: S608 - fixed text
            after=after, sandbox=sandbox_id, limit=limit,
        )  # fmt: skip
        return [msgspec.convert(row, Event) for row in rows]


def _names(devices: Sequence[LeasedDevice]) -> str:
    return ", ".join(device.id for device in devices)


def _lease(row: Any) -> Lease:
    return Lease(
        row["id"], row["sandbox_id"], row["state"], _DEVICES.decode(row["devices"]), row["created_at"],
        row["changed_at"], row["sandbox_name"], row["username"],
    )  # fmt: skip


def _sandbox(row: Any) -> SandboxRow:
    def data(key: str) -> bytes | None:
        return row[key].encode() if row[key] is not None else None

    return SandboxRow(
        id=row["id"],
        name=row["name"],
        backend=row["backend"],
        state=row["state"],
        uid=row["uid"],
        username=row["username"],
        owner=_PROCESS.decode(row["owner"]),
        spec=row["spec"].encode(),
        folder=row["folder"],
        created_at=row["created_at"],
        handle=data("handle"),
        receipt=data("receipt"),
        exit=data("exit"),
        reason=row["reason"],
        simulated=bool(row["simulated"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def _share(home: Home) -> None:
    """A host-wide ledger: the group may write what we have made."""
    for path in (home.ledger, home.ledger.with_name("ledger.db-wal"), home.ledger.with_name("ledger.db-shm")):
        try:
            if path.stat().st_uid == os.getuid():
                path.chmod(0o660)
        except FileNotFoundError:
            continue
